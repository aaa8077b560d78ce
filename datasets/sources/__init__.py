"""Where images come from: each source is read as it is published and divided into splits.

A tuning split is cut from the source's training images, so that nothing is ever selected on "test".

- fashion_mnist: 6,000 images a class; the first 5,000 in file order are "train", the last 1,000 "tuning".
- cifar10: 5,000 images a class; 4,500 and 500. cifar100: 500 a class; 450 and 50.
- stl10: 500 labelled images a class; 400 and 100. The 100,000 images without labels are "unlabeled", and pretraining
  uses these.
- imagefolder: `train/<class>/` and `val/<class>/`, files in sorted order; "test" is `val/`. ILSVRC2012 and Places205
  are also read as they are published, see `folders`. With `train_per_class` = n and `tuning_per_class` = m, files 0
  to n-1 of each class of `train/` are "train" and files n+1 to n+m "tuning": file n belongs to neither, as in the
  published code of SFRIK. With `train_list` the files that it names are "train", and with `tuning_per_class` = m the
  first m others of each class "tuning".
  With `held_out` the folder may hold `train/` alone, or beside it `val/`, `test/` or both, or the class folders
  themselves: "test" is `test/`, else `val/`, and "tuning" is `val/` beside a `test/`. A share of each class is held out
  for each of the two that has no folder.
- parquet: a Hugging Face data set of images on disk, in file order, divided in the same way. "test" is its test split,
  or its validation split where the test has no labels or is not there; of a data set with both, the validation split is
  "tuning" if none is asked for by `tuning_per_class`.
"""

from __future__ import annotations

from pathlib import Path

from regbench import RegbenchError
from regbench.datasets.config import DatasetConfig
from regbench.datasets.sources.arrays import cifar10, cifar100, fashion_mnist, stl10
from regbench.datasets.sources.base import Labels, Source, Split
from regbench.datasets.sources.folders import find_list, imagefolder
from regbench.datasets.sources.parquet import parquet

__all__ = ["Labels", "Source", "Split", "find_list", "open_source"]

_ARRAYS = {"fashion_mnist": fashion_mnist, "cifar10": cifar10, "cifar100": cifar100, "stl10": stl10}


def open_source(config: DatasetConfig, source_dir: Path | None, download_dir: Path) -> Source:
    """Find the source of `config`, download it where that is possible, and divide it into splits.

    Args:
        config: the data set.
        source_dir: the folder that holds the source; None for the usual place or a download.
        download_dir: where downloads go.

    Raises:
        RegbenchError: the source cannot be found, downloaded or read, is not complete, or has not the classes of
            `config`; all that is wrong is listed, with the address where the source is to be had.
    """
    if config.train_list is not None and config.source != "imagefolder":
        raise RegbenchError(
            f"data set '{config.name}': train_list is for folders of images, and the source is {config.source}; "
            "set dataset.train_list=null"
        )
    if config.source == "imagefolder":
        source = imagefolder(config, source_dir)
    elif config.source == "parquet":
        source = parquet(config, source_dir)
    else:
        source = _ARRAYS[config.source](config, source_dir, download_dir)
    found = len(source.class_names)
    if config.num_classes and found != config.num_classes:
        raise RegbenchError(
            f"data set '{config.name}': the source has {found} classes, not {config.num_classes}; "
            f"set dataset.num_classes={found}, or mend the source"
        )
    return source
