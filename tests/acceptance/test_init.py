"""`hwq init`: what it writes runs as it is, and nothing is overwritten."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pytest_hwqueue.cli.main import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later reads TOML")

if TYPE_CHECKING:
    from tests.conftest import Sessions

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
WRITTEN = (
    "tests/test_tail_latency.py", "tests/tail_latency.hwq.yaml",
    ".github/workflows/tail-latency.yml",
)  # fmt: skip


def init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)], prog_name="hwq")


def files_in(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}


def workflow(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / WRITTEN[2]).read_text(encoding="utf-8"))
    return found


def inputs(folder: Path) -> dict[str, str]:
    """Return what the workflow gives to the action."""
    steps = workflow(folder)["jobs"]["measure"]["steps"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = project["urls"]["Repository"].removeprefix("https://github.com/")
    (step,) = (each for each in steps if each.get("uses", "").startswith(f"{name}@"))
    given: dict[str, str] = step["with"]
    return given


def test_it_writes_three_files_and_says_what_to_do_next(tmp_path: Path) -> None:
    done = init(tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert files_in(tmp_path / "new") == set(WRITTEN)
    for name in WRITTEN:
        assert f"wrote {tmp_path / 'new' / name}" in done.output
    assert "pytest tests/test_tail_latency.py --hwq-compare=main" in done.output


def test_without_a_service_there_is_no_workflow(tmp_path: Path) -> None:
    assert init(tmp_path, "--ci", "none").exit_code == 0
    assert files_in(tmp_path) == set(WRITTEN[:2])


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    own = tmp_path / WRITTEN[1]
    own.parent.mkdir()
    own.write_text("mine")
    done = init(tmp_path)
    assert done.exit_code == 4
    assert f"already there: {own};" in "".join(done.output.split("\n"))
    assert files_in(tmp_path) == {WRITTEN[1]}
    assert own.read_text() == "mine"
    assert init(tmp_path, "--force").exit_code == 0
    assert own.read_text().startswith("# Two tenants")


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tests").write_text("a file")
    done = init(tmp_path)
    assert done.exit_code == 4
    assert "cannot write" in done.output
    assert init(tmp_path / "tests").exit_code == 4


def test_the_workflow_gives_the_action_what_it_takes(tmp_path: Path) -> None:
    init(tmp_path)
    given = inputs(tmp_path)
    assert given.keys() <= ACTION["inputs"].keys()
    assert all((tmp_path / name).is_file() for name in given["tests"].split())
    assert workflow(tmp_path)["permissions"]["pull-requests"] == "write"
    # The baseline that is proposed becomes an input once its comment sign is removed.
    path = tmp_path / WRITTEN[2]
    path.write_text(path.read_text().replace("# baseline:", "baseline:"))
    assert inputs(tmp_path)["baseline"] == "main"


@pytest.mark.parametrize("device", ["sim:h200", pytest.param("cpu", marks=pytest.mark.slow)])
def test_what_it_writes_is_green(device: str, tmp_path: Path, sessions: Sessions) -> None:
    init(tmp_path)
    given = inputs(tmp_path)
    assert given["device"] == "sim:h200"
    done = sessions.run(
        tmp_path, "-p", "no:cacheprovider", f"--hwq-device={device}", *given["tests"].split()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
