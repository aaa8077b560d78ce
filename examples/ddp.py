"""Losses over several processes: torchrun --nproc-per-node 2 examples/ddp.py, or any other number.

The loss compares the images of all processes. So it is the same for any number of them, up to
rounding.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regbench import methods


class Siamese(nn.Module):
    """Both views in one call, as DistributedDataParallel wants it."""

    def __init__(self) -> None:
        """Make a small network."""
        super().__init__()
        self.network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Embed both views."""
        return self.network(first), self.network(second)


dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = (
    torch.device("cuda", rank % torch.cuda.device_count())
    if torch.cuda.is_available()
    else torch.device("cpu")
)
torch.manual_seed(0)
network = DistributedDataParallel(Siamese().to(device))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
criterion = methods.build("vicreg").module()  # finds the group of processes by itself

for step in range(5):
    images = torch.randn(64, 32)  # the same on every process, which takes its share
    first, second = (images + 0.1 * torch.randn(2, 64, 32))[:, rank::world].to(device).unbind()
    loss = criterion(*network(first, second))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step + 1}: {loss.item():.6f}")

dist.destroy_process_group()
