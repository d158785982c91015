"""What writing a report needs, asked before anything is measured; imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("jinja2", "plotly")


def missing_packages() -> str | None:
    """Return how to install what a report needs; None if it is installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    are = "are" if len(missing) > 1 else "is"
    return (
        f"the report needs {' and '.join(missing)}, which {are} not installed: "
        "pip install 'pytest-hwqueue[report]'"
    )


def cannot_write(file: Path) -> str | None:
    """Return why no report can be written to a file; None if nothing is known against it."""
    if file.is_dir():
        return f"{file} is a folder: name a file, such as {file / 'report.html'}"
    return missing_packages()
