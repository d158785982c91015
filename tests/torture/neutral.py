"""Run other projects' suites with and without the plugin, and print what differs.

``python tests/torture/neutral.py WITHOUT WITH PROJECT...``: two environments that differ in the
plugin and what it needs, each with the projects' own requirements, torch and pytest-xdist, and
folders of unpacked source distributions, whose tests are in ``tests`` or ``testing``. Each is run
alone, on two workers of pytest-xdist and under torchrun with two ranks; with the plugin also beside
one test that measures. Exit status 1 if any outcome or exit status differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

MEASURING = """
import time

def test_hwq_beside(hwq):
    assert hwq.measure(lambda: time.sleep(0.0002), streams=1).status == "ok"
"""
# What single projects need.
OPTIONS = {
    # It does not end, also without the plugin.
    "werkzeug": ["--ignore=tests/test_serving.py"],
    # Some of its marks are registered nowhere.
    "python_dateutil": ["-W", "ignore::pytest.PytestUnknownMarkWarning"],
}
RANKS = ("-m", "torch.distributed.run", "--nproc-per-node=2")
FAILS = ("failure", "error")


class Outcome(NamedTuple):
    """What a run came to: its exit status, and of each process the outcome of each test."""

    status: int
    tests: list[Counter[tuple[str, ...]]]

    def failing(self) -> list[str]:
        """Return options that leave out what fails, which would end another rank before its end."""
        found = [each for each in self.tests[0] if each[2:] and each[2].startswith(FAILS)]
        return [f"--deselect={file.replace('.', '/')}.py::{name}" for file, name, *_ in found]

    def others(self) -> list[Counter[tuple[str, ...]]]:
        """Return the outcomes without that of our test."""
        return [
            Counter({key: n for key, n in each.items() if not key[1].startswith("test_hwq_beside")})
            for each in self.tests
        ]

    def __str__(self) -> str:
        found = ["no report" if not each else f"{each.total()} tests" for each in self.tests]
        return f"status {self.status}, {' and '.join(found)}"


def run(environment: Path, project: Path, *more: str, ranks: bool, measuring: bool) -> Outcome:
    """Run a suite, perhaps by two ranks and beside a test that measures."""
    tests = next(name for name in ("tests", "testing") if (project / name).is_dir())
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "HWQ_"))}
    variables |= {"HWQ_DEVICE": "cpu", "HWQ_ITERATIONS": "30", "HWQ_MAX_TIME": "1"}
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(project, Path(folder, project.name))
        if measuring:
            (copy / tests / "test_zz_hwq_beside.py").write_text(MEASURING)
        # pytest puts the variable in.
        report = f"--junitxml={folder}/report-{'$RANK' if ranks else '0'}.xml"
        name = project.name.rpartition("-")[0]
        done = subprocess.run(
            [environment / "bin/python", *RANKS * ranks, "-m", "pytest", tests,
             "-p", "no:cacheprovider", report, *OPTIONS.get(name, []), *more],
            cwd=copy, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        reports = [Path(folder, f"report-{rank}.xml") for rank in range(1 + ranks)]
        return Outcome(done.returncode, [outcomes(each) for each in reports])


def outcomes(report: Path) -> Counter[tuple[str, ...]]:
    """Return the tests of a report, each with its outcome, and why it was skipped."""
    if not report.exists():
        return Counter()
    return Counter(
        (
            case.get("classname", ""),
            case.get("name", ""),
            *(
                f"{each.tag} {each.get('message') if each.tag == 'skipped' else ''}"
                for each in case
                if each.tag in (*FAILS, "skipped")
            ),
        )
        for case in ElementTree.parse(report).iter("testcase")
    )


def differences(plain: Outcome, ours: Outcome, *, measuring: bool) -> list[str]:
    """Return what differs; with a test that measures, whether each process has it, passed."""
    found = [] if plain.status == ours.status else [f"status {ours.status}, not {plain.status}"]
    for rank, (a, b) in enumerate(zip(plain.tests, ours.others(), strict=True)):
        found += [f"process {rank}: {each}" for each in sorted((a - b) + (b - a))]
    for rank, (every, others) in enumerate(zip(ours.tests, ours.others(), strict=True)):
        mine = [key[2:] for key in every - others]
        found += [f"process {rank}: measuring: {mine}"] * (mine != [()] * measuring)
    return found


def main(without: Path, with_plugin: Path, *projects: Path) -> int:
    """Compare each project's outcomes in all the ways it is run."""
    differ = 0
    for project in projects:
        alone = run(without, project, ranks=False, measuring=False)
        ways: list[tuple[str, Sequence[str], bool]] = [
            ("alone", (), False), ("-n 2", ("-n", "2"), False),
            ("torchrun", alone.failing(), True),
        ]  # fmt: skip
        for way, more, ranks in ways:
            plain = alone
            if way != "alone":
                plain = run(without, project, *more, ranks=ranks, measuring=False)
            print(f"{project.name} {way}: {plain}", flush=True)
            for measuring in (False, True):
                ours = run(with_plugin, project, *more, ranks=ranks, measuring=measuring)
                different = differences(plain, ours, measuring=measuring)
                beside = ", a measuring test beside" if measuring else ""
                print(f"  with the plugin{beside}: {ours}; {len(different)} differ", flush=True)
                for each in different:
                    print(f"    {each}")
                differ += len(different)
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
