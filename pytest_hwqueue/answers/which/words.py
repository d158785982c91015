"""Formats the words and numbers of ``hwq which`` for the terminal, Markdown and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_hwqueue.answers.which.file import (
    WhichCase,
    WhichChoice,
    WhichFile,
    WhichProof,
    WhichTenant,
    natives,
)
from pytest_hwqueue.data.document.notes import on_device
from pytest_hwqueue.data.document.servers import failures
from pytest_hwqueue.data.metrics.estimate import Estimate
from pytest_hwqueue.data.metrics.numbers import counted, duration, grouped, in_unit, listed
from pytest_hwqueue.data.records.placement import TenantPlacement
from pytest_hwqueue.data.records.tenants import NOT_OURS
from pytest_hwqueue.engine.scenarios.goals import GoalResult, parse_goal

STYLES = {"skipped": "yellow", "not measured": "yellow"}
"""Of cases without figures; others are red."""
BRACKETS = "Brackets are 95 % intervals; latency counts from the scheduled arrival."
# The records have more of it.
_OUTPUT_LINES = 6
_EFFECTIVE = {True: "less urgent work held back", False: "less urgent work not held back", None: ""}


def title(found: WhichFile) -> str:
    """Return the question that is answered, and the device."""
    return f"Which scheduler for {found.scenario}?{on_device(found)}"


def settings(found: WhichFile) -> list[str]:
    """Return how it was measured."""
    lengths = sorted({case.window_s for case in found.cases if case.status == "ok"})
    parts = []
    if lengths:
        ends = (lengths[0], lengths[-1])[: len(lengths)]
        # Counted requests take a time with many digits.
        each = "s to ".join(f"{float(f'{length:.3g}'):g} " for length in ends)
        windows = max(len(case.records) for case in found.cases)
        parts.append(f"{each}s for each case, in up to {counted(windows, 'window')}")
    if len(found.sessions) > 1:
        parts.append(_sessions_and_gpus(found))
    if found.seed is not None:
        parts.append(f"seed {found.seed}")
    if found.git_commit:
        dirty = " with uncommitted changes" if found.git_dirty else ""
        parts.append(f"commit {found.git_commit[:12]}{dirty}")
    return parts


def tenant_lines(found: WhichFile) -> list[str]:
    """Return what each tenant ran; of several variants, each of what it ran."""
    tenants = [tenant for case in found.cases for tenant in case.tenants if tenant.work]
    works = grouped((tenant.name, tenant.work) for tenant in tenants)
    return [f"{name}: {'; or '.join(dict.fromkeys(ran))}" for name, ran in works.items()]


def _sessions_and_gpus(found: WhichFile) -> str:
    gpus = len(found.device_uuids)
    where = f"{counted(gpus, 'GPU')}" if all(found.device_uuids) else counted(gpus, "device")
    return f"{counted(len(found.sessions), 'session')} on {where}"


def several_sessions(found: WhichFile) -> str:
    """Return how figures of several sessions came about; empty for one session."""
    if len(found.sessions) < 2:
        return ""
    return (
        f"Measured in {_sessions_and_gpus(found)}. Loss, figures to solo and goals relative to "
        "another run are ratios within each session, combined with the spread between sessions in "
        "their intervals. Latency, attainment and throughput are of all windows, with intervals "
        "that reach over each GPU's: do not divide one row by another. What each session says by "
        "itself follows the table."
    )


def placements(rows: Sequence[WhichCase]) -> list[str]:
    """Return what a row's name says of where its tenants live, where some are in threads."""
    if not any(row.id.startswith(f"{TenantPlacement.THREADS}-") for row in rows):
        return []
    return [
        f"{TenantPlacement.THREADS}-…: tenants are threads of one process and share its context; "
        "elsewhere each is a process, and they take turns unless the mode merges them"
    ]


def remark(given: Estimate) -> str:
    """Return what is missing of a figure that is given, and why."""
    if math.isinf(given.high):
        return f"no upper end: {given.refused}"
    return f"no lower end: {given.refused}" if math.isinf(given.low) else given.refused


def goals_in_short(case: WhichCase) -> str:
    """Return text such as ``2 of 3``, or ``1–2 of 3`` if one is undecided."""
    verdicts = [goal.verdict for goal in case.goals]
    if not verdicts:
        return ""
    met, undecided = (verdicts.count(kind) for kind in ("met", "undecided"))
    return f"{f'{met}–{met + undecided}' if undecided else met} of {len(verdicts)}"


