"""`hwq trace --tool` with the vendors' tools, of which there are fakes on PATH here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_hwqueue.parts.devices.accelerator import Accelerator
from pytest_hwqueue.parts.devices.launches import NAMED_RANGES
from tests.cli.conftest import Launched, finished, hwq, real
from tests.parts.devices.gpus import Gpus

# Notes its arguments and the variable that asks for ranges, writes the file that the tool would,
# and runs the rest of its command.
FAKE = """#!{python}
import json, os, pathlib, sys
rest = sys.argv[sys.argv.index("--") + 1:] if {dashes} else sys.argv[sys.argv.index({python!r}):]
own = sys.argv[1:len(sys.argv) - len(rest)]
pathlib.Path("told.json").write_text(json.dumps([own, os.environ.get("HWQ_NAMED_RANGES")]))
{write}
os.execv(rest[0], rest)
"""
NSYS = """
(output,) = [each.partition("=")[2] for each in own if each.startswith("--output=")]
pathlib.Path(output + ".nsys-rep").write_text("")
"""
ROCPROF = """
folder, name = own[own.index("-d") + 1], own[own.index("-o") + 1]
pathlib.Path(folder, name + "_results.pftrace").write_text("")
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with both tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, dashes, write in (("nsys", False, NSYS), ("rocprofv3", True, ROCPROF)):
        tool = folder / name
        tool.write_text(FAKE.format(python=sys.executable, dashes=dashes, write=write))
        tool.chmod(0o755)
    return folder


# Commands, variables and the tools' files stand below and in test_trace.py, in this process.
@pytest.mark.slow
def test_the_tool_runs_the_short_cell_in_one_process(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("trace", "tiny_kernel_stress", "--tool", "nsys", "--device", "cpu", "--streams")
    more = ("2", "--profile-dir", "traces", "--rounds", "2", "--output", "all.json")
    path = f"{tools}:{os.environ['PATH']}"
    status, output, errors = finished(real(*arguments, *more, PATH=path))

    assert status == 0, output + errors
    expected = ["profile", "--trace=cuda,nvtx,osrt", "--output=traces/tiny_kernel_stress-s2",
                "--force-overwrite=true"]  # fmt: skip
    assert json.loads((tmp_path / "told.json").read_text()) == [expected, "1"]
    assert "trace: traces/tiny_kernel_stress-s2.nsys-rep (open in Nsight Systems" in output
    session = json.loads((tmp_path / "all.json").read_text())
    (record,) = session["records"]
    assert (record["status"], record["iterations"]) == ("ok", 20)
    assert record["setting"]["parameters"]["rounds"] == 2
    assert session["session"]["settings"]["isolation"] == "none"


def test_the_other_tool_has_its_own_words_and_each_rank_a_file(
    launched: Launched, tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")

    def runs(command: list[str], environment: dict[str, str]) -> int:
        """Run the tool, and no pytest in it."""
        assert {"--hwq-isolation=none", "--hwq-iterations=20"} <= {*command}
        words = [*command[: command.index(sys.executable)], sys.executable, "-c", ""]
        return subprocess.run(words, env=environment, check=False).returncode

    launched.runs = runs
    found = hwq("trace", "tiny_kernel_stress", "--tool", "rocprofv3", "--device", "cpu",
                "--streams", "2", "--profile-dir", "traces")  # fmt: skip

    assert found.exit_code == 0, found.output
    expected = ["--hip-trace", "--kernel-trace", "--memory-copy-trace", "--marker-trace",
                "--output-format", "pftrace", "-d", "traces", "-o", "tiny_kernel_stress-s2",
                "--"]  # fmt: skip
    assert json.loads((tmp_path / "told.json").read_text()) == [expected, "1"]
    written = "trace: traces/tiny_kernel_stress-s2_results.pftrace (open in Perfetto"
    assert written in found.output
    # Each rank has a file of its own.
    launched.runs = None
    monkeypatch.setenv("RANK", "1")
    hwq("trace", "hetero_kernels", "--tool", "nsys", "--streams", "2,4")
    assert "--output=hwq-profiles/hetero_kernels-s2_4-rank1" in launched.command


def test_tagged_launches_are_ranges_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMED_RANGES, "1")
    gpus = Gpus(1, {}, set())
    gpus.install(monkeypatch)
    seen: list[tuple[str, str]] = gpus.ranges
    with Accelerator(0, "cuda").open_streams(1) as pool:
        pool.streams[0].launch(seen.append, ("launch", "x"), tag="small")
        pool.streams[0].launch(seen.append, ("launch", "y"))

    assert seen == [("begin", "small"), ("launch", "x"), ("end", "small"), ("launch", "y")]
