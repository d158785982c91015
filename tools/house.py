"""Size and shape of the package: code lines per room, arrows between rooms, cycles.

    python tools/house.py [CHECKOUT ...] [--package NAME]

Prints one Markdown table with a column per checkout (default: the one this file is in). A room is a
child of the package: a folder, or a module flat at the top. A code line holds something other than
a comment or a docstring. An arrow joins two rooms where a module of one imports a module of the
other at run time, at its top or inside a function; imports for types alone are counted apart.
Needs `grimp`, which import-linter brings. To compare with another commit:

    git archive --prefix=before/ COMMIT | tar x -C .. && python tools/house.py ../before .
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path

import grimp
import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

tomllib = importlib.import_module("tomllib")  # from Python 3.11 on
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENCODING, tokenize.ENDMARKER}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
Row = tuple[str, str]


def code_lines(source: str) -> int:
    """Count the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def _sizes(checkout: Path, package: str) -> list[Row]:
    root = checkout / package
    by_room: dict[str, int] = {}
    flat = modules = 0
    for file in sorted(root.rglob("*.py")):
        lines = code_lines(file.read_text(encoding="utf-8"))
        modules += 1
        parts = file.relative_to(root).parts
        is_flat = len(parts) == 1
        flat += is_flat and not parts[0].startswith("__")
        room = "(flat at the top)" if is_flat else f"{parts[0]}/"
        by_room[room] = by_room.get(room, 0) + lines
    return [
        ("code lines", str(sum(by_room.values()))),
        ("modules", str(modules)),
        ("modules flat at the top", str(flat)),
        *((f"code lines in {room}", str(lines)) for room, lines in sorted(by_room.items())),
    ]


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _arrows(imports: set[tuple[str, str]]) -> set[tuple[str, str]]:
    rooms = {(_room(importer), _room(imported)) for importer, imported in imports}
    return {(a, b) for a, b in rooms if a != b}


def _imports(graph: grimp.ImportGraph) -> set[tuple[str, str]]:
    return {(a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)}


def _cycles(nodes: set[str], edges: set[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other."""
    names = sorted(nodes)
    index = {name: at for at, name in enumerate(names)}
    pairs = np.array([(index[a], index[b]) for a, b in edges], dtype=int).reshape(-1, 2)
    shape = (len(names), len(names))
    matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=shape)
    count, labels = connected_components(matrix, connection="strong")
    groups = [[names[at] for at in np.flatnonzero(labels == label)] for label in range(count)]
    return [group for group in groups if len(group) > 1]


def _layers(checkout: Path, package: str) -> dict[str, int]:
    """Return each room's place in the layers that import-linter checks; empty if there are none."""
    settings = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings.get("tool", {}).get("importlinter", {}).get("contracts", []):
        if contract["type"] == "layers" and package in contract["containers"]:
            return {
                room.strip(" ()"): place
                for place, layer in enumerate(contract["layers"])
                for room in layer.replace(":", "|").split("|")
            }
    return {}


def _shape(checkout: Path, package: str) -> list[Row]:
    sys.path.insert(0, str(checkout))
    run_time = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    every = grimp.build_graph(package, cache_dir=None)
    imports, layers = _imports(run_time), _layers(checkout, package)
    arrows = _arrows(imports)
    rooms = {room for arrow in arrows for room in arrow}
    up = sorted((a, b) for a, b in arrows if layers.get(a, 0) > layers.get(b, len(layers)))
    breakers = _arrows(run_time.nominate_cycle_breakers(package))
    cycles = _cycles(set(run_time.modules), imports)
    joined = _cycles(rooms, arrows)
    return [
        ("rooms, counting flat modules", str(len(rooms))),
        ("arrows between rooms", str(len(arrows))),
        ("arrows for types alone, in addition", str(len(_arrows(_imports(every)) - arrows))),
        ("arrows against the declared layers", str(len(up)) if layers else "none declared"),
        ("arrows to cut before the rooms have an order (grimp's estimate)", str(len(breakers))),
        ("rooms that import each other in a circle", str(sum(map(len, joined)))),
        ("modules that import each other in a circle", str(sum(map(len, cycles)))),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkouts", nargs="*", type=Path, default=[here], metavar="CHECKOUT")
    parser.add_argument("--package", default="pytest_hwqueue", metavar="NAME")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        (checkout,) = options.checkouts
        rows = _shape(checkout, options.package) + _sizes(checkout, options.package)
        print(json.dumps(rows))
        return
    # One process each: a package of one name is found once only.
    tables: list[dict[str, str]] = []
    for checkout in options.checkouts:
        command = [sys.executable, __file__, "--one", "--package", options.package, str(checkout)]
        tables.append(dict(json.loads(subprocess.check_output(command))))
    names = [path.resolve().name for path in options.checkouts]
    print("| what |", " | ".join(names), "|\n|---|", "---:|" * len(names), sep="")
    for what in dict.fromkeys(key for table in tables for key in table):
        print("|", what, "|", " | ".join(table.get(what, "") for table in tables), "|")


if __name__ == "__main__":
    main()
