"""Selects the tests that measure: the requested ones, without those that cannot run."""

from __future__ import annotations

import pytest

from pytest_hwqueue.errors import BadExtension, BadOption, BadParameter, UnknownWorkload
from pytest_hwqueue.plugin.cell_settings import check_parameters
from pytest_hwqueue.plugin.checks import refusal
from pytest_hwqueue.plugin.ranks_needed import workload_of
from pytest_hwqueue.plugin.state import REFUSED, SETTINGS, isolates
from pytest_hwqueue.plugin.worker.scheduler_services import grouped
from pytest_hwqueue.reports.mirror import claims_benchmark
from pytest_hwqueue.settings.options import Settings
from pytest_hwqueue.workloads.registry import declaration, workload_class


def select(config: pytest.Config, items: list[pytest.Item], measuring: list[pytest.Item]) -> None:
    """Keep what --hwq-priority and --hwq-workload select; mark what cannot run as skipped.

    Tests that need a worker under the same scheduler are grouped: each change starts a worker.

    Raises:
        pytest.UsageError: if a requested workload or a scheduler's description does not exist.

    """
    settings = config.stash[SETTINGS]
    if isolates(config):
        own = set(measuring)
        measuring = grouped(measuring)
        following = iter(measuring)
        items[:] = [next(following) if item in own else item for item in items]
    for name in settings.workload:
        try:
            declaration(name)
        except (UnknownWorkload, BadExtension) as error:
            raise pytest.UsageError(f"--hwq-workload: {error}") from None
    if settings.workload or settings.priority:
        kept = [item for item in measuring if _is_asked_for(item, settings)]
        # Tests that measure nothing are not asked for either.
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    for item in measuring:
        if isolates(config):
            claims_benchmark(item)
        reason = refusal(item)
        if reason is not None:
            item.stash[REFUSED] = reason
            item.add_marker(pytest.mark.skip(reason=reason))


def refuse_impossible(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse bad parameters, and a session in which nothing requested can be measured.

    Raises:
        pytest.UsageError: with every reason.

    """
    settings = config.stash[SETTINGS]
    if all(REFUSED in item.stash for item in items):
        reasons = dict.fromkeys(item.stash[REFUSED] for item in items)
        raise pytest.UsageError("nothing to measure: " + "; ".join(reasons))
    if settings.param:
        names = dict.fromkeys(f.name for item in items if (f := workload_of(item)) is not None)
        try:
            check_parameters(settings, [workload_class(name) for name in names])
        except (BadOption, BadParameter) as error:
            raise pytest.UsageError(str(error)) from None


def _is_asked_for(item: pytest.Item, settings: Settings) -> bool:
    found = workload_of(item)
    if settings.workload and (found is None or found.name not in settings.workload):
        return False
    marks = {mark.name for mark in item.iter_markers()}
    return not settings.priority or not marks.isdisjoint(settings.priority)
