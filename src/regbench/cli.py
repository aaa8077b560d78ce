"""The command line. The only module that knows all parts; each command imports what it needs when it runs."""

from __future__ import annotations

import functools
import logging
import math
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Any

import click
from click.shell_completion import CompletionItem

from regbench import RegbenchError, __version__

log = logging.getLogger("regbench")

OVERRIDES_HELP = """
Settings are given as key=value in Hydra's grammar:

\b
  method=vicreg                    another regularizer (names: regbench methods)
  method.weights=[1,40,40]         one of its hyperparameters
  embedding_dim=1024 batch_size=512 epochs=20 seed=1
  dataset=cifar10 augmentation=small_color network=resnet18_small
  optimizer.base_lr=0.5 optimizer.warmup_epochs=2
  runtime.device=cuda runtime.data_dir=/scratch/data
"""

COST_HELP = """
\b
  regbench cost                                          all methods, small sizes: two minutes
  regbench cost vicreg --n 256,2048 --q 8192 --budget inf
  regbench cost sfrik_l3 --forms auto,textbook --ranks 1,2,4
  regbench cost --targets                                a quarter of an hour on two cores
"""


class _Cli(click.Group):
    """Turns refusals into one line and an exit code: 2 for a refusal, 130 for an interruption, 1 for a failure."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = _as_written(self.help)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        cmd.help = _as_written(cmd.help)
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RegbenchError as error:
            _fail(ctx, error, str(error), 2)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else f"regbench {ctx.invoked_subcommand}"
            _fail(ctx, error, f"{error.format_message()} See: {where} --help", 2)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(ctx, error, f"{where}{error.strerror}" if error.strerror else str(error), 1)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            line = f"the memory does not suffice: {error}"
            _fail(ctx, error, f"{line[:200]}; what a run needs is said by: regbench plan", 1)
        except KeyboardInterrupt as error:
            _fail(ctx, error, "interrupted; the same command goes on from here", 130)


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether it is a GPU's or this machine's refusal, told without the import of torch."""
    told = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return type(error).__name__ in ("MemoryError", "OutOfMemoryError") or any(words in str(error) for words in told)


def _as_written(text: str | None) -> str | None:
    """Help in which click's mark for lines that it must not wrap is spelt as raw docstrings have to spell it."""
    return text and text.replace("\\b\n", "\b\n")


