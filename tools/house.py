"""Size of the house by room: code lines, modules and import lines, held to docs/house.md.

    python tools/house.py            print the table as it is now
    python tools/house.py --check    compare with docs/house.md; exit status 1 if a number grew
    python tools/house.py --write    lower the numbers of docs/house.md to what is there now

A room is a folder of the package; its modules at the top are one. A code line holds something other
than a comment or a docstring, an import line is a code line of an import, and a module has code: an
`__init__.py` that only says what a folder is for is none. Numbers go down; one that has to go up is
raised in docs/house.md by hand, with the reason in the last column, in the commit that needs it.
`--write` keeps reasons, and removes them once a room is back at its least.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

_TREE = Path(__file__).resolve().parents[1]
_PAGE = _TREE / "docs" / "house.md"
_BEGIN, _END = "<!-- sizes: python tools/house.py --write -->\n", "<!-- end -->"
_HEAD = (
    "| room | code lines | modules | import lines | least code lines | why it grew |\n"
    "|---|---:|---:|---:|---:|---|\n"
)
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
            tokenize.ENCODING, tokenize.ENDMARKER}  # fmt: skip
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Size(NamedTuple):
    """How large a room is."""

    code_lines: int
    modules: int
    import_lines: int


class Allowed(NamedTuple):
    """A row of the table: at most this size; the least code lines so far; why it is above."""

    size: Size
    least: int
    reason: str


def size_of(source: str) -> Size:
    """Return the size of one module."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    imports: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            code.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Size(len(code), 1 if code else 0, len(imports & code))


def rooms(tree: Path) -> dict[str, Size]:
    """Return the size of each room, of the tests and of the tools."""
    found: dict[str, Size] = {}
    for top in ("pytest_hwqueue", "benchmarks", "tests", "tools"):
        for file in sorted((tree / top).rglob("*.py")):
            parts = file.relative_to(tree / top).parts
            room = top if top != "pytest_hwqueue" else parts[0] if len(parts) > 1 else "(top)"
            one = size_of(file.read_text(encoding="utf-8"))
            found[room] = Size(*map(sum, zip(found.get(room, (0, 0, 0)), one, strict=True)))
    return found


def read(page: str) -> dict[str, Allowed]:
    """Return the rows of the page's table; ValueError if there is none."""
    _, begin, rest = page.partition(_BEGIN)
    body, end, _ = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{_PAGE.name} has no table between {_BEGIN.strip()} and {_END}")
    found = {}
    for line in body.splitlines()[2:]:
        name, *numbers, reason = (cell.strip() for cell in line.strip("|").split("|"))
        if not name.startswith("**"):
            code, modules, imports, least = map(int, numbers)
            found[name.strip("`/")] = Allowed(Size(code, modules, imports), least, reason)
    return found


def problems(now: dict[str, Size], allowed: dict[str, Allowed]) -> list[str]:
    """Return what is larger than it may be, and what is no longer as the table says."""
    found = []
    for room in sorted({*now, *allowed}):
        if room not in allowed or room not in now:
            found.append(f"{room}: {'new' if room in now else 'gone'}; add or remove its row")
            continue
        size, (most, least, reason) = now[room], allowed[room]
        for what, have, may in zip(Size._fields, size, most, strict=True):
            if have != may:
                do = "raise it, with the reason" if have > may else "run tools/house.py --write"
                found.append(f"{room}: {have} {what.replace('_', ' ')}, not {may}: {do}")
        if most.code_lines > least and not reason:
            found.append(f"{room}: {most.code_lines} code lines, once {least}; say why")
    return found


def lowered(now: dict[str, Size], allowed: dict[str, Allowed]) -> dict[str, Allowed]:
    """Return the table with every number that may go down where it is now."""
    found = {}
    for room, size in now.items():
        most, least, reason = allowed.get(room, Allowed(size, size.code_lines, ""))
        new = Size(*map(min, zip(size, most, strict=True)))
        least = min(least, new.code_lines)
        found[room] = Allowed(new, least, reason if new.code_lines > least else "")
    return found


def table(rows: dict[str, Allowed]) -> str:
    """Return the table as Markdown, with a row for the package as a whole."""
    outside = ("benchmarks", "tests", "tools")
    inside = [row.size for room, row in rows.items() if room not in outside]
    whole = " | ".join(str(sum(column)) for column in zip(*inside, strict=True))
    lines = [
        f"| `{room}{'' if room == '(top)' else '/'}` | {' | '.join(map(str, row.size))} "
        f"| {row.least} | {row.reason} |"
        for room, row in sorted(rows.items())
    ]
    return _HEAD + "\n".join([f"| **the package** | {whole} | | |", *lines]) + "\n"


def main() -> None:
    """Print, check or lower."""
    now = rooms(_TREE)
    if sys.argv[1:] == ["--check"]:
        found = problems(now, read(_PAGE.read_text(encoding="utf-8")))
        sys.exit("\n".join(found) or 0)
    if sys.argv[1:] == ["--write"]:
        page = _PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(_BEGIN)
        rows = table(lowered(now, read(page)))
        _PAGE.write_text(f"{before}{_BEGIN}{rows}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        print(table(lowered(now, {})))


if __name__ == "__main__":
    main()
