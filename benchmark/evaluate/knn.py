"""Weighted kNN on representations, in blocks of queries and of training images.

Shapes: Q = a block of query images, B = a block of the bank (training images), K = neighbours, D =
representation, C = classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.benchmark.evaluate.base import (
    Evaluation,
    Interpolation,
    Scores,
    Task,
    accuracy_scores,
    register,
)
from regbench.benchmark.evaluate.features import Features, progress_bar
from regbench.benchmark.evaluate.subject import Subject
from regbench.datasets.stored.manifest import Manifest
from regbench.errors import RegbenchError
from regbench.settings import AtLeastOne, Positive, settings

# The similarities of two such blocks take 64 MiB, as integers twice that.
QUERY_BLOCK, BANK_BLOCK = 2048, 8192
_LOW = 2**32 - 1  # the lower half of an integer of 64 bits


@register("knn")
@settings
class KNN(Evaluation):
    """Weighted kNN (Wu et al., CVPR 2018; the paper's appendix): votes exp(cosine similarity /
    temperature).

    Attributes:
        k: Neighbours that vote; hyperparameters are chosen by the top-1 with this k.
        other_k: Further numbers of neighbours to score beside it.
        temperature: Temperature of the votes.
        interpolation: Filter of the resize before the centre crop.
    """

    k: AtLeastOne = 20
    other_k: tuple[AtLeastOne, ...] = ()
    temperature: Positive = 0.07
    interpolation: Interpolation = "bicubic"

    title = "weighted kNN"
    reference = "Wu et al., CVPR 2018"
    selects = "knn_top1"

    @property
    def all_k(self) -> list[int]:
        """The numbers of neighbours to score, each once."""
        return list(dict.fromkeys((self.k, *self.other_k)))

    def check(self, name: str, task: Task) -> None:
        """Refuse more neighbours than there are training images."""
        super().check(name, task)
        num_images = Manifest.load(task.data_dir, task.dataset.name).splits["train"]["num_samples"]
        # `train_per_class` without classes is refused when the images are opened.
        if task.dataset.train_per_class is not None and task.dataset.num_classes:
            num_images = min(num_images, task.dataset.train_per_class * task.dataset.num_classes)
        k = max(self.all_k)
        if k > num_images:
            setting = "k" if k == self.k else "other_k"
            raise RegbenchError(
                f"evaluation.{name}.{setting}={k} is larger than the {num_images} training images; "
                "choose fewer"
            )

    def select(self, name: str, subject: Subject) -> Scores:
        """Return the scores on the selection split."""
        splits = subject.task.splits(name)
        return self._scores(splits[0], subject) if splits else []

    def run(self, name: str, subject: Subject) -> Scores:
        """Return the scores on the test split; none if hyperparameters were chosen by them."""
        chose = name in subject.config.select_by and "test" in subject.task.splits(name)
        return [] if chose else self._scores("test", subject)

    def _scores(self, split: str, subject: Subject) -> Scores:
        bank = subject.features("train", self.interpolation)
        queries = subject.features(split, self.interpolation)
        num_classes, device = subject.task.dataset.num_classes, subject.compute.device
        hits = weighted_knn(bank, queries, self.all_k, self.temperature, num_classes, device)
        scores = []
        for k, hits_Q2 in hits.items():
            protocol = f"weighted kNN, k={k}, temperature={self.temperature:g}"
            name, title = "knn", "kNN"
            if k != self.k:
                name, title = f"knn_k{k}", f"kNN (k = {k})"
            scores += accuracy_scores(name, title, accuracies(hits_Q2), split, protocol)
        return scores


@torch.no_grad()
def weighted_knn(
    bank: Features,
    queries: Features,
    neighbours: Sequence[int],
    temperature: float,
    num_classes: int,
    device: torch.device | None = None,
    blocks: tuple[int, int] = (QUERY_BLOCK, BANK_BLOCK),
) -> dict[int, Tensor]:
    """Return for each query whether weighted kNN has its label first, and among the first five.

    Weighted kNN is that of Wu et al. (2018) and of the paper's appendix; see `accuracies`.

    The score of class c is the sum of exp(cosine similarity / temperature) over the images of class
    c among the k nearest training images. All k are served by one pass. Of equally similar
    training images the first in the bank's order is the nearer; of classes with equal scores the
    one with the smaller label comes first; a class without a neighbour is no answer.

    The top-5 of DINO's, solo-learn's and lightly's code is never lower. It is higher if the
    neighbours are of fewer than five classes: other classes, all of score 0, then fill up the five
    in the order that the sort leaves, which PyTorch does not define. That would count guesses,
    which differ between machines.

    Memory beyond the features, whatever the size of bank and queries: one block of queries and one
    of the bank, normalised, and 12 bytes for each pair of the two: with the default blocks and D =
    2048, 0.3 GB. Where the bank is not on `device`, its blocks are moved there one by one.

    Args:
        bank: Training images, (n, d) float32.
        queries: Images to classify.
        neighbours: Numbers of neighbours k.
        temperature: Temperature of the votes.
        num_classes: C.
        device: Device that computes; None: the one of the queries.
        blocks: Queries and training images at a time.

    Returns:
        k -> whether the label is the first answer and whether it is among five, (queries, 2) bool.
    """
    device = device or queries.x_ND.device
    hits: dict[int, list[Tensor]] = {k: [] for k in neighbours}
    steps = -(-len(queries.y_N) // blocks[0]) * -(-len(bank.y_N) // blocks[1])
    with progress_bar(range(steps), "nearest neighbours") as bar:
        of_queries = queries.x_ND.split(blocks[0]), queries.y_N.split(blocks[0])
        for x_QD, y_Q in zip(*of_queries, strict=True):
            sought = x_QD.to(device), max(neighbours), blocks[1]
            similarity_QK, index_QK = _nearest(bank.x_ND, *sought, bar)
            voters_QK, y_Q = bank.y_N[index_QK.to(bank.y_N.device)].to(device), y_Q.to(device)
            for k, found in hits.items():
                nearest = similarity_QK[:, :k], voters_QK[:, :k]
                found.append(_hits(*nearest, y_Q, temperature, num_classes))
    return {k: torch.cat(found) for k, found in hits.items()}


def accuracies(hits_Q2: Tensor) -> tuple[float, float]:
    """Return top-1 and top-5 accuracy in per cent."""
    top1, top5 = hits_Q2.sum(dim=0).tolist()
    return 100 * top1 / len(hits_Q2), 100 * top5 / len(hits_Q2)


def _nearest(bank_ND: Tensor, x_QD: Tensor, k: int, block: int, bar: Any) -> tuple[Tensor, Tensor]:
    """Return cosine similarities (Q, k) and indices of the k nearest of the bank, the nearest
    first.
    """
    # Each pair of query and training image is one integer. Its upper half is the similarity's bits,
    # which sort as the similarities do once those of negative numbers are flipped. Its lower half
    # is the index, counted down. So the k greatest are well defined, even with ties, however the
    # bank is cut.
    x_QD = F.normalize(x_QD, dim=1)
    best_QK = torch.empty(len(x_QD), 0, dtype=torch.int64, device=x_QD.device)
    for first in range(0, len(bank_ND), block):
        bank_BD = F.normalize(bank_ND[first : first + block].to(x_QD.device), dim=1)
        bits_QB = _turn((x_QD @ bank_BD.T).add_(0.0).view(torch.int32))  # -0.0 + 0.0 is 0.0
        pairs_QB = bits_QB.to(torch.int64)
        del bits_QB  # else three such blocks would lie in memory at once
        pairs_QB <<= 32
        pairs_QB |= _LOW - torch.arange(first, first + len(bank_BD), device=x_QD.device)
        best_QK = torch.cat((best_QK, pairs_QB.topk(min(k, len(bank_BD)), dim=1).values), dim=1)
        best_QK = best_QK.topk(min(k, best_QK.shape[1]), dim=1).values
        del pairs_QB
        bar.update()
    similarity_QK = _turn((best_QK >> 32).to(torch.int32)).view(torch.float32)
    return similarity_QK, _LOW - (best_QK & _LOW)


def _turn(bits: Tensor) -> Tensor:
    """Flip all bits but the sign of negative int32, in place; a second call undoes the first."""
    return bits.bitwise_xor_((bits >> 31).bitwise_and_(2**31 - 1))


def _hits(
    similarity_QK: Tensor, neighbours_QK: Tensor, y_Q: Tensor, temperature: float, num_classes: int
) -> Tensor:
    """Return for each query whether its label has the greatest score, and whether it has one of
    the five greatest.
    """
    # Relative to the nearest neighbour and above 0, so that no temperature is too low; sums in
    # double precision.
    weights_QK = ((similarity_QK - similarity_QK[:, :1]).double() / temperature).exp()
    weights_QK.clamp_min_(torch.finfo(torch.float64).tiny)
    scores_QC = weights_QK.new_zeros(len(y_Q), num_classes)
    scores_QC.scatter_add_(1, neighbours_QK, weights_QK)
    own_Q1 = scores_QC.gather(1, y_Q[:, None])
    smaller_QC = torch.arange(num_classes, device=y_Q.device) < y_Q[:, None]
    ahead_QC = (scores_QC > own_Q1) | ((scores_QC == own_Q1) & smaller_QC)
    rank_Q = ahead_QC.sum(dim=1)
    voted_Q = (neighbours_QK == y_Q[:, None]).any(dim=1)
    return torch.stack([voted_Q & (rank_Q < top) for top in (1, 5)], dim=1)
