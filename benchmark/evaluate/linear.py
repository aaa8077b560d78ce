"""Linear probing: linear layers on a frozen backbone, one for each learning rate, trained side by
side.

Shapes: N = images, D = representation, C = classes, H = heads (learning rates).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from torch import Tensor

from regbench.benchmark.evaluate.base import (
    Evaluation,
    Interpolation,
    Scores,
    Task,
    accuracy_scores,
    choose,
    chosen_from,
    refuse_choice,
    register,
)
from regbench.benchmark.evaluate.features import Epochs, Features, progress_bar
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.rundir.record import Score
from regbench.benchmark.settings.presets import dataset_preset
from regbench.datasets.config import DatasetConfig
from regbench.errors import RegbenchError
from regbench.settings import AtLeastOne, AtLeastTwo, Momentum, NonNegative, Positive, settings

# Images whose logits are computed at a time: for ImageNet and five rates they take 82 MB.
_BLOCK = 4096
_INITIAL_STD = 0.01  # as in VICReg's evaluation


def _ordered(crop_scale: tuple[float, float]) -> tuple[float, float]:
    if crop_scale[0] > crop_scale[1]:
        raise ValueError("must name the smaller area first")
    return crop_scale


Area = Annotated[float, Field(gt=0, le=1)]
AreaRange = Annotated[tuple[Area, Area], AfterValidator(_ordered)]
"""Least and largest area of random crops, as a fraction of the image's."""


def _places205() -> dict[str, object]:
    """Return the settings of the paper's appendix, "Linear probing on Places205", with the rate
    of its Table 11.
    """
    return {
        "dataset": dataset_preset("places205"),
        "features": "augmented",
        "interpolation": "bilinear",
        "learning_rates": (0.01,),
        "epochs": 28,
        "milestones": (10, 20),
        "batch_norm": True,
        "weight_decay": 1e-4,
    }


_TITLES = {"places205": "Places205"}
_PARTS = {"head": "most frequent", "tail": "rarest"}


@register("probe", places205=_places205)
@settings
class LinearProbe(Evaluation):
    """Linear probing: SGD on a linear layer over the frozen backbone (the SFRIK paper's appendix).

    The defaults make features once, from the crops that kNN takes, so that both share them. The
    sweeps of the paper set `features=augmented` and `interpolation=bilinear`, as it and its code
    do.

    Where training images are unbalanced, cached features are scored on two groups of classes too:
    `linear_head_top1` and `linear_tail_top1`, of the third of the classes with the most and with
    the fewest training images.

    Attributes:
        dataset: Data set of the images; null: that of the cell.
        features: "augmented" (random crops and flips, the paper's protocol) or "cached" (centre
            crops, once).
        learning_rates: Candidates, trained side by side; the tuning split chooses.
        crop_scale: Area range of the random crops for "augmented".
        interpolation: Filter of the resizes.
        epochs: Passes over the training images.
        milestones: Epochs from which on the rate is a tenth of what it was; none: cosine decay per
            epoch.
        batch_norm: Whether BN without scale and shift comes before the linear layer.
        batch_size: Images a step.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
    """

    dataset: DatasetConfig | None = None
    features: Literal["augmented", "cached"] = "cached"
    learning_rates: Annotated[tuple[Positive, ...], Field(min_length=1)] = (
        0.02,
        0.1,
        0.5,
        2.0,
        10.0,
    )
    crop_scale: AreaRange = (0.08, 1.0)
    interpolation: Interpolation = "bicubic"
    epochs: AtLeastOne = 100
    milestones: tuple[AtLeastOne, ...] = ()
    batch_norm: bool = False
    batch_size: AtLeastTwo = 256
    momentum: Momentum = 0.9
    weight_decay: NonNegative = 1e-6

    title = "linear probing"
    reference = "the usual protocol; as in VICReg and SFRIK"
    selects = "linear_top1"

    def check(self, name: str, task: Task) -> None:
        """Refuse rates without a split to choose on, and another probe of the cell's own images."""
        if self.dataset is None and name != "probe":
            what = f"evaluation.{name}.dataset=null: its scores would be called those of probe"
            raise RegbenchError(f"{what}; name a data set, or set evaluation.probe instead")
        refuse_choice(name, task, self.dataset, learning_rates=self.learning_rates)

    def select(self, name: str, subject: Subject) -> Scores:
        """Return the scores on the selection split with the learning rate that is best there."""
        return self._scores(name, subject, final=False)

    def run(self, name: str, subject: Subject) -> Scores:
        """Return the scores on the selection split and on the test split."""
        return self._scores(name, subject, final=True)

    def _scores(self, name: str, subject: Subject, *, final: bool) -> Scores:
        heads = subject.once(name, lambda: self._fitted(name, subject))

        def accuracies(split: str) -> list[tuple[float, float]]:
            return heads.accuracies(subject.features(split, self.interpolation, self.dataset))

        found = {split: accuracies(split) for split in subject.task.splits(name, self.dataset)}
        labels = [f"{rate:g}" for rate in self.learning_rates]
        chosen, selected_on, candidates = choose(found, labels)
        rate = self.learning_rates[chosen]
        what = f"{name}_learning_rate"
        subject.note(what, selected_on=selected_on, chosen=rate, candidates=candidates)
        # The choice is written down, so the test split may be opened.
        if final and "test" not in found:
            found["test"] = accuracies("test")
        protocol = self._protocol(labels[chosen]) + chosen_from(selected_on, labels)
        score, title = "linear", "linear"
        if self.dataset is not None:
            score, title = name, _TITLES.get(self.dataset.name, f"linear, {self.dataset.name},")
        scores: Scores = []
        for split, of_heads in found.items():
            scores += accuracy_scores(score, title, of_heads[chosen], split, protocol)
        if self.dataset is None and self.features == "cached" and "test" in found:
            scores += self._by_frequency(heads, chosen, protocol, subject)
        return scores

    def _by_frequency(
        self, heads: LinearHeads, chosen: int, protocol: str, subject: Subject
    ) -> Scores:
        """Return the accuracy on test images of frequent and of rare classes, if training
        images are unbalanced.
        """
        train = subject.features("train", self.interpolation)
        counts_C = train.y_N.bincount(minlength=subject.task.dataset.num_classes)
        test = subject.features("test", self.interpolation)
        scores = []
        for part, classes in head_and_tail(counts_C).items():
            own = test.of_classes(classes)
            if not len(own.y_N):  # no test image is of these classes
                continue
            top1 = heads.accuracies(own)[chosen][0]
            words = f"{protocol}; test images of the {len(classes)} {_PARTS[part]} classes"
            title = f"linear top-1 of the {part}"
            scores.append(Score(f"linear_{part}_top1", top1, "test", words, title))
        return scores

    def _protocol(self, rate: str) -> str:
        """Describe how the scores were found."""
        text = f"linear probing, {self.features} features"
        if self.batch_norm:
            text += ", BN without scale and shift"
        text += f", {self.epochs} epochs"
        if self.milestones:
            epochs = ", ".join(map(str, self.milestones))
            text += f" with a tenth of the rate from epochs {epochs} on"
        return f"{text}, learning rate {rate}"

    def _fitted(self, name: str, subject: Subject) -> LinearHeads:
        """Train the linear layers."""
        device, images = subject.compute.device, subject.images(self.dataset)
        state = subject.state(name, self, self.dataset)
        sizes = subject.encoder.dim, images.dataset.num_classes
        heads = LinearHeads(*sizes, self, subject.seed, device)
        if self.features == "cached":
            features = subject.features("train", self.interpolation, self.dataset)
            how = self.batch_size, subject.seed, device
            heads.fit(functools.partial(shuffled, features, *how), state)
        else:
            with images.augmented(self, subject.seed) as epochs:

                def represented(number: int) -> Iterator[tuple[Tensor, Tensor]]:
                    for x_NCHW, y_N in epochs(number):
                        yield subject.encoder.represent(x_NCHW), y_N

                heads.fit(represented, state)
        return heads


