"""What a sweep will take: hours by cells that have run or by FLOP, and what fits a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regbench.benchmark.rundir.record_parts import Cost
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import STAGES
from regbench.benchmark.settings.sweep import load_grid
from regbench.datasets.stored.manifest import Manifest
from regbench.files import write_text
from regbench.sweeps.forecast import Planned, plan, refuse_oversized, rows, summary
from regbench.sweeps.predict import Needs
from tests.records import made
from tests.refusals import is_refused
from tests.there import there

IN100 = ["dataset=in100", "augmentation=imagenet", "network=resnet18"]
IN100 += ["batch_size=256", "cluster.gpus=8"]


def ran(runs: Path, overrides: list[str], **more: Any) -> None:
    """A finished cell of another sweep."""
    cell = load_grid(overrides).cells[0]
    record = made(cell.plain(), method=cell.plain()["method"]["name"], **more)
    write_text(runs / "other" / cell.id / "record.json", record.text())


def test_gpu_hours_by_the_time_of_like_cells(
    tiny: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What took 2 GPUs 60 s for each of 2 epochs, 50 s for evaluations while they trained, and
    one of them 500 s for the last ones, takes 1800 s for 10 epochs.

    It is the median of three. One of them shared its machine, and one had a faster one.
    """
    runs, endless = tmp_path / "runs", Cost(train_s=1e9, evaluate_s=1e9)
    vicreg = [*tiny, "method=vicreg"]
    environment, cost = {"world_size": 2}, Cost(train_s=120.0, monitor_s=50.0, evaluate_s=500.0)
    ran(runs, [*vicreg, "seed=7"], environment=environment, cost=cost)
    ran(runs, [*vicreg, "seed=6"], cost=endless)
    ran(runs, [*vicreg, "seed=5"], cost=Cost(train_s=2.0, evaluate_s=0.0))
    ran(runs, [*vicreg, "seed=8", "embedding_dim=32"], cost=Cost(train_s=360.0, evaluate_s=800.0))
    ran(runs, [*vicreg, "seed=9"], status="diverged", cost=endless)
    # That it went on with other GPUs leaves open how many seconds each of them took.
    ran(runs, [*vicreg, "seed=4"], environment={"world_size": "4, then 2"}, cost=endless)
    others = ["dataset.name=other", "network.projector.hidden_dim=7", "batch_size=64"]
    others += ["precision=fp32", "micro_batch_size=16", "baseline=supervised"]
    for other in others:
        ran(runs, [*vicreg, other], cost=endless)
    ran(runs, [*vicreg, "epochs=0", "optimizer.warmup_epochs=0"])
    write_text(runs / "other" / "damaged" / "record.json", "{")
    foreign = load_grid(vicreg).cells[0].plain()
    del foreign["precision"]
    record = made(foreign, method="vicreg", cost=endless)
    write_text(runs / "other" / "foreign" / "record.json", record.text())
    planned = plan(load_grid([*vicreg, "epochs=10", "seed=0,1"]))
    assert "damaged" in caplog.text
    assert [entry.gpu_hours for entry in planned] == pytest.approx([0.5, 0.5])
    assert [row["GPU hours"] for row in rows(planned)] == ["0.5", "0.5"]
    assert "2 cells, 0 done, 2 to run; 1 GPU hours by the time of like cells; " in summary(planned)
    # Of another method there is at least the time of the same network on the same images: the
    # median of all four.
    (unlike,) = plan(load_grid([*tiny, "method=simclr"]))
    assert unlike.gpu_hours == pytest.approx((2 * (120 + 180) / 2 + (600 + 800) / 2) / 3600)
    assert not unlike.from_flop


def test_what_is_tuned_is_not_trained_again(tiny: list[str], tmp_path: Path) -> None:
    """It is done, or is still to be scored on the test split."""
    ran(tmp_path / "runs", [*tiny, "method=vicreg"], cost=Cost(train_s=3600.0, evaluate_s=1800.0))
    sweep = load_grid([*tiny, "method=vicreg"])
    (cell,) = sweep.cells
    write_text(sweep.folder / cell.id / "tuning.json", made(cell.plain(), status="tuned").text())
    (tuning,), (final,) = plan(sweep, STAGES[:2]), plan(sweep)
    assert (tuning.done, final.done, final.gpu_hours) == (True, False, 0.5)


