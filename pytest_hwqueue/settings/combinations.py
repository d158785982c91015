"""Refuses options that cannot be followed together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_hwqueue.errors import BadCombination

if TYPE_CHECKING:
    import pytest

    from pytest_hwqueue.settings.options import Settings


def check_combinations(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be followed together.

    Raises:
        BadCombination: naming both.

    """
    distributed = config.getoption("dist", "no") != "no"
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    in_process = settings.isolation == "none" or bool(debugged)
    ranked = False
    if "RANK" in os.environ:
        from pytest_hwqueue.ranks.launched import launched_rank

        ranked = launched_rank(os.environ) is not None
    if ranked and not hasattr(config, "workerinput"):
        if distributed:
            valid = "the ranks that torchrun has started run the same tests: leave out xdist's -n"
            raise BadCombination("--dist", str(config.getoption("dist")), valid)
        _check_ranks(settings)
    if settings.budget is not None:
        _check_budget(settings, f"{settings.budget:g}s", distributed, ranked)
    if settings.save_records and not settings.save:
        raise BadCombination(
            "--hwq-save-records", "yes", "records are kept with a baseline: give --hwq-save"
        )
    if not (distributed or in_process):
        return
    _check_schedulers(settings, distributed)
    if settings.noise:
        valid = "noise runs with one worker process only: leave out " + (
            "xdist's -n" if distributed else "--hwq-isolation=none, --pdb, --trace"
        )
        raise BadCombination("--hwq-noise", ",".join(settings.noise), valid)
    _check_runs(settings, distributed)
    if settings.isolation == "none" and config.getoption("hwq_timeout") is not None:
        valid = "a cell is ended with its process: leave out --hwq-isolation=none"
        raise BadCombination("--hwq-timeout", f"{settings.timeout:g}", valid)


def _check_ranks(settings: Settings) -> None:
    for name, value in (("compare", settings.compare), ("against", settings.against)):
        if value:
            valid = (
                "one session decides which cells are measured again: leave out torchrun, and "
                "local ranks are started; or compare stored runs with `hwq compare`"
            )
            raise BadCombination(f"--hwq-{name}", value, valid)


def _check_budget(settings: Settings, text: str, distributed: bool, ranked: bool) -> None:
    if ranked:
        valid = "ranks of torchrun run the same tests, whatever time they take: leave one out"
        raise BadCombination("--hwq-budget", text, valid)
    if distributed:
        raise BadCombination("--hwq-budget", text, "it is one session's: leave out xdist's -n")
    if settings.against:
        valid = "--hwq-against measures --hwq-pairs of each test: leave one out"
        raise BadCombination("--hwq-budget", text, valid)


def _check_schedulers(settings: Settings, distributed: bool) -> None:
    from pytest_hwqueue.schedulers.syntax import needs_environment

    for text in filter(needs_environment, settings.scheduler):
        valid = "it needs a process started for it: leave out --hwq-isolation=none, --pdb, --trace"
        if distributed:
            valid = "it serves one process at a time: leave out xdist's -n"
        raise BadCombination("--hwq-scheduler", text, valid)


def _check_runs(settings: Settings, distributed: bool) -> None:
    asked = [
        (f"--hwq-{name}", str(value))
        for name, value in (
            ("save", settings.save), ("compare", settings.compare),
            ("against", settings.against), ("runs", settings.runs),
        )
        if value not in ("", None, 1)
    ]  # fmt: skip
    if not asked:
        return
    option, value = asked[0]
    if distributed:
        raise BadCombination(option, value, "runs are counted in one session: leave out xdist's -n")
    valid = "each run needs a process: leave out --hwq-isolation=none, --pdb, --trace"
    raise BadCombination(option, value, valid)