class LinearHeads:
    """Linear classifiers over the same features, one for each learning rate, trained side by side.

    Each is what SGD with that learning rate alone would give: the heads share nothing but the
    features and, if the configuration asks for it, BN without scale and shift. Their weights stand
    one below the other in one matrix, so that a step is two matrix products however many heads
    there are. Logits have the images last: on a CPU a softmax over a few adjacent classes
    takes longer than the matrix products.
    """

    def __init__(
        self, dim: int, num_classes: int, config: LinearProbe, seed: int, device: torch.device
    ) -> None:
        """Give all heads the same initial weights (C, D), drawn from N(0, 0.01²) by the seed,
        and no bias.
        """
        heads = len(config.learning_rates)
        self._config, self._device = config, device
        self._shape = (heads, num_classes)
        # K = H · C
        self._weight_KD = initial_weight(dim, num_classes, seed).repeat(heads, 1).to(device)
        self._bias_K1 = torch.zeros(heads * num_classes, 1, device=device)
        self._momenta = (torch.zeros_like(self._weight_KD), torch.zeros_like(self._bias_K1))
        self._mean_D = torch.zeros(dim, device=device)
        self._variance_D = torch.ones(dim, device=device)
        rates_H = torch.tensor(config.learning_rates, device=device)
        self._rates_K1 = rates_H.repeat_interleave(num_classes)[:, None]

    @torch.no_grad()
    def fit(self, epochs: Epochs, state: State | None = None) -> None:
        """Train on the batches of `epochs(e)` for each epoch e: features (n, d) and labels (n,), on
        the device.

        Each epoch has its own learning rate. With BN, a batch of one image is left out: it has no
        variance. `state` keeps what is trained, and training goes on from there.
        """
        config = self._config
        parameters = (self._weight_KD, self._bias_K1)
        tensors = (*parameters, *self._momenta, self._mean_D, self._variance_D)
        first = 0
        if state is not None and "heads" in state.data:
            first = state.data["epoch"]
            # Copied in place, as the training below changes the tensors in place.
            for tensor, saved in zip(tensors, state.data["heads"], strict=True):
                tensor.copy_(saved)
        left = range(first, config.epochs)
        for epoch in progress_bar(left, "linear probing", config.epochs, first):
            rates_K1 = self._rates_K1 * decay(epoch, config.epochs, config.milestones)
            for x_ND, y_N in epochs(epoch):
                if config.batch_norm and len(y_N) == 1:  # torch refuses it too
                    continue
                x_ND = self._normalized(x_ND, training=True)
                # The gradient of the mean cross-entropy is (softmax − one-hot)/n; heads do not mix.
                error_HCN = self._linear(x_ND).softmax(dim=1)
                error_HCN[:, y_N, torch.arange(len(y_N), device=y_N.device)] -= 1
                error_KN = error_HCN.flatten(0, 1).div_(len(y_N))
                gradients = (error_KN @ x_ND, error_KN.sum(dim=1, keepdim=True))
                for p, gradient, momentum in zip(parameters, gradients, self._momenta, strict=True):
                    momentum.mul_(config.momentum).add_(gradient).add_(p, alpha=config.weight_decay)
                    p.addcmul_(rates_K1, momentum, value=-1)
            if state is not None:
                done, last = epoch + 1, epoch + 1 == config.epochs
                what = f"epoch {done} of {config.epochs}"
                state.save(what, last=last, epoch=done, heads=list(tensors))

    def _normalized(self, x_ND: Tensor, *, training: bool) -> Tensor:
        """Apply BN without scale and shift, if there is one.

        Training updates its running statistics, as in torch.
        """
        if not self._config.batch_norm:
            return x_ND
        return F.batch_norm(x_ND, self._mean_D, self._variance_D, training=training)

    @torch.no_grad()
    def logits(self, x_ND: Tensor) -> Tensor:
        """Return the logits (H, C, N) of features on the device.

        BN, if there is one, uses its running statistics.
        """
        return self._linear(self._normalized(x_ND, training=False))

    def _linear(self, x_ND: Tensor) -> Tensor:
        return torch.addmm(self._bias_K1, self._weight_KD, x_ND.T).view(*self._shape, len(x_ND))

    @torch.no_grad()
    def accuracies(self, features: Features, block: int = _BLOCK) -> list[tuple[float, float]]:
        """Return top-1 and top-5 accuracy of each head, in per cent.

        BN, if there is one, uses its running statistics.
        """
        return head_accuracies(features, lambda x_ND: self.logits(x_ND).mT, block, self._device)


