"""What one side may be told, and what may therefore differ between the sides."""

from __future__ import annotations

import pytest

from pytest_hwqueue.answers.versions.variants import (
    OF_THE_COMPARISON,
    SideVariant,
    read_variant,
    refuse_unmodelled,
    varied_fields,
)
from pytest_hwqueue.data.errors import BadOption
from pytest_hwqueue.data.records.conditions import PRECISION
from pytest_hwqueue.options.options import OPTIONS


def test_words_are_read_as_in_a_shell_and_win_over_what_both_have_in_common() -> None:
    read = read_variant(
        "--a", "HWQ_STREAMS=4 CUDA_DEVICE_MAX_CONNECTIONS=8 NAME='two words' "
        "--scheduler native -k 'a or b' --hwq-param=mm_dim=64 --param rounds=2 -x",
    )  # fmt: skip
    assert read == SideVariant(
        {"scheduler": ("native",), "param": ("mm_dim=64", "rounds=2"), "streams": ("4",)},
        {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "NAME": "two words"}, ("-k", "a or b", "-x"),
    )  # fmt: skip
    assert set(read.arguments()) == {
        "--hwq-scheduler=native", "--hwq-param=mm_dim=64", "--hwq-param=rounds=2",
        "--hwq-streams=4",
    }  # fmt: skip
    common = SideVariant({"streams": ("1",), "param": ("rounds=2",)}, {"X": "1"}, ("tests",))
    own = read_variant("--a", "X=2 --streams 4 --param mm_dim=64 -x")
    assert own.over(common) == SideVariant(
        {"streams": ("4",), "param": ("rounds=2", "mm_dim=64")}, {"X": "2"}, ("tests", "-x")
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--scheduler", "give it a value: --scheduler MODE"),
        ("--scheduler fifo", ": --scheduler: 'fifo' is not valid; there is no scheduler mode"),
        ("--runs 3", "for the comparison as a whole"),
        ("HWQ_SAVE=main", "for the comparison as a whole"),
        ("--fail-on p50", "for the comparison as a whole"),
        ("PYTEST_ADDOPTS=-x", "does not reach the processes that measure"),
        ("--param 'mm_dim", "No closing quotation"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=64", "takes numbers from 1 to 32: 64 is 32"),
        ("CUDA_DEVICE_MAX_CONNECTIONS=many", "'many' is no number from 1 to 32"),
        ("GPU_MAX_HW_QUEUES=0", "'0' is no number of at least 1"),
    ],
)
def test_what_a_side_cannot_have_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadOption, match=f"^--a.*{says}"):
        read_variant("--a", text)


@pytest.mark.parametrize(
    ("a", "b", "fields"),
    [
        ("", "", set()),
        ("--scheduler native", "--scheduler stream-priority", {"cell.scheduler"}),
        ("", "--streams 4", {"cell.streams"}),
        ("--cache cold", "", {"cell.cache"}),
        ("--param x.mm_dim=1 --param rounds=2", "--param x.mm_dim=2 --param rounds=2",
         {"parameter.mm_dim", "cell.variant"}),
        ("--size tiny", "--size small", {"cell.size", "cell.variant", "parameter.*"}),
        ("A=1 B=1", "A=2 B=1", {"environment.A"}),
        ("LD_PRELOAD=/lib/x.so", "", {"environment.LD_PRELOAD", "preload"}),
        ("NVIDIA_TF32_OVERRIDE=0", "NVIDIA_TF32_OVERRIDE=1",
         {"environment.NVIDIA_TF32_OVERRIDE", *PRECISION}),
        ("NCCL_ALGO=Ring", "", {"environment.NCCL_ALGO", "nccl_variables"}),
        ("--iterations 10", "--iterations 20", set()),
    ],
)  # fmt: skip
def test_what_the_user_varies_may_differ_and_nothing_else(a: str, b: str, fields: set[str]) -> None:
    assert varied_fields(read_variant("--a", a), read_variant("--b", b)) == fields


@pytest.mark.parametrize(
    ("device", "a", "b", "says"),
    [
        ("sim:h200", "CUDA_LAUNCH_BLOCKING=1", "", "--a.*CUDA_LAUNCH_BLOCKING=1"),
        ("sim:h200", "", "NVIDIA_TF32_OVERRIDE=0", "--b.*NVIDIA_TF32_OVERRIDE=0"),
        ("sim:h200", "GPU_MAX_HW_QUEUES=1", "GPU_MAX_HW_QUEUES=8", "--a.*GPU_MAX_HW_QUEUES=1"),
        ("sim:mi300x", "", "CUDA_DEVICE_MAX_CONNECTIONS=1", "--b.*device models GPU_MAX_HW_QUEUES"),
        ("sim:h200", "CUDA_DEVICE_MAX_CONNECTIONS=1", "CUDA_DEVICE_MAX_CONNECTIONS=32", ""),
        ("sim:h200", "HSA_ENABLE_SDMA=0 X=1", "HSA_ENABLE_SDMA=0 X=2", ""),
        ("cuda", "CUDA_LAUNCH_BLOCKING=1", "", ""),
        ("", "CUDA_LAUNCH_BLOCKING=1", "", ""),
    ],
)
def test_what_a_simulated_device_does_not_model_cannot_be_varied_there(
    device: str, a: str, b: str, says: str
) -> None:
    sides = read_variant("--a", a), read_variant("--b", b)
    if not says:
        refuse_unmodelled(device, *sides)
        return
    with pytest.raises(BadOption, match=says) as refused:
        refuse_unmodelled(device, *sides)
    assert f"{device} does not model it, so both sides would be the same" in str(refused.value)


def test_every_option_of_the_plugin_is_a_sides_or_the_comparisons() -> None:
    # A new option has to be put in one of the two places: --hwq-save for a side would store runs.
    of_a_side = {
        "device", "streams", "scheduler", "dispatch", "sync-mode", "cache", "size", "param",
        "iterations",
        "samples", "warmup", "max-time", "priority", "workload", "seed", "timeout", "isolation",
        "sim-noise", "lease-timeout", "fault", "xsched-root", "preloads", "weights", "ranks",
        "noise", "noise-dir", "commit", "until", "lean",
    }  # fmt: skip
    assert {option.name for option in OPTIONS} <= of_a_side | OF_THE_COMPARISON
    assert not of_a_side & OF_THE_COMPARISON
