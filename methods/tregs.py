"""T-REGS: the length of the minimum spanning tree of a view."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from regbench.methods.base import Metadata, register
from regbench.methods.forms.decomposed import Addends, Decomposed
from regbench.methods.forms.pairwise import panels
from regbench.settings import NonNegative, settings
from regbench.spaces import Range, Space


@register("tregs")
@settings
class TREGS(Decomposed):
    """β (1/n) Σᵢ ‖z₁ᵢ − z₂ᵢ‖² + Σ_v [ −γ (1/n) E(MST(Z_v)) + λ (1/n) Σᵢ (‖z_vᵢ‖ − 1)² ] (Mordacq et
    al., 2025).

    E is the sum of the lengths of the edges of the minimum spanning tree of the embeddings, which
    are not normalised: the last term keeps them near the unit sphere. The gradient is that of the
    lengths of the tree's edges; which edges these are is found from panels of the Gram matrix, of
    which none is kept. The loss and the weights are those of Sections 5 and 5.1, for T-REGS by
    itself. In small trainings the printed β, on a sum over q, makes the network shorten its
    embeddings; 10/q served better (docs/results/many_views.md).

    Attributes:
        alignment_weight: β >= 0, the weight of the sum over q and mean over n.
        length_weight: γ >= 0.
        sphere_weight: λ >= 0.
    """

    alignment_weight: NonNegative = 10.0
    length_weight: NonNegative = 0.2
    sphere_weight: NonNegative = 8e-4

    metadata: ClassVar[Metadata] = Metadata(
        title="T-REGS",
        reference="Mordacq, Loiseaux, Kalogeiton, Oudot, NeurIPS 2025",
        url="https://arxiv.org/abs/2510.23484",
        formula="β ‖Z₁ − Z₂‖²/n + Σ_v [ −(γ/n) Σ_{(i,j) ∈ MST(Z_v)} ‖zᵢ − zⱼ‖ + (λ/n) Σᵢ (‖zᵢ‖ − "
        "1)² ]",
        latex=r"\frac{\beta}{n} \Vert Z_1 - Z_2 \Vert_F^2 + \sum_v \left[ -\frac{\gamma}{n} "
        r"\sum_{(i,j) \in \mathrm{MST}(Z_v)} \Vert z_{v,i} - z_{v,j} \Vert + \frac{\lambda}{n} "
        r"\sum_i (\Vert z_{v,i} \Vert - 1)^2 \right]",
        time="O(n² q log n)",
        memory="O(n q)",
        published="β = 10, γ = 0.2, λ = 0.0008; ResNet-18 on CIFAR and ImageNet-100, ResNet-50 on "
        "ImageNet, batch 512",
        rotation_invariant=True,
    )
    # The range holds 10/q, which served small trainings better, and the published 10.
    space: ClassVar[Space] = {"alignment_weight": Range(0.003, 30, balances=True)}

    def alignment_scale(self, q: int) -> float:
        """Return β q: the published alignment is not divided by q."""
        return self.alignment_weight * q

    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute twice the two terms of one view."""
        n = len(u_NQ)
        first, second = torch.ops.regbench.spanning_tree(u_NQ.detach())
        length = torch.linalg.vector_norm(u_NQ[first] - u_NQ[second], dim=1).sum() / n
        off_sphere = (torch.linalg.vector_norm(u_NQ, dim=1) - 1).square().mean()
        # The factor 2 turns the mean over views, which is taken of this, into the publication's
        # sum.
        return {
            "length": -2 * self.length_weight * length,
            "sphere": 2 * self.sphere_weight * off_sphere,
        }


def spanning_tree(z_NQ: Tensor) -> tuple[Tensor, Tensor]:
    """Find the minimum spanning tree of the rows by Borůvka's algorithm, in panels of the Gram
    matrix.

    Each round joins every tree to its nearest other one, so that there are at most log₂ n rounds.

    Returns:
        The two ends of each of the n − 1 edges, indices of rows.
    """
    n = len(z_NQ)
    tree_N = torch.arange(n, device=z_NQ.device)
    # The mean is taken off, so that the squares cancel less.
    z_NQ = z_NQ - z_NQ.mean(dim=0)
    squared_N = z_NQ.square().sum(dim=1)
    first: list[int] = []
    second: list[int] = []
    while len(first) < n - 1:
        shortest_N, nearest_N = torch.empty_like(squared_N), torch.empty_like(tree_N)
        for rows in panels(n, n, z_NQ):
            distance_PN = (z_NQ[rows] @ z_NQ.T).mul_(-2).add_(squared_N)
            distance_PN.masked_fill_(tree_N[rows, None] == tree_N, torch.inf)
            shortest_P, nearest_N[rows] = distance_PN.min(dim=1)
            # The row's own square changes its place among all rows, though not its nearest.
            shortest_N[rows] = shortest_P + squared_N[rows]
        # Shortest edges first. Among equal ones rounding may choose an edge that closes a cycle; it
        # is left out.
        order = shortest_N.argsort().tolist()
        ends, trees = nearest_N.tolist(), tree_N.tolist()
        parent = list(range(n))
        joined: set[int] = set()
        for one in order:
            other = ends[one]
            if trees[one] in joined:
                continue  # each tree takes its shortest edge only
            joined.add(trees[one])
            root, other_root = _root(parent, trees[one]), _root(parent, trees[other])
            if root != other_root:
                parent[root] = other_root
                first.append(one)
                second.append(other)
        tree_N = torch.tensor([_root(parent, tree) for tree in trees], device=z_NQ.device)
    return torch.tensor(first, device=z_NQ.device), torch.tensor(second, device=z_NQ.device)


def _any_tree(z_NQ: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shapes alone, for a plan: without values there is no tree to be found."""
    ends = torch.empty(len(z_NQ) - 1, dtype=torch.long, device=z_NQ.device)
    return ends, torch.empty_like(ends)


# The first call of `torch.library.custom_op` would import the compiler, which takes seconds.
_LIBRARY = torch.library.Library("regbench", "FRAGMENT")
_LIBRARY.define("spanning_tree(Tensor z_NQ) -> (Tensor, Tensor)")
_LIBRARY.impl("spanning_tree", spanning_tree, "CompositeExplicitAutograd")
torch.library.register_fake("regbench::spanning_tree", _any_tree)


def _root(parent: list[int], tree: int) -> int:
    while parent[tree] != tree:
        # Halving the path on the way keeps paths short.
        parent[tree] = parent[parent[tree]]
        tree = parent[tree]
    return tree