def _fail(ctx: click.Context, error: BaseException, line: str, code: int) -> None:
    if ctx.params["debug"]:
        raise error
    click.echo(f"regbench: {' '.join(line.split())}", err=True)
    ctx.exit(code)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@click.group(cls=_Cli, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    r"""The neutral benchmark of regularizers for self-supervised learning.

    \b
    First steps:
      regbench methods                     what can be compared
      regbench sweep quickstart --report   train all of them on Fashion-MNIST, print the leaderboard
      regbench train method=vicreg         one run
      regbench tune quickstart_tuning      choose hyperparameters on the tuning split, then score on the test split
      regbench status quickstart           how a sweep stands
      regbench report quickstart           tables and page from what is finished
      regbench cost                        what the losses take, in time and memory
      regbench loader-bench                what the loaders deliver a second, beside torchvision's and FFCV's

    \b
    Shell completion (bash; zsh and fish likewise), in ~/.bashrc:
      eval "$(_REGBENCH_COMPLETE=bash_source regbench)"
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, _interrupt)


def _names(folder: str) -> list[str]:
    files = (resources.files("regbench") / "benchmark" / "conf" / folder).iterdir()
    return sorted(path.name.removesuffix(".yaml") for path in files if path.name.endswith(".yaml"))


def _complete_sweep(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in _names("sweep") if name.startswith(incomplete)]


def _complete_dataset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in [*_names("dataset"), "voc07"] if name.startswith(incomplete)]


def _complete_method(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from regbench import methods

    return [CompletionItem(name) for name in methods.names() if name.startswith(incomplete)]


_COMPLETED = (
    *("method", "dataset", "augmentation", "network", "embedding_dim", "batch_size", "epochs", "seed"),
    *("optimizer.base_lr", "optimizer.warmup_epochs", "runtime.device", "runtime.loader"),
)


def _complete_override(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    key, equals, value = incomplete.partition("=")
    prefix = f"{key}="
    # Bash ends words at "=": the key is then a word before this one, and the value alone is to be completed.
    words = [word for word in ctx.params.get("overrides") or () if word != "="]
    if not equals and words and words[-1] in _COMPLETED:
        key, equals, value, prefix = words[-1], "=", incomplete, ""
    if not equals:
        return [CompletionItem(f"{name}=") for name in _COMPLETED if name.startswith(key)]
    known: list[str] = []
    if key == "method":
        from regbench import methods

        known = methods.names()
    elif key in ("dataset", "augmentation", "network"):
        known = _names(key)
    return [CompletionItem(prefix + name) for name in known if name.startswith(value)]


_settings = click.argument("overrides", nargs=-1, shell_complete=_complete_override)

_RUNS_DIR = "regbench.runs_dir"


def _keep_runs_dir(ctx: click.Context, param: click.Parameter, runs_dir: str | None) -> None:
    if runs_dir == "":
        raise RegbenchError("--runs-dir must name a folder; give . for this one")
    if runs_dir is not None:
        quoted = runs_dir.replace("\\", "\\\\").replace("'", "\\'")
        ctx.meta[_RUNS_DIR] = (f"runtime.runs_dir='{quoted}'",)


def _with_runs_dir(ctx: click.Context, param: click.Parameter, overrides: tuple[str, ...]) -> tuple[str, ...]:
    given: tuple[str, ...] = ctx.meta.get(_RUNS_DIR, ())
    return (*overrides, *given)


def _overrides(command: Callable[..., Any]) -> Callable[..., Any]:
    """Settings of runs, with the folder that they lie in under the name that it has in all commands."""
    command = click.option(
        "--runs-dir",
        type=click.Path(file_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_keep_runs_dir,
        help="Folder of run directories.  [default: runs, or $REGBENCH_RUNS_DIR]",
    )(command)
    return click.argument("overrides", nargs=-1, shell_complete=_complete_override, callback=_with_runs_dir)(command)


def _positive(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise RegbenchError(f"{param.get_error_hint(ctx)}: {value:g} is not a number above 0")
    return value


def _folder_name(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    for name in value if isinstance(value, tuple) else (value,):
        if not name or "/" in name or name.startswith("."):
            what = param.get_error_hint(ctx)
            raise RegbenchError(f"{what}: {name!r} must be a folder's name: no '/', no leading '.', not empty")
    return value


def _make_folder(folder: Path) -> None:
    """Makes the folder that `--out` asks for, before any work that would be lost without it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RegbenchError(f"cannot make the folder {folder}: {error.strerror}; give another --out") from error


@main.command()
@click.argument("names", nargs=-1, shell_complete=_complete_method)
@click.option("--spectrum", is_flag=True, help="Show which orders of spherical harmonics the kernels NAMES weigh.")
@click.option("--embedding-dim", default=8192, show_default=True, help="Dimension q of the spectrum.")
@click.option("--orders", default=6, show_default=True, help="Highest order of the spectrum.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the spectrum's figure (.png, .svg).")
def methods(names: Sequence[str], spectrum: bool, embedding_dim: int, orders: int, out: Path | None) -> None:
    r"""List the registered regularizers, or show those of NAMES: formula, reference, hyperparameters.

    \b
      regbench methods vicreg
      regbench methods sfrik rbf quadratic --spectrum --embedding-dim 512 --out spectra.png
    """
    import inspect

    from tabulate import tabulate

    from regbench import methods as registry

    if spectrum:
        _show_spectra(names, embedding_dim, orders, out)
        return
    if out:
        raise RegbenchError("--out saves the figure of a spectrum; give --spectrum too")
    if not names:
        rows = []
        for method in registry.names():
            regularizer = registry.build(method)
            data = regularizer.metadata
            rows.append([method, regularizer.label, data.reference, data.time, data.memory])
        click.echo(tabulate(rows, headers=["method=", "label", "reference", "time", "memory"]))
        click.echo("\nn = batch, q = embedding dimension. One method in full: regbench methods NAME")
        return
    for name in names:
        regularizer = registry.build(name)
        data = regularizer.metadata
        source = "; ".join(filter(None, (data.reference, data.url)))
        click.echo(f"{regularizer.label}   ({source})\n\n  {data.formula}\n")
        click.echo(inspect.getdoc(regularizer))
        click.echo("\nHyperparameters (override with method.NAME=VALUE):")
        for key, value in registry.defaults(name).items():
            click.echo(f"  method.{key}={list(value) if isinstance(value, tuple) else value}")
        click.echo(f"Published: {data.published}.")
        if data.limitation:
            click.echo(f"Limitation: {data.limitation}.")
        click.echo(
            f"\nTime {data.time}, memory {data.memory} beyond the embeddings; forms: {', '.join(regularizer.forms)}."
        )


def _evaluate_kernel(regularizer: Any, q: int, t: Any) -> Any:
    import torch

    return regularizer.kernel(torch.from_numpy(t), q).numpy()


def _show_spectra(names: Sequence[str], q: int, order: int, out: Path | None) -> None:
    from tabulate import tabulate

    from regbench import methods as registry
    from regbench.methods.kernel import KernelEnergy
    from regbench.methods.spectrum import expand, spectrum_figure, spectrum_rows

    if not names:
        raise RegbenchError("which kernels? Give their names: regbench methods sfrik rbf --spectrum")
    if q < 2 or order < 1:
        raise RegbenchError(f"--embedding-dim must be >= 2 and --orders >= 1, not {q} and {order}")
    if out:
        if out.suffix not in (".png", ".svg"):
            raise RegbenchError(f"--out: {out} must end in .png or .svg")
        _make_folder(out.parent)
    spectra = {}
    for name in names:
        regularizer = registry.build(name)
        if not isinstance(regularizer, KernelEnergy):
            kernels = [other for other in registry.names() if isinstance(registry.build(other), KernelEnergy)]
            raise RegbenchError(f"{name} is no kernel of inner products and has no spectrum; {', '.join(kernels)} have")
        spectra[regularizer.label] = expand(functools.partial(_evaluate_kernel, regularizer, q), q, order)
    rows = [
        [label, order, f"{b:.6g}", f"{share:.2%}".replace("-0.00%", "0.00%")]
        for label, coefficients in spectra.items()
        for order, b, share in spectrum_rows(coefficients.tolist())
    ]
    click.echo(
        f"φ(t) = Σ b_ℓ P_ℓ(q; t) at q = {q}; the share is that of b_ℓ in the orders shown, without the constant b_0.\n"
    )
    click.echo(tabulate(rows, headers=["kernel", "order ℓ", "b_ℓ", "share"], disable_numparse=True))
    if out:
        spectrum_figure({label: b.tolist() for label, b in spectra.items()}, q).savefig(out, dpi=150)
        click.echo(f"\nfigure: {out}")


@main.command()
@click.argument("names", nargs=-1, shell_complete=_complete_method)
def check(names: Sequence[str]) -> None:
    """Check that the methods NAMES (default: all) keep what a regularizer must keep.

    The gradient against differences of the value, symmetries that the method claims, what float32 and half precision
    lose, corner cases such as collapse, streamed forms against the textbook formula, 1 to 4 processes against one,
    configuration and documentation. Shows by how much a check fails. Methods of other packages are
    checked the same way.
    """
    from tabulate import tabulate
    from tqdm import tqdm

    from regbench import methods as registry
    from regbench.benchmark.conformance import check_names, check_sharded, run_check

    chosen = {name: registry.build(name) for name in names or registry.names()}
    failed = 0
    steps = len(chosen) * len(check_names()) + 1
    with tqdm(total=steps, desc="check", leave=False, disable=not sys.stderr.isatty()) as bar:
        sharded = check_sharded(chosen)
        bar.update()
        for name, method in chosen.items():
            findings = []
            for each in check_names():
                findings += [finding] if (finding := run_check(method, each)) else []
                bar.update()
            findings.append(sharded[name])
            bad = [finding for finding in findings if not finding.ok]
            failed += bool(bad)
            shown = bad if len(chosen) > 1 else findings
            bar.write(f"{name}: {'FAILED' if bad else 'passed'} ({len(findings) - len(bad)} of {len(findings)} checks)")
            if shown:
                rows = [[f.check, "" if f.ok else "FAILED", f"{f.error:.1e}", f"{f.bound:.0e}", f.where] for f in shown]
                headers = ["check", "", "error", "allowed", "largest at"]
                bar.write(tabulate(rows, headers=headers, disable_numparse=True, maxcolwidths=[None] * 4 + [90]))
    if failed:
        raise click.ClickException(f"{failed} of {len(chosen)} methods failed")


@main.command()
@click.argument("dataset", shell_complete=_complete_dataset)
@click.option("--source-dir", type=click.Path(path_type=Path), help="Folder of the data set as it is published.")
@click.option("--force", is_flag=True, help="Write the files anew even if they are there.")
@click.option("--skip-unreadable", is_flag=True, help="Leave out images that cannot be read; the manifest lists them.")
@click.option("--verify", is_flag=True, help="Read every image of what is there back; write nothing.")
@_settings
@click.pass_context
def prepare(
    ctx: click.Context,
    dataset: str,
    source_dir: Path | None,
    force: bool,
    skip_unreadable: bool,
    verify: bool,
    overrides: Sequence[str],
) -> None:
    r"""Write a data set's .beton files and its manifest.

    DATASET is a configuration name such as fashion_mnist, cifar100, stl10, in20, imagefolder or parquet, or voc07. What
    can be downloaded is; ImageNet and others are given by --source-dir: docs/data.md says where each is to be had and
    how it is laid out.

    Images are kept as they are; with these, larger ones are shrunk:

    \b
      dataset.resize_px=256 dataset.resize_side=shorter dataset.jpeg_quality=90

    With --verify, prints a line for each image or file that is not as it was written, and exits with 1 if there is any.
    """
    from regbench.benchmark.settings.config import load_dataset
    from regbench.datasets import prepare as preparation
    from regbench.datasets.verify import verify as read_back

    if dataset == "voc07":
        if skip_unreadable:
            raise RegbenchError("voc07 is whole or refused; leave out --skip-unreadable")
        _prepare_voc07(None if verify else source_dir, force, overrides)
        return
    config, runtime = load_dataset([f"dataset={dataset}", *overrides])
    data_dir = Path(runtime.data_dir)
    if verify:
        images, problems = read_back(config.name, data_dir)
        for problem in problems[:20]:
            click.echo(problem)
        if len(problems) > 20:
            click.echo(f"and {len(problems) - 20:,} more")
        click.echo(f"{config.name}: {images:,} images read back, {len(problems):,} problems")
        ctx.exit(1 if problems else 0)
    manifest = preparation.prepare(
        config, data_dir, source_dir=source_dir, force=force, skip_unreadable=skip_unreadable
    )
    for split, entry in manifest.splits.items():
        left_out = f" ({len(entry['left_out']):,} left out)" if entry.get("left_out") else ""
        path = data_dir / manifest.name / entry["file"]
        origin = f", from {manifest.taken_from[split]}" if split in manifest.taken_from else ""
        click.echo(f"{split:>7}: {entry['num_samples']:>9,} images in {path}{origin}{left_out}")


def _prepare_voc07(source_dir: Path | None, force: bool, overrides: Sequence[str]) -> None:
    """VOC2007 is only evaluated on, image by image: it needs no .beton file and no configuration."""
    from regbench.benchmark.settings.config import load_run
    from regbench.datasets.prepare_voc import prepare_voc07

    cell, runtime = load_run(overrides)
    data_dir = Path(runtime.data_dir)
    num_images = cell.evaluation.voc07.num_images
    for split, entry in prepare_voc07(data_dir, num_images, source_dir=source_dir, force=force).items():
        click.echo(f"{split:>8}: {len(entry.paths):>9,} images in {data_dir / 'voc07'}")


@main.command(epilog=OVERRIDES_HELP)
@_overrides
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Repeat the run of this config.yaml (from a run directory) instead of the defaults.",
)
@click.option(
    "--name",
    default="manual",
    show_default=True,
    callback=_folder_name,
    help="Folder of the run under the runs folder.",
)
def train(overrides: Sequence[str], config: Path | None, name: str) -> None:
    """Train and evaluate one cell, going on from its checkpoint if it was interrupted.

    Prints the scores and the run directory, which holds config.yaml, checkpoints, histories and record.json. A
    cell that is finished is not trained again.
    """
    from regbench.benchmark.run import run_cell
    from regbench.benchmark.rundir.directory import run_directory
    from regbench.benchmark.rundir.interruption import Interruption
    from regbench.benchmark.settings.config import load_config, load_run
    from regbench.benchmark.training.distributed import environment_ranks

    cell, runtime = load_config(config, overrides) if config else load_run(overrides)
    if environment_ranks()[2] == 0:
        _prepare([cell], runtime.data_dir)
    interruption = Interruption()
    with interruption.listening(signal.SIGINT, signal.SIGTERM):
        record = run_cell(cell, runtime, name, interruption=interruption)
    if record is None:  # another rank has it
        return
    if record["status"] == "diverged":
        click.echo(f"diverged in step {record['diverged']['step']}: {record['diverged']['reason']}")
    else:
        _print_scores(record["scores"])
    click.echo(f"run directory: {run_directory(runtime, name, cell)}")


