"""Commands that show what there is: methods, settings, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from regbench.cli.completion import complete_method
from regbench.cli.group import main
from regbench.errors import RegbenchError

if TYPE_CHECKING:
    from regbench.methods.base import Regularizer

KINDS = {
    "pairwise": "the mean of the two-view loss over the pairs of a global view and another",
    "decomposed": "alignment over global views and the others, plus the mean of the "
    "regularizer over views",
    "native": "a formula for any number of views",
}


@main.command()
@click.argument("names", nargs=-1, shell_complete=complete_method)
def methods(names: Sequence[str]) -> None:
    """List the regularizers, or show those of NAMES in full: formula, reference,
    hyperparameters, search space.
    """
    if not names:
        from tabulate import tabulate

        headers = ["method=", "label", "reference", "time", "memory"]
        click.echo(tabulate(_listed_methods(), headers=headers))
        click.echo(
            "\nn = batch, q = embedding dimension. One method in full: regbench methods NAME"
        )
        return
    from regbench import methods as registry

    for name in names:
        _show_method(registry.build(name), registry.defaults(name))


def _listed_methods() -> list[list[str]]:
    """Return a row for each method, kept in the user's cache: the methods themselves need
    torch's import.
    """
    import contextlib
    import json

    from regbench.files import cache_dir, write_text
    from regbench.plugins import has_others, own_files

    changed_ns = {str(file): file.stat().st_mtime_ns for file in own_files("method")}
    # Methods of other wheels may change at any time.
    is_kept = not has_others("method")
    if is_kept:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RuntimeError):
            stored = json.loads((cache_dir() / "methods.json").read_text())
            if stored["changed_ns"] == changed_ns:
                rows: list[list[str]] = stored["rows"]
                return rows
    from regbench import methods as registry

    rows = []
    for name in registry.names():
        method = registry.build(name)
        data = method.metadata
        rows.append([name, method.label, data.reference, data.time, data.memory])
    if is_kept:
        with contextlib.suppress(OSError, RuntimeError):
            kept = json.dumps({"changed_ns": changed_ns, "rows": rows})
            write_text(cache_dir() / "methods.json", kept)
    return rows


def _show_method(method: Regularizer, defaults: Mapping[str, Any]) -> None:
    """Show a method in full."""
    import inspect

    from regbench.benchmark.settings.architecture import needed_settings
    from regbench.benchmark.training.optimizers.base import OPTIMIZERS

    data = method.metadata
    source = "; ".join(filter(None, (data.reference, data.url)))
    click.echo(f"{method.label}   ({source})\n\n  {data.formula}\n")
    click.echo(inspect.getdoc(method))
    click.echo("\nHyperparameters (override with method.NAME=VALUE):")
    for key, value in defaults.items():
        click.echo(f"  method.{key}={list(value) if isinstance(value, tuple) else value}")
    click.echo("Search space (regbench tune --trials):")
    space = method.space or {}
    if not space:
        stated = "not stated" if method.space is None else "no hyperparameter of the method"
        click.echo(f"    {stated}")
    for key, values in space.items():
        click.echo(f"    method.{key}: {values}")
    # The learning rate is searched for every method alike.
    for name in OPTIMIZERS.names():
        for key, values in (OPTIMIZERS.of(name).space or {}).items():
            click.echo(f"    optimizer.{key} of {name}: {values}")
    if data.latex:
        click.echo(f"LaTeX: {data.latex}")
    click.echo(f"Published: {data.published}.")
    of_views = data.views or "the choice of this benchmark"
    click.echo(f"More than two views: {KINDS[method.kind]} ({of_views}).")
    if method.needs:
        click.echo(f"Needs: {' '.join(needed_settings(method))}.")
        click.echo("In training, L(p, t) is symmetrised: docs/training.md.")
    if data.limitation:
        click.echo(f"Limitation: {data.limitation}.")
    takes = f"Time {data.time}, memory {data.memory} beyond the embeddings"
    click.echo(f"\n{takes}; forms: {', '.join(method.forms)}.")


@main.command()
@click.argument("names", nargs=-1, shell_complete=complete_method)
def check(names: Sequence[str]) -> None:
    """Check that methods keep what a regularizer must keep.

    NAMES are methods, by default all. Checked are the gradient against differences of the value,
    symmetries that the method claims, what float32 and half precision lose, corner cases such as
    collapse, embeddings that are not finite, streamed forms against the textbook formula, 1 to 4
    processes against one, points of the search space, configuration and documentation. Shows by how
    much a check fails. Methods of other packages are checked the same way.
    """
    from tabulate import tabulate
    from tqdm import tqdm

    from regbench import methods as registry
    from regbench.instruments.conformance import CHECKS, check_sharded, left_out, run_check

    chosen = {name: registry.build(name) for name in names or registry.names()}
    failed = 0
    with tqdm(total=len(chosen) * len(CHECKS) + 1, desc="check", leave=False, disable=None) as bar:
        # All methods at once, because starting processes takes most of the time.
        sharded = check_sharded(chosen)
        bar.update()
        for name, method in chosen.items():
            findings = []
            for each in CHECKS:
                finding = run_check(method, each)
                if finding:
                    findings.append(finding)
                bar.update()
            findings.append(sharded[name])
            bad = [finding for finding in findings if not finding.ok]
            failed += bool(bad)
            verdict = "FAILED" if bad else "passed"
            passed = len(findings) - len(bad)
            bar.write(f"{name}: {verdict} ({passed} of {len(findings)} checks)")
            # Passed checks of many methods would hide those that failed.
            rows = []
            for f in bad if len(chosen) > 1 else findings:
                verdict = "" if f.ok else "FAILED"
                rows.append([f.check, verdict, f"{f.error:.1e}", f"{f.bound:.0e}", f.where])
            others = [f"{check} (not {claim})" for check, claim in left_out(method).items()]
            if others and len(chosen) == 1:
                why = ""
                if method.needs:
                    why = f"; {' and '.join(method.needs)} keep the network from collapsing"
                bar.write(f"does not apply: {', '.join(others)}{why}")
            if rows:
                headers = ["check", "", "error", "allowed", "largest at"]
                widths = [None] * 4 + [90]
                bar.write(tabulate(rows, headers, disable_numparse=True, maxcolwidths=widths))
    if failed:
        raise click.ClickException(f"{failed} of {len(chosen)} methods failed")


@main.command()
@click.argument("prefix", default="")
def settings(prefix: str) -> None:
    """List settings: type and bounds, default, meaning.

    Those whose names begin with PREFIX; by default all.

    \b
      regbench settings
      regbench settings evaluation.probe
      regbench settings cluster
    """
    import textwrap

    from regbench.benchmark.settings.listing import listing

    shown = 0  # settings, so that a prefix that begins none is refused
    for title, found in listing():
        chosen = [setting for setting in found if setting.name.startswith(prefix)]
        if chosen:
            click.echo(f"{title}\n")
        for setting in chosen:
            default = "" if setting.default is None else f" = {setting.default}"
            click.echo(f"  {setting.name}{default}   ({setting.kind})")
            click.echo(textwrap.indent(textwrap.fill(setting.meaning, 94), " " * 6))
            shown += 1
        if chosen:
            click.echo()
    if not shown:
        raise RegbenchError(f"no setting begins with {prefix!r}; all: regbench settings")
