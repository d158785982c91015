"""The least effect of each cell: as small as its baseline lets the gate find.

It is fixed by the baseline and the numbers of runs and cells, before a new run is seen, and of
pairs without asking which run of a pair is the new one. Like every minimum effect it only takes
convictions away: each still needs the exact test at the suite's rate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import stdev

from pytest_hwqueue.data.metrics.numbers import counted
from pytest_hwqueue.judge.calibrate import LEAST_RUNS, can_convict, detectable_effect, least_effect
from pytest_hwqueue.judge.runs import ProcessRun, gaps_spread, isolated_pairs, pair_gaps
from pytest_hwqueue.judge.sessions import (
    LEAST_SESSIONS,
    Allowing,
    sound_logs,
    with_session_effect,
)
from pytest_hwqueue.judge.statistics import session_share
from pytest_hwqueue.judge.verdict import (
    GateSettings,
    Quantity,
    percent,
    sd_words,
)

LEAST_EFFECT = 0.01
"""No rise below this is a regression, whatever a baseline shows: three times what sessions of an
H200's quiet cells differ by alone, at most 0.35 % (packaged reference)."""

PROMISED = 0.02
"""A verdict says what keeps it from detecting a rise of this size."""


def cell_settings(
    baselines: Mapping[str, Sequence[ProcessRun]],
    quantities: Mapping[str, Quantity],
    settings: GateSettings,
    cells: int,
    sessionless: Collection[str] = (),
) -> dict[str, Allowing]:
    """Return each cell's settings: its session effect and, with ``own_effects``, its least effect.

    Args:
        baselines: runs by cell, at least one each.
        quantities: of each cell.
        settings: of the gate.
        cells: how many share the error rate.
        sessionless: cells whose sessions cannot differ.
    """
    usual = replace(settings, own_effects=False)
    allowing = with_session_effect(baselines, quantities, usual, sessionless)
    if not settings.own_effects:
        return allowing
    own = with_session_effect(baselines, quantities, settings, sessionless)
    found = {}
    for key, runs in baselines.items():
        values = [(run.value, run.session) for run in runs]
        times = [(run.iteration_ns or math.nan, run.session) for run in runs]
        found[key] = Allowing(
            _sharper(values, allowing[key].main, own[key].main, cells),
            _sharper(times, allowing[key].companion, own[key].companion, cells),
        )
    return found


def _sharper(
    values: Sequence[tuple[float, str]], usual: GateSettings, own: GateSettings, cells: int
) -> GateSettings:
    """Return the settings of a figure with the least effect that its runs let the gate find.

    Where that is not below the usual one, all else is as usual, too.

    Args:
        values: of the runs, with their sessions.
        usual: with the session effect allowed for at the usual least effect.
        own: with that allowed for at one of the cell's own.
        cells: how many share the error rate.
    """
    usual = replace(usual, own_effects=True)
    logs, sessions = sound_logs(values)
    if len(logs) < LEAST_RUNS or not can_convict(len(logs), own.last_look, own, cells):
        return usual
    sd = max(stdev(logs), own.floor)
    # New runs are all of one session.
    share = 1 + session_share(sessions)
    found = least_effect(sd, len(logs), own, cells, session_share=share)
    return _limited(found, own) if found < usual.min_effect else usual


def of_pairs(
    x: Sequence[float], y: Sequence[float], settings: GateSettings, cells: int
) -> GateSettings:
    """Return settings with the least effect that pairs of runs let the gate find.

    The noise is what the sizes of the pairs' differences leave of it, whichever run is the new one.

    Args:
        x: shape (P,), P >= 2, figures of one run of each pair.
        y: shape (P,), of the other.
        settings: of the gate for all pairs to come, in one look.
        cells: how many share the error rate.
    """
    pairs = settings.last_look
    if not settings.own_effects or not can_convict(pairs, pairs, settings, cells):
        return settings
    if not all(math.isfinite(value) and value > 0 for value in (*x, *y)):
        return settings
    old, new = ([math.log(value) for value in side] for side in (x, y))
    wild = isolated_pairs(old, new)
    gaps = [gap for i, gap in enumerate(pair_gaps(old, new)) if i not in wild]
    sd = max(gaps_spread(gaps), settings.floor)
    return _limited(least_effect(sd, pairs, settings, cells), settings)


def _limited(effect: float, settings: GateSettings) -> GateSettings:
    return replace(settings, min_effect=min(max(effect, LEAST_EFFECT), settings.min_effect))


def limit_of(
    detectable: float | None,
    sd: float,
    runs: Sequence[ProcessRun],
    quantity: Quantity,
    settings: GateSettings,
    cells: int,
) -> str:
    """Say what keeps a cell from detecting a worsening of 2 %; empty if it does, or nobody asked.

    Args:
        detectable: the least worsening that it detects; None if it detects none.
        sd: standard deviation between runs of the figure's logarithm.
        runs: the baseline's.
        quantity: what their values are.
        settings: of the cell.
        cells: how many share the error rate.
    """
    if not settings.own_effects or detectable is None or detectable <= PROMISED:
        return ""
    sessions = [run.session for run in runs]
    number = len(set(sessions))
    if settings.allows_for_sessions and number < LEAST_SESSIONS:
        shown = "do not show" if number > 1 else "does not show"
        why = f"{counted(number, 'session')} {shown} how sessions differ, {LEAST_SESSIONS} do"
    elif settings.tau and _without_sessions(sd, len(runs), settings, cells) <= PROMISED:
        why = f"sessions may differ by {100 * settings.tau:.2g} % (tau)"
    else:
        counts = f"K={len(runs)}, T={settings.last_look}"
        why = f"{_sd(sd, settings)}, {counts}"
    return _beyond(quantity, why)


def limit_of_pairs(
    detectable: float | None, sd: float, quantity: Quantity, settings: GateSettings
) -> str:
    """Say the same of a cell measured in the settings' pairs."""
    if not settings.own_effects or detectable is None or detectable <= PROMISED:
        return ""
    return _beyond(quantity, f"{_sd(sd, settings)}, P={settings.pairs}")


def _without_sessions(sd: float, runs: int, settings: GateSettings, cells: int) -> float:
    alike = replace(settings, tau=0.0, min_effect=LEAST_EFFECT)
    return detectable_effect(sd, runs, alike, cells)


def _sd(sd: float, settings: GateSettings) -> str:
    return f"sd {sd_words(sd, is_floor=sd <= settings.floor)}"


def _beyond(quantity: Quantity, why: str) -> str:
    own = PROMISED if quantity.higher_is_worse else 1 / (1 + PROMISED) - 1
    return f"cannot detect {percent(own)}: {why}"