def proof_line(found: WhichFile, case: WhichCase) -> str:
    """Return the proof that the mode was active, and whether it delayed less urgent work."""
    if case.proof is None:
        none = "; ".join(["none", *not_ours(case)])
        return "simulated: the scheduler is part of the model" if found.simulated else none
    counts = ", ".join(f"{name} {count}" for name, count in case.proof.counts.items())
    effect = ": ".join(filter(None, (_effect(case.proof), case.proof.priority_evidence)))
    return "; ".join(filter(None, (case.proof.evidence, counts, effect, *not_ours(case))))


def effective(found: WhichFile, case: WhichCase) -> str:
    """Return whether the mode was proven active, for whom not, and what was seen of its effect."""
    if found.simulated and case.proof is None:
        return "simulated"
    seen = ("proven", _effect(case.proof)) if case.proof is not None else ()
    return "; ".join(filter(None, (*seen, *not_ours(case))))


def not_ours(case: WhichCase) -> list[str]:
    """Return for each tenant whose server is not ours that the mode is not proven for it."""
    return [
        f"not proven for {tenant.name} ({NOT_OURS[tenant.origin]})"
        for tenant in case.tenants
        if tenant.origin is not None and tenant.origin in NOT_OURS
    ]


def _effect(proof: WhichProof) -> str:
    """Return whether less urgent work was seen delayed; nothing if nobody could see that."""
    if proof.priority is None:
        return _EFFECTIVE[proof.effective]
    return "priority proven" if proof.priority == "proven" else "priority not proven"


def failure(case: WhichCase) -> str:
    """Return why a case has no figures."""
    return f"{case.status.upper()}: {case.reason}"


def failed_lines(found: WhichFile) -> list[str]:
    """Return for each case and tenant with failed requests how many, and why."""
    return [
        f"{case.id}, {tenant.name}: {tenant.issued} requests; "
        f"{failures(tenant.failed, tenant.failed_for)}"
        for case in found.cases
        for tenant in case.tenants
        if tenant.failed_for
    ]


def last_outputs(case: WhichCase) -> list[str]:
    """Return the last output of tenants of a case without figures; threads share theirs."""
    names = grouped(
        ("\n".join(text.rstrip().splitlines()[-_OUTPUT_LINES:]), name)
        for name, text in case.last_output.items()
    )
    return [f"last output of {listed(each)}:\n{text}" for text, each in names.items()]


def incomplete(found: WhichFile) -> str:
    """Return a remark if the table is incomplete, else an empty string."""
    if found.complete:
        return ""
    missing = sum(case.status == "not measured" for case in found.cases)
    return (
        f"INCOMPLETE: interrupted; {counted(missing, 'case')} of {len(found.cases)} not measured, "
        "others with fewer windows than planned"
    )


def headline(found: WhichFile, choice: WhichChoice) -> str:
    """Return in one sentence which schedulers met all goals of a variant."""
    measured = any(
        case.status == "ok" and case.role == "case" and case.variant == choice.variant
        for case in found.cases
    )
    sentence = "No scheduler was shown to meet all goals, so none is named."
    if not measured:
        sentence = "No scheduler came to figures, so none is named."
    elif not choice.goals:
        sentence = "The scenario sets no goals, so no scheduler is named."
    elif enough := _native_that_met_all(found, choice):
        others = [name for name in choice.met if name not in enough]
        are_enough = f"{listed(enough)} {'is' if len(enough) == 1 else 'are'} enough"
        met = f"All goals were met under {listed([*enough, *others])}"
        sentence = f"{met}: {are_enough}." if others else f"{are_enough}: all goals were met."
    elif choice.met:
        sentence = f"All goals were met under {listed(choice.met)}."
    simulated = "Simulated, not measured. " if found.simulated else ""
    return f"{simulated}{_variant(choice)}{sentence}"


def _native_that_met_all(found: WhichFile, choice: WhichChoice) -> list[str]:
    """Return native's rows that met all goals, also where it was only measured to compare with."""
    return [case.id for case in natives(found.cases, choice.variant) if case.met_all]


def _variant(choice: WhichChoice) -> str:
    return "" if choice.variant is None else f"Variant {choice.variant}: "


