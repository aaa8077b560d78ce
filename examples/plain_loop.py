"""A loss of regbench in a plain PyTorch loop: two global views and two local ones of each image."""

import torch
from torch import Tensor, nn

from regbench import methods

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
loss_of = methods.build("sfrik_l3", alignment_weight=100.0)

# In place of images: points around ten centres. A view is a point with noise; a local view has more
# of it.
centres = torch.randn(10, 64)


def views_of(images: Tensor) -> list[Tensor]:
    """Draw two global views and two local ones."""
    return [images + noise * torch.randn_like(images) for noise in (0.3, 0.3, 0.6, 0.6)]


for step in range(50):
    images = centres[torch.randint(10, (256,))] + 0.5 * torch.randn(256, 64)
    embeddings = [network(view) for view in views_of(images)]
    loss = loss_of(*embeddings, global_views=2)
    optimizer.zero_grad()
    loss.total.backward()
    optimizer.step()
    if step % 10 == 9:
        terms = ", ".join(f"{name} {term:.4f}" for name, term in loss.terms.items())
        print(f"step {step + 1}: {loss.total:.4f} ({terms})")