@main.command()
@click.argument("run", required=False)
@_overrides
@click.option("--only", metavar="PROTOCOL,...", help="These evaluations instead of the run's (or the default) ones.")
@click.option("--backbone", metavar="SOURCE", help="Published weights: torchvision:NAME@WEIGHTS, timm:NAME, or a file.")
@click.option("--label", help="Name of their row in tables; default: the source.")
@click.option(
    "--name", default="published", show_default=True, callback=_folder_name, help="Their folder under the runs folder."
)
def evaluate(
    run: str | None, overrides: Sequence[str], only: str | None, backbone: str | None, label: str | None, name: str
) -> None:
    r"""Evaluate the checkpoint in the run directory RUN, or published weights (--backbone).

    Evaluations that the record of a finished RUN does not hold are written beside it, and reports take them; others
    are only shown.

    \b
      regbench evaluate runs/quickstart/0123456789ab evaluation.knn.k=200
      regbench evaluate runs/quickstart/0123456789ab evaluation.probe.features=augmented
      regbench evaluate runs/in100_table4/0123456789ab --only voc07,measures

    Published weights get a run directory of their own, RUNS_DIR/published/ID, in the form of a finished run:

    \b
      regbench evaluate --backbone torchvision:resnet50@IMAGENET1K_V2 --label supervised \
          dataset=in100 augmentation=imagenet network=resnet50 \
          evaluation.probe.learning_rates=[0.3] --only knn,probe,voc07
      regbench evaluate --backbone sfrik_backbone.pth network=resnet50 dataset=in100 --only knn,voc07
      regbench evaluate --backbone timm:resnet50.a1_in1k dataset=in100 --only knn

    \b
    PROTOCOLs: knn, probe, places205, labels1, labels10, voc07 and measures (docs/evaluation.md).
    """
    from regbench.benchmark.settings.config import PROTOCOLS

    protocols = only.split(",") if only is not None else []
    if unknown := [protocol for protocol in protocols if protocol not in PROTOCOLS]:
        raise RegbenchError(f"--only: unknown protocol {unknown[0]!r}; known: {', '.join(PROTOCOLS)}")
    if backbone is not None and run and "=" not in run:
        raise RegbenchError(f"{run}: give a run directory or --backbone, not both")
    if backbone is not None:
        from regbench.benchmark.published import evaluate_backbone

        settings = [*([run] if run else []), *overrides]
        directory, record = evaluate_backbone(backbone, settings, label=label, name=name, only=protocols)
        _print_scores(record["scores"])
        click.echo(f"run directory: {directory}")
        return
    from regbench.benchmark.run import evaluate_directory

    if run is None or "=" in run:
        raise RegbenchError("what shall be evaluated? Give a run directory, or --backbone with published weights")
    if label is not None:
        raise RegbenchError("--label is for --backbone; a run has the label of its method")
    if not Path(run).is_dir():
        raise RegbenchError(f"{run} is no run directory; the runs of a sweep are listed by: regbench status SWEEP")
    _print_scores(evaluate_directory(Path(run), overrides, protocols))


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", required=False, shell_complete=_complete_sweep)
@_overrides
@click.option("--plan", is_flag=True, help="Show the cells and what they will take; run nothing.")
@click.option("--report/--no-report", default=False, help="Write the report at the end and print the leaderboard.")
@click.option("--wait", is_flag=True, help="With cluster=slurm: stay and show how the cells stand until the end.")
@click.option("--oversized", is_flag=True, help="Run cells too that are predicted not to fit cluster.gpu_memory_gib.")
def sweep(name: str | None, overrides: Sequence[str], plan: bool, report: bool, wait: bool, oversized: bool) -> None:
    r"""Run the grid NAME: a preset, or the path of a YAML file. Without NAME, list the presets.

    Finished cells are skipped, interrupted ones go on from their checkpoints, and a cell that fails does not stop the
    others. Values separated by commas multiply the cells: regbench sweep quickstart seed=0,1,2

    \b
    On a Slurm cluster each cell is a job, and the command returns when they are in the queue:
      regbench sweep in20_table2 cluster=slurm cluster.partition=gpu cluster.gpus=4 --plan
      regbench sweep in20_table2 cluster=slurm cluster.partition=gpu cluster.gpus=4
      regbench status in20_table2
    """
    from regbench.benchmark.settings.config import STAGES, load_sweep, sweep_names

    if name is None:
        for preset, description in sweep_names().items():
            click.echo(f"{preset:<16} {description}")
        return
    grid = load_sweep(name, overrides)
    folder = Path(grid.runtime.runs_dir) / grid.name
    if plan:
        _show_plan(grid)
        return
    if any(cluster.gpu_memory_gib for cluster in grid.clusters) and not oversized:
        _refuse_oversized(grid)
    _prepare(grid.cells, grid.runtime.data_dir)
    statuses = _run(grid, folder, STAGES, wait)
    if statuses is None:
        return
    if report and any(status.state in ("done", "diverged") for status in statuses):
        _report([folder], folder / "report")
    _refuse_unfinished(statuses, grid.name, STAGES)


