"""A test's own code runs as in the user's program: torch records autograd graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import RunInProcess

FAST = ("--hwq-iterations=20", "--hwq-max-time=2", "--hwq-warmup=2", "--hwq-device=cpu")

OWN = """
import torch

weight = torch.ones(8, 8, requires_grad=True)
seen = []

def step():
    seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

def make_step(*, device, streams, seed):
    return step

def train():
    (weight @ torch.ones(8, 8)).sum().backward()

def measured(hwq, what, **given):
    seen.clear()
    if what == "streams":
        hwq.measure_streams(lambda streams: streams[0].launch(step), streams=1, **given)
    else:
        hwq.measure(what, streams=1, **given)
    (found,) = set(seen)
    return found

def test_training(hwq): hwq.measure(train)

def test_all_ways(hwq):
    for number, what in enumerate((step, make_step, "streams")):
        name = lambda way: {"name": f"{number}-{way}"}
        assert measured(hwq, what, **name("plain")) == (True, False)
        assert measured(hwq, what, gradients=False, **name("without")) == (False, True)
        with torch.no_grad():
            assert measured(hwq, what, **name("in-a-block")) == (False, True)
            assert measured(hwq, what, gradients=True, **name("asked")) == (True, False)
        with torch.inference_mode():
            assert measured(hwq, what, **name("inference")) == (False, True)
"""


def test_own_code_has_the_gradients_of_the_users_program(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    pytester.makepyfile(OWN)
    run_in_process(*FAST).assert_outcomes(passed=2)
