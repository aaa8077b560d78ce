"""Trivial baselines and probes of factors, on scenes whose foreground is scikit-learn's digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from skimage.feature import hog

from regbench.benchmark.baselines import COMPONENTS, _fitted, chosen_pca, untrained
from regbench.benchmark.evaluate.base import Task
from regbench.benchmark.evaluate.factors import FactorProbes
from regbench.benchmark.evaluate.features import Encoder, Features, Images
from regbench.benchmark.evaluate.knn import KNN, accuracies, weighted_knn
from regbench.benchmark.evaluate.linear import LinearProbe
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.machine.compute import resolve
from regbench.benchmark.run import evaluate_directory, run_cell
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import Record, Score
from regbench.benchmark.settings.cell import Cell
from regbench.benchmark.settings.sweep import load_run
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.stored.factor_tables import read_factors
from regbench.datasets.stored.prepare import prepare
from tests.refusals import is_refused
from tests.there import there

SOURCE = {"foreground": "digits", "size_px": 28}
SOURCE |= {"train_images": 300, "tuning_images": 100, "test_images": 120}
SCENES = (
    *("dataset=scenes", "dataset.image_size=28", "dataset.eval_resize=28"),
    *(f"dataset.source.{name}={value}" for name, value in SOURCE.items()),
    *("augmentation=small_color", "network=resnet_mini", "embedding_dim=16", "epochs=0"),
    *("evaluation.protocols=[knn]", "runtime.loader=torchvision", "runtime.device=cpu"),
)

OF_ALL = {"all features", *(f"{components} whitened components" for components in COMPONENTS)}
CANDIDATES = {"hog": OF_ALL, "random_patches": OF_ALL | {"200 patches", "400 patches"}}
Run = Callable[..., Record]
Claimed = Callable[[Path], Attempt]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    prepare(load_run(SCENES)[0].dataset, folder)
    return folder


@pytest.fixture
def run(data_dir: Path, tmp_path: Path) -> Run:
    def record(*overrides: str) -> Record:
        folders = f"runtime.data_dir={data_dir}", f"runtime.runs_dir={tmp_path / 'runs'}"
        return there(run_cell(*load_run([*SCENES, *folders, *overrides]), "manual"))

    return record


def raw(split: str) -> Features:
    """Pixels as the evaluation sees them: normalised, channel by channel."""
    images = SOURCES.build("scenes", **SOURCE).open(None, Path()).splits[split]
    pixels = np.stack([image for image, _ in images.images() if isinstance(image, np.ndarray)])
    dataset = load_run(SCENES)[0].dataset
    x_NHWC = torch.from_numpy((pixels / 255 - dataset.mean) / dataset.std).float()
    return Features(x_NHWC.permute(0, 3, 1, 2).flatten(1), torch.from_numpy(images.labels))


def test_raw_pixels_are_scored_as_they_are(run: Run) -> None:
    record = run("baseline=raw_pixels")
    expected = accuracies(weighted_knn(raw("train"), raw("test"), [20], 0.07, 10)[20])[0]
    assert record.label == "raw pixels"
    assert record.score("knn_top1", "test") == pytest.approx(expected, abs=1e-6)


def test_the_number_of_principal_components_is_chosen_before_the_test_split_opens(run: Run) -> None:
    record = run("baseline=pca")
    noted = record.choice["pca_components"]
    assert noted["selected_on"] == "tuning"
    assert {*noted["candidates"]} == {"16", "32", "64", "128", "256"}
    assert noted["candidates"][str(noted["chosen"])] == max(noted["candidates"].values())
    train, test = raw("train"), raw("test")
    mean_D = train.x_ND.double().mean(dim=0)
    _, lengths_K, rows_KD = torch.linalg.svd(train.x_ND.double() - mean_D, full_matrices=False)
    chosen = noted["chosen"]
    whitening_DK = rows_KD[:chosen].T / lengths_K[:chosen]
    known, asked = (
        Features(((each.x_ND - mean_D) @ whitening_DK).float(), each.y_N) for each in (train, test)
    )
    expected = accuracies(weighted_knn(known, asked, [20], 0.07, 10)[20])[0]
    # two images: the method is randomized
    assert record.score("knn_top1", "test") == pytest.approx(expected, abs=1.7)


def test_principal_components_are_the_first_ones_and_white(subject: Subject) -> None:
    x_ND = subject.features("train", KNN().interpolation).x_ND
    z_NK = chosen_pca(subject).module(x_ND)
    components = z_NK.shape[1]
    torch.testing.assert_close(z_NK.T.cov(), torch.eye(components), rtol=0, atol=1e-3)
    # White components of the largest variance are those that explain most of the pixels.
    centred_ND = x_ND - x_ND.mean(dim=0)
    explained = (z_NK.T @ centred_ND / (len(x_ND) - 1)).square().sum()
    wanted = torch.linalg.svdvals(centred_ND)[:components].square().sum() / (len(x_ND) - 1)
    assert explained.item() == pytest.approx(wanted.item(), rel=0.01)


@pytest.mark.parametrize(
    ("scores", "split"), [([Score("knn_top1", 50.0, "tuning", "", "")], "tuning"), ([], "given")]
)
def test_of_equally_good_numbers_of_components_the_smallest_is_chosen_and_without_scores_the_middle_one(
    scores: list[Score], split: str, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KNN, "select", lambda *_: scores)
    chosen = COMPONENTS[0] if scores else COMPONENTS[len(COMPONENTS) // 2]
    assert chosen_pca(subject).dim == chosen
    noted = subject.choices.entries["pca_components"]
    assert (noted["chosen"], noted["selected_on"]) == (chosen, split)


def test_an_attempt_after_a_kill_does_not_choose_components_again(
    subject: Subject, tmp_path: Path, claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randn(3, 3, 28, 28)
    first = chosen_pca(subject).module(images)
    again = replace(subject, choices=Choices(claimed(tmp_path)))
    monkeypatch.setattr(KNN, "select", None)  # to choose again would be an error
    assert torch.equal(chosen_pca(again).module(images), first)
    assert again.choices.entries == subject.choices.entries
    assert again.choices.path.exists(), "the test split opens for choices of its own attempt"


@pytest.mark.parametrize("baseline", CANDIDATES)
def test_the_form_of_untrained_features_is_chosen_for_each_read_out(
    baseline: str, run: Run
) -> None:
    record = run(f"baseline={baseline}", "evaluation.protocols=[knn,probe,retrieval]")
    assert "probe_of_forms_learning_rate" not in record.choice
    for by, score in (("knn", "knn_top1"), ("probe", "linear_top1")):
        noted = record.choice[f"{baseline}_for_{by}"]
        assert noted["selected_on"] == "tuning"
        assert {*noted["candidates"]} == CANDIDATES[baseline]
        assert len({*noted["candidates"].values()}) > 1
        best = max(noted["candidates"].values())
        assert noted["candidates"][noted["chosen"]] == best == record.score(score, "tuning")
        assert record.score(score, "test") is not None


def test_histograms_of_gradients_are_those_of_scikit_image(subject: Subject) -> None:
    base = untrained(subject, "hog")
    x_NCHW = torch.randn(3, 3, 28, 28)
    images = x_NCHW.permute(0, 2, 3, 1).numpy()
    expected = [hog(image, 9, (3, 3), (2, 2), channel_axis=2) for image in images]
    found_ND = base.encoder.module(x_NCHW)
    torch.testing.assert_close(found_ND, torch.from_numpy(np.stack(expected)).float())
    assert base.encoder.dim == len(expected[0])


def test_a_patch_counts_where_it_is_nearer_than_patches_are_on_average(subject: Subject) -> None:
    """The formulas of Coates, Lee and Ng (2011), place by place."""
    module: Any = untrained(subject, "random_patches").encoder.module
    mean_F, whitening_FF, patch_PF = module.mean_F, module.whitening_FF, module.patch_PF
    x_CHW = torch.randn(3, 28, 28)
    sums_2P2 = torch.zeros(2, len(patch_PF), 2)
    # 23 places along a side: the quadrants share the one in the middle.
    halves = ((0, range(12)), (1, range(11, 23)))
    for row, tops in halves:
        for column, lefts in halves:
            for top in tops:
                for left in lefts:
                    patch_F = x_CHW[:, top : top + 6, left : left + 6].flatten()
                    patch_F = (patch_F - patch_F.mean()) / (patch_F.var(correction=0) + 0.01).sqrt()
                    distance_P = ((patch_F - mean_F) @ whitening_FF - patch_PF).norm(dim=1)
                    sums_2P2[row, :, column] += (distance_P.mean() - distance_P).clamp(min=0)
    found_P22 = module(x_CHW[None]).unflatten(1, (len(patch_PF), 2, 2))[0]
    torch.testing.assert_close(found_P22, (sums_2P2 / 12**2).transpose(0, 1), rtol=1e-3, atol=1e-4)


def test_patches_are_of_training_images_and_drawn_by_the_seed(subject: Subject) -> None:
    first: Any = untrained(subject, "random_patches").encoder.module
    same: Any = untrained(subject, "random_patches").encoder.module
    other: Any = untrained(replace(subject, seed=1), "random_patches").encoder.module
    assert torch.equal(first.patch_PF, same.patch_PF)
    assert not torch.equal(first.patch_PF, other.patch_PF)
    # White noise of 108 dimensions has a largest variance of 1.9 among 800 draws; patches that are
    # not whitened have 30.
    assert torch.linalg.eigvalsh(first.patch_PF.T.cov())[-1] < 2
    x_NCHW = raw("train").x_ND.unflatten(1, (3, 28, 28))
    patches_NFL = F.unfold(x_NCHW, 6)
    level_NLF = patches_NFL.mT - patches_NFL.mT.mean(dim=2, keepdim=True)
    level_NLF /= (level_NLF.square().mean(dim=2, keepdim=True) + 0.01).sqrt()
    white_NLF = (level_NLF - first.mean_F) @ first.whitening_FF
    nearest = torch.cdist(first.patch_PF[:5][None], white_NLF.flatten(0, 1)[None]).min()
    assert nearest < 1e-2


@pytest.mark.parametrize("baseline", ["hog", "random_patches"])
def test_an_attempt_after_a_kill_keeps_the_form_that_was_chosen(
    baseline: str, subject: Subject, tmp_path: Path, claimed: Claimed
) -> None:
    first = untrained(subject, baseline).select()
    again = replace(subject, choices=Choices(claimed(tmp_path)))
    with mock.patch.object(KNN, "select", autospec=True, side_effect=KNN.select) as select:
        assert untrained(again, baseline).select() == first
    assert select.call_count == 1, "each candidate was looked at again"
    assert again.choices.entries == subject.choices.entries


def test_without_a_split_to_choose_on_all_features_are_taken_as_they_are(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "splits", lambda *_: [])
    monkeypatch.setattr(LinearProbe, "select", None)  # to fit one would be in vain
    (top1, *_) = untrained(subject, "hog").run("knn")
    assert subject.choices.entries["hog_for_knn"]["selected_on"] == "given"
    bank, queries = untrained(subject, "hog"), untrained(subject, "hog")
    features = bank.features("train", "bicubic"), queries.features("test", "bicubic")
    expected = accuracies(weighted_knn(*features, [20], 0.07, 10)[20])[0]
    assert top1.value == pytest.approx(expected, abs=1e-6)


def test_a_later_evaluation_sees_the_form_that_the_run_chose(
    run: Run, data_dir: Path, tmp_path: Path
) -> None:
    record = run("baseline=hog", "evaluation.protocols=[knn,probe]", "evaluation.probe.epochs=2")
    directory = next((tmp_path / "runs" / "manual").iterdir())
    evaluate_directory(directory, [f"runtime.data_dir={data_dir}"], ["retrieval"])
    later = json.loads((directory / "evaluations" / "retrieval.json").read_text())
    chosen = later["choice"]["hog_for_probe"]["chosen"]
    assert chosen == record.choice["hog_for_probe"]["chosen"]


def test_another_encoder_of_a_form_has_features_of_its_own(subject: Subject) -> None:
    form = untrained(subject, "hog").projected(torch.nn.Identity(), 2304)
    pixels = form.of(subject.encoder).features("test", "bicubic")
    assert torch.equal(pixels.x_ND, subject.features("test", "bicubic").x_ND)


def test_components_without_variance_are_left_out() -> None:
    plane_ND = torch.randn(50, 3) @ torch.randn(3, 40)
    projected_NK = _fitted(Features(plane_ND, torch.zeros(50)), 16)(plane_ND)
    assert projected_NK.shape[1] == 3
    torch.testing.assert_close(projected_NK.T.cov(), torch.eye(3), rtol=0, atol=1e-3)


def test_base_features_are_computed_once_for_all_their_forms(subject: Subject) -> None:
    with mock.patch.object(Images, "features", autospec=True, side_effect=Images.features) as seen:
        untrained(subject, "hog").run("knn")
    assert sorted(call.args[2] for call in seen.mock_calls) == ["test", "train", "tuning"]


def test_factors_are_probed_from_representation_and_embedding(run: Run) -> None:
    record = run("evaluation.protocols=[knn,factors]")
    probed = {score.name: score for score in record.scores if score.name.startswith("factor_")}
    assert {name.rpartition("_")[2] for name in probed} == {"representation", "embedding"}
    assert probed["factor_class_representation"].unit == "%"
    assert probed["factor_background_hue_turns_representation"].unit == ""
    assert all(score.value <= 1 for score in probed.values() if not score.unit)
    # The mean colour of an image passes an average pool: even random weights keep it.
    assert probed["factor_background_hue_turns_representation"].value > 0.5
    embedded = probed["factor_background_hue_turns_embedding"].value
    assert embedded != probed["factor_background_hue_turns_representation"].value
    assert "factors_penalties_embedding" in record.choice


def test_a_network_is_trained_on_shared_bits_and_probed_for_them(run: Run) -> None:
    options = ("epochs=1", "batch_size=50", "evaluation.protocols=[factors]")
    record = run(*options, "dataset.shared_bits=12")
    scores = {score.name: score.value for score in record.scores}
    found = [scores[f"factor_bit_{bit}_representation"] for bit in range(12)]
    assert sum(found) / 12 > 65  # half of all would be right by chance


@pytest.fixture
def subject(data_dir: Path, tmp_path: Path, claimed: Claimed) -> Subject:
    cell, runtime = load_run([*SCENES, f"runtime.data_dir={data_dir}"])
    choices = Choices(claimed(tmp_path))
    choices.note("hyperparameters", {"selected_on": "given"})
    encoder = Encoder(torch.nn.Flatten(), 3 * 28**2)
    settings = cell.evaluation, cell.dataset, cell.augmentation
    return Subject(*settings, encoder, resolve(runtime), choices, 0)


def probe(subject: Subject, columns: Callable[[dict[str, Any]], Any]) -> dict[str, float]:
    """Probe made-up features, which are computed of the factors of a split."""

    def features(split: str, *_: object) -> Features:
        factors = read_factors(subject.compute.data_dir, subject.task.dataset, split)
        x_ND = torch.from_numpy(np.stack(columns(factors), axis=1)).float()
        return Features(x_ND, torch.zeros(len(x_ND), dtype=torch.int64))

    subject.features = features  # type: ignore[method-assign, assignment]
    return {score.name: score.value for score in FactorProbes().run("factors", subject)}


def test_what_a_representation_holds_is_found_and_nothing_else(subject: Subject) -> None:
    def columns(factors: dict[str, Any]) -> Any:
        angle = 2 * np.pi * factors["hue_turns"]
        classes = F.one_hot(torch.from_numpy(factors["class"]), 10).numpy().T
        return [np.sin(angle), np.cos(angle), 100 * factors["scale"], *classes]

    found = probe(subject, columns)
    assert min(found[f"factor_{name}_representation"] for name in ("hue_turns", "scale")) > 0.999
    assert found["factor_class_representation"] == 100
    for name in ("x_share", "background_hue_turns"):
        assert abs(found[f"factor_{name}_representation"]) < 0.15


def test_a_hue_just_below_a_turn_is_near_one_just_above(subject: Subject) -> None:
    """The hue itself as a feature is not enough: it jumps where the circle closes."""
    found = probe(subject, lambda factors: [factors["hue_turns"]])
    assert 0.2 < found["factor_hue_turns_representation"] < 0.6


def test_a_representation_of_nothing_is_held_against_the_means_of_sine_and_cosine(
    subject: Subject,
) -> None:
    circle = {}
    for split in ("train", "test"):
        factors = read_factors(subject.compute.data_dir, subject.task.dataset, split)
        angle = 2 * np.pi * factors["hue_turns"].astype(np.float64)
        circle[split] = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    guess = np.broadcast_to(circle["train"].mean(axis=0), circle["test"].shape)
    found = probe(subject, lambda factors: [np.ones(len(factors["scale"]))])
    from sklearn.metrics import r2_score

    wanted = r2_score(circle["test"], guess, multioutput="variance_weighted")
    assert found["factor_hue_turns_representation"] == pytest.approx(wanted, abs=1e-9)


def test_the_scale_of_features_does_not_matter(subject: Subject) -> None:
    """Penalties are shares of their variance; a power of two changes no digit."""

    def columns(factors: dict[str, Any], unit: float) -> Any:
        rng = np.random.default_rng(0)
        noise = rng.normal(size=(20, len(factors["scale"])))
        return [unit * (factors["scale"] + noise[0]), *(unit * noise[1:])]

    one, small = (probe(subject, partial(columns, unit=u)) for u in (1.0, 2.0**-10))
    assert small == pytest.approx(one, rel=1e-6)


def test_the_tuning_split_chooses_how_much_is_damped(subject: Subject) -> None:
    """On the images that they were fitted to, many features without meaning are best left
    undamped.
    """

    def noise(factors: dict[str, Any]) -> Any:
        images = len(factors["scale"])
        return np.random.default_rng(images).normal(size=(100, images))

    probe(subject, noise)
    entry = subject.choices.entries["factors_penalties_representation"]
    assert entry["selected_on"] == "tuning"
    assert entry["chosen"]["scale"] >= 1


def test_a_data_set_without_factors_is_refused_before_training(tmp_path: Path) -> None:
    cell, _ = load_run(["dataset=digits"])
    prepare(cell.dataset, tmp_path)
    with is_refused("factors needs images whose factors are known, and data set 'digits'"):
        FactorProbes().check("factors", Task(cell.dataset, "tuning", tmp_path))


@pytest.mark.parametrize(
    ("baseline", "label", "terms"),
    [
        ("supervised", "supervised", {"cross_entropy"}),
        ("supcon", "SupCon", {"alignment", "uniformity"}),
    ],
)
def test_labels_train(baseline: str, label: str, terms: set[str], tiny: list[str]) -> None:
    """Stripes are learned within seconds: the loss falls well below that of the first epoch."""
    settings = (*tiny, f"baseline={baseline}", "network=resnet_mini", "epochs=8", "optimizer=adamw")
    record = there(run_cell(*load_run([*settings, "optimizer.base_lr=0.02"]), "manual"))
    assert (record.label, record.is_reference) == (label, True)
    first, last = record.history[0], record.history[-1]
    assert set(last["terms"]) == terms
    assert last["loss"] < first["loss"] - 0.5


@pytest.mark.parametrize(
    ("baseline", "alike", "other", "dims"),
    [
        ("supervised", ["method=vicreg", "embedding_dim=32"], "seed=1", [10, 10]),
        ("supcon", ["method=dino"], "embedding_dim=32", [16, 32]),
    ],
)
def test_a_cell_that_labels_train_knows_nothing_of_methods(
    baseline: str, alike: list[str], other: str, dims: list[int]
) -> None:
    def cell(*changes: str) -> Cell:
        return load_run([*SCENES, "epochs=1", f"baseline={baseline}", *changes])[0]

    plain, changed = cell(), cell(other)
    assert {cell(change).id for change in alike} == {plain.id} != {changed.id}
    assert [plain.output_dim, changed.output_dim] == dims
