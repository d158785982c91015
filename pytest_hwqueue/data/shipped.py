"""Where files are that come with the package, installed or in a clone."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def shipped(installed: str, cloned: str, package: Path = PACKAGE) -> Path | None:
    """Return a file or folder that comes with the package; None if it is in neither place.

    Args:
        installed: its name inside an installed package.
        cloned: its path next to the package in a clone.
        package: the folder of the package ``pytest_hwqueue``.

    """
    if (package / installed).exists():
        return package / installed
    # Next to an installed package, what has that name would be some other project's.
    if (package.parent / cloned).exists() and (package.parent / "pyproject.toml").is_file():
        return package.parent / cloned
    return None
