"""Notes of torch.compile's compilations."""

from __future__ import annotations

import time

import pytest
import torch

from pytest_hwqueue.causes.traced_pass import noted_compilations

dynamo = pytest.importorskip("torch._dynamo")


def test_compilations_in_the_block_are_noted() -> None:
    dynamo.reset()
    with noted_compilations(time.perf_counter_ns) as spans:
        before_ns = time.perf_counter_ns()
        torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
        after_ns = time.perf_counter_ns()
    assert spans
    assert all(before_ns <= begin <= end <= after_ns for begin, end in spans)


def test_measured_code_may_drop_all_callbacks() -> None:
    with noted_compilations(time.perf_counter_ns):
        dynamo.reset()
    with noted_compilations(time.perf_counter_ns) as spans:
        torch.compile(lambda x: x * 5, backend="eager")(torch.ones(2))
    assert spans
