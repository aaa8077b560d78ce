"""Losses that are alignment plus a regularizer of each view by itself.

Shapes: N = batch (n), Q = embedding dimension (q).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regbench.errors import RegbenchError
from regbench.methods.base import Regularizer
from regbench.methods.forms.engine import Shard
from regbench.methods.forms.gradients import differentiate
from regbench.methods.forms.pairwise import inverse_lengths, normalize, to_embedding_gradient
from regbench.methods.forms.views import add_alignment, mean_squared_spread

Addends = dict[str, Tensor]


class StreamedView(NamedTuple):
    """One view of a streamed loss.

    Attributes:
        z_NQ: This rank's embeddings of the view, shape (n_rank, q).
        inverse_N: Factors that make them u, shape (n_rank,): ones unless `unit`.
        gradient_NQ: Buffer to which `share` times the gradient is added; it holds zeros.
        share: See `gradient_NQ`.
        shard: The ranks.
        form: One of `forms`, except the textbook form.
    """

    z_NQ: Tensor
    inverse_N: Tensor
    gradient_NQ: Tensor
    share: float
    shard: Shard
    form: str


AddRegularizer = Callable[[StreamedView], Addends]
"""See `Decomposed.add_regularizer`."""


class Decomposed(Regularizer):
    """Alignment of the views plus the mean over views of a regularizer of one view.

    A subclass states the two parts for any number of views: the weight of the alignment, as its
    field `alignment_weight` or by `alignment_scale`, and `regularizer`. Time and memory are those
    of V views, however many pairs they form. One with a cheaper way to the numbers of its
    regularizer also implements `add_regularizer` and names the forms that it has.
    """

    kind = "decomposed"
    unit: ClassVar[bool] = False
    """Whether both parts see embeddings of unit length."""
    alignment_weight: float
    to_center: ClassVar[bool] = False
    """Whether views are aligned with the mean of the global ones; else each global view is aligned
    with each other view.
    """

    def __init_subclass__(cls) -> None:
        """Refuse a formula of two views beside the two parts: it would not be what is computed.

        Raises:
            RegbenchError: If a subclass states `terms`.
        """
        super().__init_subclass__()
        if "terms" in vars(cls):
            raise RegbenchError(
                f"{cls.__name__}: a Decomposed loss states its alignment_weight and regularizer; "
                "to state terms, derive from Regularizer"
            )

    def alignment_scale(self, q: int) -> float:
        """Return the weight of the alignment: the field `alignment_weight` unless overridden.

        It weighs the mean over pairs, images **and** coordinates of (u_g − u_v)². With `to_center`
        it weighs the mean over views, images and coordinates of (u_v − c)², c being the mean of the
        global views; for two views this mean is a quarter of the other.

        Args:
            q: Embedding dimension.
        """
        return self.alignment_weight

    def seen(self, views_NQ: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the embeddings that both parts see: of unit length if `unit`."""
        return list(map(normalize, views_NQ)) if self.unit else views_NQ

    @abstractmethod
    def regularizer(self, u_NQ: Tensor) -> Addends:
        """Compute the weighted addends of one view, in plain differentiable torch; the loss has
        their mean over views.

        Args:
            u_NQ: Embeddings of one view of the whole batch, shape (n, q), of unit length if `unit`.
        """

    def regularized_views(self, count: int, global_views: int) -> int:
        """Return how many of V views, from the first on, the regularizer sees: all, unless a
        publication leaves some out.

        Args:
            count: V.
            global_views: G.
        """
        return count

    def regularizer_of_step(self, like_NQ: Tensor) -> Callable[[Tensor], Addends]:
        """Return the regularizer of every view of one step: `regularizer`, unless views share what
        a step draws.

        Args:
            like_NQ: A tensor of the embeddings' dimension, dtype and device.
        """
        return self.regularizer

    def add_regularizer(self, view: StreamedView) -> Addends:
        """Compute the addends of one view, streamed, and add their sum's gradient with respect to
        u.

        A method with other forms than the textbook's overrides this.
        """
        raise NotImplementedError

    def add_regularizer_of_step(self, like_NQ: Tensor) -> AddRegularizer:
        """Return the `add_regularizer` of every view of one step: the method itself, unless views
        share what a step draws.

        Args:
            like_NQ: See `regularizer_of_step`.
        """
        return self.add_regularizer

    def terms(self, z1_NQ: Tensor, z2_NQ: Tensor) -> Addends:
        """Compute the addends of the loss of two global views, see `view_terms`."""
        return self.view_terms((z1_NQ, z2_NQ), 2)

    def view_terms(self, views_NQ: Sequence[Tensor], global_views: int) -> Addends:
        """Compute alignment and the mean of the regularizer's addends."""
        views_NQ = self.seen(views_NQ)
        regularizer = self.regularizer_of_step(views_NQ[0])
        alignment = mean_squared_spread(views_NQ, global_views, to_center=self.to_center)
        scale = self.alignment_scale(views_NQ[0].shape[1])
        seen_NQ = views_NQ[: self.regularized_views(len(views_NQ), global_views)]
        return {"alignment": scale * alignment} | _mean([regularizer(u_NQ) for u_NQ in seen_NQ])

    def value_and_gradient(
        self, views_NQ: Sequence[Tensor], global_views: int, shard: Shard, form: str
    ) -> tuple[Addends, list[Tensor]]:
        """Compute one view at a time, so that scratch does not grow with V.

        See `Regularizer.value_and_gradient`.
        """
        q, seen = views_NQ[0].shape[1], self.regularized_views(len(views_NQ), global_views)
        share = 1 / seen
        inverses_N = [
            inverse_lengths(z_NQ) if self.unit else z_NQ.new_ones(len(z_NQ)) for z_NQ in views_NQ
        ]
        # Either is asked for once, so that all views of a step see the same draws.
        if form == "textbook":
            regularizer = self.regularizer_of_step(views_NQ[0])
        else:
            add_regularizer = self.add_regularizer_of_step(views_NQ[0])
        addends, gradients_NQ = [], []
        for view, (z_NQ, inverse_N) in enumerate(zip(views_NQ, inverses_N, strict=True)):
            if view >= seen:
                # Such a view is aligned with the others and not regularized.
                gradients_NQ.append(torch.zeros_like(z_NQ))
                continue
            if form == "textbook":
                # The gradient is with respect to u, as the alignment's is: both are added before
                # they are turned into those with respect to z.
                u_NQ = z_NQ * inverse_N[:, None] if self.unit else z_NQ
                own, (gradient_NQ,) = differentiate(
                    lambda views: regularizer(views[0]), [u_NQ], shard
                )
                gradient_NQ.mul_(share)
            else:
                gradient_NQ = torch.zeros_like(z_NQ)
                streamed = StreamedView(z_NQ, inverse_N, gradient_NQ, share, shard, form)
                own = add_regularizer(streamed)
            addends.append(own)
            gradients_NQ.append(gradient_NQ)
        scale = self.alignment_scale(q) / (shard.n * q)
        # The value None in place of ones spares a product with every embedding.
        factors_N = inverses_N if self.unit else None
        alignment = add_alignment(
            views_NQ, factors_N, gradients_NQ, scale, global_views, to_center=self.to_center
        )
        if self.unit:
            for each in zip(gradients_NQ, views_NQ, inverses_N, strict=True):
                to_embedding_gradient(*each)
        return {"alignment": scale * shard.sum(alignment)} | _mean(addends), gradients_NQ


def _mean(addends: Sequence[Addends]) -> Addends:
    means = {}
    for name in addends[0]:
        means[name] = torch.stack([own[name] for own in addends]).mean()
    return means
