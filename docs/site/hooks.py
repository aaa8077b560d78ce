"""Make what the documentation site has beside docs/: pages of the code, and the files that pages
link to.

MkDocs calls `on_config`, `on_files` and `on_page_markdown`
(https://www.mkdocs.org/dev-guide/plugins/#events).
"""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import TypeAdapter
from tabulate import tabulate

from regbench import methods
from regbench.benchmark.rundir.record import LaterEvaluation, Record
from regbench.benchmark.rundir.signed_file import SCHEMA_VERSION, SignedFile
from regbench.benchmark.rundir.tuning_choice import TUNING_CHOICE, TuningChoice
from regbench.benchmark.settings.listing import listing, meanings
from regbench.cli import main
from regbench.cli.catalogue import KINDS
from regbench.methods.forms.spectrum import kernel_spectrum

ROOT = Path(__file__).resolve().parents[2]

# Pages at the root of the repository, by their place on the site.
PAGES = {"README.md": "index.md"} | {
    name: name
    for name in (
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    )
}
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")
_FIGURE = re.compile(r"^(!\[[^\]]*\]\(([^)\s]+)\))$", re.MULTILINE)

NOTATION = (
    "**Notation.** A batch has n images with V views each. An embedding has q dimensions. Z_v is "
    "the matrix of the embeddings of view v, shape (n, q), and z_{v,i} its row for image i. Sums "
    "over v go over the views, those over i and j over the images unless the page says otherwise. "
    "‖·‖\\_F is the Frobenius norm and ‖·‖\\_\\* the nuclear norm. With two views V = 2."
)

SPECTRUM_DIM = 512  # q of the quickstart

SIGNED: dict[type[SignedFile], str] = {
    Record: "record.json",
    LaterEvaluation: "evaluations/PROTOCOL.json",
    TuningChoice: TUNING_CHOICE,
}

