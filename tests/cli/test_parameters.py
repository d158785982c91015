"""A workload's parameters as options of `hwq run`, `sweep` and `profile`."""

from __future__ import annotations

import re

import pytest

from pytest_hwqueue.options.measuring import plugin_arguments
from pytest_hwqueue.options.of_commands import given_options
from pytest_hwqueue.parts.workloads.latency_sensitive.large_gemm_only import LargeGemmOnly
from pytest_hwqueue.parts.workloads.registry import workload_class
from pytest_hwqueue.parts.workloads.workload import Parameters
from tests.cli.conftest import Launched, hwq

COMMANDS = ("run", "sweep", "profile")


class FlagParameters(Parameters):
    async_op: bool = False
    overlap_all: bool = True
    groups: str = ""


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let large_gemm_only have the parameters above."""
    monkeypatch.setattr(LargeGemmOnly, "parameter_model", FlagParameters)
    monkeypatch.setattr(LargeGemmOnly, "sizes", {"tiny": {}, "small": {}, "full": {}})


def parameters(launched: Launched) -> list[str]:
    (command,) = launched.commands
    return [each.partition("=")[2] for each in command if each.startswith("--hwq-param=")]


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize(("given", "expected"), [
    (["--async-op"], ["async_op=true"]),
    (["--async-op", "--streams", "1"], ["async_op=true"]),
    (["--async-op=no"], ["async_op=no"]),
    (["--overlap-all", "false", "--async-op", "yes"], ["async_op=yes", "overlap_all=false"]),
    (["--groups", "[0,1],[2,3]", "--async-op"], ["async_op=true", "groups=[0,1],[2,3]"]),
])  # fmt: skip
def test_booleans_are_flags_that_may_have_a_value(
    launched: Launched, given: list[str], expected: list[str]
) -> None:
    result = hwq("run", "large_gemm_only", *given)

    assert result.exit_code == 0, result.output
    assert sorted(parameters(launched)) == [f"large_gemm_only.{each}" for each in expected]
    refused = hwq("run", "large_gemm_only", *given, "--async-op=sometimes")
    assert refused.exit_code == 4
    wrong = "large_gemm_only.async_op='sometimes': Input should be a valid boolean"
    assert (wrong in refused.output, len(launched.commands)) == (True, 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_parameters_of_the_workload_named(command: str) -> None:
    text = re.sub(r"\s+", " ", hwq(command, "hetero_kernels", "--help").output)

    assert "Parameters of hetero_kernels:" in text
    assert "--mm-dim int ≥ 1 rows and columns of the large product (tiny 256, small 1024" in text
    assert "--chain-length int ≥ 1 small kernels in a chain (default 10)" in text
    assert "--streams" in text
    assert "Parameters of" not in hwq(command, "--help").output


def test_one_called_like_an_option_is_set_by_param(launched: Launched) -> None:
    assert "output" in workload_class("continuous_batch").parameter_model.model_fields

    text = re.sub(r"\s+", " ", hwq("run", "continuous_batch", "--help").output)
    result = hwq("run", "continuous_batch", "--output", "all.json", "--requests", "4")

    assert "--param output= " in text
    assert result.exit_code == 0, result.output
    assert "--hwq-json=all.json" in launched.command
    assert parameters(launched) == ["continuous_batch.requests=4"]


def test_given_options_have_their_values_and_flags_yes() -> None:
    given = {"lean": True, "until": None, "streams": "4", "param": ("a=1", "b=2")}
    found = {option.name: values for option, values in given_options({**given, "seed": None})}
    assert found == {"lean": ("yes",), "streams": ("4",), "param": ("a=1", "b=2")}
    assert "--hwq-lean" in plugin_arguments(given)
