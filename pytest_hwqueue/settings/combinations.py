"""Refuses options that cannot be followed together."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.ranks.launched import launched_rank
from pytest_hwqueue.schedulers.syntax import needs_environment

if TYPE_CHECKING:
    import pytest

    from pytest_hwqueue.settings.options import Settings


def check_combinations(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be followed together.

    Raises:
        BadOption: naming both.

    """
    distributed = config.getoption("dist", "no") != "no"
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    in_process = settings.isolation == "none" or bool(debugged)
    ranked = launched_rank(os.environ) is not None
    if ranked and not hasattr(config, "workerinput"):
        if distributed:
            valid = "the ranks that torchrun has started run the same tests: leave out xdist's -n"
            raise BadOption("--dist", str(config.getoption("dist")), valid)
        _check_ranks(settings)
    if settings.budget is not None:
        _check_budget(settings, f"{settings.budget:g}s", distributed, ranked)
    _check_schedulers(settings, distributed, in_process)
    if settings.noise and (distributed or in_process):
        valid = "noise runs with one worker process only: leave out " + (
            "xdist's -n" if distributed else "--hwq-isolation=none, --pdb, --trace"
        )
        raise BadOption("--hwq-noise", ",".join(settings.noise), valid)
    _check_runs(settings, distributed, in_process)


def _check_ranks(settings: Settings) -> None:
    for name, value in (("compare", settings.compare), ("against", settings.against)):
        if value:
            valid = (
                "one session decides which cells are measured again: leave out torchrun, and "
                "local ranks are started; or compare stored runs with `hwq compare`"
            )
            raise BadOption(f"--hwq-{name}", value, valid)


def _check_budget(settings: Settings, text: str, distributed: bool, ranked: bool) -> None:
    if ranked:
        valid = "ranks of torchrun run the same tests, whatever time they take: leave one out"
        raise BadOption("--hwq-budget", text, valid)
    if distributed:
        raise BadOption("--hwq-budget", text, "it is one session's: leave out xdist's -n")
    if settings.against:
        valid = "--hwq-against measures --hwq-pairs of each test: leave one out"
        raise BadOption("--hwq-budget", text, valid)


def _check_schedulers(settings: Settings, distributed: bool, in_process: bool) -> None:
    for text in filter(needs_environment, settings.scheduler):
        if distributed:
            valid = "it serves one process at a time: leave out xdist's -n"
            raise BadOption("--hwq-scheduler", text, valid)
        if in_process:
            valid = (
                "it needs a process started for it: leave out --hwq-isolation=none, --pdb, --trace"
            )
            raise BadOption("--hwq-scheduler", text, valid)


def _check_runs(settings: Settings, distributed: bool, in_process: bool) -> None:
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
        raise BadOption(option, value, "runs are counted in one session: leave out xdist's -n")
    if in_process:
        raise BadOption(
            option,
            value,
            "each run needs a process: leave out --hwq-isolation=none, --pdb, --trace",
        )