def head_and_tail(counts_C: Tensor) -> dict[str, Tensor]:
    """Return the third of the classes with the most training images as "head", and that with the
    fewest as "tail".

    Return nothing if no class has more than twice the images of another: there is no tail then.
    """
    if counts_C.max() <= 2 * counts_C.min():
        return {}
    order = counts_C.argsort(descending=True, stable=True)
    third = max(1, len(order) // 3)
    return {"head": order[:third], "tail": order[-third:]}


def initial_weight(dim: int, num_classes: int, seed: int) -> Tensor:
    """Draw the weights (C, D) of a linear classifier from N(0, 0.01²)."""
    generator = torch.Generator().manual_seed(seed)
    return _INITIAL_STD * torch.randn(dim, num_classes, generator=generator).T


def decay(epoch: int, epochs: int, milestones: tuple[int, ...] = ()) -> float:
    """Return the learning rate of an epoch over the initial one: cosine, or a tenth from each
    milestone on.
    """
    if milestones:
        return float(0.1 ** sum(epoch >= milestone for milestone in milestones))
    return 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def head_accuracies(
    features: Features, logits: Callable[[Tensor], Tensor], block: int, device: torch.device
) -> list[tuple[float, float]]:
    """Return top-1 and top-5 accuracy of each head, in per cent, `block` images at a time.

    `logits` maps features (N, D) on `device` to logits (H, N, C); `features` may lie on any device.
    """
    correct = torch.tensor(0)
    for x_ND, y_N in zip(features.x_ND.split(block), features.y_N.split(block), strict=True):
        correct = correct + correct_answers(logits(x_ND.to(device)), y_N.to(device)).cpu()
    total = len(features.y_N)
    return [(100 * top1 / total, 100 * top5 / total) for top1, top5 in correct.tolist()]


def correct_answers(logits_HNC: Tensor, y_N: Tensor) -> Tensor:
    """Count the images whose label each head has first, and among the first five, (H, 2).

    NaN is no answer.
    """
    # topk would count NaN as the greatest of all.
    answers = logits_HNC.nan_to_num(-torch.inf, torch.inf).topk(min(5, logits_HNC.shape[2]), dim=2)
    hits = answers.indices == y_N[None, :, None]
    hits &= answers.values > -torch.inf
    return torch.stack([hits[:, :, 0].sum(dim=1), hits.sum(dim=(1, 2))], dim=1)


def shuffled(
    features: Features, batch_size: int, seed: int, device: torch.device, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the shuffled batches of an epoch over features, moved to `device`."""
    # The factor is above any number of epochs, so that two seeds below 4,294 share no order.
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(features.y_N), generator=generator).to(features.y_N.device)
    for batch in order.split(batch_size):
        yield features.x_ND.index_select(0, batch).to(device), features.y_N[batch].to(device)
