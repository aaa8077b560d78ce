"""What the documentation site has beside docs/: pages made of the code, and the files that pages link to.

MkDocs calls `on_config`, `on_files` and `on_page_markdown` (https://www.mkdocs.org/dev-guide/plugins/#events).
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import click
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from tabulate import tabulate

from regbench import methods
from regbench.benchmark.settings.listing import listing
from regbench.cli import main
from regbench.cli.catalogue import KINDS
from regbench.settings import describe

ROOT = Path(__file__).resolve().parents[2]

# Pages at the root of the repository, by their place on the site.
PAGES = {"README.md": "index.md"} | {
    name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
}
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")

# Modules whose public names have a page, by the page.
API = {
    "reference/python.md": ("Commands in Python", ["regbench.api", "regbench.audit"]),
    "reference/methods.md": ("Losses in Python", ["regbench.methods.base", "regbench.methods.engine"]),
    "reference/records.md": (
        "Records in Python",
        ["regbench.reports.find.records", "regbench.benchmark.rundir.record", "regbench.reports"],
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
    """Lead links to files outside docs/ to where the site has them."""
    place = page.file.src_uri
    source = {made: name for name, made in PAGES.items()}.get(place, f"docs/{place}")
    return _LINK.sub(lambda found: _on_site(found, source, place), markdown)


def generated() -> Iterator[tuple[str, str]]:
    """Make each page of the code: its place and its text."""
    yield "methods/index.md", _methods_page()
    for name in methods.names():
        yield f"methods/{name}.md", _method_page(name)
    yield "reference/commands.md", _commands_page()
    yield "reference/settings.md", _settings_page()
    for place, (title, modules) in API.items():
        yield place, f"# {title}\n\n" + "\n".join(f"::: {module}\n" for module in modules)


def linked_files() -> set[str]:
    """Find the files of the repository, other than pages of the site, that its pages link to."""
    sources = [*(Path(name) for name in PAGES), *(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md"))]
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
        data = methods.build(name).metadata
        rows.append([f"[`{name}`]({name}.md)", methods.build(name).label, data.reference, data.time, data.memory])
    table = tabulate(rows, ["method=", "label", "published", "time", "memory"], tablefmt="github")
    return (
        "# Methods\n\nEach is a loss on the embeddings of an image's views, with n images in a batch and q dimensions. "
        f"Time and memory are those of value and gradient, beyond the embeddings.\n\n{table}\n"
    )


def _method_page(name: str) -> str:
    method = methods.build(name)
    data = method.metadata
    source = f"[{data.reference}]({data.url})" if data.url else data.reference
    about = (inspect.getdoc(method) or "").partition("\nAttributes:")[0]
    parts = [f"# {method.label}", f"`method={name}`, {source}", _formula(data), about]
    meanings = {setting.name: setting.meaning for setting in describe(type(method))}
    space = method.space or {}
    rows = [
        [f"`{key}`", f"`{list(value) if isinstance(value, tuple) else value}`", meanings[key], str(space.get(key, ""))]
        for key, value in methods.defaults(name).items()
    ]
    if rows:
        heads = ["method.", "default", "meaning", "where a tuning searches"]
        parts += ["## Hyperparameters", tabulate(rows, heads, tablefmt="github")]
    facts = {
        "Published with": data.published,
        "More than two views": f"{KINDS[method.kind]} ({data.views or 'the choice of this benchmark'})",
        "Limitation": data.limitation,
        "Time": data.time,
        "Memory": data.memory,
        "Forms": ", ".join(method.forms),
    }
    parts += ["## Facts", "\n".join(f"- {key}: {text}" for key, text in facts.items() if text)]
    use = f'from regbench import methods\n\nloss = methods.build("{name}")(z1, z2).total'
    parts += ["## Use", f"```\nregbench train method={name}\n```", f"```python\n{use}\n```"]
    return "\n\n".join(parts) + "\n"


def _formula(data: methods.Metadata) -> str:
    """Typeset a formula as MathML, which browsers show without a script."""
    if not data.latex:
        return f"```text\n{data.formula}\n```"
    mathml = convert(data.latex, display="block")
    if "\\" in mathml:
        raise PluginError(f"{data.title}: the formula has a command that cannot be typeset: {data.latex}")
    return f'<div class="formula">{mathml}</div>'


def _commands_page() -> str:
    group = click.Context(main, info_name="regbench")
    parts = ["# Commands", f"```text\n{main.get_help(group)}\n```"]
    for name, command in sorted(main.commands.items()):
        context = click.Context(command, info_name=name, parent=group)
        parts += [f"## regbench {name}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(parts) + "\n"


def _settings_page() -> str:
    parts = ["# Settings", "Each is set by an override `NAME=VALUE`, or by a line of a sweep file."]
    for title, settings in listing():
        rows = [[f"`{s.name}`", s.kind, s.default, s.meaning] for s in settings]
        table = tabulate(rows, ["setting", "values", "default", "meaning"], tablefmt="github")
        parts += [f"## {title[0].upper()}{title[1:]}", table]
    return "\n\n".join(parts) + "\n"