def _run(grid: Any, folder: Path, stages: Sequence[str], wait: bool) -> list[Any] | None:
    """Brings the cells through the stages and says how they stand; None if they are in Slurm's hands."""
    if grid.scheduler == "slurm":
        from regbench.slurm.manage import statuses
        from regbench.slurm.status import ends

        _submit(grid, stages)
        cells = {cell.id for cell in grid.cells}
        found = _watch(folder, cells) if wait else [status for status in statuses(folder) if status.cell_id in cells]
        return found if wait or all(status.state in ends(stages) for status in found) else None
    from regbench.slurm.local import run_sweep

    return run_sweep(grid, stages)


def _refuse_unfinished(statuses: Sequence[Any], name: str, stages: Sequence[str]) -> None:
    from regbench.slurm.status import ends

    unfinished = [status for status in statuses if status.state not in ends(stages)]
    if unfinished:
        raise click.ClickException(
            f"{len(unfinished)} of {len(statuses)} cells are not finished: "
            + "; ".join(f"{status.label} seed {status.seed} {status.state}" for status in unfinished[:10])
            + "; …" * (len(unfinished) > 10)
            + f". Details: regbench status {name}; the same command tries them again"
        )


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", shell_complete=_complete_sweep)
@_overrides
@click.option(
    "--seeds", help="Of the final runs, separated by commas.  [default: the file's final_seeds, or the grid's]"
)
@click.option(
    "--leading", type=click.IntRange(1), help="Only so many methods, the best on the tuning split, get all of them."
)
@click.option(
    "--trials", type=click.IntRange(2), help="Let Optuna's TPE sampler propose so many configurations a method."
)
@click.option("--unequal-budgets", is_flag=True, help="Let methods choose from different numbers of configurations.")
@click.option("--plan", is_flag=True, help="Show the cells of the grid and what they will take; run nothing.")
@click.option("--report/--no-report", default=False, help="Write the report at the end and print the leaderboard.")
@click.option("--wait", is_flag=True, help="With cluster=slurm: stay until the end.")
def tune(
    name: str,
    overrides: Sequence[str],
    seeds: str | None,
    leading: int | None,
    trials: int | None,
    unequal_budgets: bool,
    plan: bool,
    report: bool,
    wait: bool,
) -> None:
    r"""Choose each method's hyperparameters on the tuning split, then score the chosen once on the test split.

    NAME is a sweep: a preset, or the path of a YAML file. Its cells are pretrained and scored on the tuning split, by
    weighted kNN or by its mean with linear probing (evaluation.select_by=[knn,probe]); the best of each method and
    setting is kept in choice.json with the runners-up; then the chosen are scored on the test split, which no run of a
    tuning can open before. Each step goes on where it was stopped: give the same command again.

    \b
      regbench tune quickstart_tuning --seeds 0,1,2 --report
      regbench tune mine.yaml cluster=slurm cluster.gpus=4
      regbench tune mine.yaml --trials 16                  values a,b,c or interval(a,b) in the file are the space
      regbench tune mine.yaml evaluation.select_on=test    the paper's second variant: tuned on the test split
    """
    from dataclasses import replace

    final_seeds = _seeds(seeds) if seeds is not None else None
    from regbench.benchmark.settings.config import STAGES, load_sweep
    from regbench.slurm import tune as tuning

    def proposed() -> tuple[Any, bool]:
        if trials is None:
            return load_sweep(name, overrides), True
        from regbench.slurm.search import propose

        return propose(name, overrides, trials)

    grid, complete = proposed()
    if plan:
        _show_plan(grid)
        return
    folder = Path(grid.runtime.runs_dir) / grid.name
    _prepare(grid.cells, grid.runtime.data_dir)
    while not (folder / "choice.json").exists():
        tuning.begin(grid.cells, folder, Path(grid.runtime.data_dir), unequal=unequal_budgets)
        statuses = _run(grid, folder, ("pretrain", "tune"), wait)
        if statuses is None:
            click.echo("when they have ended, the same command goes on")
            return
        _refuse_unfinished(statuses, grid.name, ("pretrain", "tune"))
        if complete:
            break
        grid, complete = proposed()
    choice = tuning.choose(folder)
    _show_choice(choice)
    cells = tuning.final_cells(choice, folder, grid.final_seeds if final_seeds is None else final_seeds, leading)
    clusters = {cell.id: cluster for cell, cluster in zip(grid.cells, grid.clusters, strict=True)}
    final = replace(grid, cells=tuple(cells), clusters=tuple(clusters.get(cell.id, grid.clusters[0]) for cell in cells))
    statuses = _run(final, folder, STAGES, wait)
    if statuses is None:
        return
    if report:
        _report([folder], folder / "report")
    _refuse_unfinished(statuses, grid.name, STAGES)


