"""Latent worlds: their laws, their files, and what cannot be asked of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace, norm, t

from regbench.benchmark.settings.presets import dataset_preset, preset_files
from regbench.benchmark.settings.sweep import load_dataset, load_run
from regbench.datasets.config import AugmentationConfig, DatasetConfig, ViewsConfig
from regbench.datasets.loading.latent_split import LatentSplit
from regbench.datasets.loading.loaders import EvalLoader, PretrainingLoader, ViewLoader
from regbench.datasets.sources.base import SOURCES
from regbench.datasets.sources.latents import Latents
from regbench.datasets.stored.manifest import Manifest
from regbench.datasets.stored.prepare import prepare
from regbench.datasets.stored.verify import verify
from regbench.files import write_text
from tests.refusals import is_refused

CPU = torch.device("cpu")
MANY = np.arange(20_000)
SMALL = ("dataset.source.pretraining_examples=64", "dataset.source.train_examples=40")


def world(split: str = "unlabeled", kind: str = "latents", **settings: Any) -> LatentSplit:
    source = SOURCES.build(kind, **settings)
    assert isinstance(source, Latents)
    return LatentSplit(source, Path(f"{split}.json"))


pictures = partial(world, kind="latent_pictures")


def observed(split: LatentSplit, *drawn: Any) -> torch.Tensor:
    return split.observations(split.latents(*drawn))


def config(*overrides: str) -> DatasetConfig:
    return load_dataset(["dataset=latents", *SMALL, *overrides])[0]


def plain_views() -> AugmentationConfig:
    return load_run(["dataset=latents"])[0].augmentation


# Of each prior the distribution of a value, where it has a name.
PRIORS: dict[str, Any] = {
    "normal": norm.cdf,
    "uniform": lambda x: np.clip(x / np.sqrt(12) + 0.5, 0, 1),
    "laplace": laplace(scale=1 / np.sqrt(2)).cdf,
    "student": t(df=4, scale=1 / np.sqrt(2)).cdf,
    **dict.fromkeys(("sphere", "clusters", "anisotropic", "sparse")),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_content_has_its_prior_with_mean_0_and_variance_1(prior: str) -> None:
    content_NC = world(prior=prior).content(MANY)
    # Centres of clusters are few draws, so their mean square is near 1 for many clusters only.
    bound = 0.3 if prior == "clusters" else 0.05
    assert content_NC.mean().abs() < bound
    assert (content_NC.square().mean() - 1).abs() < bound
    if PRIORS[prior]:
        assert min(kstest(values, PRIORS[prior]).pvalue for values in content_NC.T.numpy()) > 1e-4
        correlation_CC = torch.corrcoef(content_NC.T) - torch.eye(8)
        assert correlation_CC.abs().max() < 0.05


def test_other_priors_are_what_their_names_say() -> None:
    length_N = world(prior="sphere").content(MANY).norm(dim=1)
    assert torch.allclose(length_N, torch.tensor(8.0).double().sqrt())
    sparse_NC = world(prior="sparse", density=0.1).content(MANY)
    assert abs((sparse_NC != 0).double().mean().item() - 0.1) < 0.01
    deviation_C = world(prior="anisotropic", decay=2.0).content(MANY).std(dim=0)
    falling_C = torch.arange(1, 9).double() ** -2.0
    assert torch.allclose(deviation_C / deviation_C[0], falling_C, rtol=0.05)


def test_clusters_are_unbalanced_for_pretraining_alone() -> None:
    settings: dict[str, Any] = {"prior": "clusters", "clusters": 4, "imbalance": 1.5}
    settings["train_examples"] = 20_000
    share_K = np.bincount(world(**settings).labels) / 38_400
    expected_K = np.arange(1, 5) ** -1.5
    assert np.allclose(share_K, expected_K / expected_K.sum(), atol=0.01)
    balanced = world("train", **settings)
    assert np.allclose(np.bincount(balanced.labels) / 20_000, 0.25, atol=0.01)
    # A cluster is a tenth of the variance wide.
    content_NC = balanced.content(MANY)
    within_C = content_NC[balanced.labels == 2].var(dim=0)
    assert torch.allclose(within_C, torch.full((8,), 0.1).double(), rtol=0.1)


def test_classes_of_a_world_without_clusters_are_signs() -> None:
    split = world("train")
    signs_NX = split.content(np.arange(len(split)))[:, :3] > 0
    assert np.array_equal(split.labels, (signs_NX.long() @ torch.tensor([1, 2, 4])).numpy())


@pytest.mark.parametrize(
    ("prior", "sharing"), [("normal", "normal"), ("anisotropic", "normal"), ("sphere", "vmf")]
)
def test_views_share_content_by_the_law(prior: str, sharing: str) -> None:
    split = world(prior=prior, sharing=sharing, correlation=0.7)
    (first_NC, _), (second_NC, _), (evaluated_NC, _) = split.latents(3, 1, MANY, [0, 1, 2])
    assert torch.equal(first_NC, split.content(MANY))
    assert torch.equal(evaluated_NC, first_NC)
    square = first_NC.square().mean(dim=0)
    shared_C = (first_NC * second_NC).mean(dim=0) / square
    assert torch.allclose(shared_C, 0.7 * torch.ones(8).double(), atol=0.03)
    # The content of the second view has the same prior.
    assert torch.allclose(second_NC.square().mean(dim=0), square, rtol=0.05)
    if sharing == "vmf":
        cosine_N = torch.cosine_similarity(first_NC, second_NC, dim=1)
        assert torch.allclose(second_NC.norm(dim=1), first_NC.norm(dim=1))
        # Of von Mises and Fisher's law, with A the mean cosine: variance = 1 - A² - (d - 1) A / κ.
        concentration = 7 * 0.7 / (1 - 0.7**2 - cosine_N.var().item())
        from scipy.special import ive

        assert ive(4, concentration) / ive(3, concentration) == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize(("correlation", "values"), [(0.9, 700), (0.999999, 8)])
def test_a_law_that_is_beyond_float64_is_refused(correlation: float, values: int) -> None:
    shape: dict[str, Any] = {"content_dim": values, "observed_dim": values + 24}
    shape |= {"correlation": correlation, "depth": 1, "pretraining_examples": 2}
    split = world(prior="sphere", sharing="vmf", **shape)
    with is_refused(f"correlation={correlation} cannot be drawn for {values} content values; "):
        split.latents(0, 0, np.arange(2), [1])


def test_style_is_drawn_anew_for_each_view_and_epoch_and_depends_on_content_as_asked() -> None:
    split = world(dependence=0.6, style_strength=3.0)
    (content_NC, first_NS), (_, second_NS) = split.latents(0, 0, MANY, [0, 1])
    ((_, later_NS),) = split.latents(0, 1, MANY, [0])
    assert first_NS.std().item() == pytest.approx(3, rel=0.02)
    for other_NS in (second_NS, later_NS):
        # What both share is what the content decides: 0.6² of the variance.
        assert ((first_NS * other_NS).mean() / 9).item() == pytest.approx(0.36, abs=0.01)
    residual_NS = first_NS - content_NC @ torch.linalg.lstsq(content_NC, first_NS).solution
    assert (residual_NS.var() / 9).item() == pytest.approx(0.64, abs=0.01)
    ((_, free_NS),) = world().latents(0, 0, MANY, [0])
    correlation_DD = torch.corrcoef(torch.cat([content_NC, free_NS], dim=1).T)
    assert correlation_DD.sub(torch.eye(32)).abs().max() < 0.05


def test_an_example_is_a_function_of_seed_split_number_epoch_and_view() -> None:
    split, some = world(), np.array([7, 3, 12])
    all_VN = observed(split, 5, 2, np.arange(20), [0, 1])
    assert torch.allclose(observed(split, 5, 2, some, [1])[0], all_VN[1, some])
    drawn = ((6, 2, some, [1]), (5, 3, some, [1]), (5, 2, some, [0]))
    others = [observed(split, *each) for each in drawn]
    others += [observed(each, 5, 2, some, [1]) for each in (world("test"), world(world_seed=1))]
    for other in others:
        assert not torch.allclose(other[0], all_VN[1, some], atol=0.1)


def test_the_numbers_of_this_version_of_the_laws() -> None:
    """Other numbers need another `LAW`, by which digests tell old records from new ones."""
    x_D = observed(world("test"), 0, 0, np.array([3]), [2]).flatten()
    assert x_D[:4].tolist() == pytest.approx(GOLDEN["observation"], abs=1e-5)
    vmf = world(prior="sphere", sharing="vmf", correlation=0.9)
    ((content_NC, _),) = vmf.latents(1, 0, np.array([3]), [1])
    assert content_NC[0, :3].tolist() == pytest.approx(GOLDEN["shared"], abs=1e-5)
    picture_CSS = observed(pictures("test"), 0, 0, np.array([3]), [2])[0, 0]
    assert picture_CSS[0, 8, 8:12].tolist() == pytest.approx(GOLDEN["picture"], abs=1e-5)


GOLDEN = {
    "observation": [-0.5851588, 0.9684512, 0.2201557, -0.4992549],
    "shared": [1.3977011, 0.2723513, -1.3280873],
    "picture": [0.7506685, -2.2461388, 0.0508497, -0.6031364],
}


def test_the_mixing_can_be_inverted() -> None:
    split = world(content_dim=3, style_dim=4, observed_dim=9, depth=2)
    ((content_NC, style_NS),) = split.latents(0, 0, MANY, [0])
    x_ND = observed(split, 0, 0, MANY, [0]).view(len(MANY), 9)
    first, second = split._layers
    hidden_ND = x_ND @ second.T
    hidden_ND = torch.where(hidden_ND < 0, hidden_ND / 0.2, hidden_ND) @ first.T
    expected_ND = torch.cat([content_NC, style_NS], dim=1).float()
    assert torch.allclose(hidden_ND, expected_ND, atol=1e-3)


@pytest.mark.parametrize("side_px", [8, 16, 32, 64])
def test_pictures_show_the_vectors_of_the_same_world(side_px: int) -> None:
    split, some = pictures(picture_px=side_px), np.arange(400)
    (picture_NCSS,) = observed(split, 0, 0, some, [0])
    assert picture_NCSS.shape == (400, 3, side_px, side_px)
    assert picture_NCSS.std().item() == pytest.approx(0.8, abs=0.15)
    assert torch.equal(split.content(some), world().content(some))
    # Another draw of all that is behind a vector leaves its picture: those of vectors that are near
    # are near, so that the nearest vector has the nearest picture mostly.
    vector_ND = observed(world(), 0, 0, some, [0]).flatten(2)[0]
    nearest = []
    for x_NX in (vector_ND, picture_NCSS.flatten(1)):
        distance_NN = torch.cdist(x_NX, x_NX).fill_diagonal_(torch.inf)
        nearest.append(distance_NN.argmin(dim=1))
    assert (nearest[0] == nearest[1]).double().mean() > 0.3


def test_a_network_of_images_is_chosen_for_pictures() -> None:
    for name, kind in (("latents", "MLP"), ("latent_pictures", "ResNet")):
        chosen = load_run([f"dataset={name}"])[0].network.backbone
        assert kind in type(chosen).__name__


def test_batches_of_the_loaders(tmp_path: Path) -> None:
    dataset, views = config(), plain_views()
    prepare(dataset, tmp_path)
    options: dict[str, Any] = {"data_dir": tmp_path, "device": CPU}
    with PretrainingLoader(dataset, views, batch_size=16, seed=4, **options) as loader:
        assert (len(loader), loader.backend) == (4, "auto")
        with loader.epoch(1) as epoch:
            batches = list(epoch)
        with loader.epoch(1, first=2) as epoch:
            resumed = list(epoch)
        assert all(torch.equal(*pair) for pair in zip(batches[2], resumed[0], strict=True))
        assert {view.shape for batch in batches for view in batch} == {(16, 32, 1, 1)}
    halves = []
    for rank in range(2):
        ranks = {"rank": rank, "world_size": 2, "seed": 4, **options}
        with PretrainingLoader(dataset, views, batch_size=8, **ranks) as loader:
            halves.append(next(loader.epoch(1))[0])
    assert torch.allclose(torch.cat(halves), batches[0][0])
    with EvalLoader(dataset, "train", batch_size=64, **options) as evaluated:
        x_NCSS, y_N = next(evaluated.epoch())
    split = LatentSplit(dataset.source, Path("train.json"))  # type: ignore[arg-type]
    assert torch.equal(x_NCSS, observed(split, 0, 0, np.arange(40), [2])[0])
    assert np.array_equal(y_N.numpy(), split.labels)
    with ViewLoader(dataset, views, "tuning", images=10, batch_size=64, **options) as pairs:
        first, second = next(pairs.epoch(0))
    assert first.shape == second.shape == (10, 32, 1, 1)


@pytest.mark.parametrize("images", [64, 32])
def test_labels_of_a_training_are_contents(images: int, tmp_path: Path) -> None:
    dataset = config(f"dataset.pretraining_images={images}")
    prepare(dataset, tmp_path)
    options: dict[str, Any] = {"data_dir": tmp_path, "device": CPU, "labels": True}
    with PretrainingLoader(dataset, plain_views(), batch_size=images, **options) as loader:
        *_, content_NC = next(loader.epoch(0))
    chosen = np.arange(0, 64, 64 // images)
    expected_NC = LatentSplit(dataset.source, Path("unlabeled.json")).content(chosen)  # type: ignore[arg-type]
    order = content_NC[:, 0].argsort()
    assert torch.equal(content_NC[order], expected_NC[expected_NC[:, 0].argsort()].float())


def test_files_say_what_examples_are_drawn_by(tmp_path: Path) -> None:
    manifest = prepare(config(), tmp_path)
    digests = {entry["content_sha256"] for entry in manifest.splits.values()}
    assert len(digests) == 4
    assert verify("latents", tmp_path) == (64 + 40 + 2_000 + 4_000, [])
    other = prepare(config("dataset.name=other", "dataset.source.depth=2"), tmp_path)
    assert digests.isdisjoint(entry["content_sha256"] for entry in other.splits.values())
    write_text(tmp_path / "latents" / "test.json", (tmp_path / "other" / "test.json").read_text())
    assert len(verify("latents", tmp_path)[1]) == 1
    with is_refused("was prepared with depth 3, not depth 1"):
        Manifest.load(tmp_path, "latents").require(config("dataset.source.depth=1"), tmp_path)


@pytest.mark.parametrize("name", [name for name in preset_files("dataset") if "latent" in name])
def test_presets_can_be_prepared(name: str, tmp_path: Path) -> None:
    assert prepare(dataset_preset(name), tmp_path).name == name


def test_more_views_of_a_kind_are_no_augmentation() -> None:
    views = ("augmentation=unaugmented", "augmentation.views.draw.count=4")
    cell, _ = load_run(["dataset=latents", *views])
    assert cell.augmentation.count == 4
    assert isinstance(cell.augmentation.views["draw"], ViewsConfig)
