"""Formats the words and numbers of ``hwq which`` for the terminal, Markdown and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_hwqueue.capacity.result import CapacityFile
from pytest_hwqueue.metrics.estimate import Estimate
from pytest_hwqueue.metrics.numbers import counted, duration, grouped, in_unit, listed
from pytest_hwqueue.records.tenants import NOT_OURS
from pytest_hwqueue.reports.servers import failures
from pytest_hwqueue.which.file import WhichCase, WhichChoice, WhichFile, WhichProof

STYLES = {"skipped": "yellow", "not measured": "yellow"}
"""Of cases without figures; others are red."""
SIMULATED = "SIMULATED: a model's figures, nothing was measured"
# The records have more of it.
_OUTPUT_LINES = 6
_EFFECTIVE = {True: "less urgent work held back", False: "less urgent work not held back", None: ""}


def title(found: WhichFile) -> str:
    """Return the question that is answered, and the device."""
    return f"Which scheduler for {found.scenario}?{on_device(found)}"


def on_device(found: WhichFile | CapacityFile) -> str:
    """Return where it was measured; empty if that is not known."""
    name, label = found.device_name, found.device
    return f" On {name}" + f" ({label})" * (label != name) if name else ""


def settings(found: WhichFile) -> list[str]:
    """Return how it was measured."""
    lengths = sorted({case.window_s for case in found.cases if case.status == "ok"})
    parts = []
    if lengths:
        each = "s to ".join(f"{length:g} " for length in (lengths[0], lengths[-1])[: len(lengths)])
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
    elif choice.met:
        sentence = f"All goals were met under {listed(choice.met)}."
    simulated = "Simulated, not measured. " if found.simulated else ""
    return f"{simulated}{_variant(choice)}{sentence}"


def _variant(choice: WhichChoice) -> str:
    return "" if choice.variant is None else f"Variant {choice.variant}: "


def what_it_leaves(found: WhichFile, choice: WhichChoice) -> str:
    """Return what less urgent tenants keep under the modes that met all goals; may be empty."""
    if not choice.met:
        return ""
    if choice.best is None:
        return (
            "Which of them leaves most is not known: they were measured in different sessions, and "
            "not each has its tenants alone to be compared with."
            if choice.less_urgent
            else "No tenant is less urgent than another, so nothing is to be lost."
        )
    best = next(case for case in found.cases if case.id == choice.best)
    lead = "It leaves"
    if len(choice.met) > 1:
        lead = f"Of these, it is {choice.best} that leaves most to"
    left = [_throughput_of(best, name) for name in choice.less_urgent]
    sentences = [f"{lead} {'; '.join(left)}."]
    if choice.alike:
        several = len(found.sessions) > 1
        what = "its share of that alone, within each session," if several else "that throughput"
        sentences.append(
            f"By {what} {listed(choice.alike)} cannot be told apart from it: the intervals overlap."
        )
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


def more_requests(found: WhichFile) -> list[str]:
    """Return for each variant how long a window would decide what is undecided."""
    cases = {case.id: case for case in found.cases}
    return [
        f"{_variant(choice)}{_longer([cases[each] for each in choice.undecided])}"
        for choice in found.choices
        if choice.undecided
    ]


def _longer(undecided: Sequence[WhichCase]) -> str:
    """Return how long a window would decide what several cases left undecided."""
    goals = [goal for case in undecided for goal in case.goals if goal.verdict == "undecided"]
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