def _seeds(text: str) -> list[int]:
    from regbench.benchmark.settings.config import RANGES, Cell

    seeds, allowed = _numbers("seeds", text), RANGES[Cell]["seed"]
    for seed in seeds:
        if seed not in allowed:
            raise RegbenchError(f"--seeds: {seed} must be {allowed}")
        if seeds.count(seed) > 1:
            raise RegbenchError(f"--seeds names {seed} twice; each seed is one run")
    return seeds


def _show_choice(choice: Any) -> None:
    from tabulate import tabulate

    split, budget = choice["selected_on"], choice["budget"]
    rows = []
    for entry in choice["choices"]:
        best, *others = entry["ranking"]
        runner_up = others[0]["value"] if others else None
        varied = [
            f"{key.removeprefix('method.')}={value}"
            for key, value in best["hyperparameters"].items()
            if any(other["hyperparameters"].get(key) != value for other in others)
        ]
        shown = [f"{value:.2f}" if value is not None else "–" for value in (best["value"], runner_up)]
        q = entry["setting"]["embedding_dim"]
        rows.append([entry["label"], q, *shown, len(entry["ranking"]), ", ".join(varied)])
    headers = ["method", "q", f"{choice['score']} (%), {split}", "runner-up", "tried", "chosen"]
    table = tabulate(rows, headers=headers, disable_numparse=True)
    click.echo(f"\n{table}\n\nchosen on the {split} split from at most {budget} configurations a method\n")


def _show_plan(grid: Any) -> None:
    from tabulate import tabulate

    from regbench.slurm import plan as planning

    planned = planning.plan(grid, progress=sys.stderr.isatty())
    click.echo(tabulate(list(planning.rows(planned)), headers="keys", disable_numparse=True))
    click.echo(f"\n{planning.summary(planned)}")


def _refuse_oversized(grid: Any) -> None:
    from regbench.slurm import plan as planning

    planned = planning.plan(grid, progress=sys.stderr.isatty())
    misfits = [entry for entry in planned if entry.fits is False and not entry.done]
    if misfits:
        first = misfits[0]
        assert first.needs is not None
        raise RegbenchError(
            f"{len(misfits)} cells are predicted not to fit a GPU, such as {first.cell.label} with q="
            f"{first.cell.embedding_dim} and {first.cell.batch_size // first.gpus} images a GPU: "
            f"{first.needs.peak_bytes / 1e9:.1f} GB. See them with --plan; run them all the same with --oversized"
        )


def _submit(grid: Any, stages: Sequence[str]) -> None:
    from regbench.slurm import plan as planning
    from regbench.slurm.manage import submit_sweep

    click.echo(planning.summary(planning.plan(grid, progress=sys.stderr.isatty())))
    count, arrays = submit_sweep(grid, stages)
    click.echo(
        (f"submitted {count} cells as {', '.join(arrays)}" if count else "all cells are finished, run or wait")
        + f"; see: regbench status {grid.name}"
    )


