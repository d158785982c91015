"""docs/architecture.md names what there is, and the faces' imports make no loop."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
LAYERS = "plugin|cli|answers|options|engine|judge|parts|data"
PACKAGE = PAGE.parents[1] / "pytest_hwqueue"
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
    assert len(NAMES) > 20
    for layer in ("engine", "parts", "data"):
        folders = {
            f"{layer}/{each.parent.name}/" for each in (PACKAGE / layer).glob("*/__init__.py")
        }
        assert folders <= FOLDERS


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs at some time: at import or in a call, but nothing that is for types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run(child)


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in _run(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


@pytest.mark.parametrize("layer", ["plugin", "cli", "options"])
def test_modules_import_each_other_in_no_loop_late_imports_counted(layer: str) -> None:
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in (PACKAGE / layer).rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: _imports(path) & modules.keys() for name, path in modules.items()}
    assert sum(map(len, graph.values())) > 1 or layer == "cli"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# Each is two facts: nothing new joins them.
ALIKE = {
    # What a scenario says; who of it runs together; one window of that, on a device, from a seed.
    "PlannedRun Scenario", "Colocation PlannedRun",
    # A file's fields, with units in texts and what was not given, and what is run and recorded: a
    # default of one is not the other's, and its errors name a line.
    "Server ServerFields", "Tenant TenantChange", "Tenant TenantFields",
    # What is known so far, which changes, and which a run that fails leaves; and a record, which is
    # whole or refused, and stays.
    "Run RunDraft", "CellDraft RunRecord", "ColocationDraft ColocationRecord", "LoopResult Samples",
    # A launch of one timeline, and work of one of several owners, of whatever process.
    "DeviceWork Kernel",
    # A device's file, with the source of each value, and what the engine computes with.
    "Dispatch Hardware",
    # A stored line, flat as baselines have it; the gate's one figure of it; and a tag's in it.
    "ProcessRun StoredRun", "StoredRun TagFigures",
}  # fmt: skip
# More than six parameters mostly hide a type. In these nothing belongs together: what a user writes
# in a test, how a row of the options' table is declared, the terms of a comparison, each decided by
# somebody else, and what a chart draws beside its curves.
LONG = {
    "Hwq.measure_streams", "InterleavedJudging.__init__", "Option.__init__", "rates_chart",
    "survival_chart",
}  # fmt: skip


def _definitions() -> Iterator[tuple[Path, str, ast.AST]]:
    """Yield each class and function of the package, with where it is and its name in its class."""
    for path in sorted(PACKAGE.rglob("*.py")):
        owners: dict[ast.AST, str] = {}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                owners |= dict.fromkeys(node.body, f"{node.name}.")
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, owners.get(node, "") + node.name, node


def test_no_two_types_declare_five_fields_alike_and_half_of_the_smaller() -> None:
    fields: dict[str, set[str]] = {}
    for _, name, node in _definitions():
        if isinstance(node, ast.ClassDef):
            fields[name] = {
                each.target.id
                for each in node.body
                if isinstance(each, ast.AnnAssign)
                and isinstance(each.target, ast.Name)
                and "ClassVar" not in ast.unparse(each.annotation)
            }
    alike = {
        " ".join(sorted((one, other)))
        for one, other in combinations(fields, 2)
        if len(both := fields[one] & fields[other]) >= 5
        and 2 * len(both) >= min(len(fields[one]), len(fields[other]))
    }
    assert alike == ALIKE


def test_a_function_has_six_parameters_at_most() -> None:
    found = set()
    for _, name, node in _definitions():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if sum(each.arg not in ("self", "cls") for each in given) > 6:
                found.add(name)
    assert found == LONG


# What patches a module, or reads what another object keeps to itself, breaks with every refactoring
# and says nothing of behaviour. These only fall: a new test injects what it needs.
MOST_PATCHED, MOST_PRIVATE = 105, 63
# Public, or another project's, whatever their first letter.
PUBLIC = {"_asdict", "_exit", "_obj", "_replace"}


def test_tests_patch_and_read_privates_no_more_often_than_before() -> None:
    patched, private = 0, set()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            place = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                patched += called.endswith((".setattr", "patch.object", "mock.patch"))
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
                if _is_private(node.attr) and not ast.unparse(node).startswith("torch."):
                    private.add(f"{place} {ast.unparse(node)}")
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                private |= {f"{place} {each.name}" for each in node.names if _is_private(each.name)}
    assert patched <= MOST_PATCHED
    assert len(private) <= MOST_PRIVATE, sorted(private)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def test_no_class_name_stands_twice() -> None:
    package = PAGE.parents[1] / "pytest_hwqueue"
    places = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(package)}:{node.lineno}")
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
