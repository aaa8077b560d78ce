"""Draw the error of sliced statistics against their number of random directions, for docs/results/family.md.

    python -m regbench.instruments.speed.slices docs/results/slices.png

SUSReg's mean over directions is n ∫ (1 − ψ²) e^{−t²/2} dt times the MMD that `susreg_mmd` computes, SIGReg's √(2π) n
times the MMD with the kernel κ of `kerjepa_sliced_mmd`, pairs i = j included. It takes some seconds on a CPU.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.special import hyp0f1
from torch import Tensor

from regbench import methods
from regbench.methods.kerjepa import sliced_gaussian

N, Q, SEEDS = 32, 16, 24
DIRECTIONS = tuple(4**k for k in range(1, 6))


def sliced(name: str, z: Tensor, directions: int, seed: int) -> float:
    """Compute a sliced statistic of one view, with a quadrature that is exact to ten digits."""
    settings = {"directions": directions, "regularization_weight": 1.0, "knots": 33, "largest_frequency": 8.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        terms = methods.build(name, **settings).terms(z, z)
    return sum(term.item() for term in terms.values())


def limit_of_susreg(z: Tensor) -> float:
    """Compute what SUSReg tends to."""
    t, step = np.linspace(0, 9, 2001, retstep=True)
    point = 2 * step * ((1 - hyp0f1(Q / 2, -(t**2) / 4) ** 2) * np.exp(-(t**2) / 2)).sum()
    return float(N * point * methods.build("susreg_mmd", regularization_weight=1.0)(z, z).total.item())


def limit_of_sigreg(z: Tensor) -> float:
    """Compute what SIGReg tends to."""
    between = methods.build("kerjepa_sliced_mmd", regularization_weight=1.0)(z, z).terms["normality"].item()
    kernel = sliced_gaussian(torch.cdist(z, z).square() / 2, Q)
    pairs = (kernel.sum() - N).item() / (N * (N - 1))
    return math.sqrt(2 * math.pi) * N * (between + (1 - pairs) / N)


def main(path: str) -> None:
    """Measure, draw and print the slopes."""
    torch.set_num_threads(1)
    z = torch.randn(N, Q, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z[:, : Q // 2] *= 0.5
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    limits = {
        "susreg": ("SUSReg, to its MMD", limit_of_susreg(z)),
        "sigreg": ("SIGReg, to the MMD of κ", limit_of_sigreg(z)),
    }
    for name, (label, limit) in limits.items():
        errors = []
        for count in DIRECTIONS:
            relative = np.array([sliced(name, z, count, seed) / limit - 1 for seed in range(SEEDS)])
            errors.append(float(np.sqrt((relative**2).mean())))
        slope = np.polyfit(np.log(DIRECTIONS), np.log(errors), 1)[0]
        print(f"{label}: slope {slope:.3f}; {', '.join(f'{e:.2%}' for e in errors)} at {DIRECTIONS}")
        axes.loglog(DIRECTIONS, errors, "o-", label=f"{label}: slope {slope:.2f}")
    axes.set(xlabel="number of random directions", ylabel="root mean squared relative error")
    axes.set_title(f"n = {N}, q = {Q}, {SEEDS} draws")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
