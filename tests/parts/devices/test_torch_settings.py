"""What torch tells of its settings, and how precision is put back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_hwqueue.parts.devices.torch_settings import (
    Float32Precision,
    changed_settings,
    changes_in_words,
    float32_precision_kept,
    tf32_allowed,
    torch_settings,
)

CUBLAS, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
# What a user may set, and how it is undone.
SWITCHES: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "precision of products": (torch.set_float32_matmul_precision, "high", "highest"),
    "TF32 of products": (lambda on: setattr(CUBLAS, "allow_tf32", on), True, False),
    "TF32 of convolutions": (lambda on: setattr(CUDNN, "allow_tf32", on), False, True),
    "reduced sums in fp16": (
        lambda on: setattr(CUBLAS, "allow_fp16_reduced_precision_reduction", on), False, True,
    ),
    "reduced sums in bf16": (
        lambda on: setattr(CUBLAS, "allow_bf16_reduced_precision_reduction", on), False, True,
    ),
    "choice of convolutions": (lambda on: setattr(CUDNN, "benchmark", on), True, False),
    "cudnn": (lambda on: setattr(CUDNN, "enabled", on), False, True),
    "deterministic convolutions": (lambda on: setattr(CUDNN, "deterministic", on), True, False),
    "deterministic": (torch.use_deterministic_algorithms, True, False),
    "default dtype": (torch.set_default_dtype, torch.float64, torch.float32),
    "default device": (torch.set_default_device, "meta", None),
    "gradients": (torch.set_grad_enabled, False, True),
    "autocast": (lambda on: torch.set_autocast_enabled("cuda", on), True, False),
    "flash attention": (torch.backends.cuda.enable_flash_sdp, False, True),
    "fast path of attention": (torch.backends.mha.set_fastpath_enabled, False, True),
    "order of einsum": (
        lambda how: setattr(torch.backends.opt_einsum, "strategy", how), "greedy", None,
    ),
    "anomalies": (torch.autograd.set_detect_anomaly, True, False),
}  # fmt: skip


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.filterwarnings("ignore:Please use the new API")
def test_whatever_is_set_shows_and_nothing_else_does(switch: str) -> None:
    change, value, undone = SWITCHES[switch]
    before = torch_settings()
    assert torch_settings() == before
    with float32_precision_kept():
        change(value)
        try:
            changes = changed_settings(before, torch_settings())
        finally:
            change(undone)
    assert changes
    assert changed_settings(before, torch_settings()) == []


def test_threads_show() -> None:
    threads = torch.get_num_threads()
    before = torch_settings()
    torch.set_num_threads(threads + 1)
    try:
        changes = changed_settings(before, torch_settings())
    finally:
        torch.set_num_threads(threads)
    assert changes == [f"num_threads {threads} -> {threads + 1}"]


def test_what_torch_does_meanwhile_is_no_change() -> None:
    before = torch_settings()
    weight = torch.randn(8, 8, requires_grad=True)
    with torch.autocast("cpu"), torch.random.fork_rng():
        torch.nn.functional.linear(torch.randn(4, 8), weight).sum().backward()
        torch.manual_seed(3)
    assert changed_settings(before, torch_settings()) == []


def test_without_torch_there_are_none_and_its_import_is_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = torch_settings()
    assert len(after) > 50
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_settings() == {}
    assert changed_settings({}, after) == []


def test_one_switch_shows_under_many_names_of_which_three_are_told() -> None:
    assert changes_in_words(["a 1 -> 2", "b 1 -> 2"]) == "a 1 -> 2, b 1 -> 2"
    assert changes_in_words(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


@pytest.fixture
def precision() -> Iterator[None]:
    with float32_precision_kept():
        yield


NEWER = hasattr(torch._C, "_get_fp32_precision_getter")


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("begin", ["untouched", "older", "newer", "both"])
def test_precision_is_put_back_as_it_was_set(begin: str) -> None:
    if begin in ("older", "both"):
        torch.set_float32_matmul_precision("medium")
        CUDNN.allow_tf32 = False
    if begin in ("newer", "both"):
        if not NEWER:
            pytest.skip("this torch has no fp32_precision")
        CUBLAS.fp32_precision = "ieee"
        CUDNN.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    before, allowed = torch_settings(), tf32_allowed()
    with float32_precision_kept():
        torch.set_float32_matmul_precision("highest" if allowed else "high")
        CUDNN.allow_tf32 = True
        assert tf32_allowed() != allowed
    # With both, torch no longer tells the older one's: what was there cannot be known.
    lost = {"float32_matmul_precision", "cublas_allow_tf32"} if begin == "both" else set()
    left = {change.partition(" ")[0] for change in changed_settings(before, torch_settings())}
    assert left <= lost
    assert tf32_allowed() == allowed


@pytest.mark.usefixtures("precision")
@pytest.mark.skipif(not NEWER, reason="this torch has no fp32_precision")
def test_tf32_is_seen_through_either_interface() -> None:
    torch.set_float32_matmul_precision("highest")
    assert not tf32_allowed()
    torch.set_float32_matmul_precision("high")
    assert tf32_allowed()
    CUBLAS.fp32_precision = "ieee"
    assert not tf32_allowed()
    torch.set_float32_matmul_precision("highest")
    CUBLAS.fp32_precision = "tf32"
    assert tf32_allowed()
    # Where torch refuses to tell, there is nothing to put back.
    assert Float32Precision.now().matmul is None
