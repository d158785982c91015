"""Commands of other packages: listed, called, and refused by the name of their package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
MODULE = """
import click
from pytest_hwqueue import HwqError

@click.command()
@click.option("--fail", is_flag=True)
@click.option("--status", type=int, default=0)
def outcome(fail, status):
    "Say how it ended."
    if fail:
        raise HwqError("file.json: there is no such cell; name another")
    click.echo("it ended well")
    return status
"""

Hwq = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Hwq]:
    """Install a package with entry points; return how to call `hwq` where it is installed."""

    def installed(points: str, module: str = MODULE) -> Hwq:
        folder = tmp_path / "other_package-1.0.dist-info"
        folder.mkdir()
        metadata = "Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n"
        (folder / "METADATA").write_text(metadata)
        (folder / "entry_points.txt").write_text(f"[pytest_hwqueue.commands]\n{points}\n")
        (tmp_path / "other_package.py").write_text(module)
        path = f"{tmp_path}{os.pathsep}{TREE}"

        def hwq(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "pytest_hwqueue", *arguments],
                env={**os.environ, "PYTHONPATH": path, **environment},
                cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip

        return hwq

    return installed


def test_it_is_listed_with_its_package_and_called_like_our_own(
    install: Callable[..., Hwq],
) -> None:
    hwq = install("outcome = other_package:outcome")
    listed = hwq("--help").stdout
    assert "  outcome   from other-package 1.0\n" in listed
    assert "Say how it ended." in hwq("outcome", "--help").stdout
    assert "Say how it ended." in hwq("help", "outcome").stdout

    done = hwq("outcome", "--status", "3")
    assert (done.returncode, done.stdout) == (3, "it ended well\n")
    refused = hwq("outcome", "--fail")
    said = "Error: file.json: there is no such cell; name another\n"
    assert (refused.returncode, refused.stderr) == (4, said)
    near = hwq("outcom")
    assert near.returncode == 4
    assert "did you mean outcome?" in near.stderr


@pytest.mark.parametrize(
    ("points", "module", "said"),
    [
        ("broken = other_package:broken", "1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("broken = other_package:broken", "broken = print", "is no command of click's"),
    ],
)
def test_one_that_cannot_be_used_is_named_when_it_is_called(
    install: Callable[..., Hwq], points: str, module: str, said: str
) -> None:
    hwq = install(points, module)
    assert "  broken    from other-package 1.0\n" in hwq("--help").stdout
    assert hwq("baseline", "list").returncode == 0
    refused = hwq("broken")
    assert refused.returncode == 4
    assert "other-package 1.0: entry point broken" in refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    completed = hwq(_HWQ_COMPLETE="bash_complete", COMP_WORDS="hwq bro", COMP_CWORD="1")
    assert "Traceback" not in completed.stderr


@pytest.mark.parametrize("name", ["run", "info"])
def test_a_name_that_is_taken_is_refused_and_ours_still_run(
    install: Callable[..., Hwq], name: str
) -> None:
    hwq = install(f"{name} = other_package:outcome")
    listed = hwq("--help")
    assert listed.returncode == 0
    assert "  which " in listed.stdout
    said = f"entry point {name} = other_package:outcome"
    words = " ".join(listed.stdout.split())
    assert f"No command of another package can be used: other-package 1.0: {said}" in words
    refused = hwq("outcom")
    assert refused.returncode == 4
    assert said in refused.stderr
    assert "takes a name that is built in" in refused.stderr
    assert hwq("baseline", "list").returncode == 0
