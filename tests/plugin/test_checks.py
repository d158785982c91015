"""Why a test cannot be measured: each check by itself, and the order in which they answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.parts.devices import kinds
from pytest_hwqueue.parts.processes.launched import LaunchedRank
from pytest_hwqueue.parts.workloads.registry import WORKLOADS
from pytest_hwqueue.plugin import checks
from pytest_hwqueue.plugin.keys import SETTINGS

RANK_1_OF_2 = LaunchedRank(1, 2, 1, 2, "node-a", 29500, store_exists=True)


def candidate(**changes: Any) -> checks.Candidate:
    """A test on the CPU against which nothing speaks."""
    settings = SimpleNamespace(
        device="cpu", fault=(), sim_noise="", cache="hot", places=lambda folder: None
    )
    config: Any = SimpleNamespace(
        stash={SETTINGS: settings}, invocation_params=SimpleNamespace(dir=Path())
    )
    plain = checks.Candidate(
        config=config, workload=WORKLOADS["hetero_kernels"], device="cpu", streams=2,
        scheduler="native", dispatch="eager", noise="none", ranks=1, launched=None, isolated=True,
        in_worker=False,
    )  # fmt: skip
    return replace(plain, **changes)


def reason(test: checks.Candidate) -> str | None:
    return next((found for check in checks.CHECKS if (found := check(test))), None)


def test_nothing_speaks_against_a_plain_test() -> None:
    assert reason(candidate()) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"streams": 1}, "hetero_kernels takes 2 to 128 streams (--hwq-streams=1)"),
        ({"dispatch": "graph"},
         "graph dispatch needs an accelerator: the CPU has no graphs (--hwq-dispatch=graph)"),
        ({"device": "sim:h200", "noise": "cpu"},
         "noise cpu disturbs this machine, which a simulated device does not use"),
        ({"noise": "cpu", "launched": RANK_1_OF_2._replace(local_size=1)},
         "noise cpu runs on one host, and 1 of 2 ranks are on others: start all of them on one"),
        ({"device": "sim:h200", "ranks": 2}, "a simulated device has one rank, not 2"),
        ({"launched": RANK_1_OF_2, "isolated": False},
         "2 ranks need separate processes: leave out --hwq-isolation=none, --pdb, --trace"),
        ({"scheduler": "mps", "ranks": 2},
         "mps serves a process alone: give --hwq-ranks=1, and no torchrun"),
        ({"scheduler": "mps", "isolated": False},
         "mps needs a process started for it: leave out --hwq-isolation=none"),
    ],
)  # fmt: skip
def test_a_reason_names_the_option(changes: dict[str, Any], expected: str) -> None:
    assert reason(candidate(**changes)) == expected


def test_a_rank_that_its_session_started_may_have_noise() -> None:
    rank = candidate(noise="cpu", launched=RANK_1_OF_2, in_worker=True)
    assert checks._noise(rank) is None


def test_noise_of_a_model_is_for_simulated_devices() -> None:
    test = candidate(device="cuda:1")
    test.settings.__dict__["sim_noise"] = "run=0.1"
    assert reason(test) == "--hwq-sim-noise needs a simulated device, not cuda"
    assert reason(replace(test, device="sim:h200")) is None


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", "--hwq-cache=cold needs a GPU, whose cache can be emptied, not cpu"),
        ("sim:h200", "--hwq-cache=cold: the simulated device has no model of a cache"),
        ("cuda:1", None),
        ("hip", None),
    ],
)
def test_a_cold_cache_is_for_devices_that_can_empty_it(device: str, expected: str | None) -> None:
    test = candidate(device=device)
    assert reason(test) is None
    test.settings.__dict__["cache"] = "cold"
    assert reason(test) == expected


def test_the_first_reason_stands() -> None:
    test = candidate(streams=1, dispatch="graph", ranks=2, isolated=False)
    found = [check(test) for check in checks.CHECKS]
    assert [text is not None for text in found] == [
        False, True, False, False, True, False, True, False, False
    ]  # fmt: skip
    assert reason(test) == found[1]


def test_tenants_share_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimpleNamespace(label=label, kind="cuda") for label in ("cuda", "cuda:1")]
    monkeypatch.setattr(kinds, "chosen_devices", lambda specification: devices)
    plain = candidate()
    plain.settings.__dict__["device"] = "all"
    test: Any = SimpleNamespace(config=plain.config)
    assert checks.refusal_of_scenario(test) == (
        "--hwq-device: 'all' is not valid; a scenario's tenants share one device: choose from "
        "cuda, cuda:1"
    )


def test_a_worker_leaves_what_is_outside_of_it_to_its_session() -> None:
    inside = candidate(scheduler="mps", isolated=False, in_worker=True)
    assert reason(inside) is None
    assert reason(replace(inside, noise="cpu")) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ranks": 2}, None),
        ({"ranks": 3}, "--hwq-ranks=3 need as many accelerators, and 2 are visible"),
        ({"ranks": 2, "device": "cuda:1"},
         "--hwq-ranks=2 take one device each, from the first: --hwq-device=cuda, not cuda:1"),
        ({"launched": RANK_1_OF_2}, None),
    ],
)  # fmt: skip
def test_each_rank_needs_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: str | None
) -> None:
    monkeypatch.setattr(checks, "visible_accelerators", lambda: ("cuda", 2))
    assert reason(candidate(**{"device": "cuda", **changes})) == expected
