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

Q, STEPS, BATCH, TRAINED = 512, 300, 64, 2000


def draw_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to a pixel, scale it and add noise; shape (n, 64)."""
    shifts = torch.randint(-1, 2, (len(images), 2), generator=generator).tolist()
    shifted = torch.stack([image.roll(shift, (0, 1)) for image, shift in zip(images, shifts, strict=True)])
    scale = 0.7 + 0.6 * torch.rand(len(images), 1, 1, generator=generator)
    return (scale * shifted + 0.25 * torch.randn(shifted.shape, generator=generator)).flatten(1)


def draw_images() -> tuple[Tensor, Tensor, Tensor]:
    """Draw two views of 3,000 images, and their classes."""
    generator = torch.Generator().manual_seed(0)
    noise = F.pad(torch.randn(10, 1, 8, 8, generator=generator), (1, 1, 1, 1), "circular")
    prototypes = F.avg_pool2d(noise, 3, 1)[:, 0]
    classes = torch.randint(10, (3000,), generator=generator)
    first = draw_view(prototypes[classes], generator)
    return first, draw_view(prototypes[classes], generator), classes


def knn_percent(network: nn.Module, images: Tensor, classes: Tensor) -> float:
    """Classify those that are not trained on by the 20 nearest of the others by cosine similarity."""
    network.eval()
    with torch.no_grad():
        features = F.normalize(network(images))
    network.train()
    nearest = (features[TRAINED:] @ features[:TRAINED].T).topk(20, dim=1).indices
    guesses = classes[nearest].mode(dim=1).values
    return 100 * (guesses == classes[TRAINED:]).float().mean().item()


def train(method: Regularizer, seed: int) -> str:
    """Return kNN before and after, and the mean length of embeddings before and after."""
    first, second, classes = draw_images()
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64))
    hidden = [nn.ReLU(), nn.Linear(64, Q), nn.BatchNorm1d(Q), nn.ReLU()]
    projector = nn.Sequential(*hidden, nn.Linear(Q, Q, bias=False))
    optimizer = torch.optim.AdamW([*network.parameters(), *projector.parameters()], lr=1e-3, weight_decay=0.05)
    before, lengths = knn_percent(network, first, classes), []
    for _ in range(STEPS):
        rows = torch.randint(TRAINED, (BATCH,))
        z1, z2 = projector(network(first[rows])), projector(network(second[rows]))
        lengths.append(z1.detach().norm(dim=1).mean().item())
        optimizer.zero_grad()
        method.loss(z1, z2).backward()
        optimizer.step()
    after = knn_percent(network, first, classes)
    return f"kNN {before:.1f} -> {after:.1f} %, length {lengths[0]:.2f} -> {lengths[-1]:.2f}"


def main() -> None:
    """Train with both alignments and VICReg, three seeds each."""
    torch.set_num_threads(1)
    losses = {
        "T-REGS as printed": methods.build("tregs"),
        "T-REGS, alignment 10/q": methods.build("tregs", alignment_weight=10 / Q),
        "VICReg": methods.build("vicreg"),
    }
    for name, method in losses.items():
        for seed in range(3):
            print(f"{name}, seed {seed}: {train(method, seed)}")


if __name__ == "__main__":
    main()
