r"""How many seeded faults of a package its own tests find.

    python -m tools.mutation PACKAGE [--mutants 150] [--seed 7] [--commit HEAD] [--session FILE]

PACKAGE is a folder of pytest_hwqueue, such as judge/baselines; its modules are mutated, those of
its subfolders are not, and the tests of the folder of tests/ that mirrors it run. cosmic-ray's
operators list the mutants, and a seed draws from them, at most one for each place in the code.
Annotations are left out: mypy checks them. A mutant is killed by a failing test, survives them
all, or times out, after five times what the tests take unchanged. Everything happens in a scratch
copy of the commit, at the lowest priority. Install the dependency group `mutation`.

Prints each survivor's change and a row of the table in docs/evidence/mutation.md. --session keeps
cosmic-ray's database; the same file continues a run that was interrupted.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkItem, WorkResult
from scipy.stats import binomtest

# How often the time of the unchanged tests a mutant may take: those of an endless loop cost this
# much, and on a machine whose other work comes and goes the same tests take twice as long.
_PATIENCE = 5
_LEAST_TIMEOUT_S = 60.0
# As cosmic-ray notes it.
_TIMED_OUT = "timeout"
_Position = tuple[int, int]


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, run and count the mutants of a package."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("package", metavar="PACKAGE", help="such as judge/baselines")
    parser.add_argument("--mutants", type=int, default=150, metavar="N")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--commit", default="HEAD", help="what is mutated (default: HEAD)")
    parser.add_argument("--session", type=Path, metavar="FILE", help="cosmic-ray's database")
    given = parser.parse_args(arguments)
    if given.mutants < 1:
        parser.error(f"--mutants {given.mutants}: give 1 or more")
    os.nice(19)
    with tempfile.TemporaryDirectory(prefix="hwq-mutation-") as folder:
        session = (given.session or Path(folder) / "session.sqlite").absolute()
        tree = Path(folder) / "tree"
        commit = unpacked(given.commit, tree)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        modules, tests = sources(given.package), mirrored_tests(given.package)
        if not modules or not tests:
            missing = "tests" if modules else "modules"
            parser.error(f"{given.package}: no {missing} of such a package at {commit}")
        timeout_s = max(_LEAST_TIMEOUT_S, _PATIENCE * _unchanged_s(tests))
        with use_db(session) as database:
            if not database.num_work_items:
                init(modules, database, {})
                kept = drawn(database.work_items, given.mutants, given.seed)
                database.clear()
                database.add_work_items(kept)
            _run_pending(database, tests, timeout_s)
            print(row(given.package, commit, [each for _, each in database.results]))


def unpacked(commit: str, tree: Path) -> str:
    """Unpack a commit into a folder; return its short name."""
    top = Path(__file__).parents[1]
    named = ["git", "-C", str(top), "rev-parse", "--short", "--verify", f"{commit}^{{commit}}"]
    found = subprocess.run(named, check=False, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"there is no commit {commit} in {top}: {found.stderr.strip()}")
    short = found.stdout.strip()
    tree.mkdir()
    packed = subprocess.run(
        ["git", "-C", str(top), "archive", short], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(tree)], input=packed.stdout, check=True)
    return short


def sources(package: str) -> list[Path]:
    """Return the modules of a package's own folder, relative to the tree."""
    return sorted(Path("pytest_hwqueue", package).glob("[!_]*.py"))


def mirrored_tests(package: str) -> list[Path]:
    """Return the test files of the folder that mirrors a package."""
    return sorted(Path("tests", package).glob("test_*.py"))


def command(tests: Sequence[Path], module: Path | None = None) -> str:
    """Return how the tests run: those that mirror the module first, until one fails."""
    first = [each for each in tests if module is not None and each.name == f"test_{module.name}"]
    files = [*first, *(each for each in tests if each not in first)]
    options = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
    return shlex.join([sys.executable, *options, *map(str, files)])


def _unchanged_s(tests: Sequence[Path]) -> float:
    """Run the tests on the unchanged copy, which they import and pass; return how long it took."""
    where = [sys.executable, "-c", "import pytest_hwqueue; print(pytest_hwqueue.__file__)"]
    imported = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    if not Path(imported).is_relative_to(Path.cwd()):
        sys.exit(f"the tests would import {imported}, not the mutated copy in {Path.cwd()}")
    begin = time.monotonic()
    done = subprocess.run(shlex.split(command(tests)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}\nThe tests fail without a mutant: mend them first.")
    return time.monotonic() - begin


def annotation_spans(source: str) -> Iterator[tuple[_Position, _Position]]:
    """Yield where each annotation of a module begins and ends: its line from 1, column from 0."""
    for node in ast.walk(ast.parse(source)):
        found = getattr(node, "annotation", None), getattr(node, "returns", None)
        for each in found:
            if isinstance(each, ast.expr):
                assert each.end_lineno is not None
                assert each.end_col_offset is not None
                yield (each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)


def drawn(items: Sequence[WorkItem], number: int, seed: int) -> list[WorkItem]:
    """Draw mutants in an order that only the code and the seed decide; fewer, if there are fewer.

    One operator in eleven replacements would weigh eleven times as much as one comparison's place:
    each place gives one mutant at most.
    """
    ordered = sorted(
        items,
        key=lambda each: (
            str(each.mutations[0].module_path), each.mutations[0].start_pos,
            each.mutations[0].operator_name, each.mutations[0].occurrence,
        ),
    )  # fmt: skip
    random.Random(seed).shuffle(ordered)
    left_out = {
        path: list(annotation_spans(path.read_text(encoding="utf-8")))
        for path in {each.mutations[0].module_path for each in items}
    }
    kept: dict[tuple[Path, _Position], WorkItem] = {}
    for item in ordered:
        mutation = item.mutations[0]
        inside = any(
            begin <= mutation.start_pos and mutation.end_pos <= end
            for begin, end in left_out[mutation.module_path]
        )
        if not inside and len(kept) < number:
            kept.setdefault((mutation.module_path, mutation.start_pos), item)
    return list(kept.values())


def _run_pending(database: WorkDB, tests: Sequence[Path], timeout_s: float) -> None:
    for item in database.pending_work_items:
        mutation = item.mutations[0]
        result = mutate_and_test(item.mutations, command(tests, mutation.module_path), timeout_s)
        if result.test_outcome not in (TestOutcome.KILLED, TestOutcome.SURVIVED):
            sys.exit(f"{mutation}: {result.worker_outcome}\n{result.output}")
        database.set_result(item.job_id, result)
        print(f"{database.num_results}/{database.num_work_items} {outcome(result)}", flush=True)
        if outcome(result) != "killed":
            print(f"{mutation.operator_name}\n{result.diff}\n", flush=True)


def outcome(result: WorkResult) -> str:
    """Return "killed", "survived" or "timed out"."""
    if result.test_outcome == TestOutcome.KILLED:
        return "timed out" if result.output == _TIMED_OUT else "killed"
    return "survived"


def row(package: str, commit: str, results: Sequence[WorkResult]) -> str:
    """Return a package's row: its counts, and the share that did not survive, with its interval."""
    counts = Counter(map(outcome, results))
    found = counts["killed"] + counts["timed out"]
    ends = binomtest(found, len(results)).proportion_ci(0.95)
    score = f"{found / len(results):.0%} [{ends.low:.0%}, {ends.high:.0%}]".replace("%", " %")
    cells = (
        f"`{package}`", commit, len(results), counts["killed"], counts["survived"],
        counts["timed out"], score,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
