"""The comparison with a loop by hand: verdicts follow the intervals, refusals have reasons."""

from __future__ import annotations

import gc
import json
import random
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from pytest_hwqueue import doctor
from pytest_hwqueue.devices.discover import open_device
from pytest_hwqueue.devices.protocol import Device
from pytest_hwqueue.doctor import Diagnosis, as_json, diagnose, overhead
from pytest_hwqueue.doctor import limits as limits_module
from pytest_hwqueue.doctor.checks import Check
from pytest_hwqueue.doctor.overhead import Overhead, compare, verdict
from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.harness import closed_loop
from pytest_hwqueue.reports.doctor import print_diagnosis


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cpu")


def normal(mean: float, n: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [round(draw.gauss(mean, mean / 100)) for _ in range(n)]


@pytest.mark.parametrize(("interval", "expected"), [
    ((0.99, 1.005), "within"), ((0.99, 1.01), "within"), ((1.0, 1.02), "undecided"),
    ((1.01, 1.02), "undecided"), ((1.02, 1.03), "not within"),
])  # fmt: skip
def test_the_whole_interval_decides(interval: tuple[float, float], expected: str) -> None:
    assert verdict(interval, 1.01) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "within"), (1.1, "not within")])
def test_a_known_ratio_comes_back(factor: float, expected: str) -> None:
    rounds = [
        (normal(1e6 * factor, 250, seed), normal(1e6, 250, 1000 + seed)) for seed in range(60)
    ]
    p50, p99 = overhead._ratios(rounds)

    for ratio in (p50, p99):
        assert ratio.value == pytest.approx(factor, rel=0.01)
        assert ratio.interval is not None
        assert ratio.interval[0] <= factor <= ratio.interval[1]
        assert ratio.verdict == expected
    assert p50.difference_us == pytest.approx(1e3 * (factor - 1), abs=5)
    assert (p50.target, p99.target) == (1.01, 1.05)


def test_too_few_samples_are_undecided_with_a_reason() -> None:
    p50, p99 = overhead._ratios([(normal(1e6, 99, 1), normal(1e6, 99, 2))] * 6)

    assert p50.value is not None
    assert (p99.value, p99.interval, p99.difference_us) == (None, None, None)
    assert p99.verdict == "undecided"
    assert p99.refused["value"].endswith("rounds of 100 samples a side, has 6 of 99")


def test_a_burst_on_one_side_of_one_round_decides_nothing() -> None:
    rounds = [(normal(1e6, 250, seed), normal(1e6, 250, 100 + seed)) for seed in range(20)]
    rounds[7] = ([ns * 10 for ns in rounds[7][0]], rounds[7][1])
    for ratio in overhead._ratios(rounds):
        assert ratio.verdict == "within"


def test_rates_are_compared_with_an_interval() -> None:
    rate = overhead._rate(normal(1e6, 1000, 1), normal(2e6, 1000, 2), kernels=100.0)

    assert rate.value == pytest.approx(2.0, rel=0.01)
    assert rate.interval is not None
    assert rate.interval[0] <= 2.0 <= rate.interval[1]
    assert rate.confidence == pytest.approx(0.9)
    few = overhead._rate(normal(1e6, 10, 1), normal(2e6, 10, 2), kernels=100.0)
    assert few.interval is None
    assert few.refused["interval"]


def test_the_loop_by_hand_waits_for_every_iteration_and_collects_no_garbage() -> None:
    done: list[str] = []

    samples = overhead.bare_loop(
        lambda streams: done.append(f"enqueue, collecting: {gc.isenabled()}"), [],
        lambda: done.append("wait"), 3,
    )  # fmt: skip

    assert done == ["enqueue, collecting: False", "wait"] * 3
    assert len(samples) == 3
    assert gc.isenabled()


def test_both_sides_are_measured_alike(device: Device) -> None:
    found = compare(device, "eager", 2, budget_s=0.2)

    assert found.refused == ""
    assert found.n == found.bare_n > 0
    assert [ratio.quantile for ratio in found.ratios] == ["p50", "p99"]
    for ratio in found.ratios:
        assert (ratio.value is None) == ("value" in ratio.refused), ratio
    assert found.rate is not None
    assert found.size == "tiny"


def test_blocks_come_in_the_order_a_b_b_a(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    measure, bare_loop = closed_loop.measure, overhead.bare_loop

    def seen_measure(*arguments: object) -> object:
        order.append("A")
        return measure(*arguments)  # type: ignore[arg-type]

    def seen_bare(*arguments: object) -> object:
        order.append("B")
        return bare_loop(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(overhead, "measure", seen_measure)
    monkeypatch.setattr(overhead, "bare_loop", seen_bare)
    # It measures with the harness too, in an order of its own.
    monkeypatch.setattr(overhead, "_pipelined", lambda *_: ([1.0], [1.0]))

    compare(device, "eager", 1, budget_s=0.1)

    assert order[0] == "B"  # warms up and is not counted
    rounds = "".join(order[1:])
    assert rounds == "ABBA" * (len(rounds) // 4)


def test_graphs_are_not_available_on_the_cpu(device: Device) -> None:
    found = compare(device, "graph", 1, budget_s=0.1)

    assert "the CPU has no graphs" in found.refused
    assert (found.n, found.ratios, found.rate) == (0, [], None)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "_QUICK_BUDGET_S", 0.1)
    monkeypatch.setattr(limits_module, "_KERNEL_NS", 100_000)


@pytest.mark.usefixtures("short")
def test_a_whole_diagnosis_prints_and_is_json(tmp_path: Path) -> None:
    found = diagnose("cpu", tmp_path, quick=True, progress=lambda text: None)

    printed = StringIO()
    print_diagnosis(found, Console(file=printed, width=200))
    for text in ("Checks", "Limits", "Dispatch", "Overhead", "≤ 1.01",
                 "not available: ", "the CPU has no graphs", "--quick"):  # fmt: skip
        assert text in printed.getvalue()
    data = json.loads(as_json(found))
    assert data["schema"] == doctor.SCHEMA
    assert data["device"] == "cpu"
    assert {check["name"] for check in data["checks"]} == {check.name for check in found.checks}
    assert [row["streams"] for row in data["overhead"]] == [1, 8, 1, 8]
    assert len(data["limits"]["queues"]) == 8 or data["limits"]["refused"]["queues"]


def test_nothing_measured_prints_no_numbers() -> None:
    check = Check("device", "problem", "cannot be opened [why]", "choose another")
    refused = Overhead("eager", 1, "tiny", refused="out of memory")
    found = Diagnosis("cuda", "", "now", "0", False, [check], None, [refused])

    printed = StringIO()
    print_diagnosis(found, Console(file=printed, width=120))

    assert found.has_problem
    assert "cannot be opened [why]" in printed.getvalue()
    assert "eager on 1: not available: out of memory" in printed.getvalue()
    assert "Limits" not in printed.getvalue()


def test_all_devices_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="one device at a time"):
        diagnose("all", tmp_path, progress=lambda text: None)
