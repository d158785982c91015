"""What proved a mode in all windows of a case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.metrics.numbers import counted
from pytest_hwqueue.metrics.priority_effect import EffectVerdict
from pytest_hwqueue.records.tenants import ColocationProof, ColocationRecord
from pytest_hwqueue.schedulers.syntax import parse_scheduler
from pytest_hwqueue.which.file import PriorityProof, WhichProof

# Counts of things that are there throughout. Others count samples, which add up over windows.
_THERE: Final = ("multiprocessors seen", "XQueues never seen")

# From the best to the worst.
_VERDICTS: Final = ("proven", "undecided", "not seen")
assert set(_VERDICTS) == set(get_args(EffectVerdict))


def proof_of(scheduler: str, windows: Sequence[ColocationRecord]) -> WhichProof | None:
    """Return the proof of a case from the records of its windows; None where there is none."""
    given = [window.proof for window in windows if window.proof is not None]
    if not given:
        return None
    names = dict.fromkeys(name for proof in given for name in proof.counts)
    counts = {
        name: _of_windows(name, [proof.counts.get(name, 0) for proof in given]) for name in names
    }
    seen = {proof.effective for proof in given}
    effective = False if False in seen else None if None in seen else True
    # Alone a tenant is before nobody.
    ordered = _by_priority(scheduler) and any(len(window.tenants) > 1 for window in windows)
    priority, why = _priority(given, ordered)
    return WhichProof(
        evidence=given[-1].evidence, effective=effective, counts=counts,
        priority=priority, priority_evidence=why,
    )  # fmt: skip


def _of_windows(name: str, counts: Sequence[int]) -> int:
    return max(counts) if any(each in name for each in _THERE) else sum(counts)


def _priority(proofs: Sequence[ColocationProof], ordered: bool) -> tuple[PriorityProof | None, str]:
    """Return the worst of what the windows' probes found, and its figures or why it is so.

    Args:
        proofs: of the windows.
        ordered: whether probes should have run.

    """
    probed = [proof.priority for proof in proofs if proof.priority is not None]
    if not probed:
        return ("not probed", "no probe ran") if ordered else (None, "")
    missing = len(proofs) - len(probed)
    if missing:
        windows = counted(len(proofs), "window")
        return "not probed", f"no probe ran before {missing} of {windows}"
    worst = max(probed, key=lambda effect: _VERDICTS.index(effect.verdict))
    return worst.verdict, worst.described


def _by_priority(scheduler: str) -> bool:
    try:
        return parse_scheduler(scheduler).declaration.by_priority
    except BadScheduler:  # of a package that is not installed here
        return False
