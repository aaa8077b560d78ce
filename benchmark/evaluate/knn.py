"""Weighted kNN on representations.

Shapes: N = images, B = block of query images, K = neighbours, D = representation, C = classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from regbench import RegbenchError
from regbench.benchmark.config import KNNConfig
from regbench.benchmark.evaluate.features import Features


@torch.no_grad()
def weighted_knn(
    bank: Features, queries: Features, config: KNNConfig, num_classes: int, block: int = 1024
) -> tuple[float, float]:
    """Top-1 and top-5 accuracy of weighted kNN (Wu et al., 2018; the paper's appendix), in per cent.

    The score of class c is the sum of exp(cosine similarity / temperature) over those of the k nearest training
    images that are of class c.

    Args:
        bank: Training images, (n, d).
        queries: Images to classify.
        config: k and temperature.
        num_classes: C.
        block: Queries at a time; memory is block × n.

    Raises:
        RegbenchError: If k is larger than the bank.
    """
    if config.k > len(bank.y_N):
        raise RegbenchError(
            f"evaluation.knn.k={config.k} is larger than the {len(bank.y_N)} training images; choose fewer"
        )
    bank_ND = F.normalize(bank.x_ND, dim=1)
    correct1 = correct5 = 0
    for x_BD, y_B in zip(queries.x_ND.split(block), queries.y_N.split(block), strict=True):
        similarity_BK, index_BK = (F.normalize(x_BD, dim=1) @ bank_ND.T).topk(config.k, dim=1)
        votes_BC = similarity_BK.new_zeros(len(x_BD), num_classes)
        votes_BC.scatter_add_(1, bank.y_N[index_BK], (similarity_BK / config.temperature).exp())
        votes, classes = votes_BC.topk(min(5, num_classes), dim=1)
        hits = (classes == y_B[:, None]) & (votes > 0)  # a class without a vote is no answer
        correct1 += int(hits[:, 0].sum())
        correct5 += int(hits.sum())
    return 100 * correct1 / len(queries.y_N), 100 * correct5 / len(queries.y_N)
