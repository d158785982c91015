"""The README works wherever it is shown: absolute links, to files that are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later reads TOML")

_ROOT = Path(__file__).parents[1]
_README = (_ROOT / "README.md").read_text(encoding="utf-8")
_PROSE = re.sub(r"^```.*?^```", "", _README, flags=re.MULTILINE | re.DOTALL)
_REFERENCES = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", _README, re.MULTILINE))


def test_links_are_absolute_and_lead_to_what_is_there() -> None:
    urls = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    files = f"{urls['Repository']}/blob/main/"
    assert len(_REFERENCES) > 10
    for name, url in _REFERENCES.items():
        assert url == files + name
        assert (_ROOT / name.partition("#")[0]).exists(), name
    assert urls["Changelog"] == f"{files}CHANGELOG.md"
    for target in re.findall(r"\]\(([^)]+)\)", _PROSE):
        assert target.startswith(("https://", "#")), target
    used = set(re.findall(r"\]\[([^\]]+)\]", _PROSE))
    assert used == set(_REFERENCES)


def test_headings_that_it_links_to_are_there() -> None:
    headings = re.findall(r"^#+ (.+)$", _PROSE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", _PROSE)) <= anchors


def test_its_first_test_runs_as_pasted(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    first = re.search(r"^```(\w+)\n(.*?)^```", _README, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert first[1] == "python"
    pytester.makepyfile(test_mine=first[2])
    result = run_in_process("--hwq-device=sim:h200", "--hwq-streams=1,8")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*P99 of test_mine.py::test_mine[[]sim:h200-s8-*, not below 1 ms"])


@pytest.mark.slow
def test_its_sixty_seconds_come_to_what_it_says(tmp_path: Path) -> None:
    block = _README.partition("## Sixty seconds")[2].partition("```console")[2].partition("```")[0]
    commands = re.findall(r"^\$ (hwq .+)$", block, re.MULTILINE)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = [
        subprocess.run(
            shlex.split(each, comments=True), cwd=tmp_path, env=environment, check=False
        ).returncode
        for each in commands
    ]
    assert ended == [0, 1, 0]
    assert "Worse than sim-h200/reference" in (tmp_path / "report.html").read_text()


def test_its_pictures_are_there() -> None:
    pictures = re.findall(r'"https://github.com/[^"]+/raw/main/([^"]+)"', _README)
    assert len(pictures) == 2
    assert all((_ROOT / each).is_file() for each in pictures)


def test_the_badges_say_what_the_project_says() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [
        each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each
    ]
    assert f"![Python {versions[0]} to {versions[-1]}]" in _README
    assert f"![Licence {project['license']}]" in _README
    (wanted,) = (each for each in project["dependencies"] if each.startswith("pytest>="))
    assert f"![pytest {wanted.removeprefix('pytest>=')} or later]" in _README
