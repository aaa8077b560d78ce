"""Retrieval of the other view against a plain loop."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from regbench.benchmark.evaluate.retrieval import ranks


def test_ranks_are_those_of_a_loop_whatever_the_blocks() -> None:
    views_NVD = torch.randn(50, 2, 6, generator=torch.Generator().manual_seed(0))
    views_NVD[:, 1] += views_NVD[:, 0]
    unit_NVD = F.normalize(views_NVD, dim=2)
    expected = []
    for i, query in enumerate(unit_NVD[:, 0]):
        similarity = [float(query @ other) for other in unit_NVD[:, 1]]
        expected.append(sum(each > similarity[i] for each in similarity))
    assert len(set(expected)) > 3
    for block in (7, 50, 1024):
        assert ranks(views_NVD, block).tolist() == expected


def test_a_representation_without_dimensions_recalls_nothing() -> None:
    assert ranks(torch.ones(30, 2, 4)).tolist() == [29] * 30


def test_a_low_rank_that_ten_classes_hide_costs_recall() -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(400, 64, generator=generator)
    noise = 0.3 * torch.randn(2, 400, 64, generator=generator)
    wide = torch.stack([images + each for each in noise], dim=1)
    basis, _ = torch.linalg.qr(torch.randn(64, 2, generator=generator))
    recall = [(ranks(x) < 1).double().mean().item() for x in (wide, wide @ basis)]
    assert recall[0] > 0.95
    assert recall[1] < 0.1