def test_a_plan_is_a_row_of_each_cell_and_a_line(tiny: list[str]) -> None:
    """The first is done, and so counts for nothing that is to come."""

    def needs(factor: int) -> Needs:
        sizes = {"peak_bytes": 2_340_000_000, "parameters": 5_600_000}
        sizes |= {"sent_bytes_per_step": 123_400_000, "checkpoint_bytes": 45_600_000}
        sizes["flop_per_step"] = 7_891_000_000_000
        return Needs(**{key: factor * value for key, value in sizes.items()})

    cells = load_grid([*tiny, "method=vicreg", "seed=0,1,2,3,4,5"]).cells
    takes: list[tuple[Any, ...]] = [
        (True, 4, needs(9), False, 900.0, False),
        (False, 4, needs(1), False, 1.25, False),
        (False, 4, needs(3), True, 3.0, False),
        (False, 4, needs(2), None, 16.0, True),
        (False, 4, needs(2), None, 32.0, True),
        (False, 4, None, None, None, False),
    ]
    planned = [Planned(cell, *each) for cell, each in zip(cells, takes, strict=True)]
    shown = list(rows(planned))
    sizes = {"GB/GPU": "2.34", "parameters (M)": "5.6", "TFLOP/step": "7.89"}
    assert shown[1] == {
        **{"cell": cells[1].id, "": "DOES NOT FIT", "method": "VICReg"},
        **{"q": 16, "n": 32, "epochs": 2, "seed": 1},
        **{"data": "tiny", "network": "resnet_tiny", "GPUs": 4, **sizes},
        **{"sent GB/step": "0.123", "checkpoint GB": "0.0456", "GPU hours": "1.25"},
    }
    assert [row[""] for row in shown] == ["done", "DOES NOT FIT", *["to run"] * 4]
    assert [row["GPU hours"] for row in shown] == ["–", "1.25", "3", "≈ 16", "≈ 32", "–"]
    assert [shown[5][head] for head in (*sizes, "sent GB/step", "checkpoint GB")] == ["–"] * 5
    assert summary(planned) == (
        "6 cells, 1 done, 5 to run; 4.25 GPU hours by the time of like cells; ≈ 48 GPU hours for "
        "the training of 2 cells: an estimate from FLOP, as no like cell has run yet, at 50 "
        "TFLOP/s a GPU; GPU hours of 1 cell unknown: no like cell has run yet; at most 7.02 GB a "
        "GPU (predicted), 0.73 GB of disk; 1 do not fit"
    )
    assert summary(planned[:1]) == "1 cell, 1 done, 0 to run"


def test_gpu_hours_from_flop_on_a_new_cluster(tmp_path: Path) -> None:
    """100 epochs of 1,281,167 images, two views each, in a ResNet-18: 10.6 GFLOP a view, and
    the projector's.
    """
    where = [f"runtime.runs_dir={tmp_path}", f"runtime.data_dir={tmp_path}"]
    settings = [*IN100, *where, "method=vicreg", "epochs=100", "optimizer.warmup_epochs=10"]
    settings += ["embedding_dim=64", "network.projector.hidden_dim=64"]
    (entry,) = plan(load_grid(settings))
    assert entry.from_flop
    assert entry.gpu_hours == pytest.approx(100 * 1_281_167 * 2 * 10.65e9 / 50e12 / 3600, rel=0.02)
    (row,) = rows([entry])
    assert row["GPU hours"] == f"≈ {entry.gpu_hours:.3g}"
    told = summary([entry])
    assert f"≈ {entry.gpu_hours:.3g} GPU hours for the training: an estimate from FLOP" in told
    assert "at 50 TFLOP/s a GPU" in told


