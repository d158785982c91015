"""docs/architecture.md names what there is."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
LAYERS = "plugin|cli|answers|options|engine|judge|parts|data"
NAMES = sorted(set(re.findall(rf"`((?:{LAYERS})(?:\.\w+)+)`", PAGE.read_text(encoding="utf-8"))))
FOLDERS = set(re.findall(rf"`((?:{LAYERS})/[\w/]*)`", PAGE.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_walks_is_there(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(["pytest_hwqueue", *parts[:length]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"there is no {name}")


def test_names_are_written_in_full() -> None:
    """A short name would be looked up by nobody."""
    names = re.findall(r"`([a-z_]+\.[A-Za-z_]\w*)`", PAGE.read_text(encoding="utf-8"))
    files = re.compile(r"\.(md|py|toml|yaml|json)$")
    short = {each for each in names if not files.search(each)} - set(NAMES)
    assert not short


def test_every_package_of_the_layers_is_in_the_table() -> None:
    package = PAGE.parents[1] / "pytest_hwqueue"
    assert len(NAMES) > 20
    for layer in ("engine", "parts", "data"):
        folders = {
            f"{layer}/{each.parent.name}/" for each in (package / layer).glob("*/__init__.py")
        }
        assert folders <= FOLDERS
