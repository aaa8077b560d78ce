"""Semi-supervised learning: a copy of the backbone and a linear layer are trained on few
labelled images.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn

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
from regbench.benchmark.evaluate.features import Encoder, Epochs, Images, NotFinite, progress_bar
from regbench.benchmark.evaluate.linear import AreaRange, decay, head_accuracies, initial_weight
from regbench.benchmark.evaluate.state import State
from regbench.benchmark.evaluate.subject import Subject
from regbench.benchmark.settings.presets import dataset_preset
from regbench.datasets.config import DatasetConfig
from regbench.settings import AtLeastOne, AtLeastTwo, Momentum, NonNegative, Positive, settings


def _labels10() -> dict[str, object]:
    """Return the paper's rates for 10 % of the labels: SFRIK (L=2, q=8192) in its Table 12."""
    rates = {"backbone_learning_rates": (0.02,), "head_learning_rates": (0.4,)}
    return {"dataset": dataset_preset("in100_labels10"), **rates}


_TITLES = {"in100_labels1": "1 % labels", "in100_labels10": "10 % labels"}


@register("labels1", labels10=_labels10)
@settings
class FineTuning(Evaluation):
    """Semi-supervised learning: backbone and linear layer are trained on the few images that keep
    their labels.

    The SFRIK paper's appendix, "Semi-supervised learning"; the default rates are those of SFRIK
    (L=2, q=8192) for 1 % of the labels in its Table 12.

    Attributes:
        dataset: Data set whose train split holds these images only.
        backbone_learning_rates: Candidates for the backbone.
        head_learning_rates: Candidates for the linear layer; the tuning split chooses a pair.
        crop_scale: Area range of the random crops.
        interpolation: Filter of the resizes.
        epochs: Passes over the images, cosine decay per epoch.
        batch_size: Images a step.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
    """

    dataset: DatasetConfig = field(default_factory=lambda: dataset_preset("in100_labels1"))
    backbone_learning_rates: Annotated[tuple[NonNegative, ...], Field(min_length=1)] = (0.004,)
    head_learning_rates: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1.6,)
    crop_scale: AreaRange = (0.08, 1.0)
    interpolation: Interpolation = "bilinear"
    epochs: AtLeastOne = 20
    batch_size: AtLeastTwo = 256
    momentum: Momentum = 0.9
    weight_decay: NonNegative = 0.0

    title = "fine-tuning with few labels"
    reference = "as in SimCLR, VICReg and SFRIK"

    def check(self, name: str, task: Task) -> None:
        """Refuse several rates where there is no split to choose a pair on."""
        names = ("backbone_learning_rates", "head_learning_rates")
        rates = {each: getattr(self, each) for each in names}
        refuse_choice(name, task, self.dataset, **rates)

    def run(self, name: str, subject: Subject) -> Scores:
        """Train once for each pair of learning rates; the selection split chooses a pair."""
        splits = subject.task.splits(name, self.dataset)
        images = subject.images(self.dataset)
        state = subject.state(name, self, self.dataset)
        pairs = list(itertools.product(self.backbone_learning_rates, self.head_learning_rates))
        labels = [f"{backbone:g} and {head:g}" for backbone, head in pairs]

        def network(number: int) -> FineTuned:
            how = self, pairs[number], subject.seed, subject.compute.device
            return FineTuned(subject.encoder, self.dataset.num_classes, *how)

        found: dict[str, list[tuple[float, float]]] = {split: [] for split in splits}
        # An earlier attempt that was killed may have tried some pairs.
        found |= state.data.get("found", {})
        with images.augmented(self, subject.seed) as epochs:
            for number in range(state.data.get("tried", 0), len(pairs)):
                tuned = network(number)
                tuned.fit(epochs, state)
                for split in splits:
                    found[split].append(tuned.accuracy(images, split, subject.batch_size))
                # The test split needs the best network alone, so the others are not kept.
                is_best = choose(found, labels[: number + 1])[0] == number
                best = tuned.network.state_dict() if is_best else state.data["best"]
                done = f"{number + 1} of {len(pairs)} pairs of learning rates"
                # The next pair begins at its first epoch.
                state.save(done, last=True, tried=number + 1, found=found, best=best, epoch=0)
        chosen, selected_on, candidates = choose(found, labels)
        rates = dict(zip(("backbone", "head"), pairs[chosen], strict=True))
        what = f"{name}_learning_rates"
        subject.note(what, selected_on=selected_on, chosen=rates, candidates=candidates)
        results = {split: found[split][chosen] for split in splits}
        # The test split has its scores already if it was the split that chose.
        if "test" not in results:
            tuned = network(chosen)
            tuned.network.load_state_dict(state.data["best"])
            results["test"] = tuned.accuracy(images, "test", subject.batch_size)
        text = f"fine-tuning on {self.dataset.name}, {self.epochs} epochs"
        text += f", learning rates of backbone and linear layer {labels[chosen]}"
        text += chosen_from(selected_on, labels)
        title = _TITLES.get(self.dataset.name, f"fine-tuning, {self.dataset.name},")
        scores: Scores = []
        for split, accuracies in results.items():
            scores += accuracy_scores(name, title, accuracies, split, text)
        return scores


