"""Certificates of records whose truth is known: shown, refuted, not decided, and of nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_hwqueue.answers.certify.certificate import (
    CertificateTerms,
    certificate_file,
    mode_of,
    resources_of,
)
from pytest_hwqueue.answers.certify.file import CertificateFile, ResourceResult
from pytest_hwqueue.answers.certify.plan import CertifyPlan, read_mode
from pytest_hwqueue.answers.certify.report import (
    certificate_document,
    certificates_headline,
    sentences,
)
from pytest_hwqueue.data.document.document import markdown
from pytest_hwqueue.data.document.terminal import rendered
from pytest_hwqueue.data.records.fingerprint import Fingerprint
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.data.records.tenants import ColocationRecord
from pytest_hwqueue.data.resources import RESOURCES, Resource
from pytest_hwqueue.engine.scenarios.planned_runs import (
    PlannedRun,
    SessionPlan,
    cases,
    colocation,
    once,
    own_run,
)
from pytest_hwqueue.engine.tenants.open_loop import Load
from pytest_hwqueue.engine.tenants.tenant_cells import delivered

GREEN = "threads-green-context:victim=66,stressor=66"
ALONE_NS, ITERATIONS, COUNT = 2e6, 40, 132


@dataclass(frozen=True)
class Truth:
    """What a mode does.

    Attributes:
        slower: the victim beside the stressor under the mode, by resource; 0 by default.
        native_slower: the same under native; for all.
        share: of native's rate that the victim has alone under the mode.
        spread: of the logarithm of a round's mean.

    """

    slower: Mapping[Resource, float]
    native_slower: float = 1.0
    share: float = 1.0
    spread: float = 0.003


def records(
    mode: str, truth: Truth, claims: Sequence[Resource] = (), rounds: int = 5
) -> list[ColocationRecord]:
    """What a session of a mode on a GPU leaves."""
    placed = read_mode(mode)
    claimed = {*placed.claims.apart, *claims}
    plan = CertifyPlan(placed, RESOURCES, claimed, 1.0, rounds)
    random = np.random.default_rng(1)
    found = []
    for number in range(1, rounds + 1):
        for run in once(map(own_run, cases(plan.scenario(Path())[0]))):
            native = run.scheduler == "native" and not placed.native
            resource = run.tenants[0].parameters["resource"]
            took_ns = ALONE_NS if native else ALONE_NS / truth.share
            if len(run.tenants) > 1:
                slower = truth.native_slower if native else truth.slower.get(resource, 0.0)
                took_ns *= 1 + slower
            took_ns *= np.exp(random.normal(0, truth.spread))
            found.append(record(run, number, took_ns))
    return found


def record(run: PlannedRun, number: int, took_ns: float, **changed: Any) -> ColocationRecord:
    plan = colocation(run, SessionPlan("cuda", "full", Path(), 0.3), 1.0, number)
    window_ns = round(ITERATIONS * took_ns)
    starts = [round(each * took_ns) for each in range(ITERATIONS)]
    ends = [*starts[1:], window_ns]
    load = Load(starts, starts, ends, closed=True)
    fields: dict[str, Any] = {
        "id": plan.id, "run": number, "plan": plan, "status": "ok", "device": "cuda",
        "scheduler": run.scheduler, "placement": run.placement, "duration_s": 1.0,
        "tenants": [delivered(each, load, window_ns) for each in run.tenants],
        "elapsed_s": 3.0, "seed": number - 1, "command": "hwq certify",
        "started": f"2026-01-01T00:0{number}:00.000+00:00", "simulated": False,
        "fingerprint": Fingerprint(hard={"multiprocessor_count": COUNT}, soft={}, missing={}),
        "proof": Proof(run.scheduler, f"{run.scheduler} is active", ()),
    }  # fmt: skip
    return ColocationRecord(**{**fields, **changed})


def certificate(
    mode: str, truth: Truth | Sequence[ColocationRecord], claims: Sequence[Resource] = (),
    bound: float = 0.1,
) -> CertificateFile:  # fmt: skip
    placed = read_mode(mode)
    found = records(mode, truth, claims) if isinstance(truth, Truth) else truth
    terms = CertificateTerms(placed, RESOURCES, {*placed.claims.apart, *claims}, bound)
    return certificate_file(found, terms, complete=True, device="cuda")


def of(found: CertificateFile, resource: Resource) -> ResourceResult:
    return next(each for each in found.resources if each.resource == resource)


def test_groups_of_multiprocessors_are_shown_and_what_they_share_is_refuted() -> None:
    truth = Truth({"multiprocessors": 0.01, "l2": 0.4, "memory": 0.9, "copies": 0.98}, share=0.5)
    found = certificate(GREEN, truth, ("l2", "memory"))
    assert [each.verdict for each in found.resources] == [
        "shown", "not claimed", "refuted", "refuted", "not claimed", "not claimed",
    ]  # fmt: skip
    for resource, slower in (("multiprocessors", 0.01), ("l2", 0.4), ("copies", 0.98)):
        figure = of(found, resource).slower  # type: ignore[arg-type]
        assert figure.low < slower < figure.high
        assert figure.value == pytest.approx(slower, abs=0.01)
        assert of(found, resource).alone_ms.value == pytest.approx(4, rel=0.01)  # type: ignore[arg-type]
    assert found.share is not None
    assert (found.share.claimed, found.share.verdict) == (66 / COUNT, "shown")
    assert found.share.share.value == pytest.approx(0.5, rel=0.01)
    assert found.proof == "green-context:victim=66,stressor=66 is active"
    first, second, *_ = sentences(found)
    assert first.startswith(f"{GREEN} is shown to keep multiprocessors apart (0.97 % [")
    assert "victim's share at most 50.0 %" in first
    assert second.startswith(f"{GREEN} does NOT keep the L2 cache apart (")
    assert certificates_headline([found]).level == "bad"


@pytest.mark.parametrize(("share", "verdict"), [
    (0.7, "shown"), (0.75, "shown"), (0.77, "not decided"), (0.85, "refuted"), (0.3, "shown"),
])  # fmt: skip
def test_a_share_holds_up_to_the_bound(share: float, verdict: str) -> None:
    mode = "mps-partition:victim=70%,stressor=30%"
    found = certificate(mode, Truth({}, share=share))
    assert found.share is not None
    assert (found.share.claimed, found.share.verdict) == (0.7, verdict)
    assert found.share.bound == pytest.approx(0.77)
    # The mode limits who uses multiprocessors, and keeps none for anybody.
    assert of(found, "multiprocessors").verdict == "not claimed"
    assert found.verdicts == [verdict]
    assert "share at most 70.0 %" in " ".join(sentences(found))


@pytest.mark.parametrize(
    ("truth", "verdict", "reason"),
    [
        (Truth({}, native_slower=0.0), "not decided", "is not shown to slow the victim under nat"),
        (Truth({"memory": 0.1}, spread=0.02), "not decided", "the interval holds the bound"),
        (Truth({"memory": 0.3}, native_slower=0.0), "refuted", ""),
        (Truth({"memory": 0.02}), "shown", ""),
    ],
)
def test_a_claim_says_what_it_lacks(truth: Truth, verdict: str, reason: str) -> None:
    row = of(certificate("mps", truth, ("memory",)), "memory")
    assert (row.verdict, bool(row.reason)) == (verdict, bool(reason))
    assert reason in row.reason


def test_another_bound_is_another_verdict() -> None:
    truth = Truth({"memory": 0.1})
    verdicts = [
        of(certificate("mps", truth, ("memory",), bound), "memory").verdict for bound in (0.05, 0.2)
    ]
    assert verdicts == ["refuted", "shown"]


def test_a_mode_that_claims_nothing_has_figures_and_no_verdict() -> None:
    found = certificate("native", Truth({"memory": 0.5}))
    assert found.verdicts == []
    assert found.share is None
    assert {each.verdict for each in found.resources} == {"not claimed"}
    assert sentences(found)[0] == "native claims none of these, and is held to none (--claims)."
    assert "memory bandwidth 49.6 % [" in sentences(found)[1]
    assert certificates_headline([found]).level == "warn"


def test_native_is_held_to_what_is_asked_and_is_its_own_control() -> None:
    found = certificate("native", Truth({"memory": 0.5}), ("memory", "copies"))
    assert of(found, "memory").verdict == "refuted"
    # Whom the stressor does not slow it shows nothing of.
    assert of(found, "copies").verdict == "not decided"


def test_windows_that_failed_are_told_and_certify_nothing() -> None:
    broken = [
        each.model_copy(update={"status": "failed", "reason": "no proof", "tenants": []})
        if each.scheduler != "native"
        else each
        for each in records(GREEN, Truth({}))
    ]
    found = certificate(GREEN, broken)
    row = of(found, "multiprocessors")
    assert (row.verdict, row.reason) == ("not decided", "windows failed")
    assert found.verdicts == ["not decided", "not decided"]
    (said,) = found.failures
    assert said.endswith(": failed, no proof")
    assert "multiprocessors beside under green-context:victim=66,stressor=66" in said
    assert certificates_headline([found]).level == "bad"
    assert "failed, no proof" in markdown(certificate_document(found))


def test_what_other_rounds_have_shows_nothing_where_one_failed() -> None:
    """A victim that gets nothing done is slowest, and has no figure."""
    every = records(GREEN, Truth({"l2": 0.5}, share=0.5), ("l2",))
    last = [
        each.model_copy(update={"status": "failed", "reason": "died", "tenants": []})
        if each.run == 5 and each.scheduler != "native"
        else each
        for each in every
    ]
    assert certificate(GREEN, every, ("l2",)).verdicts == ["shown", "refuted", "shown"]
    found = certificate(GREEN, last, ("l2",))
    assert found.verdicts == ["not decided", "refuted", "not decided"]
    assert of(found, "multiprocessors").slower.n == 4
    assert of(found, "multiprocessors").reason == "windows failed"
    assert found.share is not None
    assert found.share.reason == "windows failed"


def test_a_stressor_that_did_nothing_is_no_neighbour() -> None:
    idle = [
        each.model_copy(
            update={
                "tenants": [
                    one.model_copy(update={"latency_ns": []}) if one.name == "stressor" else one
                    for one in each.tenants
                ]
            }
        )
        for each in records("mps", Truth({}), ("memory",))
    ]
    found = certificate("mps", idle, ("memory",))
    assert of(found, "memory").verdict == "not decided"
    assert all("stressor completed no iteration" in each for each in found.failures)


def test_a_round_without_its_other_half_is_left_out() -> None:
    every = records("mps", Truth({"memory": 0.2}))
    lost = every[-1]
    assert lost.run == 5
    (row,) = (
        each
        for each in certificate("mps", every[:-1]).resources
        if each.resource == lost.plan.tenants[0].parameters["resource"]
    )
    assert row.slower.n == 4


def test_what_was_measured_again_counts_once_and_others_records_not_at_all() -> None:
    every = records("mps", Truth({"memory": 0.2}))
    again = every[0].model_copy(update={"started": "2026-01-01T01:00:00.000+00:00"})
    tenant = replace(every[0].plan.tenants[0], workload="occupy", parameters={})
    other = every[0].model_copy(update={"plan": replace(every[0].plan, tenants=(tenant,))})
    assert certificate("mps", [*every, again, other]) == certificate("mps", every)
    assert mode_of([other]) is None


def test_records_say_of_which_mode_they_are() -> None:
    for mode in (GREEN, "native", "mps-partition:victim=70%"):
        found = records(mode, Truth({}), ("memory",))
        assert str(mode_of(found)) == mode
        assert resources_of(found) == [*RESOURCES]


def test_how_many_multiprocessors_there_are_may_be_unknown() -> None:
    blind = [each.model_copy(update={"fingerprint": None}) for each in records(GREEN, Truth({}))]
    share = certificate(GREEN, blind).share
    assert share is not None
    assert (share.verdict, share.claimed) == ("not decided", None)
    assert "is not known" in share.reason


def urgent(
    longest_wait_us: float, requests: int = 400, rounds: int = 3, drift_us: float = 0
) -> list[ColocationRecord]:
    """Windows of an urgent victim: alone, and beside products for which it waits up to so long.

    Alone each round takes longer than the one before by ``drift_us``.
    """
    plan = CertifyPlan(read_mode("mps"), [], (), 5.0, rounds, waits_ms=1.0)
    random, found = np.random.default_rng(1), []
    for run in once(map(own_run, cases(plan.scenario(Path())[0]))):
        beside = len(run.tenants) > 1
        for number in range(1, rounds + 1):
            due = [each * 10_000_000 for each in range(requests)]
            alone_us = 50 + (not beside) * drift_us * (number - 2)
            took_us = alone_us + beside * random.uniform(0, longest_wait_us, requests)
            ends = [at + round(each * 1e3) for at, each in zip(due, took_us, strict=True)]
            loads = [Load(due, due, ends), Load(due, due, ends, closed=True)]
            tenants = [
                delivered(spec, load, requests * 10_000_000)
                for spec, load in zip(run.tenants, loads[: len(run.tenants)], strict=True)
            ]
            found.append(record(run, number, 1e6, tenants=tenants))
    return found


@pytest.mark.parametrize(
    ("windows", "waits_ms", "verdict", "said"),
    [
        (urgent(300), 1.0, "shown", "keep an urgent kernel's wait at most 1 ms (P99 29"),
        (urgent(300), 0.1, "refuted", "NOT keep an urgent kernel's wait at most 0.1 ms (P99 29"),
        (urgent(300), 0.297, "not decided", "beside products; the interval holds the bound"),
        # What it takes alone is known to 100 µs: the wait is, too.
        (urgent(300, drift_us=40), 0.35, "not decided", "beside products; the interval holds"),
        (urgent(300, requests=40), 1.0, "not decided", "(0 of at least 2 runs have it)"),
        ([], 1.0, "not decided", "(victim alone served no request)"),
    ],
)
def test_a_wait_is_held_to_what_is_asked(
    windows: list[ColocationRecord], waits_ms: float, verdict: str, said: str
) -> None:
    terms = CertificateTerms(read_mode("mps"), [], (), 0.1, waits_ms)
    found = certificate_file(windows, terms, complete=True, device="cuda")
    assert found.verdicts == [verdict]
    assert said in sentences(found)[0]
    if windows:
        assert found.wait is not None
        assert found.wait.alone_p50_us.value == pytest.approx(50)


@pytest.mark.parametrize("truth", [Truth({"memory": 0.5}, share=0.5), Truth({}, spread=0.3)])
def test_a_certificate_fits_a_terminal_and_a_page_to_attach(truth: Truth) -> None:
    found = certificate(GREEN, truth, ("memory", "l2"))
    text = rendered(certificate_document(found).parts, 80, colour=False)
    assert max(map(len, text.splitlines())) <= 80
    page = markdown(certificate_document(found))
    assert page.startswith(
        "## Does threads-green-context:victim=66,stressor=66 keep tenants apart?"
    )
    assert all(resource in page for resource in RESOURCES)
    assert CertificateFile.model_validate_json(found.model_dump_json(by_alias=True)) == found
