"""A workload's parameters as options of `hwq run`, `sweep` and `profile`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue import suite
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.workloads.workload import Parameters, Setup, StreamRange, Workload

COMMANDS = ("run", "sweep", "profile")


class FlagParameters(Parameters):
    async_op: bool = False
    overlap_all: bool = True
    groups: str = ""


class Flags(Workload):
    """A workload whose parameters are flags; it is never run."""

    name = "large_gemm_only"
    family = "latency_sensitive"
    mark = "P0"
    description = "flags"
    stream_range = StreamRange(1, 1, 1)
    units = ("flags",)
    parameter_model = FlagParameters
    sizes = {"tiny": {}, "small": {}, "full": {}}  # noqa: RUF012

    def setup(self, setup: Setup) -> None:
        raise NotImplementedError

    def iterate(self, streams: Sequence[Stream]) -> None:
        raise NotImplementedError

    def work_per_iteration(self) -> dict[str, float]:
        raise NotImplementedError

    def check(self, run_once: Callable[[], None]) -> None:
        raise NotImplementedError


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let large_gemm_only have the parameters above."""
    declared = replace(WORKLOADS["large_gemm_only"], place=f"{__name__}:Flags")
    monkeypatch.setitem(WORKLOADS.built_in, "large_gemm_only", declared)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="hwq", env={"COLUMNS": "200"})


def parameters(started: list[list[str]]) -> list[str]:
    (command,) = started
    return [each.partition("=")[2] for each in command if each.startswith("--hwq-param=")]


@pytest.mark.parametrize("command", COMMANDS)
def test_parameters_become_those_of_the_workload(started: list[list[str]], command: str) -> None:
    result = invoke(
        command, "hetero_kernels", "--mm-dim", "512", "--streams", "2", "--chain-length=3",
        "--param", "dtype=bf16", "--seed", "5",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert parameters(started) == [
        "dtype=bf16", "hetero_kernels.mm_dim=512", "hetero_kernels.chain_length=3",
    ]  # fmt: skip
    assert {"--hwq-streams=2", "--hwq-seed=5", "--hwq-workload=hetero_kernels"} <= {*started[0]}


def test_the_workload_may_stand_behind_them(started: list[list[str]]) -> None:
    # The value of --save is no workload to measure, though it is called like one.
    result = invoke("run", "--save", "large_gemm_only", "--mm-dim", "512", "hetero_kernels")

    assert result.exit_code == 0, result.output
    assert parameters(started) == ["hetero_kernels.mm_dim=512"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_one_is_refused_with_the_workloads_own(
    started: list[list[str]], command: str
) -> None:
    result = invoke(command, "hetero_kernels", "--mm-dims", "512")

    assert result.exit_code == 4
    assert "No such option --mm-dims; the parameters of hetero_kernels are" in result.output
    for name in workload_class("hetero_kernels").parameter_model.model_fields:
        assert f"--{name.replace('_', '-')}" in result.output
    assert not started


def test_a_value_that_is_not_valid_is_refused_before_anything_starts(
    started: list[list[str]],
) -> None:
    result = invoke("run", "hetero_kernels", "--mm-dim", "many")

    assert result.exit_code == 4
    assert "hetero_kernels.mm_dim='many': Input should be a valid integer" in result.output
    assert not started


def test_of_several_workloads_the_owner_must_be_said(started: list[list[str]]) -> None:
    result = invoke("run", "hetero_kernels", "large_gemm_only", "--mm-dim", "512")

    assert result.exit_code == 4
    assert "--param hetero_kernels.mm_dim=512" in result.output
    assert not started


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize(("given", "expected"), [
    (["--async-op"], ["async_op=true"]),
    (["--async-op", "--streams", "1"], ["async_op=true"]),
    (["--async-op=no"], ["async_op=no"]),
    (["--overlap-all", "false", "--async-op", "yes"], ["async_op=yes", "overlap_all=false"]),
    (["--groups", "[0,1],[2,3]", "--async-op"], ["async_op=true", "groups=[0,1],[2,3]"]),
])  # fmt: skip
def test_booleans_are_flags_that_may_have_a_value(
    started: list[list[str]], given: list[str], expected: list[str]
) -> None:
    result = invoke("run", "large_gemm_only", *given)

    assert result.exit_code == 0, result.output
    assert sorted(parameters(started)) == [f"large_gemm_only.{each}" for each in expected]


@pytest.mark.usefixtures("flags")
def test_a_boolean_takes_no_other_value(started: list[list[str]]) -> None:
    result = invoke("run", "large_gemm_only", "--async-op=sometimes")

    assert result.exit_code == 4
    assert "large_gemm_only.async_op='sometimes': Input should be a valid boolean" in result.output
    assert not started


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_parameters_of_the_workload_named(command: str) -> None:
    text = re.sub(r"\s+", " ", invoke(command, "hetero_kernels", "--help").output)

    assert "Parameters of hetero_kernels:" in text
    assert "--mm-dim int ≥ 1 rows and columns of the large product (tiny 256, small 1024" in text
    assert "--chain-length int ≥ 1 small kernels in a chain (default 10)" in text
    assert "--streams" in text
    assert "Parameters of" not in invoke(command, "--help").output


def test_no_workload_is_imported_for_the_commands_own_options() -> None:
    script = (
        "import sys\nfrom pytest_hwqueue import suite\nfrom pytest_hwqueue.cli.main import main\n"
        "suite.run_pytest = lambda *_: 0\n"
        "try:\n    main(['run', 'hetero_kernels', '--streams', '2', '--seed=1', '--profile'])\n"
        "finally:\n    print('torch' in sys.modules)"
    )

    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert found.stdout.splitlines()[-1] == "False"


def test_one_called_like_an_option_is_set_by_param(started: list[list[str]]) -> None:
    assert "output" in workload_class("continuous_batch").parameter_model.model_fields

    text = re.sub(r"\s+", " ", invoke("run", "continuous_batch", "--help").output)
    result = invoke("run", "continuous_batch", "--output", "all.json", "--requests", "4")

    assert "--param output= " in text
    assert result.exit_code == 0, result.output
    assert "--hwq-json=all.json" in started[0]
    assert parameters(started) == ["continuous_batch.requests=4"]


@pytest.mark.slow
def test_for_real(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "pytest_hwqueue", "run", "hetero_kernels", "--mm-dim", "64",
         "--device", "cpu", "--streams", "2", "--iterations", "6", "--output", "all.json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
        env={**suite.pytest_environment(), "PYTHONPATH": str(Path(suite.__file__).parents[1])},
    )  # fmt: skip

    assert found.returncode == 0, found.stdout + found.stderr
    session: dict[str, Any] = json.loads((tmp_path / "all.json").read_text())
    (record,) = session["records"]
    assert record["setting"]["parameters"]["mm_dim"] == 64
