"""Random directions for sliced statistics."""

from __future__ import annotations

import torch
from torch import Tensor


def random_directions(q: int, count: int, like: Tensor) -> Tensor:
    """Unit vectors as columns, shape (q, count), of the dtype and on the device of `like`.

    Drawn from torch's CPU generator in double precision: one seed gives the same directions everywhere.
    """
    directions_QK = torch.randn(q, count, dtype=torch.float64)
    lengths_K: Tensor = torch.linalg.vector_norm(directions_QK, dim=0)
    return (directions_QK / lengths_K).to(like)
