"""Evaluations after a run's record, and of published weights: `regbench evaluate`."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from torch import Tensor
from torchvision.models import resnet18

from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.label_free import measures
from regbench.benchmark.evaluate.linear import LinearProbe
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.evaluate.voc import average_precisions, linear_svm
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.directory import checkpoint_files, run_directory
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import LaterEvaluation, Record, read_record
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.runtime import Runtime
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.loading.loaders import EvalLoader, ViewLoader
from regbench.datasets.stored.voc_files import read_voc07, voc07_folder, whole_images
from regbench.files import verified
from tests.command import done, refusal, run
from tests.records import chosen, ranked, tuning_choice
from tests.refusals import is_refused
from tests.there import there
from tests.voc import TEST, TRAINVAL, write_voc07

SHORT = ("epochs=2", "optimizer.warmup_epochs=0", "method=vicreg", "evaluation.protocols=[knn]")
OF_VOC = (f"num_images=[{TRAINVAL},{TEST}]", "resize=28", "image_size=24", "costs=[0.1,10]")
VOC = tuple(f"evaluation.voc07.{setting}" for setting in OF_VOC)
OF_MEASURES = ("view_images=8", "views=3", "images=20")
MEASURES = tuple(f"evaluation.measures.{setting}" for setting in OF_MEASURES)
NAMES = ["alignment", "uniformity", "rankme", "alpha_req", "lidar", "feature_spread"]


def call(*arguments: object, code: int = 0) -> Result:
    """Evaluate by the command line, which ends with this exit code."""
    result = run("evaluate", *arguments)
    assert result.exit_code == code, result.output
    return result


def own(tiny: list[str]) -> list[str]:
    return [override for override in tiny if override.startswith("runtime.")]


@pytest.fixture(scope="session")
def voc_data_dir(tiny_data_dir: Path) -> Path:
    """The data folder with VOC2007 too."""
    write_voc07(tiny_data_dir)
    return tiny_data_dir


@pytest.fixture(scope="module")
def trained(shared: list[str]) -> Path:
    """The directory of a run with kNN alone."""
    cell, runtime = load_run([*shared, *SHORT])
    assert run_cell(cell, runtime, "here")
    return run_directory(runtime, "here", cell)


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, for a test that changes it."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "here" / trained.name))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file of published weights."""
    cell, _ = load_run(["network=resnet_tiny"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        state = cell.network.backbone.build(3, 24)[0].state_dict()
    path = tmp_path / "vicreg_tiny.pth"
    model = {f"module.backbone.{name}": value for name, value in state.items()}
    model["module.projector.0.weight"] = torch.zeros(2, 2)
    torch.save({"model": model, "epoch": 3}, path)
    return path


def published(tiny: list[str]) -> list[str]:
    """Overrides for weights that nobody trains here."""
    training = ("embedding_dim", "batch_size", "epochs", "optimizer")
    return [override for override in tiny if not override.startswith(training)]


# ------------------------------------------------------------------ runs


def test_other_evaluations_of_a_finished_run_lie_beside_its_record(
    tiny: list[str], finished: Path, voc_data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = (finished / "record.json").read_bytes(), (finished / "choice-0001.json").read_bytes()
    with caplog.at_level(logging.INFO, "regbench"):
        result = call(finished, *own(tiny), *VOC, *MEASURES, "--only", "voc07,knn,measures")
    record = there(read_record(finished))
    folder = finished / "evaluations"
    assert {path.name for path in folder.iterdir()} == {"voc07.json", "measures.json"}
    assert "knn: shown only, nothing is written" in caplog.text
    assert "selection" not in caplog.text
    assert f"voc07: written to {folder / 'voc07.json'}" in caplog.text
    for protocol in ("voc07", "measures"):
        found = LaterEvaluation.read(folder / f"{protocol}.json")
        assert found.protocol == protocol
        assert found.cell_id == record.cell_id == finished.name
        assert found.seconds > 0
        assert found.finished >= record.finished
        assert found.environment["loader"] == "torchvision"
        assert f"--only {protocol}" in found.command
        assert found.choice["hyperparameters"]["selected_on"] == "given"
        for score in found.scores:
            assert score.name in result.output
    voc07, unlabelled = (LaterEvaluation.read(folder / f"{p}.json") for p in ("voc07", "measures"))
    seen = [(s.name, s.split, s.unit) for s in voc07.scores]
    assert seen == [("voc07_map", "test", "%"), ("voc07_map_full", "test", "%")]
    assert voc07.choice["voc07_cost"]["selected_on"] == "cross-validation"
    assert set(voc07.choice["voc07_cost"]["chosen"].values()) <= {0.1, 10.0}
    assert "voc07_cost" not in unlabelled.choice
    of_measures = [(s.name, s.split, s.unit) for s in unlabelled.scores]
    assert of_measures == [(n, "tuning", "") for n in NAMES]
    shown = ((finished / "record.json").read_bytes(), (finished / "choice-0001.json").read_bytes())
    assert shown == before

    written = (folder / "voc07.json").read_bytes()
    (folder / "measures.json").unlink()  # as a kill between the two leaves it
    caplog.clear()
    with caplog.at_level(logging.INFO, "regbench"):
        again = call(finished, *own(tiny), "--only", "voc07,measures")
    assert f"{folder / 'voc07.json'} is there already; remove it to evaluate again" in caplog.text
    assert (folder / "voc07.json").read_bytes() == written
    for score in (*voc07.scores, *unlabelled.scores):
        assert score.name in again.output
    assert LaterEvaluation.read(folder / "measures.json").cell_id == record.cell_id
    (folder / "voc07.json").write_bytes(written[:-9])
    damaged = refusal("evaluate", finished, *own(tiny), "--only", "voc07")
    assert "remove it to evaluate voc07 again" in damaged
    (folder / "voc07.json").write_bytes(written)
    other = call(finished, *own(tiny), *VOC, "evaluation.voc07.folds=2", "--only", "voc07")
    assert "2-fold" in other.output
    assert (folder / "voc07.json").read_bytes() == written


def test_a_later_evaluation_of_features_in_bf16_says_so(tiny: list[str], finished: Path) -> None:
    call(finished, *own(tiny), "evaluation.precision=bf16", *MEASURES, "--only", "measures")
    command = LaterEvaluation.read(finished / "evaluations" / "measures.json").command
    assert "evaluation.precision=bf16" in command
    refused = refusal("evaluate", finished, *own(tiny), "evaluation.precision=half")
    assert "evaluation.precision" in refused


def all_files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_no_weights_but_the_final_ones_are_evaluated(
    tiny: list[str], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = (*own(tiny), *MEASURES, "--only", "measures")
    final, _ = checkpoint_files(finished)
    content = bytearray(final.read_bytes())
    content[len(content) // 2] ^= 1
    final.write_bytes(content)
    unfinished = Path(shutil.copytree(finished, tmp_path / "unfinished"))
    (unfinished / "record.json").unlink()

    def refused(directory: Path) -> str:
        before = all_files(directory)
        result = call(directory, *evaluate, code=2)
        assert set(all_files(directory).values()) == set(before.values())
        return result.stderr.splitlines()[-1]

    assert "is not trained to the end" in refused(unfinished)
    line = refused(finished)
    what = f"{final}, which holds the final weights, cannot be evaluated"
    assert f"{what}: its content is not what" in line
    final.unlink()
    assert "it is not there" in refused(finished)
    monkeypatch.chdir(tmp_path)
    _, _, remedy = line.partition("train them again: regbench ")
    done(*remedy.split(), *own(tiny))
    (directory,) = (tmp_path / "runs" / "again").iterdir()
    call(directory, *evaluate)


def test_a_run_without_a_record_gets_none_beside_it(tiny: list[str], finished: Path) -> None:
    (finished / "record.json").unlink()
    assert "alignment" in call(finished, *own(tiny), *MEASURES, "--only", "measures").output
    assert not (finished / "evaluations").exists()


def test_a_cell_that_its_tuning_did_not_choose_gets_no_test_score(
    tiny: list[str], finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished.parent / "tune.json").write_text("{}")
    given = (*own(tiny), "evaluation.knn.k=3")
    assert "has not chosen yet" in refusal("evaluate", finished, *given)
    tuning_choice(finished.parent)
    monkeypatch.chdir(finished)
    assert "chose other hyperparameters" in refusal("evaluate", ".", *given)
    tuning_choice(finished.parent, chosen("VICReg", ranked(finished.name), ranked("0" * 12)))
    call(".", *given, *MEASURES, "--only", "measures")
    found = LaterEvaluation.read(finished / "evaluations" / "measures.json")
    noted = found.choice["hyperparameters"]
    assert (noted["selected_on"], noted["budget"]) == ("tuning", 2)


@pytest.mark.parametrize("chosen_on", ["test", "tuning"])
def test_measures_of_a_cell_that_the_test_split_chose_say_so(
    chosen_on: str, tiny: list[str]
) -> None:
    """Whatever a later evaluation chooses on.

    One that chooses on the test split says so as well.
    """
    later_on = "tuning" if chosen_on == "test" else "test"
    settings = ["epochs=0", "optimizer.warmup_epochs=0", "evaluation.protocols=[knn]"]
    cell, runtime = load_run([*tiny, *settings, f"evaluation.select_on={chosen_on}"])
    assert run_cell(cell, runtime, "here")
    directory = run_directory(runtime, "here", cell)
    overrides = [*own(tiny), *MEASURES, f"evaluation.select_on={later_on}"]
    call(directory, *overrides, "--only", "measures")
    found = LaterEvaluation.read(directory / "evaluations" / "measures.json")
    assert found.choice["hyperparameters"]["selected_on"] == "test"


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong: list[tuple[list[str], str]] = [
        ([], "what shall be evaluated?"),
        (["evaluation.knn.k=3"], "what shall be evaluated?"),
        (["nowhere"], "nowhere is no run directory"),
        ([".", "--only", "voc"], "--only: unknown evaluation 'voc'; did you mean voc07?"),
        ([".", "--only", ""], "--only: unknown evaluation ''; known: factors, knn, "),
        ([".", "--label", "x"], "--label is for --backbone"),
        (["--backbone", "nowhere.pth"], "data set 'fashion_mnist' is not prepared"),
    ]
    for setting in ("method=vicreg", "optimizer.base_lr=1", "baseline=supervised"):
        reason = f"{setting}: published weights are not trained"
        wrong.append((["--backbone", "x.pth", setting], reason))
    for arguments, part in wrong:
        assert part in refusal("evaluate", *arguments)


# ------------------------------------------------------------------ the protocols on real images


Evaluator = Callable[..., Subject]


@pytest.fixture
def evaluator(tiny: list[str], tmp_path: Path, claimed: Callable[[Path], Attempt]) -> Evaluator:
    choices = Choices(claimed(tmp_path))

    def subject(*overrides: str) -> Subject:
        cell, runtime = load_run([*tiny, *overrides])
        encoder = Encoder(*cell.network.backbone.build(3, 24))
        settings = cell.evaluation, cell.dataset, cell.augmentation
        return Subject(*settings, encoder, resolve(runtime), choices, cell.seed)

    return subject


def reading(runtime: Runtime) -> dict[str, Any]:
    """Options of a loader."""
    options = {"device": torch.device("cpu"), "backend": "torchvision", "batch_size": 5}
    return {**options, "data_dir": Path(runtime.data_dir)}


def tuning_images(cell: Cell, runtime: Runtime) -> Tensor:
    loader = EvalLoader(cell.dataset, "tuning", **reading(runtime))
    with loader, loader.epoch() as batches:
        return torch.cat([x for x, _ in batches])


def test_measures_are_those_of_the_tuning_images(tiny: list[str], evaluator: Evaluator) -> None:
    """36 images in the tuning split, 20 of them and 8 at even distances.

    Three views come from two pairs.
    """
    found = evaluator(*MEASURES, "seed=5", "evaluation.protocols=[measures]")
    backbone = found.encoder
    scores = {score.name: score.value for score in found.run("measures")}
    cell, runtime = load_run([*tiny, "seed=5"])
    x = backbone.represent(tuning_images(cell, runtime)[[36 * i // 20 for i in range(20)]])
    of_views = reading(runtime) | {"images": 8, "seed": 5}
    with ViewLoader(cell.dataset, cell.augmentation, "tuning", **of_views) as views:
        pairs = [torch.cat([torch.stack(two) for two in views.epoch(e)], dim=1) for e in range(2)]
    assert not torch.equal(pairs[0], pairs[1])
    represented = [backbone.represent(v) for v in [*pairs[0], pairs[1][0]]]
    expected = measures(x, torch.stack(represented, dim=1))
    assert scores == pytest.approx(expected, rel=1e-3)
    assert {score.name: score.value for score in found.run("measures")} == scores


def test_the_views_are_the_images_that_they_are_views_of(tiny: list[str]) -> None:
    """Without augmentation but a crop of everything, each view is near its image."""
    plain = [f"{name}_p=0.0" for name in ("flip", "jitter", "grayscale", "blur", "solarize")]
    plain += ["crop_scale=[0.999,1.0]", "crop_ratio=[1.0,1.0]"]
    unchanged = [f"augmentation.views.view{v}.{setting}" for v in (1, 2) for setting in plain]
    cell, runtime = load_run([*tiny, *unchanged])
    images = tuning_images(cell, runtime)
    of_views = reading(runtime) | {"images": 12, "seed": 0}
    with ViewLoader(cell.dataset, cell.augmentation, "tuning", **of_views) as views:
        assert views.num_samples == 12
        found = torch.cat([x for x, _ in views.epoch(0)])
    assert (found - images[::3]).abs().mean() < 0.1 < (found - images[1::3]).abs().mean()


def test_the_test_split_is_closed_to_views_too(tiny: list[str]) -> None:
    cell, runtime = load_run(tiny)
    with is_refused("the test split is for final scores"):
        ViewLoader(cell.dataset, cell.augmentation, "test", images=5, **reading(runtime))


def test_voc07_is_linear_svms_on_the_backbones_features(
    tiny: list[str], evaluator: Evaluator, voc_data_dir: Path
) -> None:
    found = evaluator(*VOC, "evaluation.protocols=[voc07]")
    found.choices.note("hyperparameters", {"selected_on": "given"})
    scores = {score.name: score.value for score in found.run("voc07")}
    cell, _ = load_run(tiny)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (cell.dataset.mean, cell.dataset.std))
    data = {}
    how: dict[str, Any] = {"shorter": 28, "size": 24, "interpolation": "bilinear", "workers": 1}
    for name, split in read_voc07(voc07_folder(voc_data_dir), (TRAINVAL, TEST)).items():
        (x,) = whole_images(split.paths, batch_size=100, **how)
        features = found.encoder.represent((x / 255 - mean) / std).double()
        features = features / (features.norm(dim=1, keepdim=True) + 1e-5)
        data[name] = features.numpy(), split.presence
    entry = found.choices.entries["voc07_cost"]
    values = []
    for c, cost in enumerate(entry["chosen"].values()):
        (x_train, there), (x_test, answers) = data["trainval"], data["test"]
        easy = answers[:, c] != 0
        svm = linear_svm(cost).fit(x_train, 2 * (there[:, c] == 1) - 1)
        certainty = svm.decision_function(x_test[easy])
        values.append(average_precisions(answers[easy, c] == 1, certainty))
    assert scores["voc07_map"] == pytest.approx(sum(v for v, _ in values) / 20, abs=0.5)
    assert scores["voc07_map_full"] == pytest.approx(sum(v for _, v in values) / 20, abs=0.5)
    for name, cost in entry["chosen"].items():
        candidates = entry["candidates"][name]
        assert candidates[f"{cost:g}"] == max(candidates.values())


def test_voc07_needs_a_backbone_for_colour_images(evaluator: Evaluator) -> None:
    grey = ("dataset.channels=1", "dataset.mean=[0.5]", "dataset.std=[0.2]")
    with is_refused("VOC2007 has colour images"):
        evaluator(*grey, "evaluation.protocols=[voc07]").run("voc07")


# ------------------------------------------------------------------ published weights


def test_published_weights_get_the_record_of_a_finished_run(
    tiny: list[str], weights: Path, voc_data_dir: Path, tmp_path: Path
) -> None:
    arguments = ["--backbone", weights, *published(tiny), *VOC, *MEASURES]
    arguments += ["--label", "VICReg (published)", "--only", "knn,probe,voc07,measures"]
    result = call(*arguments)
    (directory,) = (tmp_path / "runs" / "published").iterdir()
    assert f"run directory: {directory}" in result.output
    record = Record.read(directory / "record.json")
    expected: dict[str, Any] = dict.fromkeys(("spectrum", "metrics", "checkpoint"))
    expected |= {"cell_id": directory.name, "sweep": "published", "label": "VICReg (published)"}
    expected |= {"method": "external", "seed": 0, "status": "done", "regularizer": {}}
    assert {key: getattr(record, key) for key in expected} == expected
    cell = record.cell
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert cell["external"] == {"source": "vicreg_tiny.pth", "sha256": sha256}
    assert [cell[name] for name in ("embedding_dim", "batch_size", "epochs")] == [None] * 3
    seen = (cell["dataset"]["name"], cell["network"]["backbone"])
    assert seen == ("tiny", {"name": "resnet_tiny"})
    names = {(score.name, score.split) for score in record.scores}
    assert {(name, "test") for name in ("knn_top1", "linear_top1", "voc07_map")} <= names
    assert {(name, "tuning") for name in ("knn_top1", *NAMES)} <= names
    choice = verified((directory / "choice-0001.json").read_bytes())
    assert record.choice == choice
    assert choice.keys() == {"hyperparameters", "probe_learning_rate", "voc07_cost"}
    assert choice["hyperparameters"]["selected_on"] == "given"
    assert choice["probe_learning_rate"]["selected_on"] == "tuning"
    assert (record.cost.evaluate_s or 0) > 0
    assert (record.cost.train_s, record.cost.img_per_s) == (None, None)
    assert record.data.content_sha256.keys() == {"train", "tuning", "test"}
    assert record.finished >= record.started
    assert (directory / "config.yaml").exists()

    written_ns = (directory / "record.json").stat().st_mtime_ns
    assert call(*arguments).stdout == result.stdout
    assert (directory / "record.json").stat().st_mtime_ns == written_ns
    refused = refusal("evaluate", directory, *own(tiny), "--only", "measures")
    assert "scores of published" in refused
    assert "regbench evaluate --backbone" in refused


def test_published_weights_stand_in_a_table_with_runs(
    tiny: list[str], weights: Path, tmp_path: Path, finished: Path
) -> None:
    call("--backbone", weights, *published(tiny), "--label", "theirs", "--only", "knn,probe")
    report = ("report", finished.parent.name, "published", "--runs-dir", tmp_path / "runs")
    assert "2 records check out" in done(*report, "--check").output
    lines = done(*report).output.splitlines()
    (theirs,) = (line for line in lines if line.startswith("| theirs"))
    (ours,) = (line for line in lines if line.startswith("| VICReg"))
    assert theirs.count("–") > ours.count("–")


def test_the_id_of_published_weights_is_of_what_decides_the_scores(
    tiny: list[str], weights: Path, tmp_path: Path
) -> None:
    def directories(*more: str) -> set[str]:
        call("--backbone", weights, *published(tiny), *more, "--name", "p", "--only", "knn")
        return {path.name for path in (tmp_path / "runs" / "p").iterdir()}

    first = directories()
    # What is not asked for, and where it runs.
    assert directories("evaluation.voc07.folds=5", "runtime.workers=2") == first
    content = torch.load(weights)
    content["model"]["module.backbone.0.weight"] *= 1.1
    torch.save(content, weights)
    assert len(directories()) == 2
    assert len(directories("seed=1")) == 3
    # The weights fit both.
    torch.save(resnet18(weights=None).state_dict(), weights)
    small = ["network=resnet18_small", "network.backbone.stem=imagenet"]
    assert len(directories(*small)) == 4
    assert len(directories(*small, "network.backbone.stem_padding=2")) == 5


def test_an_interrupted_evaluation_goes_on(
    tiny: list[str], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--backbone", weights, *published(tiny), "--only", "knn,probe"]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LinearProbe, "run", interrupt)
        call(*arguments, code=130)
    with monkeypatch.context() as patch:
        patch.setattr(KNN, "run", interrupt)  # is done
        result = call(*arguments)
    assert "linear_top1" in result.output


def test_librarys_weights_see_images_as_they_were_trained_on(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(resnet18(weights=None).state_dict(), folder / "resnet18-f37072fd.pth")
    source = "torchvision:resnet18@IMAGENET1K_V1"
    own_mean = "dataset.mean=[0.1,0.1,0.1]"
    call("--backbone", source, *published(tiny), own_mean, "--only", "knn")
    (path,) = (tmp_path / "runs" / "published").glob("*/record.json")
    record = Record.read(path)
    assert record.label == record.cell["external"]["source"] == source
    assert record.cell["dataset"]["mean"] == [0.485, 0.456, 0.406]
    assert record.cell["network"]["backbone"] == {"name": "resnet18"}
