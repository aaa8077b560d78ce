"""Published data sets: where each is to be had, how many images it has, and the refusal of what
is not all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regbench.errors import RegbenchError

_LISTED = 6  # faults in one line, and names in one fault


@dataclass(frozen=True)
class Published:
    """A data set as it is published.

    Attributes:
        title: Name in messages.
        address: Address where it can be had.
        num_images: Number of images in each of its parts.
    """

    title: str
    address: str
    num_images: Mapping[str, int]


PUBLISHED = {
    "fashion_mnist": Published(
        "Fashion-MNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        {"train": 60_000, "test": 10_000},
    ),
    "digits": Published(
        "scikit-learn's digits",
        "https://scikit-learn.org (sklearn/datasets/data/digits.csv.gz in its package)",
        {"train": 1_201, "test": 596},
    ),
    "cifar10": Published(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-python.tar.gz)",
        {"train": 50_000, "test": 10_000},
    ),
    "cifar100": Published(
        "CIFAR-100",
        "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-python.tar.gz)",
        {"train": 50_000, "test": 10_000},
    ),
    "stl10": Published(
        "STL-10",
        "https://cs.stanford.edu/~acoates/stl10/ (stl10_binary.tar.gz)",
        {"train": 5_000, "test": 8_000, "unlabeled": 100_000},
    ),
    "ilsvrc2012": Published(
        "ImageNet (ILSVRC2012)",
        "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php (ILSVRC2012_img_train.tar, "
        "ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz) or "
        "https://www.kaggle.com/c/imagenet-object-localization-challenge",
        {"train": 1_281_167, "val": 50_000},
    ),
    "places205": Published(
        "Places205",
        "http://data.csail.mit.edu/places/places205/ (imagesPlaces205_resize.tar.gz, "
        "trainvalsplit_places205.tar.gz)",
        {"train": 2_448_873, "val": 20_500},
    ),
    "imagenette2-160": Published(
        "Imagenette, 160 px",
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz "
        "(github.com/fastai/imagenette)",
        {"train": 9_469, "val": 3_925},
    ),
    "imagenet100": Published(
        "ImageNet-100",
        "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php",
        {"train": 126_689, "val": 5_000},
    ),
    "voc2007": Published(
        "VOC2007",
        "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/ (VOCtrainval_06-Nov-2007.tar, "
        "VOCtest_06-Nov-2007.tar)",
        {"trainval": 5_011, "test": 4_952},
    ),
}
# The images that keep their labels in semi-supervised learning.
SIMCLR_LISTS = "https://raw.githubusercontent.com/google-research/simclr/master/imagenet_subsets/"


def few(names: Sequence[object]) -> str:
    """Join the first names, and say how many more there are."""
    listed = ", ".join(map(str, names[:_LISTED]))
    if len(names) > _LISTED:
        listed += f" and {len(names) - _LISTED:,} more"
    return listed


class Faults(list[str]):
    """All that is wrong with a source, each fault in one line."""

    def add(self, names: Sequence[object], what: str) -> None:
        """Add a fault that `names` have, if there are any: their number, what it is, and the
        first of them.
        """
        if names:
            self.append(f"{len(names):,} {what}: {few(names)}")


def refuse_if(wrong: Sequence[str], what: str, remedy: str) -> None:
    """Refuse `what` with all that is wrong with it, or the first of it and how many more, in
    one line.
    """
    # All is told at once, as a source of a terabyte is not mended fault by fault.
    if wrong:
        faults = "; ".join(wrong[:_LISTED])
        if len(wrong) > _LISTED:
            faults += f"; and {len(wrong) - _LISTED:,} more faults"
        # A library's words about a damaged file can have several lines.
        raise RegbenchError(" ".join(f"{what}: {faults}; {remedy}".split()))