def what_it_leaves(found: WhichFile, choice: WhichChoice) -> str:
    """Return what less urgent tenants keep under the modes that met all goals; may be empty."""
    if not choice.met:
        return ""
    if choice.best is None:
        return (
            "Which of them leaves the others most throughput is not known: they were measured in "
            "different sessions, and not each has its tenants alone to be compared with."
            if choice.less_urgent
            else "No tenant is less urgent than another, so nothing is to be lost."
        )
    best = next(case for case in found.cases if case.id == choice.best)
    left = "; ".join(_throughput_of(best, name) for name in choice.less_urgent)
    if not choice.alike:
        alone = len(choice.met) == 1
        only = choice.best if _native_that_met_all(found, choice) else "It"
        lead = (
            f"{only} leaves"
            if alone
            else f"Of these, {choice.best} leaves the others most throughput:"
        )
        sentences = [f"{lead} {left}."]
    else:
        several = len(found.sessions) > 1
        what = "its share of that alone, within each session" if several else "that throughput"
        group = listed([choice.best, *choice.alike])
        few = len(choice.alike) + 1 < len(choice.met)
        lead = f"{group} leave the others most throughput, and" if few else "They"
        sentences = [
            f"{lead} cannot be told apart by what they leave less urgent tenants: the intervals of "
            f"{what} overlap. {choice.best} leaves {left}."
        ]
    proof = best.proof
    if proof is not None and proof.priority not in (None, "proven"):
        sentences.append(f"But its priority is not proven: {proof.priority_evidence}.")
    elif proof is not None and proof.effective is False:
        sentences.append("But less urgent work was not seen held up under it.")
    if unproven := not_ours(best):
        sentences.append(f"But the mode is {listed(unproven)}.")
    return " ".join(sentences)


def _throughput_of(case: WhichCase, name: str) -> str:
    tenant = case.tenant(name)
    text = f"{name} {in_unit(tenant.throughput_items_per_s, f'{tenant.unit}/s')}"
    loss = tenant.throughput_loss
    if loss is None:
        return f"{text}, being native itself"
    if loss.value is None:
        return f"{text}, of unknown loss to native ({loss.refused})"
    if loss.value < 0:
        gain = Estimate(value=-loss.value, low=-loss.high, high=-loss.low)
        return f"{text}, {in_unit(gain, '%')} more than under native"
    return f"{text}, a loss of {in_unit(loss, '%')} to native"


def missing_ends(figure: str, missing: Sequence[tuple[str, WhichTenant]]) -> str:
    """Return how long a window would give a percentile both ends; empty if none is missing.

    Args:
        figure: its name.
        missing: rows, and the tenant whose percentile lacks an end there.

    """
    known_s = [tenant.p99_by_s for _, tenant in missing if tenant.p99_by_s is not None]
    if not known_s:
        return ""
    longest_s = math.ceil(max(known_s))
    where = grouped((tenant.name, row) for row, tenant in missing if tenant.p99_by_s is not None)
    whose = "; ".join(f"{name} in {listed(rows)}" for name, rows in where.items())
    return (
        f"{figure} lacks an end for {whose}: a window of {duration(longest_s)} "
        f"(--duration {longest_s}s) would give both, if further requests are like these."
    )


def more_requests(found: WhichFile) -> list[str]:
    """Return for each variant how long a window would decide what is undecided."""
    cases = {case.id: case for case in found.cases}
    return [
        f"{_variant(choice)}{sentence}"
        for choice in found.choices
        for sentence in _longer([cases[each] for each in choice.undecided])
    ]


def _longer(undecided: Sequence[WhichCase]) -> list[str]:
    """Return how long a window would decide what several cases left undecided, and what none."""
    open_goals = [
        (case.id, goal) for case in undecided for goal in case.goals if goal.verdict == "undecided"
    ]
    apart = [
        (_remedy(goal), (name, goal.goal))
        for name, goal in open_goals
        if goal.ended_by or parse_goal(goal.goal).traced
    ]
    sentences = []
    for (begin, end), each in grouped(apart).items():
        names, goals = (listed(dict.fromkeys(of)) for of in zip(*each, strict=True))
        sentences.append(f"{begin} {goals} under {names}: {end}.")
    measured = [
        goal for _, goal in open_goals if not (goal.ended_by or parse_goal(goal.goal).traced)
    ]
    return [*([_window(measured)] if measured else []), *sentences]


def _remedy(goal: GoalResult) -> tuple[str, str]:
    """Return what may decide a goal, and why: the words before and after its text."""
    if goal.ended_by == "requests":
        return "More `requests` may decide", "the window ends with the last that is counted"
    if goal.ended_by == "duration":
        return "A longer --duration may decide", "the traced window is as long as it lets it be"
    return "No --duration decides", goal.reason


def _window(goals: Sequence[GoalResult]) -> str:
    """Return how long a window would decide these goals."""
    known_s = [goal.decided_by_s for goal in goals if goal.decided_by_s is not None]
    if not known_s:
        return "More requests may decide what is undecided: a longer --duration."
    longest_s = math.ceil(max(known_s))
    sentence = (
        f"A window of {duration(longest_s)} (--duration {longest_s}s) would decide each undecided "
        "goal in 4 of 5 cases, if further requests are like these."
    )
    unknown = [goal.goal for goal in goals if goal.decided_by_s is None]
    if unknown:
        sentence += f" How long one would for {listed(dict.fromkeys(unknown))} is not known."
    return sentence