@main.command(epilog=OVERRIDES_HELP)
@click.argument("name", shell_complete=_complete_sweep)
@_overrides
@click.option(
    "--fits",
    type=float,
    callback=_positive,
    metavar="GIB",
    help="Also find the largest batch size and q that fit such a GPU.",
)
@click.option("--savings", is_flag=True, help="Also show what each way of saving memory brings, for the first cell.")
def plan(name: str, overrides: Sequence[str], fits: float | None, savings: bool) -> None:
    r"""Predict what the cells of the sweep NAME need: memory of a GPU, FLOP, communication, disk, GPU hours.

    No GPU is needed: a training step runs on tensors without data. NAME may also be the first of the settings of a
    single run.

    \b
      regbench plan in100_table4 cluster=slurm cluster.gpus=8
      regbench plan method=vicreg dataset=in100 augmentation=imagenet network=resnet50 cluster.gpus=8 --fits 32
    """
    from regbench.benchmark.plan import largest, table
    from regbench.benchmark.plan import savings as measure_savings
    from regbench.benchmark.settings.config import load_grid, load_sweep

    grid = load_grid([name, *overrides]) if "=" in name else load_sweep(name, overrides)
    _show_plan(grid)
    cell, cluster, runtime = grid.cells[0], grid.clusters[0], grid.runtime
    if fits is not None:
        switches: dict[str, Any] = {"world_size": cluster.processes, "loss_form": runtime.loss_form}
        switches["shard_optimizer"] = runtime.shard_optimizer and cluster.processes > 1
        for what, setting in (("batch_size", "n"), ("embedding_dim", "q")):
            found = largest(cell, int(0.9 * fits * 2**30), what, **switches)
            click.echo(f"{cell.label}: largest power of two for {setting} in 90 % of {fits:g} GiB: {found or 'none'}")
    if savings:
        click.echo(f"\n{cell.label}, {cluster.processes} GPUs, decimal GB a GPU:\n")
        click.echo(table(measure_savings(cell, world_size=cluster.processes)))


_runs_dir = click.option(
    "--runs-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="runs",
    envvar="REGBENCH_RUNS_DIR",
    show_default=True,
    help="Folder of run directories.",
)


