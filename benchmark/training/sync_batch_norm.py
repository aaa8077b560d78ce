"""Batch normalisation over the batches of all ranks.

torch.nn.SyncBatchNorm breaks two promises: it refuses CPUs, and on a GPU it makes the host wait in
every layer of every step, because it looks for ranks without images (its `count_all >= 1`). Here
every rank has images. So this layer makes the same calls of torch's CUDA kernels without that
check, and on CPUs computes the same in plain torch.

Shapes: x is (n, c, …); W = ranks, C = channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from regbench.methods.forms.engine import all_gather


class SyncBatchNorm(nn.Module):
    """A BN layer that takes its statistics over the batches of all ranks.

    Attributes:
        kernels: `torch`, whose kernels need CUDA, or `Kernels`.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, replaced: nn.modules.batchnorm._BatchNorm, group: dist.ProcessGroup, kernels: Any
    ) -> None:
        """Take the weights, which keep their names, and the running statistics of the layer
        that is replaced.
        """
        super().__init__()
        if replaced.affine:
            self.weight, self.bias = replaced.weight, replaced.bias
        else:  # the kernels need both
            assert replaced.running_mean is not None
            self.register_buffer("weight", torch.ones_like(replaced.running_mean), persistent=False)
            self.register_buffer("bias", torch.zeros_like(replaced.running_mean), persistent=False)
        self.momentum, self.eps = replaced.momentum or 0.0, replaced.eps
        self.group, self.kernels = group, kernels
        for name, buffer in replaced.named_buffers():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x by the statistics of all ranks, or in evaluation mode by the running ones."""
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        self.num_batches_tracked.add_(1)
        out: Tensor = _Normalise.apply(x, self.weight, self.bias, self)
        return out


class _Normalise(torch.autograd.Function):
    """One exchange forward, one backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: SyncBatchNorm) -> Tensor:
        x, kernels = _dense(x), layer.kernels
        mean_C, inverse_C = kernels.batch_norm_stats(x, layer.eps)
        count = mean_C.new_full((1,), x.numel() // x.shape[1])
        # One exchange of everything: each costs about as much as the layer's arithmetic.
        own = torch.cat([mean_C, inverse_C, count])
        gathered = own.new_empty(dist.get_world_size(layer.group), len(own))
        all_gather(gathered, own[None], group=layer.group)
        means_WC, inverses_WC, counts_W1 = (
            part.contiguous() for part in gathered.split(len(mean_C), dim=1)
        )
        running = layer.running_mean, layer.running_var, layer.momentum
        mean_C, inverse_C = kernels.batch_norm_gather_stats_with_counts(
            x, means_WC, inverses_WC, *running, layer.eps, counts_W1.view(-1)
        )
        ctx.save_for_backward(x, weight, mean_C, inverse_C, counts_W1.to(torch.int32))
        ctx.layer = layer
        out: Tensor = kernels.batch_norm_elemt(x, weight, bias, mean_C, inverse_C, layer.eps)
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        gradient, kernels = _dense(outputs[0]), ctx.layer.kernels
        x, weight, mean_C, inverse_C, counts_W1 = ctx.saved_tensors
        sum_C, product_C, of_weight, of_bias = kernels.batch_norm_backward_reduce(
            gradient, x, mean_C, inverse_C, weight, True, True, True
        )
        sums = torch.cat([sum_C, product_C])
        dist.all_reduce(sums, group=ctx.layer.group)
        sum_C, product_C = sums.chunk(2)
        of_x = kernels.batch_norm_backward_elemt(
            gradient, x, mean_C, inverse_C, weight, sum_C, product_C, counts_W1
        )
        # DistributedDataParallel averages the weights' gradients over the ranks.
        return of_x, of_weight, of_bias, None


def _dense(x: Tensor) -> Tensor:
    """Return x contiguous or with its channels last, which the kernels take."""
    return x if x.is_contiguous(memory_format=torch.channels_last) else x.contiguous()


class Kernels:
    """torch's CUDA kernels of these names, computed in plain torch and float32."""

    @staticmethod
    def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return mean and inverse deviation of this rank's x."""
        variance_C, mean_C = torch.var_mean(x.float(), _axes(x), correction=0)
        return mean_C, (variance_C + eps).rsqrt()

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        x: Tensor,
        means_WC: Tensor,
        inverses_WC: Tensor,
        running_mean_C: Tensor,
        running_var_C: Tensor,
        momentum: float,
        eps: float,
        counts_W: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return mean and inverse deviation over all ranks; update the running statistics."""
        counts_W1 = counts_W[:, None]
        count = counts_W.sum()
        mean_C = (counts_W1 * means_WC).sum(dim=0) / count
        # The ranks exchange inverse deviations, as the CUDA kernels do.
        variances_WC = inverses_WC.square().reciprocal() - eps
        variance_C = (counts_W1 * (variances_WC + (means_WC - mean_C).square())).sum(dim=0) / count
        running_mean_C.lerp_(mean_C, momentum)
        # torch's BN does the same: it normalises by the biased variance and keeps the unbiased one.
        running_var_C.lerp_(variance_C * count / (count - 1), momentum)
        return mean_C, (variance_C + eps).rsqrt()

    @staticmethod
    def batch_norm_elemt(
        x: Tensor, weight: Tensor, bias: Tensor, mean_C: Tensor, inverse_C: Tensor, eps: float
    ) -> Tensor:
        """Normalise x, scale and shift it."""
        scale_C = inverse_C * weight
        return (x.float() * _as(x, scale_C) + _as(x, bias - mean_C * scale_C)).to(x.dtype)

    @staticmethod
    def batch_norm_backward_reduce(
        gradient: Tensor,
        x: Tensor,
        mean_C: Tensor,
        inverse_C: Tensor,
        weight: Tensor,
        *wanted: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the sums of the gradient and of its product with x − mean.

        Also return the gradients of weight and bias.
        """
        sum_C = gradient.float().sum(_axes(x))
        product_C = (gradient.float() * (x.float() - _as(x, mean_C))).sum(_axes(x))
        return sum_C, product_C, product_C * inverse_C, sum_C

    @staticmethod
    def batch_norm_backward_elemt(
        gradient: Tensor,
        x: Tensor,
        mean_C: Tensor,
        inverse_C: Tensor,
        weight: Tensor,
        sum_C: Tensor,
        product_C: Tensor,
        counts_W1: Tensor,
    ) -> Tensor:
        """Return the gradient of x, given the sums over all ranks."""
        count = counts_W1.sum()
        slope_C = inverse_C.square() * product_C / count
        along = (x.float() - _as(x, mean_C)) * _as(x, slope_C)
        centred = gradient.float() - _as(x, sum_C / count) - along
        return (centred * _as(x, inverse_C * weight)).to(x.dtype)


def _axes(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def _as(x: Tensor, values_C: Tensor) -> Tensor:
    """Return values of channels in a shape that broadcasts over x."""
    return values_C.view([-1 if axis == 1 else 1 for axis in range(x.ndim)])
