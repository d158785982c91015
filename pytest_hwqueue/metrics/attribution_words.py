"""Formats the causes of a tail as text."""

from __future__ import annotations

import re

from pytest_hwqueue.metrics.attribution import UNEXPLAINED, TailAttribution
from pytest_hwqueue.metrics.delay_evidence import CAUSES

# Names of a vendor's kernels have over 100 characters; what tells them apart is at both ends.
_HEAD, _END = 32, 16
_LONG_WORD = re.compile(rf"\S{{{_HEAD + _END + 1},}}")


def in_words(tail: TailAttribution) -> str:
    """Return the shares in one line: largest first, unexplained last.

    Each cause names its most frequent culprit: "61 % queued behind low's conv2d on stream 7;
    4 % descheduled: gave way to stress-ng-cpu; 35 % unexplained (30 % on the host)".
    """
    explained = [cause for cause in CAUSES if cause in tail.shares and tail.shares[cause].number]
    explained.sort(key=lambda cause: -tail.shares[cause].number)
    parts = []
    for cause in explained:
        behind = " behind" if cause == "queued" else ":"
        named = _LONG_WORD.sub(_shortened, tail.whats[cause][0][0])
        parts.append(f"{tail.shares[cause].share * 100:.0f} % {cause}{behind} {named}")
    places = [
        f"{share.share * 100:.0f} % on the {place}"
        for place, share in (tail.unexplained_in or {}).items()
        if share.number
    ]
    where = f" ({', '.join(places)})" if places else ""
    parts.append(f"{tail.shares[UNEXPLAINED].share * 100:.0f} % {UNEXPLAINED}{where}")
    return "; ".join(parts)


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:_HEAD]}…{word[0][-_END:]}"
