"""Retrieval of the other view: whether a representation distinguishes an image from all others,
regardless of classes.

A representation that has collapsed into a few dimensions may still separate ten classes; it cannot
tell thousands of images apart.

Shapes: N = images, D = representation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regbench.benchmark.evaluate.base import Evaluation, Scores, register
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.rundir.record import Score
from regbench.settings import AtLeastOne, AtLeastTwo, settings


@register("retrieval")
@settings
class Retrieval(Evaluation):
    """Nearest-neighbour retrieval: the second view of an image is sought among those of all images
    by its first view.

    Attributes:
        images: Number of images of the test split; all if it has fewer.
        ranks: Values of k in recall@k.
    """

    images: AtLeastTwo = 5000
    ranks: tuple[AtLeastOne, ...] = (1, 10)

    title = "retrieval of the other view"
    needs_labels = False
    reference = "instance retrieval by cosine similarity, over two augmented views"

    def run(self, name: str, subject: Subject) -> Scores:
        """Return recall@k on the test split, in per cent."""
        views_NVD = subject.views("test", images=self.images, views=2)
        rank_N = ranks(views_NVD)
        how = f"cosine similarity among {len(rank_N):,} images of the test split"
        scores = []
        for k in self.ranks:
            recall = 100 * (rank_N < k).double().mean().item()
            scores.append(Score(f"{name}_recall{k}", recall, "test", how, f"recall@{k}"))
        return scores


@torch.no_grad()
def ranks(views_NVD: Tensor, block: int = 1024) -> Tensor:
    """Return, for each image, how many second views of other images are at least as near to its
    first view as its own.

    Args:
        views_NVD: Representations of two views of each image, (n, 2, d).
        block: Queries at a time; memory is block × n.
    """
    # Ties count against the image, so that a representation that is a single point recalls nothing.
    first_ND, second_ND = F.normalize(views_NVD.float(), dim=2).unbind(dim=1)
    found = []
    for start in range(0, len(first_ND), block):
        similarity_BN = first_ND[start : start + block] @ second_ND.T
        # Row i of the block is image start + i, whose own view is in that column.
        own_B1 = similarity_BN[:, start:].diagonal()[:, None]
        found.append((similarity_BN >= own_B1).sum(dim=1) - 1)
    return torch.cat(found)
