"""Weighted kNN against a loop over images, and linear probing against torch's SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regbench import RegbenchError
from regbench.benchmark.config import KNNConfig, ProbeConfig
from regbench.benchmark.evaluate import Features, LinearHeads, weighted_knn


def draw(n: int, classes: int, seed: int, dim: int = 6, spread: float = 1.0) -> Features:
    """Classes are Gaussian clouds around fixed centres; double precision, so that there are no near ties."""
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    return Features(centres[y] + spread * torch.randn(n, dim, generator=generator, dtype=torch.float64), y)


def slow_knn(bank: Features, queries: Features, k: int, temperature: float, classes: int) -> tuple[float, float]:
    def cosine(u: list[float], v: list[float]) -> float:
        return sum(a * b for a, b in zip(u, v, strict=True)) / math.sqrt(sum(a * a for a in u) * sum(b * b for b in v))

    correct1 = correct5 = 0
    for x, label in zip(queries.x_ND.tolist(), queries.y_N.tolist(), strict=True):
        pairs = ((cosine(x, v), c) for v, c in zip(bank.x_ND.tolist(), bank.y_N.tolist(), strict=True))
        nearest = sorted(pairs, reverse=True)[:k]
        votes = [0.0] * classes
        for similarity, c in nearest:
            votes[c] += math.exp(similarity / temperature)
        # A class without any vote is no guess of the classifier's.
        ranked = sorted((c for c in range(classes) if votes[c]), key=lambda c: -votes[c])
        correct1 += ranked[0] == label
        correct5 += label in ranked[:5]
    return 100 * correct1 / len(queries.y_N), 100 * correct5 / len(queries.y_N)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (7, 0.07), (20, 0.5), (90, 0.07)])
@pytest.mark.parametrize("block", [1024, 7])
def test_weighted_knn(k: int, temperature: float, block: int) -> None:
    bank, queries = draw(90, 4, seed=0), draw(31, 4, seed=1)
    found = weighted_knn(bank, queries, KNNConfig(k=k, temperature=temperature), 4, block)
    expected = slow_knn(bank, queries, k, temperature, 4)
    assert found == expected
    assert 25 < expected[0] < 100
    if k in (1, 90):  # one vote names one class, and 90 name all four
        assert found[1] == (found[0] if k == 1 else 100)


def test_weighted_knn_among_many_classes() -> None:
    bank, queries = draw(150, 9, seed=2, spread=2.0), draw(60, 9, seed=3, spread=2.0)
    found = weighted_knn(bank, queries, KNNConfig(k=120, temperature=0.3), 9)
    assert found == slow_knn(bank, queries, 120, 0.3, 9)
    assert found[0] < found[1] < 100


def test_weighted_knn_weighs_near_neighbours_more_at_a_low_temperature() -> None:
    bank = Features(torch.tensor([[1.0, 0.1], [1.0, 0.9], [1.0, 0.95]]), torch.tensor([0, 1, 1]))
    query = Features(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert weighted_knn(bank, query, KNNConfig(k=3, temperature=0.07), 2)[0] == 100
    assert weighted_knn(bank, query, KNNConfig(k=3, temperature=10.0), 2)[0] == 0


def test_weighted_knn_refuses_more_neighbours_than_there_are() -> None:
    with pytest.raises(RegbenchError, match=r"evaluation\.knn\.k=91 is larger than the 90 training images"):
        weighted_knn(draw(90, 3, seed=0), draw(5, 3, seed=1), KNNConfig(k=91), 3)


PROBE = ProbeConfig(learning_rates=(0.05, 0.4, 3.0), epochs=5, momentum=0.9, weight_decay=0.02)


def batches(features: Features, sizes: tuple[int, ...]) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(features.y_N), generator=torch.Generator().manual_seed(number))
        for rows in order.split(list(sizes)):
            yield features.x_ND[rows].float(), features.y_N[rows]

    return epoch


def single(features: Features) -> Features:
    return Features(features.x_ND.float(), features.y_N)


def with_probe(learning_rates: tuple[float, ...], config: ProbeConfig = PROBE) -> ProbeConfig:
    return ProbeConfig(
        learning_rates=learning_rates,
        epochs=config.epochs,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def fitted(config: ProbeConfig, classes: int, *, seed: int = 4) -> LinearHeads:
    train = draw(70, classes, seed=5)
    heads = LinearHeads(6, classes, config, seed, torch.device("cpu"))
    heads.fit(batches(train, (32, 32, 6)))
    return heads


def sgd(rate: float, classes: int, *, seed: int = 4) -> torch.nn.Linear:
    """The same head by autograd, torch's cross-entropy and torch's SGD."""
    train = draw(70, classes, seed=5)
    linear = torch.nn.Linear(6, classes)
    with torch.no_grad():
        linear.weight.copy_((0.01 * torch.randn(6, classes, generator=torch.Generator().manual_seed(seed))).T)
        linear.bias.zero_()
    optimizer = torch.optim.SGD(linear.parameters(), lr=rate, momentum=PROBE.momentum, weight_decay=PROBE.weight_decay)
    for epoch in range(PROBE.epochs):
        optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * epoch / PROBE.epochs))
        for x, y in batches(train, (32, 32, 6))(epoch):
            optimizer.zero_grad()
            F.cross_entropy(linear(x), y).backward()
            optimizer.step()
    return linear


@pytest.mark.parametrize("rate", PROBE.learning_rates)
def test_a_head_classifies_as_torchs_sgd(rate: float) -> None:
    """On 5,000 points all over the space, so that a weight off by a thousandth changes some of the classes."""
    x = 3 * torch.randn(5000, 6, generator=torch.Generator().manual_seed(6))
    expected = sgd(rate, 4)(x).argmax(dim=1)
    assert fitted(with_probe((rate,)), 4).accuracies(Features(x, expected)) == [(100.0, 100.0)]


def test_heads_side_by_side_are_those_of_separate_runs() -> None:
    queries = single(draw(400, 7, seed=7, spread=2.0))
    together = list(fitted(PROBE, 7).accuracies(queries))
    apart = [fitted(with_probe((rate,)), 7).accuracies(queries)[0] for rate in PROBE.learning_rates]
    assert together == apart
    assert len(set(together)) > 1
    assert all(top1 < top5 < 100 for top1, top5 in together)


def test_the_block_of_the_accuracies_does_not_matter() -> None:
    heads, queries = fitted(PROBE, 4), single(draw(101, 4, seed=8))
    assert heads.accuracies(queries, block=10) == heads.accuracies(queries)


def test_accuracies_are_those_of_a_count() -> None:
    heads = LinearHeads(6, 6, with_probe((0.1,)), 4, torch.device("cpu"))
    weight = 0.01 * torch.randn(6, 6, generator=torch.Generator().manual_seed(4))
    queries = single(draw(200, 6, seed=9))
    ranked = (queries.x_ND @ weight).argsort(dim=1, descending=True).tolist()
    hits = [row.index(label) for row, label in zip(ranked, queries.y_N.tolist(), strict=True)]
    expected = (100 * sum(h < 1 for h in hits) / 200, 100 * sum(h < 5 for h in hits) / 200)
    (found,) = heads.accuracies(queries)
    assert found == pytest.approx(expected)


def test_heads_learn_a_separable_problem() -> None:
    generator = torch.Generator().manual_seed(10)
    y = torch.arange(90) % 3
    x = 4 * torch.eye(6)[y] + 0.1 * torch.randn(90, 6, generator=generator)
    heads = LinearHeads(6, 3, ProbeConfig(learning_rates=(0.5,), epochs=5), 0, torch.device("cpu"))
    heads.fit(batches(Features(x, y), (30, 30, 30)))
    assert heads.accuracies(Features(x, y)) == [(100.0, 100.0)]


def test_a_rate_that_diverges_spoils_no_other() -> None:
    queries = single(draw(300, 4, seed=11))
    good, bad = fitted(with_probe((0.4, 1e38)), 4).accuracies(queries)
    assert good == fitted(with_probe((0.4,)), 4).accuracies(queries)[0]
    assert bad[0] < good[0]
