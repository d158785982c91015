"""Rebuilds generated tables of docs/results and other pages from the records in baselines/.

    python -m tools.results_pages [--check] [PAGE ...]

A generated table lies between two comments, the first of which is its declaration: a command that
reads stored records, and measures nothing.

    <!-- rebuilt: hwq which SCENARIO --from FOLDER --markdown FILE -->
    <!-- end -->

What the command writes to FILE stands between them; without FILE, what it prints, which of `hwq`
is a block of text with the command above it. Adding a table is adding these two lines to a page.
--check changes nothing: it prints how pages differ from their records, and fails if any does.
Under docs/results it also fails for a table without such comments, and for an interval in the text
that no rebuilt table of the page has. Both may stand below a paragraph that begins with
"**No records:**", in its section and those in it. Plots (--svg) are drawn when pages are rewritten,
and not compared: they differ with the version of vl-convert. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

from pytest_hwqueue.cli.main import main as hwq
from pytest_hwqueue.data.errors import RecordError

RESULTS = Path("docs/results")
NO_RECORDS = "**No records:**"
_ALSO = (Path("docs/which.md"), Path("docs/evidence/simulated.md"))
_BLOCK = re.compile(
    r"(?P<begin><!-- rebuilt: (?P<command>.*?) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL
)
_MARKS = re.compile(r"<!-- (rebuilt|end)\b")
_FILE = "FILE"
_HEADING = re.compile(r"(#+) ")
_INTERVAL = re.compile(r"\[-?[\d.]+, -?[\d.]+\]")
_RULE = re.compile(r"\|[ :|-]+\|")
# Of what `hwq` prints for people; a page shows this much without a scroll bar.
_COLUMNS = "100"


class PageError(Exception):
    """A page or one of its commands is wrong; the text says where."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite pages, or say how they differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if pages differ")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    given = parser.parse_args(arguments)
    try:
        problems = rebuild(given.pages or [*sorted(RESULTS.glob("*.md")), *_ALSO], given.check)
    except PageError as error:
        sys.exit(str(error))
    sys.exit("\n".join(problems) or 0)


def rebuild(pages: Sequence[Path], check: bool) -> list[str]:
    """Rewrite pages from their records, or only compare them.

    Args:
        pages: to read; paths in their commands are relative to the current folder.
        check: write nothing.

    Returns:
        What is wrong: where pages differ from their records (with `check`), and what has no
        records and does not say so.

    Raises:
        PageError: if a page's comments or a command are wrong.

    """
    problems: list[str] = []
    for page in pages:
        before = page.read_text(encoding="utf-8")
        after = rebuilt(before, page, check)
        if check:
            lines = (before.splitlines(), after.splitlines())
            problems += difflib.unified_diff(*lines, str(page), "from its records", lineterm="")
        elif after != before:
            page.write_text(after, encoding="utf-8")
        if page.parent.name == RESULTS.name:
            problems += unproven(after, page)
    return problems


def rebuilt(text: str, page: Path, check: bool) -> str:
    """Return a page with each generated block made anew; plots are drawn unless it is a check.

    Raises:
        PageError: if a block is not closed, or its command fails or is none of ours.

    """
    marks = [found.group(1) for found in _MARKS.finditer(text)]
    if marks != ["rebuilt", "end"] * (len(marks) // 2):
        raise PageError(
            f"{page}: each <!-- rebuilt: COMMAND --> needs its own <!-- end --> after it"
        )

    def anew(found: re.Match[str]) -> str:
        where = f"{page}:{text.count(chr(10), 0, found.start()) + 1}"
        body = output(shlex.split(found["command"]), where, plots=not check)
        return f"{found['begin']}\n{body.strip()}\n\n{found['end']}"

    return _BLOCK.sub(anew, text)


def output(command: Sequence[str], where: str, *, plots: bool = True) -> str:
    """Run a block's command and return what stands in the page.

    Args:
        command: its words.
        where: the page and line that name it.
        plots: whether to draw what --svg asks for.

    Raises:
        PageError: naming the page and line if it fails or is none of ours.

    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "table.md")
        arguments = [str(file) if each == _FILE else each for each in command]
        if not plots and "--svg" in arguments:
            at = arguments.index("--svg")
            del arguments[at : at + 2]
        match arguments:
            case ["hwq", *rest]:
                printed = _printed(lambda: hwq(rest, prog_name="hwq"), where)
            case ["python", "-m", module, *rest] if module.startswith("tools."):
                tool = importlib.import_module(module)
                with patch.object(sys, "argv", [module, *rest]):
                    printed = _printed(tool.main, where)
            case _:
                raise PageError(f"{where}: {shlex.join(command)} is neither hwq nor a tool of ours")
        if file.exists():
            return file.read_text(encoding="utf-8")
    if command[0] != "hwq":
        return printed
    lines = (line.rstrip() for line in printed.splitlines())
    return "\n".join(["```console", f"$ {shlex.join(command)}", *lines, "```"])


def _printed(run: Callable[[], object], where: str) -> str:
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), patch.dict(os.environ, COLUMNS=_COLUMNS, NO_COLOR="1"):
            run()
    except RecordError as error:
        raise PageError(f"{where}: its command failed: {error}") from None
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise PageError(f"{where}: its command failed: {ended.code}") from None
    return printed.getvalue()


def unproven(text: str, page: Path) -> list[str]:
    """Name what stands neither in a rebuilt block nor under words that it has no records.

    Of tables that is each, of prose the intervals that no block of the page has.
    """
    made = "".join(found["body"].replace("\\", "") for found in _BLOCK.finditer(text))
    # Blocks keep their lines, so that those behind them keep their numbers.
    by_hand = _BLOCK.sub(lambda found: "\n" * found.group().count("\n"), text)
    problems, level = [], 0
    said: int | None = None
    for number, line in enumerate(by_hand.splitlines(), start=1):
        if heading := _HEADING.match(line):
            level = len(heading[1])
            # What a section says holds for those in it.
            said = None if said is None or level <= said else said
        elif line.startswith(NO_RECORDS) and said is None:
            said = level
        if said is not None:
            continue
        if _RULE.fullmatch(line):
            problems.append(
                f"{page}:{number - 1}: this table is not rebuilt from records: declare the command "
                f"that makes it (see tools/results_pages.py), or begin a paragraph above it with "
                f"{NO_RECORDS}"
            )
        problems += [
            f"{page}:{number}: no table of this page that is rebuilt from records has {interval}"
            for interval in _INTERVAL.findall(line.replace("\\", ""))
            if interval not in made
        ]
    return problems


if __name__ == "__main__":
    main()
