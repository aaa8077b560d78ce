"""The evaluator's protocols that train, on a tiny data set: what they score, choose, refuse,
and leave after a kill.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regbench.benchmark.evaluate import state as states
from regbench.benchmark.evaluate.base import EVALUATIONS, choose
from regbench.benchmark.evaluate.features import Encoder, Features, Images, NotFinite
from regbench.benchmark.evaluate.finetune import FineTuned, FineTuning
from regbench.benchmark.evaluate.knn import KNN
from regbench.benchmark.evaluate.linear import LinearHeads, LinearProbe, head_and_tail, shuffled
from regbench.benchmark.evaluate.retrieval import Retrieval, ranks
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.evaluate.subject import Subject, selection_splits
from regbench.benchmark.machine.compute import Compute, resolve
from regbench.benchmark.rundir.choice import Choices
from regbench.benchmark.rundir.directory import read_numbered, tensor_files
from regbench.benchmark.rundir.lease import Attempt
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.settings.cell import Cell, EvaluationConfig
from regbench.benchmark.settings.sweep import load_run
from regbench.benchmark.training.network import SiameseNetwork
from regbench.datasets.config import DatasetConfig
from regbench.datasets.loading.loaders import EvalLoader
from regbench.datasets.sources.imagefolder import ImageFolder
from regbench.datasets.stored.prepare import prepare
from tests.conftest import TINY
from tests.refusals import is_refused

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[..., Subject]
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def cell(tiny: list[str]) -> Cell:
    return load_run(tiny)[0]


@pytest.fixture
def compute(tiny: list[str]) -> Compute:
    return resolve(load_run(tiny)[1])


@pytest.fixture(scope="module")
def few(
    tiny_source: Path, tiny_data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> DatasetConfig:
    """A third of tiny's training images, by a list, and a tuning split from those that it does
    not name.
    """
    listed = tmp_path_factory.mktemp("list") / "few.txt"
    with listed.open("w") as file:
        for label in ("level", "slanted", "upright"):
            file.writelines(f"{label}/{i:03d}.jpg\n" for i in range(0, 39, 3))
    source = ImageFolder(train_list=str(listed), tuning_per_class=10)
    whole = replace(load_run(TINY)[0].dataset, name="few", source=source)
    prepare(whole, tiny_data_dir, source_dir=tiny_source)
    return whole


@pytest.fixture
def make(cell: Cell, compute: Compute, tmp_path: Path, claimed: Callable[[Path], Attempt]) -> Make:
    """An evaluator of the same untrained network in a folder of its own, with a changed
    configuration.
    """

    def subject(folder: str, **changes: Any) -> Subject:
        choices = Choices(claimed(tmp_path / folder))
        choices.note("hyperparameters", {"selected_on": "given"})
        network = SiameseNetwork(cell.network, cell.embedding_dim, 3, 24, 0)
        encoder = Encoder(network.backbone, network.representation_dim)
        config = cell.evaluation.replaced(**changes)
        return Subject(config, cell.dataset, cell.augmentation, encoder, compute, choices, 1)

    return subject


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The split and the options of each loader that is opened."""
    found: list[dict[str, Any]] = []

    def spy(dataset: Any, split: str, **options: Any) -> Any:
        found.append({"split": split, **options})
        return EvalLoader(dataset, split, **options)

    monkeypatch.setattr("regbench.benchmark.evaluate.features.EvalLoader", spy)
    return found


def probing(**changes: Any) -> LinearProbe:
    settings: dict[str, Any] = {"learning_rates": (0.001, 0.1), "epochs": 4, "milestones": (2, 3)}
    return LinearProbe(**(settings | {"batch_norm": True, "batch_size": 32} | changes))


def tuning(dataset: DatasetConfig, **changes: Any) -> FineTuning:
    settings: dict[str, Any] = {"dataset": dataset, "epochs": 4, "batch_size": 16}
    settings |= {"backbone_learning_rates": (0.0, 0.05), "head_learning_rates": (1e-4, 0.1)}
    return FineTuning(**(settings | changes))


def named(scores: list[Score]) -> dict[tuple[str, str], float]:
    return {(score.name, score.split): score.value for score in scores}