class FineTuned:
    """A copy of a backbone with a linear layer, both to be trained; the backbone itself stays as it
    is.

    As VICReg's published evaluation: SGD with a learning rate for each of the two, both with a
    cosine decay per epoch; BN in training mode, with the statistics of the batch; the linear layer
    starts from N(0, 0.01²) and zero bias.
    """

    def __init__(
        self,
        backbone: Encoder,
        num_classes: int,
        config: FineTuning,
        rates: tuple[float, float],
        seed: int,
        device: torch.device,
    ) -> None:
        """Copy the backbone, and draw a linear layer by the seed.

        `rates` are the initial learning rates of the two.
        """
        self._config, self._rates, self._device = config, rates, device
        # The backbone is also evaluated by others, so it must not change.
        self._backbone = Encoder(copy.deepcopy(backbone.module).requires_grad_(True), backbone.dim)
        self._head = nn.Linear(backbone.dim, num_classes)
        with torch.no_grad():
            self._head.weight.copy_(initial_weight(backbone.dim, num_classes, seed))
            self._head.bias.zero_()
        self.network = nn.Sequential(self._backbone.module, self._head).to(device)
        """Images to logits."""

    def fit(self, epochs: Epochs, state: State) -> None:
        """Train on the batches of `epochs(e)` for each epoch e: normalised images (n, c, h, w) and
        labels (n,).

        A batch of one image is left out: BN needs two. `state` keeps what is trained, and training
        goes on from there.
        """
        config = self._config
        groups: list[dict[str, Any]] = [
            {"params": list(self._backbone.module.parameters()), "lr": self._rates[0]},
            {"params": list(self._head.parameters()), "lr": self._rates[1]},
        ]
        optimizer = torch.optim.SGD(
            groups, momentum=config.momentum, weight_decay=config.weight_decay
        )
        first = state.data.get("epoch", 0)
        if first:
            self.network.load_state_dict(state.data["network"])
            optimizer.load_state_dict(state.data["optimizer"])
        left = range(first, config.epochs)
        for epoch in progress_bar(left, "fine-tuning", config.epochs, first):
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * decay(epoch, config.epochs)
            self.network.train()
            for x_NCHW, y_N in epochs(epoch):
                if len(y_N) == 1:  # BN needs two images for a variance
                    continue
                optimizer.zero_grad()
                F.cross_entropy(self.network(x_NCHW), y_N).backward()
                optimizer.step()
            rates = f"learning rates {self._rates[0]:g} and {self._rates[1]:g}"
            done, last = epoch + 1, epoch + 1 == config.epochs
            states = {"network": self.network.state_dict(), "optimizer": optimizer.state_dict()}
            state.save(f"{rates}, epoch {done} of {config.epochs}", last=last, epoch=done, **states)

    @torch.no_grad()
    def accuracy(self, images: Images, split: str, batch_size: int) -> tuple[float, float]:
        """Return top-1 and top-5 accuracy on centre crops of a split, in per cent."""
        how = split, self._config.interpolation, batch_size
        try:
            features, _ = images.features(self._backbone, *how)
        except NotFinite:  # this copy has diverged, not the backbone that it began as
            return 0.0, 0.0
        (accuracy,) = head_accuracies(
            features, lambda x_ND: self._head(x_ND)[None], batch_size, self._device
        )
        return accuracy
