"""docs/architecture.md names what there is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
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


def test_every_package_of_the_layers_is_in_the_table() -> None:
    package = PAGE.parents[1] / "pytest_hwqueue"
    assert len(NAMES) > 20
    for layer in ("engine", "parts", "data"):
        folders = {
            f"{layer}/{each.parent.name}/" for each in (package / layer).glob("*/__init__.py")
        }
        assert folders <= FOLDERS


def test_no_class_name_stands_twice() -> None:
    package = PAGE.parents[1] / "pytest_hwqueue"
    places = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(package)}:{node.lineno}")
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