def test_the_gpus_of_a_plan_are_those_that_train(tiny: list[str]) -> None:
    settings = [*tiny, "method=vicreg", "runtime.device=cuda", "batch_size=64", "cluster.gpus=1"]
    stages = "cluster.stages={pretrain:{gpus:8},tune:{},final:{}}"
    sweeps = [load_grid(settings), load_grid([*settings, stages])]
    assert [plan(sweep)[0].gpus for sweep in sweeps] == [1, 8]
    alone, shared = (there(plan(sweep)[0].needs) for sweep in sweeps)
    assert alone.peak_bytes > shared.peak_bytes


def test_each_number_of_channels_has_its_own_needs(tiny: list[str]) -> None:
    planned = plan(load_grid([*tiny, "method=vicreg", "dataset.shared_bits=0,4"]))
    narrow, wide = (there(entry.needs).parameters for entry in planned)
    assert wide > narrow


def test_a_training_sees_the_images_without_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STL-10 has 100,000 of them, and 4,000 with labels; what is prepared here is a part."""
    settings = ["dataset=stl10", "augmentation=small_color", "network=resnet_tiny"]
    settings += ["runtime.device=cuda", "epochs=3", "batch_size=100", "embedding_dim=16"]
    settings += [f"runtime.runs_dir={tmp_path}", f"runtime.data_dir={tmp_path}"]

    def steps(*more: str) -> float:
        (entry,) = plan(load_grid([*settings, *more]))
        assert entry.gpu_hours is not None and entry.needs is not None
        return entry.gpu_hours * 3600 * 50e12 / entry.needs.flop_per_step / 3

    def prepare(**images: int) -> None:
        splits = {split: {"num_samples": count} for split, count in images.items()}
        fields: Any = {"name": "stl10", "class_names": list("abcdefghij"), "source": {}}
        fields |= {"beton_version": 2, "regbench_version": "", "created": "", "splits": splits}
        prepared = Manifest(**fields)
        monkeypatch.setattr(Manifest, "load", lambda *_: prepared)

    few, part = "dataset.train_per_class=30", "dataset.pretraining_images=800"
    cases = ["method=vicreg"], ["method=vicreg", few], ["method=vicreg", part]
    assert [steps(*case) for case in cases] == pytest.approx([1000, 1000, 8])
    supervised = ["baseline=supervised", few]
    assert steps(*supervised) == pytest.approx(3)
    prepare(train=500, unlabeled=2000)
    assert [steps(*case) for case in cases] == pytest.approx([20, 20, 8])
    assert steps("baseline=supervised") == pytest.approx(5)
    assert steps(*supervised) == pytest.approx(3)
    prepare(train=500)
    assert [steps(*case) for case in cases[:2]] == pytest.approx([5, 3])


def test_no_gpu_hours_without_gpus_or_images(tiny: list[str], tmp_path: Path) -> None:
    """On the machine's own processors FLOP say little, and images of one's own are counted when
    they are prepared.
    """
    (own,) = plan(load_grid([*tiny, "method=vicreg"]))
    (none,) = plan(load_grid([*tiny, "method=vicreg", "runtime.device=auto", "cluster.gpus=0"]))
    (gpu,) = plan(load_grid([*tiny, "method=vicreg", "runtime.device=cuda"]))
    unknown = [*tiny, "method=vicreg", "runtime.device=cuda", "dataset.name=other"]
    unknown += [f"dataset.source.{split}_per_class=null" for split in ("train", "tuning")]
    (images,) = plan(load_grid(unknown))
    assert (own.gpu_hours, none.gpu_hours, images.gpu_hours) == (None, None, None)
    assert gpu.gpu_hours is not None and gpu.needs is not None
    # 120 images, 2 epochs
    assert gpu.gpu_hours * 3600 * 50e12 == pytest.approx(3 * 2 * gpu.needs.flop_per_step)
    # to be prepared yet
    for per_class in ("dataset.source.train_per_class=100", "dataset.train_per_class=100"):
        (entry,) = plan(load_grid([*unknown, per_class]))
        assert entry.gpu_hours == pytest.approx(gpu.gpu_hours * 9 / 3)
    assert "; GPU hours unknown: no like cell has run yet; " in summary([own])
    assert "GPU hours of 1 cell unknown" in summary([own, gpu])
    assert "for the training of 1 cell: an estimate" in summary([own, gpu])


def test_cells_of_one_shape_are_predicted_once(
    tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prediction takes long, and that of another shape is another."""
    asked: list[tuple[Cell, dict[str, Any]]] = []

    def predicted(cell: Cell, **where: Any) -> Needs:
        asked.append((cell, where))
        return needed

    (entry,) = plan(load_grid([*tiny, "method=vicreg"]))
    needed = there(entry.needs)
    monkeypatch.setattr("regbench.sweeps.forecast.predict", predicted)
    monkeypatch.setattr("regbench.sweeps.forecast._NEEDS", {})
    alike = [[], ["seed=1"], ["optimizer.base_lr=2"], ["method.alignment_weight=7"], ["epochs=9"]]
    apart = [
        *(["method=simclr"], ["embedding_dim=32"], ["batch_size=64"], ["micro_batch_size=16"]),
        *(["precision=fp32"], ["cluster.gpus=2"], ["network.projector.hidden_dim=7"]),
        ["optimizer.momentum=0"],  # SGD then has no state
        *(["dataset.image_size=20"], ["optimizer=adamw", "optimizer.warmup_epochs=1"]),
        *(["augmentation=small_grey_crops"], ["baseline=supervised"]),
        ["dataset.channels=1", "dataset.mean=[0.5]", "dataset.std=[0.5]"],
        *(["method=sfrik_l2"], ["method=sfrik_l3"]),  # which has no covariance form
    ]
    for number in (64, 128):
        apart.append(["method=dino", "network.teacher=ema", f"method.prototypes={number}"])
        apart.append(["method=sigreg", f"method.directions={number}"])
    common = [*tiny, "method=vicreg", "runtime.loss_form=textbook"]
    untrained = ["epochs=0", "optimizer.warmup_epochs=0"]
    grids = [load_grid([*common, *own]) for own in (*alike, *apart, untrained)]
    cells, clusters = zip(*((grid.cells[0], grid.clusters[0]) for grid in grids), strict=True)
    planned = plan(replace(grids[0], cells=cells, clusters=clusters))
    assert [cell for cell, _ in asked] == [cells[0], *cells[len(alike) : -1]]
    assert [where["world_size"] for _, where in asked] == [1] * 6 + [2] + [1] * 13
    assert {where["loss_form"] for _, where in asked} == {"textbook"}
    assert [entry.needs for entry in planned] == [needed] * (len(grids) - 1) + [None]


