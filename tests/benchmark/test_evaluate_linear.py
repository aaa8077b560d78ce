"""Linear probing against torch's SGD, schedulers and BatchNorm1d, alone, side by side and after
a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench.benchmark.evaluate import state as states
from regbench.benchmark.evaluate.features import Features
from regbench.benchmark.evaluate.linear import LinearHeads, LinearProbe, correct_answers, shuffled
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.rundir.directory import tensor_files
from regbench.benchmark.rundir.lease import Attempt
from tests.benchmark.test_evaluate_knn import draw

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
Batches = Iterator[tuple[Tensor, Tensor]]
Epochs = Callable[[int], Batches]
PROBE = LinearProbe(learning_rates=(0.05, 0.4, 3.0), epochs=5, momentum=0.9, weight_decay=0.02)
STEPS = replace(PROBE, epochs=6, milestones=(2, 5), batch_norm=True)


def batches(features: Features, sizes: tuple[int, ...]) -> Epochs:
    def epoch(number: int) -> Batches:
        order = torch.randperm(len(features.y_N), generator=torch.Generator().manual_seed(number))
        for rows in order.split(list(sizes)):
            yield features.x_ND[rows], features.y_N[rows]

    return epoch


def fitted(config: LinearProbe, classes: int, sizes: tuple[int, ...] = (32, 32, 6)) -> LinearHeads:
    heads = LinearHeads(6, classes, config, 4, CPU)
    heads.fit(batches(draw(sum(sizes), classes, seed=5), sizes))
    return heads


def by_torch(
    config: LinearProbe, rate: float, classes: int, sizes: tuple[int, ...] = (32, 32, 6)
) -> nn.Sequential:
    """The same head of torch's layers, by autograd, torch's cross-entropy, SGD and schedulers.

    In evaluation mode.
    """
    linear = nn.Linear(6, classes)
    with torch.no_grad():
        begun = torch.randn(6, classes, generator=torch.Generator().manual_seed(4))
        linear.weight.copy_((0.01 * begun).T)
        linear.bias.zero_()
    norm = nn.BatchNorm1d(6, affine=False) if config.batch_norm else nn.Identity()
    model = nn.Sequential(norm, linear)
    how: dict[str, Any] = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, **how)
    scheduler: torch.optim.lr_scheduler.LRScheduler = (
        torch.optim.lr_scheduler.MultiStepLR(optimizer, list(config.milestones))
        if config.milestones
        else torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs)
    )
    for epoch in range(config.epochs):
        for x, y in batches(draw(sum(sizes), classes, seed=5), sizes)(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
    return model.eval()


@pytest.mark.parametrize("config", [PROBE, STEPS], ids=["cosine", "steps and BN"])
@pytest.mark.parametrize("rate", PROBE.learning_rates)
def test_a_head_classifies_as_torchs(config: LinearProbe, rate: float) -> None:
    """On 5,000 points all over the space, so that a weight off by a thousandth changes some of
    the classes.
    """
    x = 3 * torch.randn(5000, 6, generator=torch.Generator().manual_seed(6))
    expected = by_torch(config, rate, 4)(x).argmax(dim=1)
    heads = fitted(replace(config, learning_rates=(rate,)), 4)
    ((top1, top5),) = heads.accuracies(Features(x, expected))
    assert top1 >= 99.98  # one point of 5,000 may lie on a border
    assert top5 == 100


def test_batch_norm_and_steps_each_matter() -> None:
    """Else the test above would not tell them from nothing."""
    x = 3 * torch.randn(5000, 6, generator=torch.Generator().manual_seed(6))
    expected = by_torch(STEPS, 0.4, 4)(x).argmax(dim=1)
    others = ({"batch_norm": False}, {"milestones": ()}, {"milestones": (3, 5)})
    for changed in (replace(STEPS, **other) for other in others):
        heads = fitted(replace(changed, learning_rates=(0.4,)), 4)
        assert heads.accuracies(Features(x, expected))[0][0] < 99.9


def test_a_last_batch_of_one_image_has_no_variance_and_is_left_out() -> None:
    queries = draw(400, 4, seed=7)
    found = fitted(STEPS, 4, sizes=(32, 32, 1)).accuracies(queries)
    heads = LinearHeads(6, 4, STEPS, 4, CPU)
    whole = batches(draw(65, 4, seed=5), (32, 32, 1))
    heads.fit(lambda epoch: list(whole(epoch))[:2])
    assert found == heads.accuracies(queries)
    with_one, without = (fitted(PROBE, 4, sizes=sizes) for sizes in ((32, 32, 1), (32, 32)))
    assert with_one.accuracies(queries) != without.accuracies(queries)


def test_the_block_of_the_accuracies_does_not_matter() -> None:
    heads, queries = fitted(STEPS, 4), draw(101, 4, seed=8)
    assert heads.accuracies(queries, block=10) == heads.accuracies(queries)


def test_accuracies_are_those_of_a_count() -> None:
    heads = LinearHeads(6, 6, replace(PROBE, learning_rates=(0.1,)), 4, CPU)
    weight = 0.01 * torch.randn(6, 6, generator=torch.Generator().manual_seed(4))
    queries = draw(200, 6, seed=9)
    ranked = (queries.x_ND @ weight).argsort(dim=1, descending=True).tolist()
    hits = [row.index(label) for row, label in zip(ranked, queries.y_N.tolist(), strict=True)]
    expected = (100 * sum(h < 1 for h in hits) / 200, 100 * sum(h < 5 for h in hits) / 200)
    (found,) = heads.accuracies(queries)
    assert found == pytest.approx(expected)


def test_a_rate_that_diverges_spoils_no_other() -> None:
    queries = draw(300, 4, seed=11)
    good, bad = fitted(replace(PROBE, learning_rates=(0.4, 1e38)), 4).accuracies(queries)
    assert good == fitted(replace(PROBE, learning_rates=(0.4,)), 4).accuracies(queries)[0]
    assert bad[0] < good[0]


def test_an_answer_that_is_no_number_is_none() -> None:
    """Of two heads, six classes and four images."""
    nan = float("nan")
    rows = [[nan, 2.0, 1.0, 0.0, -1.0, -2.0], [5.0, *[nan] * 5]]
    rows += [[nan] * 6, [0.0, float("inf"), 1, 2, 3, 4]]
    logits = torch.tensor([rows, [[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]] * 4])
    assert correct_answers(logits, torch.tensor([1, 0, 0, 1])).tolist() == [[3, 3], [2, 4]]
    assert correct_answers(logits, torch.tensor([0, 1, 3, 0])).tolist() == [[0, 0], [2, 4]]
    assert correct_answers(logits, torch.tensor([5, 5, 5, 5])).tolist() == [[0, 2], [0, 0]]


def test_every_image_comes_once_in_an_epoch_in_an_order_of_its_own() -> None:
    features = Features(torch.arange(70.0)[:, None].repeat(1, 6), torch.arange(70))
    orders: dict[tuple[int, int], tuple[int, ...]] = {}
    for seed, epoch in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 0)):
        found = list(shuffled(features, 32, seed, CPU, epoch))
        assert [len(y) for _, y in found] == [32, 32, 6]
        for x, y in found:
            assert torch.equal(x, y[:, None].float().repeat(1, 6))
        order = tuple(torch.cat([y for _, y in found]).tolist())
        assert sorted(order) == list(range(70))
        assert orders.setdefault((seed, epoch), order) == order
    assert len(set(orders.values())) == 5


Claimed = Callable[[Path], Attempt]


def watched(epochs: Epochs, killed_at: tuple[int, int] | None = None) -> tuple[Epochs, list[int]]:
    """The same epochs, with a kill before a batch of one of them, and those that have begun."""
    begun: list[int] = []

    def epoch(number: int) -> Batches:
        begun.append(number)
        for place, batch in enumerate(epochs(number)):
            if (number, place) == killed_at:
                raise KeyboardInterrupt
            yield batch

    return epoch, begun


def state(attempt: Attempt, key: str = "key") -> State:
    return State(attempt, "probe", key, CPU)


@pytest.mark.parametrize("config", [PROBE, STEPS], ids=["cosine", "steps and BN"])
@pytest.mark.parametrize("at", [0, 3, 4])
def test_training_goes_on_after_a_kill_as_if_there_was_none(
    at: int, config: LinearProbe, tmp_path: Path, claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "SAVE_EVERY_S", 0.0)
    train = batches(draw(70, 4, seed=5), (32, 32, 6))
    killed, _ = watched(train, killed_at=(at, 2))
    counted, walked = watched(train)
    with pytest.raises(KeyboardInterrupt):
        LinearHeads(6, 4, config, 4, CPU).fit(killed, state(claimed(tmp_path)))
    assert bool(tensor_files(tmp_path, "evaluation-probe")) == (at > 0)
    resumed = LinearHeads(6, 4, config, 4, CPU)
    resumed.fit(counted, state(claimed(tmp_path)))
    assert walked == list(range(at, config.epochs))
    undisturbed = fitted(config, 4)
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(6))
    assert torch.equal(resumed.logits(x), undisturbed.logits(x))
    # All is trained: a third process only scores.
    LinearHeads(6, 4, config, 4, CPU).fit(killed, state(claimed(tmp_path)))


def test_a_state_of_another_evaluation_or_a_damaged_one_is_not_used(
    tmp_path: Path, claimed: Claimed, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (1, 2):
        state(claimed(tmp_path)).save(f"epoch {epoch} of 3", last=True, tensors=[torch.ones(5000)])
    found = state(claimed(tmp_path)).data
    assert (found["done"], len(found["tensors"][0])) == ("epoch 2 of 3", 5000)
    assert state(claimed(tmp_path), "another").data == {}
    for left in ("epoch 1 of 3", None):
        path = tensor_files(tmp_path, "evaluation-probe")[0].path
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
        caplog.clear()
        assert state(claimed(tmp_path)).data.get("done") == left
        assert f"{path} is damaged" in caplog.text


def test_short_epochs_do_not_all_write(tmp_path: Path, claimed: Claimed) -> None:
    """The last one does; what is written is what training had then."""
    written: list[int] = []

    def watched(epoch: int) -> Batches:
        if tensor_files(tmp_path, "evaluation-probe"):
            written.append(epoch)
        return batches(draw(70, 4, seed=5), (32, 32, 6))(epoch)

    LinearHeads(6, 4, PROBE, 4, CPU).fit(watched, state(claimed(tmp_path)))
    assert written == []
    assert state(claimed(tmp_path)).data["epoch"] == PROBE.epochs
