"""The documentation as a site, which ``tox -e docs`` builds.

Pages are plain Markdown whose links work on GitHub too. For the site, links that leave this folder
lead to GitHub, and a comment ``<!-- from the code: NAME -->`` is replaced by what the code says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue import __version__
from pytest_hwqueue.data.noise_names import describe_noises
from pytest_hwqueue.options.options import OPTIONS, TOPICS, Option
from pytest_hwqueue.parts.schedulers.declaration import describe_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sphinx.application import Sphinx

project = "pytest-hwqueue"
author = "the authors of pytest-hwqueue"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"pytest-hwqueue {release}"
html_copy_source = False
html_show_copyright = False
smartquotes = False  # options and commands are to be copied

# Names of headings as GitHub makes them.
myst_heading_anchors = 4
# In docstrings and help texts, `x` is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"exclude-members": "model_config"}
napoleon_use_ivar = True
python_use_unqualified_type_names = True

_DOCS = Path(__file__).parent
_TREE = _DOCS.parent
_ON_GITHUB = "https://github.com/pytest-hwqueue/pytest-hwqueue/blob/main"
# Pages of the site that are files elsewhere.
_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def _options() -> str:
    parts = []
    for topic, title in TOPICS.items():
        parts.append(f"## {topic}: {title}")
        parts += [_option(option) for option in OPTIONS if option.topic == topic]
    return "\n\n".join(parts)


def _option(option: Option) -> str:
    metavar = "" if option.flag else f" {option.metavar}"
    names = f"`{option.command_line}{metavar}` · `{option.key}` · `{option.variable}`"
    return f"### `{option.command_line}`\n\n{names}\n\n{_text(option.help_with_default)}"


def _terms(terms: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {_text(meaning)} |" for name, meaning in terms.items()]
    return "\n".join(["| name | |", "|---|---|", *rows])


def _text(words: str) -> str:
    """Return words that are printed as they are in Markdown."""
    return re.sub(r"(`[^`]*`)|(--[\w-]+)|([*_<|\\])", _escaped, words)


def _escaped(found: re.Match[str]) -> str:
    code, option, sign = found.groups()
    return code or (f"`{option}`" if option else f"\\{sign}")


_FROM_THE_CODE: dict[str, Callable[[], str]] = {
    "options": _options,
    "schedulers": lambda: _terms(describe_modes()),
    "noises": lambda: _terms(describe_noises()),
}


def _prepare(folder: Path, text: str) -> str:
    """Return a page's text for the site.

    Args:
        folder: in which the page is, and from which its links lead.
        text: of the page.

    """

    def linked(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        target = Path(os.path.normpath(folder / path))
        if not target.is_relative_to(_TREE) or not target.exists():
            return found[0]  # the build says that it leads nowhere
        inside = target.relative_to(_TREE).as_posix()
        if inside in _PAGES:
            return f"](/{_PAGES[inside]}{anchor})"
        if target.is_relative_to(_DOCS):
            return f"](/{target.relative_to(_DOCS).as_posix()}{anchor})"
        return f"]({_ON_GITHUB}/{inside}{anchor})"

    text = re.sub(r'^<a id="([\w-]+)"></a>$', r"(\1)=", text, flags=re.MULTILINE)
    text = re.sub(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]+)?\)", linked, text)
    return re.sub(r"<!-- from the code: (\w+) -->", lambda found: _FROM_THE_CODE[found[1]](), text)


def _read(app: Sphinx, page: str, content: list[str]) -> None:
    content[0] = _prepare((_DOCS / page).parent, content[0])


def _included(app: Sphinx, path: Path, page: str, content: list[str]) -> None:
    content[0] = _prepare((_DOCS / path).parent, content[0])


def _docstring(
    app: Sphinx, what: str, name: str, documented: Any, options: object, lines: list[str]
) -> None:
    """Let a record's class also list its fields, whose descriptions stand in its JSON Schema."""
    if what == "module":
        lines.clear()  # the page has its own words
    if what == "property":
        lines.insert(0, "")  # else napoleon takes what precedes a colon for its type
    fields = getattr(documented, "model_fields", {}) if what == "class" else {}
    described = {name: field.description or "" for name, field in fields.items()}
    if described and "Attributes:" not in lines:
        lines += ["", "Attributes:", *(f"    {name}: {text}" for name, text in described.items())]


def _skipped(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out the fields of named tuples, which their classes' docstrings explain."""
    return True if type(member).__name__ == "_tuplegetter" else None


def _command_help(app: Sphinx, command: object, lines: list[str]) -> None:
    """Let sphinx-click show the stars of help texts, such as that of ``*.hwq.yaml``."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def _command_options(app: Sphinx, command: object, lines: list[str]) -> None:
    """Give ``N[,N...]`` back the bracket that sphinx-click takes from its end."""
    lines[:] = [re.sub(r"^(\.\. option::.*\[[^]]*)>$", r"\1]>", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Prepare every page for the site as it is read."""
    # Before napoleon, which reads what this adds.
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("autodoc-skip-member", _skipped)
    app.connect("sphinx-click-process-description", _command_help)
    app.connect("sphinx-click-process-options", _command_options)
    app.connect("source-read", _read)
    app.connect("include-read", _included)