def test_features_in_bf16_are_those_of_fp32_but_for_its_rounding(make: Make) -> None:
    subjects = [make("default"), make("exact", precision="fp32"), make("rounded", precision="bf16")]
    found = []
    for subject in subjects:
        views_NVD = subject.views("tuning", images=6, views=2)
        found.append((subject.features("tuning", "bicubic").x_ND, views_NVD))
    for default, exact, rounded in zip(*found, strict=True):
        assert torch.equal(default, exact)
        assert rounded.dtype == torch.float32
        # bf16 has 8 bits, and the roundings of several layers add up.
        assert 0 < (rounded - exact).norm() < 0.03 * exact.norm()


def test_a_probe_of_augmented_images_computes_in_the_precision_of_the_evaluations(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions = []
    represent = Encoder.represent

    def watched(self: Encoder, x_NCHW: torch.Tensor) -> torch.Tensor:
        precisions.append(self.precision)
        return represent(self, x_NCHW)

    monkeypatch.setattr(Encoder, "represent", watched)
    probe = probing(features="augmented", epochs=1, milestones=())
    make("rounded", precision="bf16", probe=probe).run("probe")
    assert set(precisions) == {"bf16"}


def test_several_k_are_scored_in_one_pass(make: Make, cell: Cell) -> None:
    several = make("several", knn=KNN(k=5, other_k=(1, 20)))
    scores = {**named(several.select()), **named(several.run("knn"))}
    names = [f"knn{k}_{top}" for k in ("", "_k1", "_k20") for top in ("top1", "top5")]
    assert list(scores) == [(name, split) for split in ("tuning", "test") for name in names]
    alone = make("alone", knn=KNN(k=20)).run("knn")
    assert scores["knn_k20_top1", "test"] == named(alone)["knn_top1", "test"]


def test_unbalanced_classes_are_scored_by_how_frequent_they_are(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training images of three classes, 19, 40 and 20 of them: the second is the head, the
    first the tail.
    """
    features = Subject.features

    def unbalanced(self: Subject, split: str, *options: Any) -> Features:
        found = features(self, split, *options)
        if split != "train":
            return found
        rows = []
        for label, count in enumerate((19, 40, 20)):
            rows.append((found.y_N == label).nonzero()[:count, 0])
        kept = torch.cat(rows)
        return Features(found.x_ND[kept], found.y_N[kept])

    monkeypatch.setattr(Subject, "features", unbalanced)
    subject = make("unbalanced", probe=probing(features="cached", learning_rates=(1e-6, 0.1)))
    scores = named(subject.run("probe"))
    chosen = (1e-6, 0.1).index(subject.choices.entries["probe_learning_rate"]["chosen"])
    assert chosen == 1  # the other scores less on the head
    heads: Any = subject.once("probe", dict)
    test = subject.features("test", "bicubic")
    found_N = heads.logits(test.x_ND)[chosen].argmax(dim=0)
    for part, label in (("head", 1), ("tail", 0)):
        right = (found_N == label)[test.y_N == label].float().mean()
        assert scores[f"linear_{part}_top1", "test"] == pytest.approx(100 * float(right))
    assert scores["linear_head_top1", "test"] != scores["linear_tail_top1", "test"]

    def without_tail(self: Subject, split: str, *options: Any) -> Features:
        found = unbalanced(self, split, *options)
        return found.of_classes(torch.tensor([1, 2])) if split == "test" else found

    monkeypatch.setattr(Subject, "features", without_tail)
    scores = named(make("without_tail", probe=probing(features="cached")).run("probe"))
    parts = [part for part in ("head", "tail") if (f"linear_{part}_top1", "test") in scores]
    assert parts == ["head"]  # of classes without a test image there is no accuracy
    monkeypatch.undo()
    even = make("even", probe=probing(features="cached")).run("probe")
    assert ("linear_head_top1", "test") not in named(even)


def test_head_and_tail_are_thirds_of_the_classes_unless_they_have_up_to_twice_the_images() -> None:
    for counts, expected in (
        ([2, 9, 4, 1, 6, 3], {"head": [1, 4], "tail": [0, 3]}),
        ([5, 1], {"head": [0], "tail": [1]}),
        ([10, 20, 15], {}),
    ):
        parts = head_and_tail(torch.tensor(counts))
        assert {name: classes.tolist() for name, classes in parts.items()} == expected


def test_hyperparameters_may_be_chosen_by_the_mean_of_knn_and_linear_probing(
    make: Make, opened: list[dict[str, Any]]
) -> None:
    probe = probing(features="cached")
    by_knn = make("knn", probe=probe)
    assert {name for name, _ in named(by_knn.select())} == {"knn_top1", "knn_top5"}
    by_both = make("both", probe=probe, select_by=("knn", "probe"))
    chosen = named(by_both.select())
    assert {each["split"] for each in opened} == {"train", "tuning"}
    assert {split for _, split in chosen} == {"tuning"}
    probed = named(by_knn.run("probe"))
    by_neighbours, by_layers = chosen["knn_top1", "tuning"], chosen["linear_top1", "tuning"]
    assert by_neighbours != by_layers == probed["linear_top1", "tuning"]
    mean = (by_neighbours + by_layers) / 2
    assert chosen["selection_top1", "tuning"] == pytest.approx(mean)
    # The test split's too, from the layers trained already.
    assert named(by_both.run("probe")) == probed


def test_places205_is_probed_on_its_images(make: Make, few: DatasetConfig, tmp_path: Path) -> None:
    schedule = {"epochs": 12, "milestones": (8, 10), "batch_size": 8}
    how = {"features": "augmented", "interpolation": "bilinear", "crop_scale": (0.5, 1.0)}
    config = probing(dataset=few, **how, **schedule)
    scores = make("run", places205=config).run("places205")
    splits = ("tuning", "tuning", "test", "test")
    names = 2 * ("places205_top1", "places205_top5")
    assert list(named(scores)) == list(zip(names, splits, strict=True))
    assert named(scores)["places205_top1", "test"] > 50
    assert scores[0].title == "linear, few, top-1"  # which are not of Places205
    rates = "12 epochs with a tenth of the rate from epochs 8, 10 on"
    for part in ("augmented features, BN without", rates, "chosen on"):
        assert part in scores[0].protocol
    entry = read_numbered(tmp_path / "run", "choice.json")["places205_learning_rate"]
    assert entry["selected_on"] == "tuning"
    assert entry["chosen"] == 0.1
    assert entry["candidates"].keys() == {"0.001", "0.1"}
    assert entry["candidates"]["0.1"] == named(scores)["places205_top1", "tuning"]
    # Whoever keeps the scores removes it.
    (file,) = tensor_files(tmp_path / "run", "evaluation-places205")
    assert file.number == 1


def test_images_of_another_data_set_have_the_colours_that_the_network_was_trained_with(
    make: Make, cell: Cell
) -> None:
    subject = make("run")
    other = replace(cell.dataset, mean=(0.9, 0.9, 0.9), std=(0.1, 0.1, 0.1))
    own, found = (subject.features("train", "bicubic", dataset) for dataset in (None, other))
    torch.testing.assert_close(found.x_ND, own.x_ND)


@pytest.mark.parametrize("features", ["cached", "augmented"])
def test_probing_with_many_rates_is_as_with_each_alone(make: Make, features: str) -> None:
    config = probing(features=features)
    together = make("together", probe=config)
    scores = named(together.run("probe"))
    alone = {}
    for rate in config.learning_rates:
        one = make(f"{rate}", probe=replace(config, learning_rates=(rate,)))
        alone[rate] = named(one.run("probe"))
    best = max(alone, key=lambda rate: alone[rate]["linear_top1", "tuning"])
    assert scores == alone[best]


@pytest.mark.parametrize("protocol", ["labels1", "labels10"])
def test_few_labels_choose_a_pair_of_rates_on_the_tuning_split(
    protocol: str, make: Make, few: DatasetConfig, tmp_path: Path
) -> None:
    backbone_rates, head_rates = (0.0, 0.05), (1e-4, 0.1)
    if protocol == "labels10":  # the best pair comes first
        backbone_rates, head_rates = backbone_rates[::-1], head_rates[::-1]
    config = tuning(few, backbone_learning_rates=backbone_rates, head_learning_rates=head_rates)
    evaluator = make("run", **{protocol: config})
    module = evaluator.encoder.module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    scores = evaluator.run(protocol)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    tops = [f"{protocol}_{top}" for top in ("top1", "top5")]
    assert list(named(scores)) == [(top, split) for split in ("tuning", "test") for top in tops]
    entry = read_numbered(tmp_path / "run", "choice.json")[f"{protocol}_learning_rates"]
    pairs = itertools.product(backbone_rates, head_rates)
    assert set(entry["candidates"]) == {f"{backbone:g} and {head:g}" for backbone, head in pairs}
    best = max(entry["candidates"], key=lambda pair: entry["candidates"][pair])
    assert [f"{rate:g}" for rate in entry["chosen"].values()] == best.split(" and ")
    assert entry["selected_on"] == "tuning"
    assert entry["candidates"][best] == named(scores)[protocol + "_top1", "tuning"]
    assert scores[0].title == "fine-tuning, few, top-1"
    assert "fine-tuning on few, 4 epochs" in scores[0].protocol
    assert f"{best} chosen on tuning from" in scores[0].protocol
    # The test score is the chosen pair's own, whichever was trained last.
    backbone, head = ((rate,) for rate in entry["chosen"].values())
    config = tuning(few, backbone_learning_rates=backbone, head_learning_rates=head)
    assert named(make("alone", **{protocol: config}).run(protocol)) == named(scores)


def test_a_network_that_diverges_in_fine_tuning_has_no_right_answer(
    make: Make, few: DatasetConfig
) -> None:
    rates: dict[str, Any] = {"backbone_learning_rates": (1e30, 0.05), "head_learning_rates": (0.1,)}
    subject = make("run", labels1=tuning(few, **rates))
    scores = named(subject.run("labels1"))
    entry = subject.choices.entries["labels1_learning_rates"]
    assert entry["candidates"]["1e+30 and 0.1"] == 0
    assert entry["candidates"]["0.05 and 0.1"] == scores["labels1_top1", "tuning"] > 0


@pytest.mark.parametrize("features", ["cached", "augmented"])
def test_the_runs_seed_decides_a_probes_weights_and_batches(
    make: Make, features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by hand with the seed 1 of the run for both, and with no other for either."""
    kept: list[torch.Tensor] = []

    def keep(state: State, done: str, *, heads: list[torch.Tensor], **changes: Any) -> None:
        kept.append(heads[0].clone())

    monkeypatch.setattr(State, "save", keep)
    config = probing(features=features, learning_rates=(0.1,), epochs=1)
    evaluator = make("run", probe=config)
    evaluator.run("probe")
    (found,) = kept
    by_hand = evaluator.state("by-hand", config)
    images, backbone, cpu = evaluator.images(), evaluator.encoder, torch.device("cpu")
    bank, _ = images.features(backbone, "train", config.interpolation, 64)
    for weights_seed, batches_seed in ((1, 1), (0, 1), (1, 0)):
        heads = LinearHeads(backbone.dim, 3, config, weights_seed, cpu)
        with images.augmented(config, batches_seed) as epochs:
            if features == "cached":
                heads.fit(partial(shuffled, bank, config.batch_size, batches_seed, cpu), by_hand)
            else:

                def represented(number: int, epochs: Callable[[int], Batches] = epochs) -> Batches:
                    return ((backbone.represent(x), y) for x, y in epochs(number))

                heads.fit(represented, by_hand)
        assert torch.equal(kept[-1], found) == (weights_seed == batches_seed == 1)


def test_the_runs_seed_decides_the_head_and_the_batches_of_few_labels(
    make: Make, few: DatasetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by hand with the seed 1 of the run for both, and with no other for either."""
    kept: list[dict[str, torch.Tensor]] = []
    save = State.save

    def keep(state: State, done: str, **changes: Any) -> None:
        if "network" in changes:
            kept.append({name: value.clone() for name, value in changes["network"].items()})
        save(state, done, **changes)

    monkeypatch.setattr(State, "save", keep)
    config = tuning(few, epochs=1, backbone_learning_rates=(0.05,), head_learning_rates=(0.1,))
    subject = make("run", labels1=config)
    subject.run("labels1")
    for number, (head_seed, batches_seed) in enumerate(((1, 1), (0, 1), (1, 0))):
        tuned = FineTuned(subject.encoder, 3, config, (0.05, 0.1), head_seed, torch.device("cpu"))
        with subject.images(few).augmented(config, batches_seed) as epochs:
            tuned.fit(epochs, subject.state(f"by-hand-{number}", config))
        same = [torch.equal(value, kept[0][name]) for name, value in kept[-1].items()]
        assert all(same) == (head_seed == batches_seed == 1)


@pytest.mark.parametrize("protocol", ["probe", "labels1"])
def test_images_are_cropped_and_resized_as_the_settings_say(
    protocol: str, make: Make, few: DatasetConfig, opened: list[dict[str, Any]]
) -> None:
    own: dict[str, Any] = {"crop_scale": (0.5, 1.0), "interpolation": "area", "epochs": 1}
    probe = probing(features="augmented", milestones=(), **own)
    make("run", probe=probe, labels1=tuning(few, **own)).run(protocol)
    first, *others = opened
    cropped = {"split": "train", "transform": "crop_flip", "crop_scale": (0.5, 1.0)}
    assert cropped.items() <= first.items()
    assert not any({"transform", "crop_scale"} & each.keys() for each in others)
    assert {each["interpolation"] for each in opened} == {"area"}
    assert {each["split"] for each in others} == {"tuning", "test"}


def test_retrieval_counts_what_comes_first_among_views_of_the_test_split(make: Make) -> None:
    subject = make("run")
    rank_N = ranks(subject.views("test", images=24, views=2))
    scores = Retrieval(images=24, ranks=(1, 3)).run("retrieval", subject)
    for k, score in zip((1, 3), scores, strict=True):
        assert (score.name, score.split) == (f"retrieval_recall{k}", "test")
        assert (rank_N == k).any()  # which is no hit
        assert score.value == pytest.approx(100 * sum(rank < k for rank in rank_N.tolist()) / 24)


@pytest.mark.parametrize("value", [torch.nan, 1e25])
def test_representations_that_are_not_finite_or_have_no_finite_length_are_refused(
    value: float, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = make("run")
    monkeypatch.setattr(Encoder, "represent", lambda e, x: torch.full((len(x), e.dim), value))
    reason = "of the tuning split are not finite"
    with pytest.raises(NotFinite, match=f"representations {reason}"):
        subject.features("tuning", "bicubic")
    with pytest.raises(NotFinite, match=f"representations of views {reason}"):
        subject.views("tuning", images=4, views=2)


def test_of_equally_good_candidates_the_first_is_chosen() -> None:
    """One alone is given, as is the first where there is no split to choose on."""
    found = {"tuning": [(50.0, 99.0), (70.0, 80.0), (70.0, 90.0)]}
    assert choose(found, ["a", "b", "c"]) == (1, "tuning", {"a": 50.0, "b": 70.0, "c": 70.0})
    assert choose({"tuning": found["tuning"][:1]}, ["a"]) == (0, "given", {"a": 50.0})
    assert choose({}, ["a"]) == (0, "given", {})


def test_choosing_on_the_test_split_says_so(make: Make, few: DatasetConfig, tmp_path: Path) -> None:
    evaluator = make("run", labels1=tuning(few), probe=probing(features="cached"), select_on="test")
    entries = {"labels1": "labels1_learning_rates", "probe": "probe_learning_rate"}
    for protocol, entry in entries.items():
        scores = evaluator.run(protocol)
        assert {score.split for score in scores} == {"test"}
        assert "chosen on test from" in scores[0].protocol
        assert read_numbered(tmp_path / "run", "choice.json")[entry]["selected_on"] == "test"


def test_what_does_not_choose_is_scored_on_the_test_split_that_chooses(make: Make) -> None:
    subject = make("run", select_on="test", select_by=("probe",), probe=probing(features="cached"))
    subject.select()
    assert {score.split for score in subject.run("knn")} == {"test"}


def test_what_cannot_be_evaluated_is_refused_before_training(
    cell: Cell, few: DatasetConfig, tiny_source: Path, tiny_data_dir: Path
) -> None:
    whole = replace(few, name="untuned", source=ImageFolder())
    prepare(whole, tiny_data_dir, source_dir=tiny_source)

    def refused(protocol: str, reason: str, **changes: Any) -> None:
        evaluations = {"knn": KNN(), protocol: changes.get(protocol) or EVALUATIONS.build(protocol)}
        config = EvaluationConfig(protocols=(protocol,), evaluations=evaluations)
        with is_refused(reason):
            selection_splits(replace(cell, evaluation=config), tiny_data_dir)

    grey = replace(few, channels=1, mean=(0.5,), std=(0.5,))
    several = probing(dataset=whole, learning_rates=(0.001, 0.1, 7.0))
    untuned = "'untuned' has no tuning split"
    rates = r"backbone_learning_rates=\[0\.05\] evaluation\.labels1\.head_learning_rates=\[0\.1\]"
    refused("labels1", rf"{untuned} .* evaluation\.labels1\.{rates}", labels1=tuning(whole))
    reason = rf"{untuned} .* evaluation\.places205\.learning_rates=\[0\.1\]"
    refused("places205", reason, places205=several)
    refused("places205", r"places205\.dataset=null: its scores would be", places205=probing())
    one_rate = tuning(whole, backbone_learning_rates=(0.05,))
    refused("labels1", "has no tuning split", labels1=one_rate)
    absent = "'in100_labels10' is not prepared in .*; run: regbench prepare in100_labels10"
    refused("labels10", f"data set {absent}")
    channels = "labels1: 'few' has 1 channels and the backbone is for the 3 of"
    refused("labels1", channels, labels1=tuning(grey))
    one = {"backbone_learning_rates": (0.1,), "head_learning_rates": (0.2,)}
    config = cell.evaluation.replaced(labels1=tuning(whole, **one))
    assert selection_splits(replace(cell, evaluation=config), tiny_data_dir) == ["tuning"]


def kill_after_saving(patch: pytest.MonkeyPatch, tried: int | None = None) -> list[str]:
    """Let each writing of a state be the last thing that its process does; with `tried`, that of
    so many candidates.

    Returns:
        What each said that is done.
    """
    save = State.save
    saved: list[str] = []

    def killed(state: State, done: str, **changes: Any) -> None:
        save(state, done, **changes)
        saved.append(done)
        if tried is None or changes.get("tried") == tried:
            raise KeyboardInterrupt

    patch.setattr(State, "save", killed)
    return saved


@pytest.mark.parametrize("protocol", ["probe", "places205", "labels1"])
def test_an_evaluation_goes_on_after_every_kill_as_if_there_was_none(
    protocol: str, make: Make, few: DatasetConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SAVE_EVERY_S", 0.0)
    each: dict[str, dict[str, Any]] = {
        "probe": {"probe": probing(features="cached", epochs=3)},
        "places205": {"places205": probing(dataset=few, features="augmented", epochs=3)},
        "labels1": {"labels1": tuning(few, epochs=2, head_learning_rates=(0.1,))},
    }
    settings = each[protocol]
    expected = make("undisturbed", **settings).run(protocol)
    saved = kill_after_saving(monkeypatch)
    for _ in range(20):
        try:
            found = make("killed", **settings).run(protocol)
            break
        except KeyboardInterrupt:
            (file, *_) = tensor_files(tmp_path / "killed", f"evaluation-{protocol}")
            assert file.number == len(saved)
    assert found == expected
    assert len(saved) == len(set(saved)) == (3 if protocol != "labels1" else 2 * (2 + 1))
    choices = [read_numbered(tmp_path / name, "choice.json") for name in ("undisturbed", "killed")]
    assert choices[0] == choices[1]


def test_other_settings_weights_images_or_seeds_do_not_go_on_from_a_state(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SAVE_EVERY_S", 0.0)
    config = probing(features="cached")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_saving(patch)
        make("run", probe=config).run("probe")
    other = replace(config, weight_decay=0.1)
    assert make("run", probe=other).run("probe") == make("fresh", probe=other).run("probe")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_saving(patch)
        make("run", probe=config).run("probe")
    evaluator = make("run", probe=config)
    with torch.no_grad():
        next(evaluator.encoder.module.parameters()).mul_(2)
    assert evaluator.state("probe", config).data == {}
    subject = make("run", probe=config)
    assert subject.state("probe", config).data["epoch"] == 1
    with monkeypatch.context() as patch:
        images = SimpleNamespace(content_sha256={"train": "of others"})
        patch.setattr("regbench.benchmark.evaluate.subject.Manifest.load", lambda *_: images)
        assert subject.state("probe", config).data == {}
    subject.seed = 2
    assert subject.state("probe", config).data == {}


def test_a_choice_on_another_split_does_not_go_on_from_a_state(
    make: Make, few: DatasetConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tuning(few, epochs=1, head_learning_rates=(0.1,))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_saving(patch, tried=1)
        make("run", labels1=config).run("labels1")
    subjects = (make(folder, labels1=config, select_on="test") for folder in ("run", "fresh"))
    found, expected = (subject.run("labels1") for subject in subjects)
    assert found == expected


def test_features_are_never_there_twice(cell: Cell, compute: Compute, tmp_path: Path) -> None:
    from regbench.benchmark.machine.meters import peak_extra_bytes

    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :1].expand(-1, 30_000)

    images, wide = Images(cell.dataset, compute, tmp_path / "choice.json"), Encoder(Wide(), 30_000)

    def run() -> list[torch.Tensor]:
        return [images.features(wide, "train", "bilinear", 6)[0].y_N]

    size_bytes = 120 * 30_000 * 4
    peak_bytes = peak_extra_bytes(run, torch.device("cpu"))
    assert size_bytes < peak_bytes < 1.3 * size_bytes
