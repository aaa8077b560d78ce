"""Weighted kNN against a loop over images and against scikit-learn, and what it needs in memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regbench.benchmark.evaluate.base import Task
from regbench.benchmark.evaluate.features import Features
from regbench.benchmark.evaluate.knn import KNN, accuracies, weighted_knn
from regbench.benchmark.machine.meters import peak_extra_bytes
from regbench.benchmark.settings.sweep import load_run
from tests.refusals import is_refused

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def draw(n: int, classes: int, seed: int, dim: int = 6, spread: float = 1.0) -> Features:
    """Classes are Gaussian clouds around fixed centres."""
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    return Features(centres[y] + spread * torch.randn(n, dim, generator=generator), y)


def signs(n: int, classes: int, seed: int) -> Features:
    """Vectors of four signs: there are sixteen, and five values of their cosines, exact in
    floating point.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(2, (n, 4), generator=generator) * 2.0 - 1.0
    return Features(x, torch.randint(classes, (n,), generator=generator))


def slow_knn(
    bank: Features, queries: Features, k: int, temperature: float, classes: int
) -> tuple[float, float]:
    def cosine(u: list[float], v: list[float]) -> float:
        product = sum(a * b for a, b in zip(u, v, strict=True))
        return product / math.sqrt(sum(a * a for a in u) * sum(b * b for b in v))

    correct1 = correct5 = 0
    known = list(zip(bank.x_ND.tolist(), bank.y_N.tolist(), strict=True))
    for x, label in zip(queries.x_ND.tolist(), queries.y_N.tolist(), strict=True):
        pairs = [(cosine(x, v), c) for v, c in known]
        # stable: the first of equals stays first
        nearest = sorted(pairs, key=lambda pair: -pair[0])[:k]
        votes = [0.0] * classes
        for similarity, c in nearest:
            votes[c] += math.exp(similarity / temperature)
        # A class without any vote is no guess of the classifier's.
        ranked = sorted((c for c in range(classes) if votes[c]), key=lambda c: -votes[c])
        correct1 += ranked[0] == label
        correct5 += label in ranked[:5]
    return 100 * correct1 / len(queries.y_N), 100 * correct5 / len(queries.y_N)


@pytest.mark.parametrize("blocks", [(2048, 8192), (7, 11), (31, 1)])
def test_all_k_in_one_pass_are_those_of_a_loop(blocks: tuple[int, int]) -> None:
    bank, queries = draw(150, 9, seed=2, spread=2.0), draw(60, 9, seed=3, spread=2.0)
    all_k = KNN(k=20, other_k=(1, 150, 7, 20)).all_k
    hits = weighted_knn(bank, queries, all_k, 0.3, 9, blocks=blocks)
    found = {k: accuracies(hits_Q2) for k, hits_Q2 in hits.items()}
    assert list(found) == [20, 1, 150, 7]
    for k, both in found.items():
        assert both == slow_knn(bank, queries, k, 0.3, 9), k
    assert found[1][0] == found[1][1]  # one vote names one class
    assert found[20][0] < found[20][1] < 100
    assert len(set(found.values())) == 4


@pytest.mark.parametrize(
    ("temperature", "blocks"), [(0.07, (2048, 8192)), (0.07, (10, 13)), (0.5, (30, 64))]
)
def test_ties_are_broken_by_the_order_of_the_bank_and_of_the_labels(
    temperature: float, blocks: tuple[int, int]
) -> None:
    bank, queries = signs(150, 7, seed=0), signs(40, 7, seed=1)
    found = weighted_knn(bank, queries, (5, 2, 30), temperature, 7, blocks=blocks)
    for k, hits_Q2 in found.items():
        assert accuracies(hits_Q2) == slow_knn(bank, queries, k, temperature, 7), k


@pytest.mark.parametrize("temperature", [0.07, 1e-4])
def test_a_vote_counts_at_any_temperature(temperature: float) -> None:
    """The label is the second of two answers: six smaller ones have no vote."""
    bank = Features(torch.eye(2), torch.tensor([7, 6]))
    query = Features(torch.tensor([[1.0, 0.0]]), torch.tensor([6]))
    hits = weighted_knn(bank, query, (2,), temperature, 8)
    assert hits[2].tolist() == [[False, True]]


def test_the_bank_is_of_images_that_are_trained_on(tiny: list[str], tiny_data_dir: Path) -> None:
    task = Task(load_run([*tiny, "dataset.train_per_class=1"])[0].dataset, "tuning", tiny_data_dir)
    KNN(k=3).check("knn", task)
    with is_refused(r"evaluation\.knn\.k=4 is larger than the 3 training images"):
        KNN(k=4).check("knn", task)


def extra_bytes(bank: Tensor, queries: Tensor, blocks: tuple[int, int]) -> int:
    labels = [torch.zeros(len(x), dtype=torch.int64) for x in (bank, queries)]

    def run() -> list[Tensor]:
        both = Features(bank, labels[0]), Features(queries, labels[1])
        weighted_knn(*both, (5, 50), 0.07, 10, blocks=blocks)
        return []

    return peak_extra_bytes(run, CPU)


def test_memory_is_a_block_whatever_the_size_of_the_bank() -> None:
    q, b, d = 128, 512, 128
    queries = torch.randn(200, d)
    small, large = (extra_bytes(torch.randn(n, d), queries, (q, b)) for n in (1024, 8192))
    assert small == large
    block_bytes = 4 * (q * d + b * d) + 12 * q * b
    assert block_bytes < large < 1.3 * block_bytes
    assert large < 8192 * d * 4 / 3