def _complete_started(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    folders = sorted(Path(ctx.params.get("runs_dir") or "runs").glob(f"{incomplete}*/sweep.json"))
    return [CompletionItem(path.parent.name) for path in folders]


def _complete_cell(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    folder = Path(ctx.params.get("runs_dir") or "runs") / str(ctx.params.get("name"))
    return [CompletionItem(path.parent.name) for path in sorted(folder.glob(f"{incomplete}*/config.yaml"))]


_started = click.argument("name", shell_complete=_complete_started)
_cells = click.argument("cells", nargs=-1, shell_complete=_complete_cell)


def _sweep_folder(runs_dir: Path, name: str) -> Path:
    if not (runs_dir / name / "sweep.json").exists():
        started = sorted(path.parent.name for path in runs_dir.glob("*/sweep.json"))
        raise RegbenchError(f"no sweep {name!r} in {runs_dir}; started: {', '.join(started) or 'none'}")
    return runs_dir / name


@main.command()
@click.argument("name", required=False, shell_complete=_complete_started)
@_runs_dir
@click.option("--watch", is_flag=True, help="Show it anew every few seconds until all cells have ended.")
@click.option("--all", "everything", is_flag=True, help="List all cells, also when there are more than a hundred.")
def status(name: str | None, runs_dir: Path, watch: bool, everything: bool) -> None:
    """Show how the cells of a sweep stand; without NAME, a line for each sweep.

    What the run directories say counts first, and what Slurm says of the jobs after that: it works on any machine that
    sees the folder, also without Slurm.
    """
    from regbench.slurm.manage import statuses

    if name is None:
        started = sorted(path.parent for path in runs_dir.glob("*/sweep.json"))
        if not started:
            raise RegbenchError(f"no sweep in {runs_dir}; start one: regbench sweep quickstart")
        for folder in started:
            click.echo(f"{folder.name}: {_counts(statuses(folder))}")
        return
    folder = _sweep_folder(runs_dir, name)
    if watch:
        _watch(folder)
    else:
        click.echo(_status_table(statuses(folder), everything))


def _counts(found: Sequence[Any]) -> str:
    from collections import Counter

    return ", ".join(f"{number} {state}" for state, number in Counter(cell.state for cell in found).items())


def _status_table(found: Sequence[Any], everything: bool = False) -> str:
    from tabulate import tabulate

    from regbench.slurm.status import log_file

    shown = found
    if len(found) > 100 and not everything:
        # What needs a look comes first; the rest is counted.
        shown = [cell for cell in found if cell.state in ("failed", "lost", "cancelled", "diverged", "running")][:100]
    rows = []
    for cell in shown:
        speed = f"{cell.img_per_s:.0f}" if cell.img_per_s else ""
        epochs = f"{cell.epochs_done}/{cell.epochs}"
        left = _duration(cell.remaining_s) if cell.remaining_s is not None else ""
        logs = log_file(cell.directory, cell.job) if cell.state in ("failed", "lost") else None
        detail = cell.detail + (f" (logs: {logs})" if logs else "")
        rows.append([cell.cell_id, cell.label, cell.seed, cell.state, epochs, speed, left, cell.job, detail])
    headers = ["cell", "method", "seed", "state", "epochs", "img/s", "left", "job", ""]
    kept = [i for i, head in enumerate(headers) if head in ("cell", "state", "") or any(row[i] for row in rows)]
    table = tabulate(
        [[row[i] for i in kept] for row in rows], headers=[headers[i] for i in kept], disable_numparse=True
    )
    total = f"{len(found)} cells: {_counts(found)}"
    if len(shown) < len(found):
        total += f"; {len(found) - len(shown)} not listed (--all)"
    return f"{table}\n\n{total}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min" if minutes else "< 1 min"


def _watch(folder: Path, cells: set[str] | None = None) -> list[Any]:
    import time

    from regbench.slurm.manage import statuses

    last = ""
    while True:
        found = statuses(folder)
        table = _status_table(found)
        if sys.stdout.isatty():
            click.clear()
            click.echo(f"{folder.name}\n\n{table}\n\nCtrl-C leaves the jobs alone")
        elif table != last:
            click.echo(f"{folder.name}: {_counts(found)}")
        last = table
        if not any(cell.state in ("running", "queued") for cell in found):
            return [cell for cell in found if cells is None or cell.cell_id in cells]
        time.sleep(2)


@main.command()
@_started
@_cells
@_runs_dir
def retry(name: str, cells: Sequence[str], runs_dir: Path) -> None:
    """Submit the cells of NAME again that failed, were lost or interrupted; all, or CELLS (ids or their beginnings).

    They go on from their checkpoints. Finished cells, and those that run or wait, are left alone; jobs that Slurm holds
    after a failed launch are released.
    """
    from regbench.slurm import manage

    done = manage.retry(_sweep_folder(runs_dir, name), cells)
    for status in (*done.released, *done.submitted):
        was = f"held by Slurm ({status.detail}); released" if status.state == "queued" else f"was {status.state}"
        click.echo(f"{status.cell_id}  {status.label} seed {status.seed}: {was}")
    for status in done.gone:
        click.echo(
            f"{status.cell_id}  {status.label} seed {status.seed}: its folder is gone; give the sweep's command again"
        )
    if done.dropped:
        click.echo(f"cancelled {', '.join(done.dropped)}: the cells are finished")
    if done.submitted:
        click.echo(f"submitted {len(done.submitted)} cells as {', '.join(done.arrays)}")
    elif not done.released and not done.gone:
        click.echo("nothing to try again")


@main.command()
@_started
@_cells
@_runs_dir
def cancel(name: str, cells: Sequence[str], runs_dir: Path) -> None:
    """Cancel the jobs of NAME, or of its CELLS. Those that run write a checkpoint first; `retry` resumes them."""
    from regbench.slurm.manage import cancel_cells

    for status in (cancelled := cancel_cells(_sweep_folder(runs_dir, name), cells)):
        click.echo(f"{status.cell_id}  {status.label} seed {status.seed}: was {status.state}")
    click.echo(f"cancelled {len(cancelled)} {'cell' if len(cancelled) == 1 else 'cells'}")


@main.command()
@_started
@click.argument("cell", shell_complete=_complete_cell)
@click.option("--lines", type=click.IntRange(0), default=40, show_default=True, help="From the end; 0: all.")
@_runs_dir
def logs(name: str, cell: str, lines: int, runs_dir: Path) -> None:
    """Show the newest log of the CELL (its id or the beginning of it) of the sweep NAME."""
    from regbench.slurm.manage import logs as log_of

    path = log_of(_sweep_folder(runs_dir, name), cell)
    click.echo(f"{path}:", err=True)
    click.echo("\n".join(path.read_text(errors="replace").splitlines()[-lines:]))


@main.command()
@_started
@click.option("--checkpoints", is_flag=True, help="Remove the trained weights of finished cells too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@_runs_dir
def clean(name: str, checkpoints: bool, dry_run: bool, runs_dir: Path) -> None:
    """Remove what finished cells of NAME do not need any more: older and damaged checkpoints, leftovers of kills.

    Records, curves, logs and the last checkpoints stay.
    """
    from regbench.slurm.manage import clean as clean_sweep

    cleaned = clean_sweep(_sweep_folder(runs_dir, name), checkpoints=checkpoints, dry_run=dry_run)
    click.echo(f"{'would remove' if dry_run else 'removed'} {cleaned.files} files, {cleaned.size_bytes / 1e9:.3g} GB")


@main.command()
@click.argument("names", nargs=-1, shell_complete=_complete_started, callback=_folder_name)
@_runs_dir
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to write to.  [default: RUNS_DIR/NAME/report]",
)
@click.option("--paper", is_flag=True, help="Write all tables of the paper, also those without a number of ours.")
@click.option(
    "--cost",
    type=click.Path(path_type=Path),
    help="What `regbench cost` measured, for its curves.  [default: RUNS_DIR/cost/cost.csv if it is there]",
)
@click.option("--check", is_flag=True, help="Verify the records against their schema and hashes; write nothing.")
@click.pass_context
def report(
    ctx: click.Context,
    names: Sequence[str],
    runs_dir: Path,
    out: Path | None,
    paper: bool,
    cost: Path | None,
    check: bool,
) -> None:
    """Build tables, figures and one page from the finished cells of the sweeps NAMES (default: quickstart).

    Safe at any time: cells that are not finished show as missing. Several sweeps are merged into one report.

    With --check, prints one line for each record, configuration, evaluation or choice that does not fit, and exits
    with 1 if there is any.
    """
    names = names or ["quickstart"]
    folders = [runs_dir / name for name in names]
    if check:
        from regbench.reports.check import check_records

        checked = check_records(folders)
        click.echo(checked)
        ctx.exit(1 if checked.misfits else 0)
    _report(folders, out or folders[0] / "report", cost=cost, whole_paper=paper)


def _complete_methods(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    given = ctx.params.get(param.name or "") or ()
    return [item for item in _complete_method(ctx, param, incomplete) if item.value not in given]


def _parts(what: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise RegbenchError(f"--{what} must be values separated by commas, not {text!r}")
    return parts


def _numbers(what: str, text: str) -> list[int]:
    try:
        return [int(part) for part in _parts(what, text)]
    except ValueError:
        raise RegbenchError(f"--{what} must be whole numbers separated by commas, not {text!r}") from None


@main.command(epilog=COST_HELP)
@click.argument("methods", nargs=-1, shell_complete=_complete_methods)
@click.option("--n", help="Batch sizes, over all ranks.  [default: 256,1024]")
@click.option("--q", help="Embedding dimensions.  [default: 512,2048]")
@click.option("--ranks", help="Numbers of processes that share a batch, such as 1,2.  [default: 1]")
@click.option("--forms", help="auto, textbook, gram, covariance.  [default: all that a method has]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--threads", type=int, default=1, show_default=True, help="Threads of each rank.")
@click.option("--repeats", type=int, default=5, show_default=True, help="Rounds; 0 measures memory only.")
@click.option("--dtype", default="float32", show_default=True, help="Of the embeddings: float32, float64 or bfloat16.")
@click.option(
    "--budget", type=float, help="Seconds in all: what does not fit is left out.  [default: 120; with --targets: inf]"
)
@click.option(
    "--memory-limit",
    type=float,
    callback=_positive,
    help="GiB that one case may need.  [default: half of the machine's or GPU's memory]",
)
@click.option("--targets", is_flag=True, help="Measure what the project's targets need and print both side by side.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="runs/cost",
    show_default=True,
    help="Folder to write to.",
)
def cost(
    methods: Sequence[str],
    n: str | None,
    q: str | None,
    ranks: str | None,
    forms: str | None,
    device: str,
    threads: int,
    repeats: int,
    dtype: str,
    budget: float | None,
    memory_limit: float | None,
    targets: bool,
    out: Path,
) -> None:
    """Measure time and memory of METHODS (default: all), each form against the textbook's.

    Measured is the loss with its gradient, over a grid of sizes given as values separated by commas. Forms of a method
    are timed alternately, cheap cases first; what is predicted not to fit the budget or the memory is left out and says
    so. Prints a table and writes cost.csv, cost.md and cost.png.
    """
    from regbench.benchmark.cost import losses as measurement
    from regbench.files import write_bytes
    from regbench.reports.cost import cost_png

    sizes = {"n": n, "q": q, "ranks": ranks}
    asked: dict[str, Any] = {what: _numbers(what, text) for what, text in sizes.items() if text is not None}
    if forms is not None:
        asked["forms"] = _parts("forms", forms)
    if targets and asked:
        raise RegbenchError(f"--targets has sizes and forms of its own; leave out --{', --'.join(asked)}")
    if budget is None:
        budget = float("inf") if targets else 120.0
    limit = None if memory_limit is None else int(memory_limit * 2**30)
    common: dict[str, Any] = {"device": device, "threads": threads, "repeats": repeats, "dtype": dtype}
    grid = measurement.Grid(methods=methods, budget_s=budget, memory_limit_bytes=limit, **common, **asked)
    machine = measurement.Machine.of(grid)
    _make_folder(out)
    click.echo(f"{machine}\n")
    compared = ""
    if targets:
        outcomes, rows = measurement.measure_targets(grid)
        compared = measurement.targets_table(outcomes, "github")
        click.echo(f"{measurement.targets_table(outcomes)}\n")
    else:
        rows = measurement.measure(grid)
    click.echo(f"{measurement.table(rows)}\n\n{measurement.LEGEND}\n")
    measurement.write(rows, machine, out, compared)
    figure = cost_png((out / "cost.csv").read_text())
    if figure is not None:
        write_bytes(out / "cost.png", figure)
    click.echo(f"written: {out / 'cost.csv'}, cost.md" + (", cost.png" if figure is not None else ""))


@main.command("loader-bench")
@click.option("--scenario", multiple=True, help="Images to make: 256, 500x375, raw32; may be repeated.  [default: all]")
@click.option("--data", metavar="DATASET", help="A prepared data set instead.", shell_complete=_complete_dataset)
@click.option("--workers", type=int, help="Cores, and threads or processes of each loader.  [default: all cores]")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Of each loader in each round, about.")
@click.option("--rounds", type=int, default=5, show_default=True, help="Turns of each loader.")
@click.option("--memory", is_flag=True, help="Measure what 4 ranks on one file need in memory, and nothing else.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write all rounds to this CSV file.")
@_settings
def loader_bench(
    scenario: Sequence[str],
    data: str | None,
    workers: int | None,
    seconds: float,
    rounds: int,
    memory: bool,
    out: Path | None,
    overrides: Sequence[str],
) -> None:
    r"""Compare the loaders' speed: torchvision (PIL, v2), FFCV with a decode per view, regbench.

    All deliver two views of the same images with the same cores and take turns. The images are made, photo-like JPEGs
    of 256 px and 500 x 375 px to crops of 224 px and raw ones of 32 px, or come from a prepared data set. With a GPU,
    the photometric part is also measured there.

    \b
      regbench loader-bench --scenario 256
      regbench loader-bench --data in20 runtime.data_dir=/scratch/data --out loaders.csv
    """
    import os

    from regbench.benchmark.cost import loaders as measurement
    from regbench.benchmark.cost.loader_memory import measure_memory, memory_table

    if overrides and not data:
        raise RegbenchError("settings as key=value are for a prepared data set; name it: --data DATASET")
    if memory:
        click.echo(memory_table(measure_memory()))
        return
    cores = workers if workers is not None else len(os.sched_getaffinity(0))
    measurement.refuse_impossible(workers=cores, seconds=seconds, rounds=rounds)
    if out:
        _make_folder(out.parent)
    with measurement.images(scenario, data, overrides) as images:
        for each in images:
            click.echo(str(each))
        rows, machine = measurement.measure(images, workers=cores, seconds=seconds, rounds=rounds)
    click.echo(f"{machine}\n\n{measurement.table(rows)}\n\n{measurement.LEGEND}")
    if outcomes := measurement.outcomes(rows):
        click.echo(f"\n{measurement.targets_table(outcomes)}")
    if out:
        measurement.write_csv(rows, machine, out)
        click.echo(f"\nwritten: {out}")


def _report(folders: list[Path], out: Path, *, cost: Path | None = None, whole_paper: bool = False) -> None:
    from regbench.reports import write_report

    measured = folders[0].parent / "cost" / "cost.csv"
    if cost is None and measured.exists():
        cost = measured
    result = write_report(folders, out, whole_paper=whole_paper, cost=cost)
    click.echo(f"\n{result.leaderboard}\n\nreport: {result.page}")
    if result.warning:
        click.echo(f"warning: {result.warning}", err=True)


def _prepare(cells: Sequence[Any], data_dir: str) -> None:
    """Prepares what the cells train on and are evaluated on; what cannot be had is refused before anything runs."""
    from regbench.datasets.prepare import prepare

    datasets: dict[str, Any] = {}
    for cell in cells:
        others = (getattr(getattr(cell.evaluation, name), "dataset", None) for name in cell.evaluation.protocols)
        datasets |= {dataset.name: dataset for dataset in (cell.dataset, *others) if dataset is not None}
    for dataset in datasets.values():
        prepare(dataset, Path(data_dir))


def _print_scores(scores: list[dict[str, Any]]) -> None:
    from tabulate import tabulate

    rows = []
    for s in scores:
        value = f"{s['value']:.2f} {s['unit']}" if s["unit"] else f"{s['value']:.4g}"
        rows.append([s["name"], s["split"], value, s["protocol"]])
    click.echo(tabulate(rows, headers=["score", "split", "value", "protocol"], disable_numparse=True))
