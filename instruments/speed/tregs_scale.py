"""Why T-REGS with its published weights learns nothing in small trainings: the length of its embeddings, and kNN.

    python -m regbench.instruments.speed.tregs_scale

A small network learns from noisy, shifted prototypes of ten classes, with the alignment as printed (a sum over the
coordinates) and as a mean over them. It takes half a minute on a CPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regbench import methods
from regbench.methods import Regularizer

_Q, _STEPS, _BATCH = 512, 300, 64


def draw_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to a pixel, scale it and add noise; shape (n, 64)."""
    shifts = torch.randint(-1, 2, (len(images), 2), generator=generator).tolist()
    shifted = torch.stack([image.roll(shift, (0, 1)) for image, shift in zip(images, shifts, strict=True)])
    scale = 0.7 + 0.6 * torch.rand(len(images), 1, 1, generator=generator)
    return (scale * shifted + 0.25 * torch.randn(shifted.shape, generator=generator)).flatten(1)


def knn_percent(network: nn.Module, train: Tensor, train_classes: Tensor, test: Tensor, test_classes: Tensor) -> float:
    """Classify by the 20 nearest by cosine similarity."""
    network.eval()
    with torch.no_grad():
        known, unknown = (F.normalize(network(x)) for x in (train, test))
    network.train()
    guesses = train_classes[(unknown @ known.T).topk(20, dim=1).indices].mode(dim=1).values
    return 100 * (guesses == test_classes).float().mean().item()


def train(method: Regularizer, seed: int) -> tuple[float, float, float, float]:
    """Return kNN before and after, and the mean length of embeddings before and after."""
    generator = torch.Generator().manual_seed(0)
    prototypes = F.avg_pool2d(F.pad(torch.randn(10, 1, 8, 8, generator=generator), (1, 1, 1, 1), "circular"), 3, 1)[
        :, 0
    ]
    classes = torch.randint(10, (3000,), generator=generator)
    first, second = (draw_view(prototypes[classes], generator) for _ in range(2))
    split = (first[:2000], classes[:2000], first[2000:], classes[2000:])
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64))
    projector = nn.Sequential(
        nn.ReLU(), nn.Linear(64, _Q), nn.BatchNorm1d(_Q), nn.ReLU(), nn.Linear(_Q, _Q, bias=False)
    )
    optimizer = torch.optim.AdamW([*network.parameters(), *projector.parameters()], lr=1e-3, weight_decay=0.05)
    before, lengths = knn_percent(network, *split), []
    for _ in range(_STEPS):
        rows = torch.randint(2000, (_BATCH,))
        z1, z2 = (projector(network(view[rows])) for view in (first, second))
        lengths.append(z1.detach().norm(dim=1).mean().item())
        optimizer.zero_grad()
        method.loss(z1, z2).backward()
        optimizer.step()
    return before, knn_percent(network, *split), lengths[0], lengths[-1]


def main() -> None:
    """Train with both alignments and VICReg, three seeds each."""
    torch.set_num_threads(1)
    losses = {
        "T-REGS as printed": methods.build("tregs"),
        "T-REGS, alignment 10/q": methods.build("tregs", alignment_weight=10 / _Q),
        "VICReg": methods.build("vicreg"),
    }
    for name, method in losses.items():
        for seed in range(3):
            before, after, start, end = train(method, seed)
            print(f"{name}, seed {seed}: kNN {before:.1f} -> {after:.1f} %, length {start:.2f} -> {end:.2f}")


if __name__ == "__main__":
    main()