# Modules whose public names have a page, by the page.
API = {
    "reference/python.md": ("Commands in Python", ["regbench.api", "regbench.audit"]),
    "reference/methods.md": (
        "Losses in Python",
        ["regbench.methods.base", "regbench.methods.forms.engine"],
    ),
    "reference/records.md": (
        "Records in Python",
        [
            "regbench.reports.find.records",
            "regbench.benchmark.rundir.record",
            "regbench.benchmark.rundir.record_parts",
            "regbench.reports",
        ],
    ),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the methods' pages beside their table."""
    pages = ["methods/index.md", *({name: f"methods/{name}.md"} for name in methods.names())]
    config.nav = [{"Methods": pages} if "Methods" in entry else entry for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root and those that are made of the code."""
    made = {place: (ROOT / name).read_text() for name, place in PAGES.items()}
    made |= dict(generated())
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for source in sorted(linked_files()):
        files.append(File.generated(config, _place(source), content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make a page fit for the site.

    Links to files outside docs/ lead to where the site has them. A figure is a link to itself, so
    that it can be seen in full and its scrolling reached by the keyboard. A mean and its deviation
    stay on one line.
    """
    place = page.file.src_uri
    source = {made: name for name, made in PAGES.items()}.get(place, f"docs/{place}")
    linked = _LINK.sub(
        lambda found: _on_site(found, source, place), _FIGURE.sub(r"[\1](\2)", markdown)
    )
    return linked.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def generated() -> Iterator[tuple[str, str]]:
    """Make each page of the code: its place and its text."""
    yield "methods/index.md", _methods_page()
    for name in methods.names():
        yield f"methods/{name}.md", _method_page(name)
    yield "reference/commands.md", _commands_page()
    yield "reference/settings.md", _settings_page()
    yield "reference/record.md", _record_page()
    for place, (title, modules) in API.items():
        yield place, f"# {title}\n\n" + "\n".join(f"::: {module}\n" for module in modules)


def linked_files() -> set[str]:
    """Find the files of the repository, other than pages of the site, that its pages link to."""
    sources = [
        *(Path(name) for name in PAGES),
        *(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md")),
    ]
    found = set()
    for source in sources:
        for target, _ in _LINK.findall((ROOT / source).read_text()):
            named = posixpath.normpath((source.parent / target).as_posix())
            if named not in PAGES and not named.startswith("docs/") and (ROOT / named).is_file():
                found.add(named)
    return found


def _on_site(link: re.Match[str], source: str, place: str) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
    if target in PAGES:
        there = PAGES[target]
    elif target.startswith("docs/"):
        there = target.removeprefix("docs/")
    else:
        there = _place(target)
    return f"]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{link[2] or ''})"


def _place(source: str) -> str:
    """Say where the site has a file of the repository; as text, for a browser to show it."""
    return f"files/{source}.txt"


def _methods_page() -> str:
    rows = []
    for name in methods.names():
        method = methods.build(name)
        data = method.metadata
        rows.append(
            [f"[`{name}`]({name}.md)", method.label, data.reference, data.time, data.memory]
        )
    table = tabulate(rows, ["method=", "label", "published", "time", "memory"], tablefmt="github")
    return (
        "# Methods\n\nEach is a loss on the embeddings of an image's views. [Some are the same "
        f"loss](../identities.md), or become the same in a limit.\n\n{NOTATION}\n\nTime and memory "
        f"are those of value and gradient, beyond the embeddings.\n\n{table}\n"
    )


def _method_page(name: str) -> str:
    method = methods.build(name)
    data = method.metadata
    source = f"[{data.reference}]({data.url})" if data.url else data.reference
    about = (inspect.getdoc(method) or "").partition("\nAttributes:")[0]
    lengths = "Embeddings are scaled to unit length first. " if data.scale_invariant else ""
    notation = f"{lengths}[Notation](index.md)."
    parts = [f"# {method.label}", f"`method={name}`, {source}", _formula(data), notation, about]
    texts = meanings(type(method))
    space = method.space or {}
    rows = [
        [
            f"`{key}`",
            f"`{list(value) if isinstance(value, tuple) else value}`",
            texts[key],
            str(space.get(key, "")),
        ]
        for key, value in methods.defaults(name).items()
    ]
    if rows:
        heads = ["method.", "default", "meaning", "where a tuning searches"]
        parts += ["## Hyperparameters", tabulate(rows, heads, tablefmt="github")]
    facts = {
        "Published with": data.published,
        "More than two views": f"{KINDS[method.kind]} ({data.views or 'our choice'})",
        "Limitation": data.limitation,
        "Time": data.time,
        "Memory": data.memory,
        "Forms": ", ".join(method.forms),
    }
    parts += ["## Facts", "\n".join(f"- {key}: {text}" for key, text in facts.items() if text)]
    parts += _spectrum(method)
    if known := _identities(name):
        parts += [
            "## Identities",
            *known,
            "[All identities](../identities.md), with the tests that hold them.",
        ]
    use = f'from regbench import methods\n\nloss = methods.build("{name}")(z1, z2).total'
    parts += ["## Use", f"```\nregbench train method={name}\n```", f"```python\n{use}\n```"]
    return "\n\n".join(parts) + "\n"


def _spectrum(method: methods.Regularizer) -> list[str]:
    """Show which orders of spherical harmonics a kernel weighs.

    Nothing of a method without a kernel.
    """
    coefficients = kernel_spectrum(method, SPECTRUM_DIM, 6)
    if coefficients is None:
        return []
    # b_0 is a constant that no embedding changes.
    total = sum(coefficients[1:])
    rows = []
    for order, b in enumerate(coefficients[1:], 1):
        rows.append([f"{order}", f"{b:.4g}", f"{b / total:.2%}"])
    table = tabulate(
        rows, ["order ℓ", "b_ℓ", "share of b_1 to b_6"], tablefmt="github", disable_numparse=True
    )
    about = (
        "The kernel is φ(t) = Σ b_ℓ P_ℓ(q; t) with the Legendre polynomials P_ℓ, here at q = "
        f"{SPECTRUM_DIM} with the default hyperparameters. b_ℓ is what the regularizer pays for "
        "harmonics of order ℓ."
    )
    return ["## Spectrum", about, table]


def _identities(name: str) -> list[str]:
    """Find the lines of the table of identities that speak of a method."""
    lines = re.findall(
        r"^\| (.*`.*) \| `test_\w+` \|$",
        (ROOT / "docs" / "identities.md").read_text(),
        re.MULTILINE,
    )
    return [f"- {line}" for line in lines if f"`{name}`" in line]


def _formula(data: methods.Metadata) -> str:
    """Typeset a formula as MathML, which browsers show without a script."""
    if not data.latex:
        return f"```text\n{data.formula}\n```"
    mathml = convert(data.latex, display="block")
    if "\\" in mathml:
        raise PluginError(
            f"{data.title}: the formula has a command that cannot be typeset: {data.latex}"
        )
    return f'<div class="formula" tabindex="0" role="group" aria-label="formula">{mathml}</div>'


def _commands_page() -> str:
    group = click.Context(main, info_name="regbench")
    parts = ["# Commands", f"```text\n{main.get_help(group)}\n```"]
    for name, command in sorted(main.commands.items()):
        context = click.Context(command, info_name=name, parent=group)
        parts += [f"## regbench {name}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(parts) + "\n"


def _record_page() -> str:
    """Tell of each file that runs and tunings sign, field by field, from the classes that write
    and read it.
    """
    parts = [
        "# The record",
        "A finished run leaves `record.json` in its folder, a signed JSON file. This page is made "
        "of the classes that write and read it. Each signed file has two more fields: "
        f"`schema_version`, now {SCHEMA_VERSION}, and `sha256`, the digest of all the others. A "
        "reader refuses a file whose digest does not fit. [Records in Python](records.md) reads "
        "them, and `regbench report NAME --check` verifies them.",
    ]
    for cls, file in SIGNED.items():
        schema = TypeAdapter(cls).json_schema()
        parts += [
            f"## {cls.__name__}: `{file}`",
            (inspect.getdoc(cls) or "").partition("\n")[0],
            _fields(cls, schema),
        ]
        for part, definition in schema.get("$defs", {}).items():
            if f"### {part}" not in parts:
                described = getattr(sys.modules[cls.__module__], part)
                summary = (inspect.getdoc(described) or "").partition("\n")[0]
                parts += [f"### {part}", summary, _fields(described, definition)]
    return "\n\n".join(parts) + "\n"


def _fields(cls: type, schema: Mapping[str, Any]) -> str:
    texts, rows = meanings(cls), []
    for name, field in schema["properties"].items():
        if name not in ("path", "sha256", "schema_version") or not issubclass(cls, SignedFile):
            if not texts.get(name):
                raise PluginError(f"{cls.__name__}: the docstring does not say what {name} is")
            rows.append([f"`{name}`", _kind(field), texts[name]])
    return tabulate(rows, ["field", "type", "meaning"], tablefmt="github", disable_numparse=True)


def _kind(field: Mapping[str, Any]) -> str:
    """Say in words what a JSON schema takes."""
    if "$ref" in field:
        part = field["$ref"].rpartition("/")[2]
        return f"[{part}](#{part.lower()})"
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "enum" in field:
        return ", ".join(f'"{value}"' for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}"
    return {"object": "mapping", "integer": "whole number"}.get(
        field.get("type", ""), field.get("type", "anything")
    )


def _settings_page() -> str:
    parts = ["# Settings", "Each is set by an override `NAME=VALUE`, or by a line of a sweep file."]
    for title, settings in listing():
        rows = [
            [f"`{s.name}`", s.kind, shorten(s.default or "", 80, placeholder=" …"), s.meaning]
            for s in settings
        ]
        table = tabulate(rows, ["setting", "values", "default", "meaning"], tablefmt="github")
        parts += [f"## {title[0].upper()}{title[1:]}", table]
    return "\n\n".join(parts) + "\n"
