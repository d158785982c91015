"""Run other projects' suites with and without the plugin, and print what differs.

``python tests/torture/neutral.py WITHOUT WITH PROJECT...``: two environments that differ in the
plugin and what it needs, each with the projects' own requirements and pytest-xdist, and folders of
unpacked source distributions, whose tests are in ``tests``. Exit status 1 if any outcome differs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def outcomes(environment: Path, project: Path, *more: str) -> Counter[tuple[str, ...]]:
    """Return a suite's tests, each with its outcome, and why it was skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        subprocess.run(
            [environment / "bin/python", "-m", "pytest", "tests", "-p", "no:cacheprovider",
             f"--junitxml={report}", *more],
            cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        cases = ElementTree.parse(report).iter("testcase")
        return Counter(
            (
                case.get("classname", ""),
                case.get("name", ""),
                *(
                    f"{each.tag} {each.get('message') if each.tag == 'skipped' else ''}"
                    for each in case
                    if each.tag in ("failure", "error", "skipped")
                ),
            )
            for case in cases
        )


def main(without: Path, with_plugin: Path, *projects: Path) -> int:
    """Compare the outcomes of each project, alone and on two workers of pytest-xdist."""
    differ = 0
    for project in projects:
        for more in ((), ("-n", "2")):
            plain, ours = (outcomes(each, project, *more) for each in (without, with_plugin))
            different = sorted((plain - ours) + (ours - plain))
            print(
                project.name, *more, f"{plain.total()} tests, {len(different)} differ", flush=True
            )
            for each in different:
                print(*each)
            differ += len(different)
    return min(differ, 1)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