def test_a_prediction_may_take_nine_tenths_of_a_gpu(tiny: list[str]) -> None:
    settings = [*tiny, "method=vicreg"]
    (entry,) = plan(load_grid(settings))
    assert entry.fits is None
    for share, fits in ((0.89, True), (0.91, False)):
        gib = there(entry.needs).peak_bytes / share / 2**30
        (limited,) = plan(load_grid([*settings, f"cluster.gpu_memory_gib={gib}"]))
        assert limited.fits is fits
        assert [row[""] for row in rows([limited])] == ["to run" if fits else "DOES NOT FIT"]


def test_a_finished_cell_may_be_too_large(tiny: list[str], tmp_path: Path) -> None:
    """Somebody ran it with --oversized, or on a larger GPU; the others are not refused for it."""
    sweep = load_grid([*tiny, "method=vicreg", "cluster.gpu_memory_gib=0.0001"])
    two_gpus = replace(sweep, clusters=(replace(sweep.clusters[0], gpus=2),))
    (cell,), (entry,) = sweep.cells, plan(two_gpus)
    gb = there(entry.needs).peak_bytes / 1e9
    needed = rf"VICReg with q=16 and 16 images a GPU: {gb:.1f} GB\."
    with is_refused(f"predicted not to fit a GPU: 1 cell, such as {needed}"):
        refuse_oversized(two_gpus)
    stages = "cluster.stages={pretrain:{gpu_memory_gib:0.0001},tune:{},final:{}}"
    with is_refused("predicted not to fit a GPU: 1 cell"):
        refuse_oversized(load_grid([*tiny, "method=vicreg", stages]))
    write_text(tmp_path / "runs" / sweep.name / cell.id / "record.json", made(cell.plain()).text())
    refuse_oversized(sweep)
