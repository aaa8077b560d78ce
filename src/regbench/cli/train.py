"""Commands of single runs: train, evaluate, export, embed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import regbench
from regbench.cli.group import main
from regbench.cli.options import OVERRIDES_HELP, PathType, folder_name, overrides_and_runs_dir
from regbench.cli.options import settings as overrides_argument
from regbench.errors import RegbenchError

if TYPE_CHECKING:
    from regbench.benchmark.rundir.record import Score


@main.command(epilog=OVERRIDES_HELP)
@overrides_and_runs_dir
@click.option(
    "--config",
    type=PathType(exists=True, dir_okay=False),
    help="Repeat the run of this config.yaml (from a run directory) instead of the defaults.",
)
@click.option(
    "--name",
    default="manual",
    callback=folder_name,
    help="Folder of the run under the runs folder.",
)
def train(overrides: Sequence[str], config: Path | None, name: str) -> None:
    """Train and evaluate one cell.

    An interrupted one goes on from its checkpoint. Prints the scores and the run directory, which
    holds config.yaml, checkpoints, histories and record.json. A cell that is finished is not
    trained again.
    """
    record = regbench.train(overrides, name=name, config=config)
    if record is None:  # another rank has it
        return
    if record.diverged:
        click.echo(f"diverged in step {record.diverged['step']}: {record.diverged['reason']}")
    else:
        print_scores(record.scores)
    click.echo(f"run directory: {record.path.parent}")


@main.command()
@click.argument("run", required=False)
@overrides_and_runs_dir
@click.option(
    "--only",
    metavar="PROTOCOL,...",
    help="These evaluations instead of the run's (or the default) ones.",
)
@click.option(
    "--backbone",
    metavar="SOURCE",
    help="Published weights: torchvision:NAME@WEIGHTS, timm:NAME, or a file.",
)
@click.option("--label", help="Name of their row in tables; default: the source.")
@click.option(
    "--name", default="published", callback=folder_name, help="Their folder under the runs folder."
)
def evaluate(
    run: str | None,
    overrides: Sequence[str],
    only: str | None,
    backbone: str | None,
    label: str | None,
    name: str,
) -> None:
    """Evaluate a finished run, or published weights.

    RUN is a run directory, of which the last checkpoint is taken. Evaluations that the record of a
    finished RUN does not hold are written beside it, and reports take them; others are only shown.

    \b
      regbench evaluate runs/quickstart/0123456789ab evaluation.knn.k=200
      regbench evaluate runs/quickstart/0123456789ab evaluation.probe.features=augmented
      regbench evaluate runs/in100_table4/0123456789ab --only voc07,measures

    Published weights get a run directory of their own, RUNS_DIR/published/ID, in the form of a
    finished run:

    \b
      regbench evaluate --backbone torchvision:resnet50@IMAGENET1K_V2 --label supervised \\
          dataset=in100 augmentation=imagenet network=resnet50 \\
          evaluation.probe.learning_rates=[0.3] --only knn,probe,voc07
      regbench evaluate --backbone sfrik_backbone.pth network=resnet50 dataset=in100 \\
          --only knn,voc07
      regbench evaluate --backbone timm:resnet50.a1_in1k dataset=in100 --only knn

    \b
    docs/evaluation.md describes the PROTOCOLs.
    """
    from regbench.plugins import refuse_unknown

    protocols = only.split(",") if only is not None else []
    refuse_unknown("evaluation", protocols, "--only: ")  # before torch is imported

    from regbench.benchmark.evaluate.base import EVALUATIONS

    EVALUATIONS.refuse_unknown(protocols, "--only: ")
    is_run = run is not None and ("=" not in run or Path(run).is_dir())
    if backbone is not None and is_run:
        raise RegbenchError(f"{run}: give a run directory or --backbone, not both")
    if backbone is not None:
        from regbench.benchmark.run import evaluate_backbone

        # Without a run directory, click takes the first setting for it.
        settings = [run, *overrides] if run else list(overrides)
        directory, record = evaluate_backbone(
            backbone, settings, label=label, name=name, only=protocols
        )
        print_scores(record.scores)
        click.echo(f"run directory: {directory}")
        return
    if run is None or not is_run:
        raise RegbenchError(
            "what shall be evaluated? Give a run directory, or --backbone with published weights"
        )
    if label is not None:
        raise RegbenchError("--label is for --backbone; a run has the label of its method")
    print_scores(regbench.evaluate(run, overrides, only=protocols))


@main.command()
@click.argument("run", type=PathType(exists=True, file_okay=False))
@click.option(
    "--out",
    type=PathType(dir_okay=False),
    default="model.safetensors",
    help="File of weights; a card with the same name ends in .json.",
)
@click.option("--onnx", is_flag=True, help="Write the network for ONNX too.")
def export(run: Path, out: Path, onnx: bool) -> None:
    """Write the backbone of a finished run for other programs.

    The weights have the names that timm and torchvision give them. The card says how timm loads
    them, how images are resized and normalised, and what made them:

    \b
      regbench export runs/own_images/0123456789ab --out birds.safetensors
    """
    for path in regbench.export(run, out, onnx=onnx):
        click.echo(path)


@main.command()
@click.argument("run", type=PathType(exists=True, file_okay=False))
@click.argument("folder", type=PathType(exists=True, file_okay=False))
@click.option(
    "--out",
    type=PathType(dir_okay=False),
    default="embeddings.parquet",
    help="Parquet file to write.",
)
@overrides_argument
def embed(run: Path, folder: Path, out: Path, overrides: Sequence[str]) -> None:
    """Write the representation of each image below a folder.

    The file has the columns file, embedding and, where the run's data set is prepared and has
    labels, classes: the nearest by their mean training images. The same command goes on after a
    kill.

    \b
      regbench embed runs/own_images/0123456789ab FOLDER --out birds.parquet runtime.device=cuda
    """
    images = regbench.embed(run, folder, out, overrides)
    click.echo(f"{out}: {images:,} images")


def print_scores(scores: Sequence[Score]) -> None:
    """Print the scores of a record as a table."""
    from tabulate import tabulate

    rows = []
    for s in scores:
        value = f"{s.value:.2f} {s.unit}" if s.unit else f"{s.value:.4g}"
        rows.append([s.name, s.split, value, s.protocol])
    click.echo(tabulate(rows, ["score", "split", "value", "protocol"], disable_numparse=True))
