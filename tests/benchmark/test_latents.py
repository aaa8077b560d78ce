"""Trainings on latent worlds, and what is measured of their content."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from torch import nn

from regbench.benchmark.backbones.base import BACKBONES
from regbench.benchmark.evaluate.features import Encoder
from regbench.benchmark.evaluate.latents import LatentProbes
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.run import run_cell
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import Record
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.sources.latents import Latents
from regbench.datasets.stored.prepare import prepare
from regbench.reports import write_report
from tests.benchmark.steps import interrupt_run, signal_at
from tests.history import assert_same
from tests.refusals import is_refused
from tests.there import there

WORLD = {"content_dim": 3, "style_dim": 4, "observed_dim": 9, "depth": 1}
WORLD |= {"pretraining_examples": 64, "train_examples": 200}
WORLD |= {"tuning_examples": 150, "test_examples": 250}
SMALL = (
    *("dataset=latents", "network=mlp"),
    *(f"dataset.source.{name}={value}" for name, value in WORLD.items()),
    *("network.backbone.width=16", "embedding_dim=8", "batch_size=16", "epochs=3"),
    *("precision=fp32", "method=vicreg", "runtime.device=cpu", "evaluation.latents.landmarks=40"),
)
CLUSTERS = ("dataset.source.prior=clusters", "dataset.source.clusters=4", "dataset.num_classes=4")
Probed = Callable[..., Subject]


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [f"runtime.data_dir={tmp_path / 'data'}", f"runtime.runs_dir={tmp_path / 'runs'}"]


@pytest.fixture
def run(folders: list[str]) -> Callable[..., Record]:
    def record(*overrides: str, sweep: str = "manual") -> Record:
        cell, runtime = load_run([*SMALL, *folders, *overrides])
        prepare(cell.dataset, Path(runtime.data_dir))
        return there(run_cell(cell, runtime, sweep))

    return record


def scores_of(record: Record) -> dict[str, float]:
    return {score.name: score.value for score in record.scores if score.split == "test"}


@pytest.fixture
def probed(folders: list[str], claimed: Callable[[Path], Attempt], tmp_path: Path) -> Probed:
    """A representation of the observations of a world, by a matrix (representation, 9)."""

    def subject(weight_DX: torch.Tensor, *overrides: str) -> Subject:
        cell, runtime = load_run([*SMALL, *folders, *overrides])
        prepare(cell.dataset, Path(runtime.data_dir))
        linear = nn.Linear(9, len(weight_DX), bias=False)
        linear.weight.data = weight_DX.float()
        encoder = Encoder(nn.Sequential(nn.Flatten(), linear), len(weight_DX))
        choices = Choices(claimed(tmp_path / "run"))
        choices.note("hyperparameters", {"selected_on": "given"})
        settings = cell.evaluation, cell.dataset, cell.augmentation
        return Subject(*settings, encoder, resolve(runtime), choices, 0)

    return subject


def split_of(subject: Subject, name: str) -> LatentSplit:
    source = subject.dataset.source
    assert isinstance(source, Latents)
    return LatentSplit(source, Path(f"{name}.json"))


def unmixed(*overrides: str) -> torch.Tensor:
    """Return what makes content and style, (7, 9), of the observations of one layer."""
    source = load_run([*SMALL, *overrides])[0].dataset.source
    assert isinstance(source, Latents)
    return LatentSplit(source, Path("test.json"))._layers[0]


def test_content_itself_has_all_scores_and_no_style(probed: Probed) -> None:
    subject = probed(unmixed(*CLUSTERS)[:3], *CLUSTERS)
    found = {score.name: score.value for score in LatentProbes().run("latents", subject)}
    assert found["content_r2"] > 99.9
    assert found["content_mcc"] > 99.9
    assert found["content_kernel_r2"] > 95
    assert found["cluster_accuracy"] > 90
    assert found["style_r2"] < 5
    (noted,) = [entry for name, entry in subject.choices.entries.items() if "latents" in name]
    assert noted["selected_on"] == "tuning"
    assert noted["chosen"]["content"] == min(noted["candidates"])


def test_clusters_without_an_example_to_choose_on_decide_nothing(probed: Probed) -> None:
    """Style says nothing of the cluster, so the largest penalty is the best."""
    many = ("clusters=50", "tuning_examples=40")
    overrides = (*CLUSTERS, *(f"dataset.source.{each}" for each in many), "dataset.num_classes=50")
    subject = probed(unmixed(*overrides)[3:], *overrides)
    LatentProbes().run("latents", subject)
    noted = subject.choices.entries["latents_penalties_representation"]
    assert noted["chosen"]["cluster"] == max(noted["candidates"])


def test_content_that_does_not_vary_is_left_out(probed: Probed) -> None:
    rare = ("prior=sparse", "density=0.03", "test_examples=20")
    overrides = [f"dataset.source.{each}" for each in rare]
    subject = probed(unmixed(*overrides)[:3], *overrides)
    everything = np.arange(20)
    ((content_NC, _),) = split_of(subject, "test").latents(0, 0, everything, [2])
    assert 0 < (content_NC.var(dim=0) > 0).sum() < 3
    found = {score.name: score.value for score in LatentProbes().run("latents", subject)}
    assert found["content_r2"] > 99


def test_style_alone_has_no_content(probed: Probed) -> None:
    found = {score.name: score for score in LatentProbes().run("latents", probed(unmixed()[3:]))}
    assert found["content_r2"].value < 5
    assert found["content_r2"].higher_is_better
    assert found["style_r2"].value > 99.9
    assert not found["style_r2"].higher_is_better


def test_a_bend_is_seen_by_the_kernel_alone(probed: Probed) -> None:
    subject = probed(unmixed()[:3])

    class Bent(nn.Module):
        def forward(self, x_NX: torch.Tensor) -> torch.Tensor:
            return x_NX.exp()

    bent = subject.projected(Bent(), 3)
    found = {score.name: score.value for score in LatentProbes().run("latents", bent)}
    assert found["content_kernel_r2"] > found["content_r2"] + 5


def test_scores_are_those_of_scikit_learn(probed: Probed) -> None:
    torch.manual_seed(0)
    weight_DX = torch.randn(5, 9)
    subject = probed(weight_DX)
    found = {score.name: score.value for score in LatentProbes().run("latents", subject)}
    x, content, style = {}, {}, {}
    for name in ("train", "test"):
        split = split_of(subject, name)
        everything = np.arange(len(split))
        pairs = split.latents(0, 0, everything, [2])
        content[name], style[name] = pairs[0]
        x[name] = split.observations(pairs)[0].flatten(1) @ weight_DX.T
    chosen = subject.choices.entries["latents_penalties_representation"]["chosen"]
    for target, truth in (("content", content), ("style", style)):
        variance = x["train"].double().var(dim=0, correction=0).mean().item()
        alpha = chosen[target] * variance * len(x["train"])
        ridge = Ridge(alpha).fit(x["train"].double(), truth["train"])
        expected = 100 * r2_score(truth["test"], ridge.predict(x["test"].double()))
        assert found[f"{target}_r2"] == pytest.approx(max(0, expected), abs=1e-3)
    both = torch.cat([content["test"], x["test"].double()], dim=1)
    correlation_CD = torch.corrcoef(both.T)[:3, 3:].abs()
    matches = itertools.permutations(range(5), 3)
    best = max(correlation_CD[[0, 1, 2], list(columns)].sum() for columns in matches)
    assert found["content_mcc"] == pytest.approx(100 * float(best) / 3, abs=1e-3)


def test_the_choice_is_by_the_content_of_the_tuning_split(probed: Probed) -> None:
    subject = probed(torch.eye(9)[:4])
    (score,) = subject.select()
    assert (score.name, score.split, score.unit) == ("content_r2", "tuning", "%")
    assert LatentProbes().run("latents", subject)[0].value == pytest.approx(score.value, abs=10)


def test_a_collapsed_representation_scores_nothing(probed: Probed) -> None:
    found = LatentProbes().run("latents", probed(torch.zeros(4, 9)))
    assert {round(score.value, 3) for score in found} == {0.0}


BYOL = "method=byol network.predictor.depth=2 network.teacher=ema"
BYOL += " dataset.source.sharing=normal dataset.source.correlation=0.8"


@pytest.mark.parametrize("given", ["method=simclr", "baseline=supervised", BYOL])
def test_a_killed_training_ends_as_an_undisturbed_one(
    given: str, run: Callable[..., Record], folders: list[str]
) -> None:
    """Three epochs of four steps: the signal comes in the second epoch."""
    overrides = given.split()
    undisturbed = run(*overrides)
    cell, runtime = load_run([*SMALL, *folders, *overrides])
    interrupt_run(cell, runtime, signal_at(5))
    resumed = there(run_cell(cell, runtime, "disturbed"))
    assert [attempt.from_step for attempt in resumed.attempts] == [None, 6]
    assert_same(resumed, undisturbed)
    assert undisturbed.environment["loader"] == "auto"


def test_labels_teach_the_content(run: Callable[..., Record]) -> None:
    longer = ("epochs=60", "optimizer.base_lr=0.05", "dataset.source.pretraining_examples=256")
    taught = run("baseline=supervised", *longer)
    assert taught.history[-1]["terms"].keys() == {"squared_error"}
    assert taught.history[-1]["terms"]["squared_error"] < 0.3
    scores = scores_of(taught)
    assert scores["content_r2_embedding"] > 75
    assert scores["style_r2_embedding"] < 15


def test_every_other_evaluation_works_on_vectors(run: Callable[..., Record]) -> None:
    measured = ("evaluation.protocols=[latents,knn,probe,measures]", "evaluation.knn.k=5")
    views = ("evaluation.measures.view_images=8",)
    record = run("epochs=1", "evaluation.select_by=[latents,knn]", *measured, *views)
    # Classes are signs of the content, so that they are told better than by chance.
    assert scores_of(record)["linear_top1"] > 20
    names = {score.name for score in record.scores}
    assert {"selection_top1", "knn_top1", "content_r2", "rankme"} <= names


def test_trivial_rows_and_their_report(run: Callable[..., Record], tmp_path: Path) -> None:
    for overrides in (("method=simclr",), ("baseline=supervised",), ("method=sfrik", "epochs=0")):
        run(*overrides, sweep="mine")
    raw = run("baseline=raw_pixels", "epochs=0", sweep="mine")
    # One layer mixes linearly, so the observations have all content.
    assert scores_of(raw)["content_r2"] > 99
    run("baseline=pca", "epochs=0", sweep="mine")
    report = write_report([tmp_path / "runs" / "mine"], tmp_path / "report")
    text = report.read_text() if isinstance(report, Path) else str(report)
    assert "content R²" in text
    assert "baseline=hog" not in text


def test_the_mlp_has_the_width_and_depth_that_it_is_given() -> None:
    network, dim = BACKBONES.build("mlp", width=12, depth=4).build(5, 1)
    assert network(torch.randn(7, 5, 1, 1)).shape == (7, dim) == (7, 12)
    shapes = [layer.weight.shape for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert shapes == [(12, 5), (12, 12), (12, 12), (12, 12)]
    single, _ = BACKBONES.build("mlp", width=12, depth=1).build(5, 2)
    assert [len(parameter) for parameter in single.parameters()] == [12, 12]


def test_content_of_images_is_refused(tiny: list[str]) -> None:
    cell, runtime = load_run([*tiny, "evaluation.protocols=[latents]"])
    with is_refused("needs examples whose content is known"):
        run_cell(cell, runtime, "refused")


def test_factors_of_latents_are_refused(run: Callable[..., Any]) -> None:
    with is_refused("needs images whose factors are known"):
        run("evaluation.protocols=[factors]")
