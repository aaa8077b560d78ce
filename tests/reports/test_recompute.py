"""Cells of a bundle computed again: honest ones come out the same, forged ones that fit in all
else do not.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import Result

from regbench.benchmark.machine import description
from regbench.benchmark.run import run_cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.stored.prepare import prepare
from regbench.reports.bundle import recompute
from regbench.reports.bundle.pack import submit
from tests.command import done, run
from tests.conftest import TINY
from tests.reports.forging import Parts

QUICK = ("epochs=1", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]")


@pytest.fixture(scope="module")
def trained(tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two seeds of a tiny run, with their weights, not with the default form of the
    loss.
    """
    folder = tmp_path_factory.mktemp("trained")
    where = [f"runtime.data_dir={tiny_data_dir}", f"runtime.runs_dir={folder}"]
    for seed in (0, 1):
        settings = [*TINY, *QUICK, f"seed={seed}", *where, "runtime.loss_form=textbook"]
        run_cell(*load_run(settings), "tiny")
    bundle = folder / "lab.tar.xz"
    done("submit", "tiny", "--runs-dir", folder, "--out", bundle, "--weights")
    return bundle


def verify(bundle: Path, data_dir: Path, *overrides: str) -> Result:
    return run("verify", bundle, "--recompute", 1, f"runtime.data_dir={data_dir}", *overrides)


def equal_cells(bundle: Path, data_dir: Path, *overrides: str) -> list[str]:
    """How those were computed that came out the same to the last bit, where all that is told
    fits.
    """
    told = verify(bundle, data_dir, *overrides)
    assert told.exit_code == 0, told.output
    how = "trained again|evaluated again from its weights"
    return re.findall(f"({how})?, equal to the last bit", told.stdout)


@pytest.fixture
def from_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """No training is small any more."""
    monkeypatch.setattr(recompute, "SMALL_S", 0.0)


def test_honest_cells_come_out_the_same(
    trained: Path, tiny_data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert equal_cells(trained, tiny_data_dir) == ["trained again"]
    monkeypatch.setattr(recompute, "SMALL_S", 0.0)
    assert equal_cells(trained, tiny_data_dir) == ["evaluated again from its weights"]
    # other numbers, by the last bits
    assert equal_cells(trained, tiny_data_dir, "runtime.threads=2") == []
    other = not description.has_fast_bf16()
    monkeypatch.setattr(description, "has_fast_bf16", lambda: other)
    assert equal_cells(trained, tiny_data_dir) == []


def test_data_that_can_be_generated_are_prepared_where_they_are_missing(tmp_path: Path) -> None:
    sizes = {"foreground": "digits", "train_images": 64, "tuning_images": 20, "test_images": 30}
    settings = ["dataset=scenes", "augmentation=small_color", "network=resnet_mini"]
    settings += [f"dataset.source.{name}={value}" for name, value in sizes.items()]
    settings += [*QUICK, "embedding_dim=16", "batch_size=32", "runtime.loader=torchvision"]
    there, runs = tmp_path / "there", tmp_path / "runs"
    cell, runtime = load_run([*settings, f"runtime.data_dir={there}", f"runtime.runs_dir={runs}"])
    prepare(cell.dataset, there)
    run_cell(cell, runtime, "scenes")
    submit([runs / "scenes"], tmp_path / "lab.tar.xz")
    assert equal_cells(tmp_path / "lab.tar.xz", tmp_path / "here") == ["trained again"]


@pytest.mark.usefixtures("from_weights")
def test_a_raised_score_is_found(trained: Path, tiny_data_dir: Path, tmp_path: Path) -> None:
    parts = Parts(trained)
    for record in parts.records:
        parts.score(record)["value"] += 0.1
        record["scores"].append({**record["scores"][0], "name": "measured_nowhere"})
    told = verify(parts.write(tmp_path / "forged.tar.xz"), tiny_data_dir)
    assert told.exit_code == 1
    assert told.stdout.count("its weights were evaluated again; they must be equal") == 1
    assert told.stdout.count("measured_nowhere on tuning did not come again") == 1


@pytest.mark.parametrize(
    ("what", "other"),
    [("hardware", "another"), ("numpy", "1.0"), ("torch", "2.0"), ("torchvision", "0.1")],
)
@pytest.mark.usefixtures("from_weights")
def test_elsewhere_scores_may_differ_a_little(
    what: str, other: str, trained: Path, tiny_data_dir: Path, tmp_path: Path
) -> None:
    parts = Parts(trained)
    for record in parts.records:
        record["environment"][what] = other
        parts.score(record)["value"] += 0.4
    assert verify(parts.write(tmp_path / "near.tar.xz"), tiny_data_dir).exit_code == 0
    for record in parts.records:
        parts.score(record)["value"] += 0.2
    far = verify(parts.write(tmp_path / "far.tar.xz"), tiny_data_dir)
    assert "0.5 is the tolerance" in far.stdout


def test_cells_of_an_earlier_revision_of_a_loss_may_have_other_last_bits(
    tiny: list[str], tiny_data_dir: Path, tmp_path: Path
) -> None:
    """Records from before there were revisions are of the first."""
    run_cell(*load_run([*tiny, *QUICK, "method=sigreg", "method.directions=16"]), "waves")
    submit([tmp_path / "runs" / "waves"], tmp_path / "now.tar.xz")
    assert equal_cells(tmp_path / "now.tar.xz", tiny_data_dir) == ["trained again"]
    parts = Parts(tmp_path / "now.tar.xz")
    (record,) = parts.records
    assert record["environment"].pop("loss_revision") == 2
    told = verify(parts.write(tmp_path / "older.tar.xz"), tiny_data_dir)
    assert "trained again, as near as other seeds come" in told.stdout, told.output


def test_swapped_seeds_are_found(trained: Path, tiny_data_dir: Path, tmp_path: Path) -> None:
    parts = Parts(trained)
    one, other = parts.records
    for name in ("scores", "metrics", "checkpoint", "cost"):
        one[name], other[name] = other[name], one[name]
    told = verify(parts.write(tmp_path / "swapped.tar.xz"), tiny_data_dir)
    assert told.exit_code == 1
    assert "where it was trained again; they must be equal" in told.stdout


@pytest.mark.parametrize("split", ["train", "tuning", "test", "unlabeled"])
def test_images_of_another_data_set_are_found_by_those_here(
    split: str, trained: Path, tiny_data_dir: Path, tmp_path: Path
) -> None:
    parts = Parts(trained)
    for record in parts.records:
        record["data"]["content_sha256"][split] = "12" * 32
    told = verify(parts.write(tmp_path / "forged.tar.xz"), tiny_data_dir)
    assert told.exit_code == 2
    other = "has other images there (121212121212) than here"
    assert f"the {split} split of tiny {other}" in told.stderr


@pytest.mark.usefixtures("from_weights")
def test_what_is_large_needs_weights(trained: Path, tiny_data_dir: Path, tmp_path: Path) -> None:
    parts = Parts(trained)
    parts.weights.clear()
    light = parts.write(tmp_path / "light.tar.xz")
    told = verify(light, tiny_data_dir).stderr
    assert "the bundle has no weights of it; ask for a bundle made with --weights" in told
    assert "settings of the cell are the record's" in verify(light, tiny_data_dir, "seed=3").stderr
