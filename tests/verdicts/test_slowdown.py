"""Worse is never weaker: verdicts over slowdowns whose runs a time cap ends ever earlier."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture(name="tool", scope="module")
def _tool(load_tool: Callable[[str], ModuleType]) -> ModuleType:
    return load_tool("gate_end_to_end")


@pytest.mark.slow
def test_the_slower_the_surer(tool: ModuleType) -> None:
    bench = tool.Bench(1000, run_noise=0.0735, session_noise=0.012, max_time_s=2.0)
    found = {}
    for factor in tool.LADDER:
        (judged,) = tool.judge_suite(bench, 1, 1, factor - 1, 0.005).verdicts
        found[factor] = (judged.verdict.state, judged.verdict.by, min(bench.lengths))
    assert found[1.0][0] == "pass"
    worse = {factor: what for factor, what in found.items() if factor >= 1.1}
    assert {state for state, _, _ in worse.values()} == {"regression"}, found
    # Where a P99 can still be given it is what convicts; below, the time per iteration does.
    assert {by for _, by, n in worse.values() if n >= 299} == {"p99"}
    assert {by for _, by, n in worse.values() if n < 299} == {"iteration_time"}
    lengths = [n for _, _, n in found.values()]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 10
