"""A regularizer as a `torch.nn.Module`, for training loops that take their losses so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn

from regbench.methods.forms.engine import Engine

if TYPE_CHECKING:
    from regbench.methods.base import Regularizer


class LossModule(nn.Module):
    """The total of a regularizer's loss: `loss = methods.build("vicreg").module()`, then `loss(z1,
    z2).backward()`.

    It has neither parameters nor a state: its `state_dict` is empty, and it can be copied, pickled
    and moved. Its addends by name, for a log, are `loss.method(z1, z2).terms`.

    Where torch.distributed has several processes, they share the batch: all of them call it, each
    with its own images, and the gradient is right for the mean that DistributedDataParallel takes.
    For the loss of one process's images alone, call the regularizer itself.

    Attributes:
        method: The regularizer, with its hyperparameters.
        form: See `Engine`.
    """

    def __init__(self, method: Regularizer, *, form: str = "auto") -> None:
        """See the class for the arguments.

        Raises:
            RegbenchError: If there is no such form.
        """
        super().__init__()
        self.method, self.form = method, Engine(form=form).form

    def forward(self, *views_NQ: Tensor, global_views: int | None = None) -> Tensor:
        """Compute the loss, a scalar; arguments as for a call of the regularizer."""
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        # A group can be neither copied nor pickled, so each call looks it up.
        engine = Engine(form=self.form, group=dist.group.WORLD if several else None)
        return self.method.loss(*views_NQ, engine=engine, global_views=global_views)

    def extra_repr(self) -> str:
        """Show the regularizer with its hyperparameters, and the form."""
        return f"{self.method}, form={self.form!r}"
