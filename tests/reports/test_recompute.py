"""Cells of a bundle computed again: honest ones come out the same, forged ones that fit in all
else do not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result

from regbench.benchmark.machine.description import has_fast_bf16
from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.prepare import prepare
from regbench.reports.bundle import recompute
from regbench.reports.bundle.pack import submit
from tests.command import run
from tests.conftest import TINY
from tests.reports.forging import Parts


@pytest.fixture(scope="module")
def trained(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two seeds of a tiny run, with their weights, not with the default form of the
    loss.
    """
    folder = tmp_path_factory.mktemp("trained")
    quick = ["epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]"]
    for seed in (0, 1):
        where = [
            f"runtime.data_dir={tiny_data_dir}",
            f"runtime.runs_dir={folder}",
            "runtime.loss_form=textbook",
        ]
        run_cell(*load_run([*TINY, *quick, f"seed={seed}", *where]), "tiny")
    command = [
        "submit",
        "tiny",
        "--runs-dir",
        str(folder),
        "--out",
        str(folder / "lab.tar.xz"),
        "--weights",
    ]
    done = run(*command)
    assert done.exit_code == 0, done.output
    return folder / "lab.tar.xz"


def verify(bundle: Path, data_dir: Path, *overrides: str) -> Result:
    command = [
        "verify",
        str(bundle),
        "--recompute",
        "1",
        f"runtime.data_dir={data_dir}",
        *overrides,
    ]
    return run(*command)


def from_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training is small any more."""
    monkeypatch.setattr(recompute, "SMALL_S", 0.0)


def test_honest_cells_come_out_the_same(
    trained: Path, tiny_data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = verify(trained, tiny_data_dir)
    assert (done.exit_code, done.stdout.count("trained again, equal to the last bit")) == (0, 1), (
        done.output
    )
    from_weights(monkeypatch)
    done = verify(trained, tiny_data_dir)
    assert (
        done.exit_code,
        done.stdout.count("evaluated again from its weights, equal to the last bit"),
    ) == (0, 1)
    done = verify(trained, tiny_data_dir, "runtime.threads=2")  # other numbers, by the last bits
    assert (done.exit_code, done.stdout.count("equal to the last bit")) == (0, 0), done.output
    monkeypatch.setattr(
        "regbench.benchmark.machine.description.has_fast_bf16", lambda: not has_fast_bf16()
    )
    done = verify(trained, tiny_data_dir)
    assert (done.exit_code, done.stdout.count("equal to the last bit")) == (0, 0), done.output


def test_data_that_can_be_generated_are_prepared_where_they_are_missing(tmp_path: Path) -> None:
    sizes = {"foreground": "digits", "train_images": 64, "tuning_images": 20, "test_images": 30}
    settings = [
        "dataset=scenes",
        *(f"dataset.source.{name}={value}" for name, value in sizes.items()),
    ]
    settings += [
        "augmentation=small_color",
        "network=resnet_mini",
        "embedding_dim=16",
        "batch_size=32",
        "epochs=1",
    ]
    settings += [
        "optimizer.warmup_epochs=0",
        "evaluation.protocols=[knn]",
        "runtime.loader=torchvision",
    ]
    there, runs = tmp_path / "there", tmp_path / "runs"
    cell, runtime = load_run([*settings, f"runtime.data_dir={there}", f"runtime.runs_dir={runs}"])
    prepare(cell.dataset, there, progress=False)
    run_cell(cell, runtime, "scenes")
    submit([runs / "scenes"], tmp_path / "lab.tar.xz")
    done = verify(tmp_path / "lab.tar.xz", tmp_path / "here")
    assert (done.exit_code, done.stdout.count("trained again, equal to the last bit")) == (0, 1), (
        done.output
    )


def test_a_raised_score_is_found_from_the_weights(
    trained: Path, tiny_data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_weights(monkeypatch)
    parts = Parts(trained)
    for record in parts.records:
        parts.score(record)["value"] += 0.1
        record["scores"].append({**record["scores"][0], "name": "measured_nowhere"})
    done = verify(parts.write(tmp_path / "forged.tar.xz"), tiny_data_dir)
    assert done.exit_code == 1
    assert done.stdout.count("its weights were evaluated again; they must be equal") == 1
    assert done.stdout.count("measured_nowhere on tuning did not come again") == 1


@pytest.mark.parametrize(
    ("what", "other"),
    [("hardware", "another"), ("numpy", "1.0"), ("torch", "2.0"), ("torchvision", "0.1")],
)
def test_elsewhere_scores_may_differ_a_little(
    what: str,
    other: str,
    trained: Path,
    tiny_data_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from_weights(monkeypatch)
    parts = Parts(trained)
    for record in parts.records:
        record["environment"][what] = other
        parts.score(record)["value"] += 0.4
    assert verify(parts.write(tmp_path / "near.tar.xz"), tiny_data_dir).exit_code == 0
    for record in parts.records:
        parts.score(record)["value"] += 0.2
    assert (
        "0.5 is the tolerance" in verify(parts.write(tmp_path / "far.tar.xz"), tiny_data_dir).stdout
    )


def test_cells_of_an_earlier_revision_of_a_loss_may_have_other_last_bits(
    tiny_data_dir: Path, tmp_path: Path
) -> None:
    """Records from before there were revisions are of the first."""
    quick = ["epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]", "method=sigreg"]
    where = [f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={tmp_path}"]
    run_cell(*load_run([*TINY, *quick, "method.directions=16", *where]), "waves")
    submit([tmp_path / "waves"], tmp_path / "now.tar.xz")
    assert (
        "trained again, equal to the last bit"
        in verify(tmp_path / "now.tar.xz", tiny_data_dir).stdout
    )
    parts = Parts(tmp_path / "now.tar.xz")
    (record,) = parts.records
    assert record["environment"].pop("loss_revision") == 2
    done = verify(parts.write(tmp_path / "older.tar.xz"), tiny_data_dir)
    assert "trained again, as near as other seeds come" in done.stdout, done.output


def test_swapped_seeds_are_found_by_training_again(
    trained: Path, tiny_data_dir: Path, tmp_path: Path
) -> None:
    parts = Parts(trained)
    one, other = parts.records
    for name in ("scores", "metrics", "checkpoint", "cost"):
        one[name], other[name] = other[name], one[name]
    done = verify(parts.write(tmp_path / "swapped.tar.xz"), tiny_data_dir)
    assert done.exit_code == 1
    assert "where it was trained again; they must be equal" in done.stdout


@pytest.mark.parametrize("split", ["train", "tuning", "test", "unlabeled"])
def test_images_of_another_data_set_are_found_by_those_here(
    split: str, trained: Path, tiny_data_dir: Path, tmp_path: Path
) -> None:
    parts = Parts(trained)
    for record in parts.records:
        record["data"]["content_sha256"][split] = "12" * 32
    done = verify(parts.write(tmp_path / "forged.tar.xz"), tiny_data_dir)
    assert done.exit_code == 2
    assert (
        f"the {split} split of tiny has other images there (121212121212) than here" in done.stderr
    )


def test_what_is_large_needs_weights(
    trained: Path, tiny_data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_weights(monkeypatch)
    parts = Parts(trained)
    parts.weights.clear()
    light = parts.write(tmp_path / "light.tar.xz")
    assert (
        "the bundle has no weights of it; ask for a bundle made with --weights"
        in verify(light, tiny_data_dir).stderr
    )
    command = ["verify", str(light), "--recompute", "1", "seed=3"]
    assert "settings of the cell are the record's" in run(*command).stderr
