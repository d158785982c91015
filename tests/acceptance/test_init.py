"""`hwq init`: what it writes runs as it is, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pytest_hwqueue.cli.main import main
from tests.acceptance.inner import ROOT, plain_environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later reads TOML")

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
WRITTEN = (
    "tests/test_tail_latency.py", "tests/tail_latency.hwq.yaml",
    ".github/workflows/tail-latency.yml", ".gitattributes",
)  # fmt: skip
PACKAGE = {
    "pyproject.toml", "hwq_example/__init__.py", "hwq_example/workload.py", "tests/test_relay.py",
}  # fmt: skip


def init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)], prog_name="hwq")


def files_in(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def inputs(folder: Path) -> dict[str, str]:
    """Return what the workflow gives to the action."""
    flow = yaml.safe_load((folder / WRITTEN[2]).read_text(encoding="utf-8"))
    assert flow["permissions"]["pull-requests"] == "write"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = project["urls"]["Repository"].removeprefix("https://github.com/")
    steps = flow["jobs"]["measure"]["steps"]
    (step,) = (each for each in steps if each.get("uses", "").startswith(f"{name}@"))
    given: dict[str, str] = step["with"]
    return given


def test_it_writes_what_the_service_needs_and_says_what_to_do_next(tmp_path: Path) -> None:
    done = init("all", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert files_in(tmp_path / "new") == set(WRITTEN)
    for name in WRITTEN:
        assert f"wrote {tmp_path / 'new' / name}" in done.output
    assert "pytest tests/test_tail_latency.py --hwq-compare=main" in done.output


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    own = tmp_path / WRITTEN[1]
    own.parent.mkdir()
    own.write_text("mine")
    done = init("all", tmp_path)
    assert done.exit_code == 4
    assert f"already there: {own};" in "".join(done.output.split("\n"))
    assert files_in(tmp_path) == {WRITTEN[1]}
    assert own.read_text() == "mine"
    assert init("all", tmp_path, "--force").exit_code == 0
    assert own.read_text().startswith("# Two tenants")
    # A folder that cannot be.
    (tmp_path / "other").mkdir()
    (tmp_path / "other/tests").write_text("a file")
    done = init("all", tmp_path / "other")
    assert (done.exit_code, init("all", tmp_path / "other/tests").exit_code) == (4, 4)
    assert "cannot write" in done.output


def test_a_part_is_written_with_what_it_needs_and_what_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / WRITTEN[0]).write_text("mine")
    done = init("scenario", tmp_path)
    assert (done.exit_code, files_in(tmp_path)) == (0, set(WRITTEN[:2]))
    assert "baseline" not in done.output
    # Needed and not named: it is kept, also where what is named is overwritten.
    assert init("scenario", tmp_path).exit_code == 4
    assert init("scenario", tmp_path, "--force").exit_code == 0
    assert init("ci", tmp_path).exit_code == 0
    assert files_in(tmp_path) == set(WRITTEN)
    assert (tmp_path / WRITTEN[0]).read_text() == "mine"


def test_in_a_folder_of_a_repository_the_workflow_goes_where_github_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    folder = repository / "packages/x"
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    monkeypatch.chdir(folder)
    done = init()
    assert done.exit_code == 0, done.output
    assert files_in(folder) == {*WRITTEN} - {WRITTEN[2]}
    assert f"wrote {repository / WRITTEN[2]}" in done.output
    assert inputs(repository)["tests"] == (
        "packages/x/tests/test_tail_latency.py packages/x/tests/tail_latency.hwq.yaml"
    )
    # A second project's would be the same file.
    again = init("all", repository / "packages/y")
    assert (again.exit_code, f"{repository / WRITTEN[2]};" in again.output.replace("\n", "")) == (
        4,
        True,
    )
    assert not (repository / "packages/y").exists()
    # At the top itself nothing is prefixed.
    assert init("ci", repository, "--force").exit_code == 0
    assert inputs(repository)["tests"].startswith("tests/")


def test_git_attributes_that_are_there_are_kept_and_told_what_they_lack(tmp_path: Path) -> None:
    (tmp_path / ".gitattributes").write_text("mine")
    done = init("test", tmp_path)
    assert "baselines/** -text -merge" in done.output
    assert (tmp_path / ".gitattributes").read_text() == "mine"


def test_without_a_word_all_is_written_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "'senario' is not one of 'all', 'test'" in init("senario").output
    assert not files_in(tmp_path)
    assert init().exit_code == 0
    assert files_in(tmp_path) == set(WRITTEN)


def test_the_workload_is_that_of_the_example(tmp_path: Path) -> None:
    """Which test_extension.py installs, lists, measures and tests."""
    assert init("workload", tmp_path).exit_code == 0
    assert files_in(tmp_path) == PACKAGE
    written, example = (
        {name: (folder / name).read_text(encoding="utf-8") for name in PACKAGE}
        for folder in (tmp_path, ROOT / "examples/extension")
    )
    projects = [tomllib.loads(each.pop("pyproject.toml")) for each in (written, example)]
    assert written == example
    # The example's other additions, which it does not have, are not named either.
    points = [each["project"].pop("entry-points") for each in projects]
    assert points[0] == {"pytest_hwqueue.workloads": points[1]["pytest_hwqueue.workloads"]}
    assert projects[0] == projects[1]


@pytest.mark.slow
def test_the_workload_is_listed_and_measured_once_installed(tmp_path: Path) -> None:
    package, installed = tmp_path / "package", tmp_path / "installed"
    done = init("workload", package)
    environment = plain_environment(
        PYTHONPATH=f"{ROOT}{os.pathsep}{installed}", HWQ_DEVICE="sim:h200",
        PIP_TARGET=str(installed), PIP_NO_INDEX="1", PIP_NO_BUILD_ISOLATION="0",
    )  # fmt: skip
    # The commands that it prints.
    for command in done.output.splitlines()[-3:]:
        name, *arguments = command.split()
        module = {"hwq": "pytest_hwqueue"}.get(name, name)
        ended = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=package, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert (name == "pip") != ("relay" in ended.stdout)


@pytest.mark.parametrize("device", ["sim:h200", pytest.param("cpu", marks=pytest.mark.slow)])
def test_what_it_writes_is_green(
    device: str, pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    tmp_path = pytester.path
    init("all", tmp_path)
    # Named alone, the same test and scenario are written.
    assert init("scenario", tmp_path / "two").exit_code == 0
    assert files_in(tmp_path / "two") == set(WRITTEN[:2])
    for name in WRITTEN[:2]:
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / name).read_bytes()
    given = inputs(tmp_path)
    # The workflow gives the action what it takes.
    assert given.keys() <= ACTION["inputs"].keys()
    assert given["device"] == "sim:h200"
    # The baseline that is proposed becomes an input once its comment sign is removed.
    path = tmp_path / WRITTEN[2]
    path.write_text(path.read_text().replace("# baseline:", "baseline:"))
    assert inputs(tmp_path)["baseline"] == "main"
    done = run_in_process(f"--hwq-device={device}", *given["tests"].split())
    done.assert_outcomes(passed=2)
