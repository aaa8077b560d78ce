"""A loss of regbench where lightly's examples have theirs: in the training step of a
LightningModule.
"""

import logging
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from regbench import methods

try:
    from pytorch_lightning import LightningModule, Trainer
except ImportError:
    sys.exit("this example needs Lightning: pip install pytorch-lightning")


class SelfSupervised(LightningModule):
    """A backbone, a projector and a loss."""

    def __init__(self) -> None:
        """Make a small network."""
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
        self.projector = nn.Linear(64, 16)
        self.criterion = methods.build(
            "barlow_twins"
        ).module()  # with several GPUs it sees the images of all

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        """Return the loss of two views."""
        (images,) = batch
        first, second = (
            self.projector(self.backbone(images + 0.1 * torch.randn_like(images))) for _ in range(2)
        )
        loss: Tensor = self.criterion(first, second)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
torch.manual_seed(0)
model = SelfSupervised()
loader = DataLoader(TensorDataset(torch.randn(256, 1, 8, 8)), batch_size=64)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
print(f"loss after {trainer.current_epoch} epochs: {float(trainer.callback_metrics['loss']):.4f}")
