"""The GitHub action: its file holds together, and its scripts do what they say.

GitHub's runner is not here: `Job` gives each step's script its variables, as the runner would.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue.cli.main import main
from pytest_hwqueue.settings.options import OPTIONS
from tests.acceptance.inner import ROOT, plain_environment
from tests.pulls.conftest import REPOSITORY, TOKEN, FakeGitHub, fake_github

__all__ = ["fake_github"]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
TEST = """
def test_kernel(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)
"""
OPTIONS_OF_THE_JOB = (
    "-p no:cacheprovider -p no:hypothesispytest --hwq-iterations=320 --hwq-warmup=2 "
    "--hwq-causes=never --hwq-sim-noise=run=0.02,seed={}"
)


class Job:
    """Runs steps of the action in a folder, as a job on pull request 7."""

    def __init__(self, folder: Path, github: FakeGitHub) -> None:
        self.folder = folder
        head = {"sha": "0123456789abcdef", "repo": {"full_name": REPOSITORY}}
        event = folder / "event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7, "head": head}}))
        self.output = folder / "output"
        self._environment = plain_environment(
            GITHUB_ACTIONS="true", GITHUB_API_URL=github.url, GITHUB_EVENT_PATH=str(event),
            GITHUB_GRAPHQL_URL=f"{github.url}/graphql", GITHUB_OUTPUT=str(self.output),
            GITHUB_REPOSITORY=REPOSITORY, GITHUB_STEP_SUMMARY=str(folder / "summary.md"),
        )  # fmt: skip

    def shown(self, first: int) -> str:
        """Return a program that prints its arguments, from the first one on."""
        (self.folder / "show.py").write_text(f"import sys; print(sys.argv[{first}:])")
        program = self.folder / "python"
        program.write_text(f'#!/bin/bash\nexec {sys.executable} show.py "$@"\n')
        program.chmod(0o755)
        return str(program)

    def run(self, step: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run the script of a step with the action's defaults and the inputs given."""
        given = {name: str(each["default"]) for name, each in ACTION["inputs"].items()}
        given |= {"python": sys.executable, "token": TOKEN, "action_path": "/the/action", **inputs}
        (found,) = (each for each in STEPS if each["name"] == step)
        expression = re.compile(r"\$\{\{ (?:inputs|github)\.([\w-]+) \}\}")
        variables = {
            name: expression.sub(lambda match: given[match[1]], text)
            for name, text in found["env"].items()
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", found["run"]],
            cwd=self.folder, env={**self._environment, **variables}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip


@pytest.fixture
def job(tmp_path: Path, fake_github: FakeGitHub) -> Job:
    (tmp_path / "test_kernel.py").write_text(TEST, encoding="utf-8")
    return Job(tmp_path, fake_github)


def test_its_file_holds_together() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert all(each["description"] for each in ACTION["inputs"].values())
    assert ACTION["runs"]["using"] == "composite"
    # No script contains an expression that would be run.
    for step in STEPS:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        used = set(re.findall(r"\$\{?(ACTION_\w+)", step["run"]))
        assert used == {name for name in step["env"] if name != "GITHUB_TOKEN"}
    # What the scripts call is there.
    scripts = "\n".join(step["run"] for step in STEPS)
    options = {option.command_line for option in OPTIONS}
    assert set(re.findall(r"--hwq-[\w-]+", scripts)) <= options
    for name in ("badge", "comment"):
        call = re.search(rf"-m pytest_hwqueue {name} (.*?)\n(?! )", scripts + "\n", re.DOTALL)
        assert call is not None
        known = {each for option in main.commands[name].params for each in option.opts}
        assert set(re.findall(r" (--[\w-]+)", call[1])) <= known


def test_outputs_and_what_is_installed(job: Job) -> None:
    job.run("Measure", options="--version")
    written = dict(line.split("=") for line in job.output.read_text().splitlines())
    assert written.keys() == ACTION["outputs"].keys()
    for name, each in ACTION["outputs"].items():
        assert each["value"] == f"${{{{ steps.measure.outputs.{name} }}}}"
    pip = ["-m", "pip", "install"]
    for install, arguments in (
        ({}, str([*pip, "/the/action"])),
        ({"install": "a b.whl[report]"}, str([*pip, "a b.whl[report]"])),
        ({"install": "none"}, ""),
    ):
        done = job.run("Install", python=job.shown(1), **install)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == arguments


def test_inputs_are_split_as_in_a_shell_and_never_run(job: Job) -> None:
    show = job.shown(3)
    done = job.run(
        "Measure", python=show, baseline="main", device="sim:h200",
        tests="'tests/a b.py' c.py", options='-m "P0 or P1" -k "$(touch ran)" * `touch ran`',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([
        "--hwq-device=sim:h200", "--hwq-markdown=hwqueue-results/hwqueue.md",
        "--hwq-json=hwqueue-results/session.json", "--hwq-compare=main",
        "tests/a b.py", "c.py", "-m", "P0 or P1", "-k", "$(touch ran)", "*", "`touch", "ran`",
    ])  # fmt: skip
    assert not (job.folder / "ran").exists()
    assert job.run("Measure", python=show, options="-m 'P0").returncode != 0


def test_a_session_that_never_began_is_said_in_the_comment(
    job: Job, fake_github: FakeGitHub
) -> None:
    stale = job.folder / "hwqueue-results/hwqueue.md"
    stale.parent.mkdir()
    stale.write_text("all is well, said an earlier job")
    assert job.run("Measure", options="--no-such-option").returncode == 4
    assert job.run("Badge").returncode == 0
    done = job.run("Comment")
    assert done.returncode == 0, done.stdout + done.stderr
    (body,) = fake_github.bodies()
    assert "**No verdict.**" in body


@pytest.mark.slow
def test_a_regression_reaches_the_pull_request_and_its_mend_too(
    job: Job, fake_github: FakeGitHub
) -> None:
    def measure(seed: int, more: str = "", **inputs: str) -> int:
        options = f"{OPTIONS_OF_THE_JOB.format(seed)} {more}"
        return job.run("Measure", device="sim:h200", options=options, **inputs).returncode

    def badge() -> Any:
        assert job.run("Badge").returncode == 0
        return json.loads((job.folder / "hwqueue-results/badge.json").read_text())

    assert measure(1, "--hwq-save=main --hwq-runs=6") == 0
    assert badge()["message"] == "not compared"

    assert measure(2, "--hwq-fault=slower:25", baseline="main") == 1
    assert badge() == {
        "schemaVersion": 1, "label": "tail latency (simulated)", "message": "1 regression",
        "color": "red",
    }  # fmt: skip
    assert job.run("Comment").returncode == 0
    (body,) = fake_github.bodies()
    assert "### Against sim-h200/main: 1 regression" in body
    first = next(line for line in body.splitlines() if line.startswith("| ❌"))
    assert re.match(r"\| ❌ `[^|]*test_kernel\[sim:h200-[^|]*`[^|]*\| P99 \|.*\| \+2\d", first)

    assert measure(3, baseline="main") == 0
    assert (badge()["message"], badge()["color"]) == ("1 pass", "brightgreen")
    done = job.run("Comment")
    assert done.stdout.strip() == fake_github.comments[0]["html_url"]
    (body,) = fake_github.bodies()
    assert "1 pass" in body
    assert "❌" not in body
