"""The GitHub action: its file holds together, and its scripts do what they say.

GitHub's runner is not here: `Job` gives each step's script its variables, as the runner would.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue.options.options import OPTIONS
from tests.acceptance.inner import ROOT, plain_environment

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
REPOSITORY = "someone/queues"
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SCRIPTS = [step for step in STEPS if "run" in step]
TEST = """
def test_kernel(hwq, hwq_device):
    hwq.measure(hwq_device.kernel_of(200_000), streams=1)
"""
OPTIONS_OF_THE_JOB = (
    "-p no:cacheprovider -p no:hypothesispytest --hwq-iterations=320 --hwq-warmup=2 "
    "--hwq-causes=never --hwq-sim-noise=run=0.02,seed={}"
)


class Job:
    """Runs steps of the action in a folder, as a job on pull request 7.

    Attributes:
        comments: of the pull request, as GitHub's REST interface lists them.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.comments: list[dict[str, Any]] = []
        self.output = folder / "output"
        self._environment = plain_environment(
            GITHUB_ACTIONS="true", GITHUB_OUTPUT=str(self.output), GITHUB_REPOSITORY=REPOSITORY,
            GITHUB_STEP_SUMMARY=str(folder / "summary.md"), RUNNER_ENVIRONMENT="self-hosted",
        )  # fmt: skip

    def shown(self, first: int) -> str:
        """Return a program that prints its arguments, from the first one on."""
        (self.folder / "show.py").write_text(f"import sys; print(sys.argv[{first}:])")
        program = self.folder / "python"
        program.write_text(f'#!/bin/bash\nexec {sys.executable} show.py "$@"\n')
        program.chmod(0o755)
        return str(program)

    def run(self, step: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run the script of a step with the action's defaults and the inputs given.

        The last words of ``github.event.…`` are given as inputs are.
        """
        given = {name: str(each["default"]) for name, each in ACTION["inputs"].items()}
        given |= {"python": sys.executable, "action_path": "/the/action"}
        given |= {"number": "7", "full_name": REPOSITORY, **inputs}
        (found,) = (each for each in SCRIPTS if each["name"] == step)
        expression = re.compile(r"\$\{\{ (?:inputs|github)\.(?:[a-z]\w*\.)*([\w-]+) \}\}")
        variables = {
            name: expression.sub(lambda match: given[match[1]], text)
            for name, text in found["env"].items()
        }
        variables |= {name: value for name, value in inputs.items() if name.isupper()}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", found["run"]],
            cwd=self.folder, env={**self._environment, **variables}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def comment(self, status: int = 0, fork: str = REPOSITORY, name: str = "hwqueue") -> list[str]:
        """Run the script that comments, as actions/github-script does; return what it says.

        Args:
            status: of GitHub's answers to what would change something; 0 for success.
            fork: the repository that the pull request comes from.
            name: the action's input.

        """
        (step,) = (each for each in STEPS if each["name"] == "Comment")
        given = {
            "script": step["with"]["script"], "comments": self.comments, "status": status,
            "fork": fork, "repository": REPOSITORY,
        }  # fmt: skip
        done = subprocess.run(
            ["node", "-e", GITHUB_SCRIPT], input=json.dumps(given), cwd=self.folder,
            env={**self._environment, "ACTION_FOLDER": "hwqueue-results", "ACTION_NAME": name},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        self.comments = found["comments"]
        said: list[str] = found["said"]
        return said

    def bodies(self) -> list[str]:
        """Return the texts of all comments."""
        return [each["body"] for each in self.comments]


# What actions/github-script hands to a script, with a GitHub that keeps comments in a list.
GITHUB_SCRIPT = """
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { comments, status } = given, said = [];
const refuse = () => { if (status) throw Object.assign(new Error("refused"), { status }); };
const [owner, repo] = given.repository.split("/");
const context = {
  repo: { owner, repo }, serverUrl: "https://github.com", runId: 99,
  payload: { pull_request: {
    number: 7,
    head: { sha: "0123456789abcdef", repo: given.fork ? { full_name: given.fork } : null },
  } },
};
const issues = {
  listComments: "the list",
  createComment: async ({ issue_number, body }) => {
    refuse();
    const made = { id: comments.length + 1, body, user: { login: "github-actions[bot]" },
      html_url: `https://github.com/${issue_number}` };
    comments.push(made);
    return { data: made };
  },
  updateComment: async ({ comment_id, body }) => {
    refuse();
    const kept = comments.find((each) => each.id === comment_id);
    kept.body = body;
    return { data: kept };
  },
};
const github = {
  rest: { issues },
  graphql: async () => ({ viewer: { login: "github-actions" } }),
  paginate: async (what, { issue_number }) => {
    if (what !== issues.listComments || issue_number !== 7) throw new Error("wrong list");
    return comments;
  },
};
const core = { info: (text) => said.push(text), warning: (text) => said.push(`warning: ${text}`) };
const AsyncFunction = (async () => {}).constructor;
new AsyncFunction("require", "github", "context", "core", given.script)(
  require, github, context, core
).catch((error) => said.push(`error: ${error.message}`))
  .then(() => console.log(JSON.stringify({ comments, said })));
"""
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "test_kernel.py").write_text(TEST, encoding="utf-8")
    return Job(tmp_path)


def test_its_file_holds_together() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(ACTION["inputs"])
    assert all(each["description"] for each in ACTION["inputs"].values())
    assert ACTION["runs"]["using"] == "composite"
    # No script contains an expression that would be run.
    for step in SCRIPTS:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"]
        used = set(re.findall(r"\$\{?(ACTION_\w+)", step["run"]))
        assert used == set(step["env"])
    # Another action is pinned to a major version, and gets inputs alone; a script no expression.
    for step in (each for each in STEPS if each not in SCRIPTS):
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
        given = {**step["with"], **step.get("env", {})}
        assert "${{" not in given.pop("script", "")
        assert given.pop("retries", 3) == 3
        assert all(re.fullmatch(r"\$\{\{ inputs\.\w+ \}\}", each) for each in given.values())
    # What the scripts call is there.
    scripts = "\n".join(step["run"] for step in SCRIPTS)
    options = {option.command_line for option in OPTIONS}
    assert set(re.findall(r"--hwq-[\w-]+", scripts)) <= options


def test_outputs_and_what_is_installed(job: Job) -> None:
    job.run("Measure", options="--version")
    written = dict(line.split("=") for line in job.output.read_text().splitlines())
    assert written.keys() == ACTION["outputs"].keys()
    for name, each in ACTION["outputs"].items():
        assert each["value"] == f"${{{{ steps.measure.outputs.{name} }}}}"
    pip = ["-m", "pip", "install"]
    for install, arguments in (
        ({}, str([*pip, "/the/action[report]"])),
        ({"install": "a b.whl[report]"}, str([*pip, "a b.whl[report]"])),
        ({"install": "none"}, ""),
    ):
        done = job.run("Install", python=job.shown(1), **install)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == arguments


def test_inputs_are_split_as_in_a_shell_and_never_run(job: Job) -> None:
    show = job.shown(3)
    done = job.run(
        "Measure", python=show, against="origin/main", baseline="main", device="sim:h200",
        setup="pip install .", tests="'tests/a b.py' c.py",
        options='-m "P0 or P1" -k "$(touch ran)" * `touch ran`',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = job.folder / "hwqueue-results"
    assert done.stdout.strip() == str([
        "--hwq-device=sim:h200", f"--hwq-markdown={results}/hwqueue.md",
        f"--hwq-json={results}/session.json", f"--hwq-report={results}/report.html",
        "--hwq-against=origin/main", "--hwq-setup=pip install .", "--hwq-compare=main",
        "tests/a b.py", "c.py", "-m", "P0 or P1", "-k", "$(touch ran)", "*", "`touch", "ran`",
    ])  # fmt: skip
    assert not (job.folder / "ran").exists()
    assert job.run("Measure", python=show, options="-m 'P0").returncode != 0


def test_pytest_is_called_in_the_given_folder_and_other_paths_stay_those_of_the_workspace(
    job: Job,
) -> None:
    (job.folder / "package").mkdir()
    (job.folder / "own").mkdir()
    program = job.folder / "own" / "python"
    program.write_text('#!/bin/bash\necho "$PWD" "$@"\n')
    program.chmod(0o755)
    done = job.run("Measure", python="own/python", directory="package", setup="make")
    assert done.stdout.split()[0] == str(job.folder / "package")
    assert f"--hwq-json={job.folder}/hwqueue-results/session.json" in done.stdout
    # Without another side there is nothing to set up.
    assert "--hwq-setup" not in done.stdout


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"full_name": "somebody/queues"}, 1),
        # The fork has been deleted; the runner is too old to say what it is.
        ({"full_name": "", "RUNNER_ENVIRONMENT": ""}, 1),
        ({"full_name": "somebody/queues", "forks": "true"}, 0),
        ({"full_name": "somebody/queues", "RUNNER_ENVIRONMENT": "github-hosted"}, 0),
        ({}, 0),
        # A push.
        ({"number": "", "full_name": ""}, 0),
    ],
)
def test_a_forks_code_runs_on_a_runner_of_ones_own_only_if_asked(
    job: Job, given: dict[str, str], status: int
) -> None:
    done = job.run("Forks", **given)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.startswith("::error ") == bool(status)
    assert ("Pull request 7 comes from a fork, and its code" in done.stdout) == bool(status)
    # It is asked before anything else runs.
    assert STEPS[0]["name"] == "Forks"


def test_what_was_measured_is_kept_however_it_ended() -> None:
    (step,) = (each for each in STEPS if each["name"] == "Artifact")
    assert "always() && steps.measure.outcome != 'skipped'" in step["if"]
    # The comment may fail the job.
    assert STEPS.index(step) < [each["name"] for each in STEPS].index("Comment")


def test_its_name_is_looked_at_before_anything_is_measured(job: Job) -> None:
    names = [step["name"] for step in STEPS]
    assert names.index("Name") < names.index("Install") < names.index("Measure")
    for name, status in (("gpu-8.x_y", 0), ("a b", 1), ("", 1), ("a\n::error::b", 1), ("-->", 1)):
        done = job.run("Name", name=name)
        assert done.returncode == status, name
        assert done.stdout.count("\n") == status


@needs_node
def test_a_session_that_never_began_is_said_in_the_comment(job: Job) -> None:
    stale = job.folder / "hwqueue-results/hwqueue.md"
    stale.parent.mkdir()
    stale.write_text("all is well, said an earlier job")
    assert job.run("Measure", options="--no-such-option").returncode == 4
    assert job.comment() == ["https://github.com/7"]
    (body,) = job.bodies()
    assert "**No verdict.**" in body


@needs_node
def test_a_pull_request_has_one_comment_a_name_and_others_are_not_touched(job: Job) -> None:
    markdown = job.folder / "hwqueue-results/hwqueue.md"
    markdown.parent.mkdir()
    marker = "<!-- pytest-hwqueue comment hwqueue -->"
    job.comments = [
        {"id": 11, "body": f"{marker}\nnot by us", "user": {"login": "someone"}},
        {"id": 12, "body": f"{marker}\nof nobody", "user": None},
        {"id": 13, "body": f"> {marker}", "user": {"login": "github-actions[bot]"}},
    ]
    others = job.bodies()
    for text, name in (("one", "hwqueue"), ("two", "hwqueue"), ("three", "other")):
        markdown.write_text(text)
        job.comment(name=name)
    assert job.bodies()[:3] == others
    first, second = job.bodies()[3:]
    assert first == (
        f"{marker}\ntwo\n\n<sub>hwqueue (pytest-hwqueue) · commit 0123456789 · "
        f"[run](https://github.com/{REPOSITORY}/actions/runs/99)</sub>\n"
    )
    assert second.startswith("<!-- pytest-hwqueue comment other -->\nthree\n")


@needs_node
def test_a_comment_is_cut_to_what_github_takes_and_leaves_nothing_folded_open(job: Job) -> None:
    markdown = job.folder / "hwqueue-results/hwqueue.md"
    markdown.parent.mkdir()
    markdown.write_text("head\n<details>\n" + "a line of the table\n" * 5000 + "</details>\n")
    job.comment()
    (body,) = job.bodies()
    assert 64_000 < len(body) <= 65_536
    assert body.count("<details>") == body.count("</details>") == 1
    assert "\n\n*Shortened to what fits into a comment; " in body


@needs_node
def test_what_github_refuses_fails_the_step_but_for_a_forks_token(job: Job) -> None:
    assert job.comment(403) == ["error: refused"]
    assert job.comment(500, fork="somebody/queues") == ["error: refused"]
    for fork in ("somebody/queues", ""):
        (said,) = job.comment(403, fork=fork)
        assert said.startswith("warning: The pull request comes from a fork")
    assert job.bodies() == []


@needs_node
@pytest.mark.slow
def test_a_regression_reaches_the_pull_request_and_its_mend_too(job: Job) -> None:
    def measure(seed: int, more: str = "", **inputs: str) -> int:
        options = f"{OPTIONS_OF_THE_JOB.format(seed)} {more}"
        return job.run("Measure", device="sim:h200", options=options, **inputs).returncode

    assert measure(1, "--hwq-save=main --hwq-runs=6") == 0
    assert measure(2, "--hwq-fault=slower:25", baseline="main") == 1
    job.comment()
    (body,) = job.bodies()
    assert "### Against sim-h200/main: 1 regression" in body
    assert (job.folder / "hwqueue-results/report.html").exists()
    first = next(line for line in body.splitlines() if line.startswith("| ❌"))
    assert re.match(r"\| ❌ `[^|]*test_kernel\[sim:h200-[^|]*`[^|]*\| P99 \|.*\| \+2\d", first)

    assert measure(3, baseline="main") == 0
    job.comment()
    (body,) = job.bodies()
    assert "1 pass" in body
    assert "❌" not in body
