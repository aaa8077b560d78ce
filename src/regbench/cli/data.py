"""The command that prepares data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from regbench.cli.completion import complete_dataset
from regbench.cli.group import main
from regbench.cli.options import PathType, settings
from regbench.errors import RegbenchError
from regbench.text import few


@main.command()
@click.argument("dataset", shell_complete=complete_dataset)
@click.option("--source-dir", type=PathType(file_okay=False), help="Folder that has the data set.")
@click.option("--force", is_flag=True, help="Write the files anew even if they are there.")
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Leave out images that cannot be read; the manifest lists them.",
)
@click.option(
    "--labels",
    metavar="PATH",
    help="A table (CSV) of file and label, and maybe split, or a folder of class folders: the "
    "labels of a folder without classes.",
)
@click.option("--allow-empty", is_flag=True, help="Leave out class folders without images.")
@click.option(
    "--verify", is_flag=True, help="Read every image of what is there back; write nothing."
)
@settings
@click.pass_context
def prepare(
    ctx: click.Context,
    dataset: str,
    source_dir: Path | None,
    force: bool,
    skip_unreadable: bool,
    labels: str | None,
    allow_empty: bool,
    verify: bool,
    overrides: Sequence[str],
    again: str = "--force",
) -> None:
    """Write a data set's .beton files and its manifest.

    DATASET is a configuration name such as fashion_mnist, cifar100, stl10, in20, imagefolder or
    parquet, or voc07. What can be downloaded is; ImageNet and others are given by --source-dir:
    docs/data.md says where each is to be had and how it is laid out.

    Images are kept as they are; with these, larger ones are shrunk:

    \b
      dataset.source.resize_px=256 dataset.source.jpeg_quality=90

    Prints where each split is, and a line for each thing that was read otherwise than it lies
    there, or not read. With --verify, prints a line for each image or file that is not as it was
    written, and exits with 1 if there is any.
    """
    from regbench.benchmark.settings.sweep import load_dataset
    from regbench.datasets.sources.imagefolder import ImageFolder
    from regbench.datasets.stored import prepare as preparation
    from regbench.datasets.stored.verify import verify as read_back

    if dataset == "voc07":
        if skip_unreadable or labels or allow_empty:
            raise RegbenchError(
                "voc07 is whole or refused; leave out --skip-unreadable, --labels and --allow-empty"
            )
        # Without a source it only looks at what is there.
        _prepare_voc07(None if verify else source_dir, force, overrides)
        return
    config, runtime = load_dataset([f"dataset={dataset}", *overrides])
    if labels or allow_empty:
        if not isinstance(config.source, ImageFolder):
            raise RegbenchError(
                f"--labels and --allow-empty are for a folder of images, not {config.source.title}"
            )
        labels = labels or config.source.labels
        allow_empty = allow_empty or config.source.allow_empty
        source = replace(config.source, labels=labels, allow_empty=allow_empty)
        config = replace(config, source=source)
    data_dir = Path(runtime.data_dir)
    if verify:
        images, problems = read_back(config, data_dir)
        if problems:
            # A file that is cut off has a problem for each of its images.
            click.echo(few(problems, 20, "\n"))
        click.echo(f"{config.name}: {images:,} images read back, {len(problems):,} problems")
        ctx.exit(1 if problems else 0)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = preparation.prepare(
        config, data_dir, source_dir=source_dir, force=force, skip_unreadable=skip_unreadable
    )
    for split, entry in manifest.splits.items():
        left_out = f" ({len(entry['left_out']):,} left out)" if entry.get("left_out") else ""
        path = data_dir / manifest.name / entry["file"]
        origin = f", from {manifest.taken_from[split]}" if split in manifest.taken_from else ""
        click.echo(f"{split:>7}: {entry['num_samples']:>9,} images in {path}{origin}{left_out}")
    for note in manifest.notes:
        click.echo(note)
    if manifest.created < begun:
        inputs = preparation.read_inputs(data_dir / manifest.name)
        origin = f" from {inputs[0]}" if inputs else ""
        done = f"this was prepared{origin} on {manifest.created}"
        click.echo(f"{done}; {again} reads the source again")


def _prepare_voc07(source_dir: Path | None, force: bool, overrides: Sequence[str]) -> None:
    """Prepare VOC2007, which needs no .beton file and no configuration: it is only evaluated
    on, image by image.
    """
    from regbench.benchmark.evaluate.voc import VOC07
    from regbench.benchmark.settings.sweep import load_run
    from regbench.datasets.stored.prepare_voc import prepare_voc07

    # How many images there are is a setting of the evaluation.
    cell, runtime = load_run([*overrides, "evaluation.protocols=[voc07]"])
    data_dir = Path(runtime.data_dir)
    evaluation = cell.evaluation["voc07"]
    assert isinstance(evaluation, VOC07)
    prepared = prepare_voc07(data_dir, evaluation.num_images, source_dir=source_dir, force=force)
    for split, entry in prepared.items():
        click.echo(f"{split:>8}: {len(entry.paths):>9,} images in {data_dir / 'voc07'}")
