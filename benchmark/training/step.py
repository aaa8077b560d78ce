"""One training step: forward, loss, backward, update.

Shapes: N = images of this rank, C = channels, H, W = pixels, Q = embedding dimension (q).
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from regbench.benchmark.machine.bf16 import fast_bf16
from regbench.benchmark.machine.meters import draw_embeddings, peak_extra_bytes
from regbench.benchmark.training.network import rescale_prototypes
from regbench.benchmark.training.teacher import Teacher
from regbench.methods import Engine, Regularizer
from regbench.methods.forms.labelled import LOSSES_OF_LABELS
from regbench.methods.forms.targets import loss_of_targets

PARTS = ("forward", "loss", "backward", "optimizer")


class Stepped(NamedTuple):
    """The results of a step.

    Attributes:
        terms: The addends of the loss by name, detached scalars over the whole batch.
        views_NQ: This rank's embeddings of each view, detached.
        marks: The moments before the first of `PARTS` and after each.
    """

    terms: dict[str, Tensor]
    views_NQ: Sequence[Tensor]
    marks: list[Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step; call it with the views of a batch, and its labels if labels train.

    Attributes:
        network: `SiameseNetwork`, compiled or not, within DistributedDataParallel if there are
            several ranks.
        optimizer: The optimizer of its parameters.
        method: The loss.
        engine: The way in which the loss is computed, and over which ranks.
        precision: "bf16" (autocast; the loss stays in float32) or "fp32".
        global_views: The number of global views, which come first.
        micro_batch_size: Images of this rank that pass the network at a time; None: all.
        mark: Function that returns a moment, for timing.
        labelled: The name of the loss of labels, (N,) int64, that takes the place of the method;
            None: the method.
        is_asymmetric: Whether each view's prediction is compared with a target, see
            `loss_of_targets`, instead of the views' embeddings with each other.
        teacher: Maker of the targets; None: they are the embeddings, and the gradient flows through
            them too.
        done: Function that returns the share of the training's steps that are done.
    """

    network: nn.Module
    optimizer: Optimizer
    method: Regularizer
    engine: Engine
    precision: str
    global_views: int = 2
    micro_batch_size: int | None = None
    mark: Callable[[], Any] = lambda: None
    labelled: str | None = None
    is_asymmetric: bool = False
    teacher: Teacher | None = None
    done: Callable[[], float] = lambda: 0.0

    def __call__(self, *batch: Tensor) -> Stepped:
        """Update the network once; gradients are gone afterwards."""
        views_NCHW, labels_N = (batch[:-1], batch[-1]) if self.labelled else (batch, None)
        # Each part of the batch has all views of some images.
        size = self.micro_batch_size or len(views_NCHW[0])
        parts = list(zip(*(x_NCHW.split(size) for x_NCHW in views_NCHW), strict=True))
        marks = [self.mark()]
        # The teacher first: its activations are gone before others wait for the backward pass.
        targets_NQ = self._taught(parts)
        rewind = None
        if len(parts) == 1:
            outputs_NQ = self._embed(self.network, views_NCHW)
        else:
            rewind = _rewind(views_NCHW[0].device)
            outputs_NQ = self._embed_without_graph(parts)
        values_NQ = [z_NQ.detach().float() for z_NQ in outputs_NQ]
        method, views = self.method, len(views_NCHW)
        if self.teacher is not None:
            if targets_NQ is None:
                targets_NQ = values_NQ[: self.global_views]
            if self.teacher.transform is not None:
                method, targets_NQ = self._transformed(
                    self.teacher.transform, targets_NQ, values_NQ[-views:]
                )
        marks.append(self.mark())
        # The loss gets leaves of its own, so that its backward pass is timed apart from the
        # network's.
        # If there are targets, only the outputs that are compared with them get a gradient.
        trained = slice(0 if targets_NQ is None else -views, None)
        leaves_NQ = [value_NQ.detach().requires_grad_() for value_NQ in values_NQ[trained]]
        terms, gradients = self._loss(method, leaves_NQ, views, targets_NQ, labels_N)
        marks.append(self.mark())
        if rewind is None:
            _backward(outputs_NQ[trained], gradients)
        else:
            rewind()
            self._backward_in_parts(parts, gradients, trained)
        marks.append(self.mark())
        self.optimizer.step()
        rescale_prototypes(self.network)
        # DistributedDataParallel keeps the gradients in its buckets, so they are zeroed; others are
        # freed. With LARS, `zero_grad` would zero the tensors one by one.
        if isinstance(self.network, DistributedDataParallel):
            torch._foreach_zero_([p.grad for p in self.network.parameters() if p.grad is not None])
        else:
            self.optimizer.zero_grad()
        if self.teacher is not None:
            self.teacher.follow(self.done())
        marks.append(self.mark())
        return Stepped(terms, values_NQ[:views], marks)

    def loss_extra_bytes(self, n: int, q: int, views: int, device: torch.device) -> int:
        """Measure the peak memory of the loss beyond embeddings and their gradients, for n
        images of this rank.
        """
        drawn_NQ = draw_embeddings(n, q, views, torch.float32, device)
        leaves_NQ = [z_NQ.requires_grad_() for z_NQ in drawn_NQ]
        labels_N = torch.zeros(n, dtype=torch.int64, device=device) if self.labelled else None
        method, targets_NQ = self.method, None
        if self.teacher is not None:
            targets_NQ = [z_NQ.detach() for z_NQ in leaves_NQ[: self.global_views]]
            if self.teacher.transform is not None:
                # A copy, so that the training finds its state as it was.
                transform = copy.deepcopy(self.teacher.transform)
                method, _ = self._transformed(transform, targets_NQ, leaves_NQ)
        return peak_extra_bytes(
            lambda: self._loss(method, leaves_NQ, views, targets_NQ, labels_N)[1], device
        )

    @torch.no_grad()
    def _transformed(
        self, transform: nn.Module, targets_NQ: Sequence[Tensor], predictions_NQ: Sequence[Tensor]
    ) -> tuple[Regularizer, Sequence[Tensor]]:
        """Return the loss of this step and its targets, see `Regularizer.target_transform`."""
        found: tuple[Regularizer, Sequence[Tensor]]
        found = transform(targets_NQ, predictions_NQ, self.done(), self.engine.group)
        return found

    @torch.no_grad()
    def _taught(self, parts: list[tuple[Tensor, ...]]) -> Sequence[Tensor] | None:
        """Return the teacher's embeddings of the global views; None if it has no own network."""
        if self.teacher is None or self.teacher.network is None:
            return None
        passes = [self._embed(self.teacher, part[: self.global_views]) for part in parts]
        return [torch.cat(view).float() for view in zip(*passes, strict=True)]

    def _loss(
        self,
        method: Regularizer,
        leaves_NQ: Sequence[Tensor],
        views: int,
        targets_NQ: Sequence[Tensor] | None,
        labels_N: Tensor | None,
    ) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """Return the loss's addends and its gradient with respect to each leaf.

        The leaves are the outputs of `_embed`; if there are targets, the last one of each view.
        """
        if self.labelled is not None and labels_N is not None:
            loss, terms = LOSSES_OF_LABELS[self.labelled](leaves_NQ, labels_N, self.engine)
        elif self.is_asymmetric:
            targets_NQ = leaves_NQ[: self.global_views] if targets_NQ is None else targets_NQ
            loss, terms = loss_of_targets(method, leaves_NQ[-views:], targets_NQ, self.engine)
        else:
            loss, terms = method(*leaves_NQ, engine=self.engine, global_views=self.global_views)
        # With a predictor, the embeddings of local views are no targets: their gradient is zero.
        return terms, torch.autograd.grad(loss, leaves_NQ, materialize_grads=self.is_asymmetric)

    def _embed(self, network: nn.Module, views_NCHW: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the embeddings of each view, and then the predictions if there is a predictor."""
        device = views_NCHW[0].device
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16")
        with fast_bf16(device, self.precision), autocast:
            outputs_NQ: tuple[Tensor, ...] = network(*views_NCHW)
        return outputs_NQ

    @torch.no_grad()
    def _embed_without_graph(self, parts: list[tuple[Tensor, ...]]) -> Sequence[Tensor]:
        with _kept_statistics(self.network):
            passes = [self._embed(self.network, part) for part in parts]
        return [torch.cat(view) for view in zip(*passes, strict=True)]

    def _backward_in_parts(
        self, parts: list[tuple[Tensor, ...]], gradients: tuple[Tensor, ...], trained: slice
    ) -> None:
        """Pass each part again, now with a graph, and feed its `trained` outputs their rows of the
        gradient (Gao et al., 2021).

        The parts draw the same random numbers as in their first pass, in the same order. The ranks
        average their gradients with the last part.
        """
        sizes = [len(part[0]) for part in parts]
        rows_of_parts = zip(*(g_NQ.split(sizes) for g_NQ in gradients), strict=True)
        for part, rows in zip(parts, rows_of_parts, strict=True):
            wait = isinstance(self.network, DistributedDataParallel) and part is not parts[-1]
            with self.network.no_sync() if wait else contextlib.nullcontext():  # type: ignore[operator]
                _backward(self._embed(self.network, part)[trained], rows)


def _rewind(device: torch.device) -> Callable[[], None]:
    """Return what puts all generators that layers may draw from back to where they are now."""
    of_torch, of_python, of_numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    of_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        if of_gpu is not None:
            torch.cuda.set_rng_state(of_gpu, device)

    return rewind


def _backward(outputs_NQ: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Pass the gradients of outputs back through the network, in the precision of the outputs."""
    torch.autograd.backward(outputs_NQ, [g_NQ.to(outputs_NQ[0].dtype) for g_NQ in gradients])


@contextlib.contextmanager
def _kept_statistics(network: nn.Module) -> Iterator[None]:
    """Let BN layers normalise by their batch, then put back their running statistics and counts."""
    # The second pass of a part updates them; twice would be once too often.
    kept = [buffer.clone() for buffer in network.buffers()]
    yield
    for buffer, before in zip(network.buffers(), kept, strict=True):
        buffer.copy_(before)
