"""Options read once into settings, and combinations that are refused.

The command line takes precedence over the environment, the environment over the ini file.
"""

from __future__ import annotations

import os
from argparse import SUPPRESS
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.errors import BadInput, shortened
from pytest_hwqueue.settings.options import BY_NAME, OPTIONS, Option, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pytest


def is_distributed(config: pytest.Config) -> bool:
    """Return whether xdist runs the tests in several processes."""
    return bool(config.getoption("dist", "no") != "no")


_RANKS_RUN_ALL = "ranks of torchrun run the same tests, whatever time they take: leave one out"


def check_combinations(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be followed together.

    Raises:
        BadInput: naming both.

    """
    for option, value, valid in _clashes(config, settings):
        if value:
            text = shortened(str(value))
            raise BadInput(f"{option}={text} cannot be followed here: {valid}")


def _clashes(
    config: pytest.Config, settings: Settings
) -> Iterator[tuple[str, str | int | None, str]]:
    """Yield options, their values if they are given, and why they cannot be followed here."""
    distributed = is_distributed(config)
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    ranked = False
    if "RANK" in os.environ:
        from pytest_hwqueue.ranks.launched import launched_rank

        ranked = launched_rank(os.environ) is not None
    if ranked and not hasattr(config, "workerinput"):
        if distributed:
            yield (
                "--dist", str(config.getoption("dist")),
                "the ranks that torchrun has started run the same tests: leave out xdist's -n",
            )  # fmt: skip
        for name in ("compare", "against"):
            yield (
                f"--hwq-{name}", getattr(settings, name),
                "one session decides which cells are measured again: leave out torchrun, and local "
                "ranks are started; or compare stored runs with `hwq compare`",
            )  # fmt: skip
    if settings.budget is not None:
        budget = "--hwq-budget", f"{settings.budget:g}s"
        if ranked:
            yield *budget, _RANKS_RUN_ALL
        if distributed:
            yield *budget, "it is one session's: leave out xdist's -n"
        if settings.against:
            yield *budget, "--hwq-against measures --hwq-pairs of each test: leave one out"
    if settings.cache != "hot" and settings.sync_mode != "per_iteration":
        between = "iterations follow each other at once, with no time to empty the cache between"
        yield "--hwq-cache", settings.cache, f"{between}: leave out --hwq-sync-mode"
    if config.getoption("hwq_setup") and not settings.against:
        yield "--hwq-setup", settings.setup, "it sets up the sides of --hwq-against: give that, too"
    if settings.save_records and not settings.save:
        yield "--hwq-save-records", "yes", "records are kept with a baseline: give --hwq-save"
    if not (distributed or debugged or settings.isolation == "none"):
        return
    out = "leave out " + ("xdist's -n" if distributed else "--hwq-isolation=none, --pdb, --trace")
    from pytest_hwqueue.schedulers.syntax import needs_environment

    serves = "serves one process at a time" if distributed else "needs a process started for it"
    for text in filter(needs_environment, settings.scheduler):
        yield "--hwq-scheduler", text, f"it {serves}: {out}"
    noise = ",".join(settings.noise)
    yield "--hwq-noise", noise, f"noise runs with one worker process only: {out}"
    counted = "runs are counted in one session" if distributed else "each run needs a process"
    for name in ("save", "compare", "against", "runs"):
        value = getattr(settings, name)
        yield f"--hwq-{name}", None if value == 1 else value, f"{counted}: {out}"
    if settings.isolation == "none" and config.getoption("hwq_timeout") is not None:
        ended = "a cell is ended with its process: leave out --hwq-isolation=none"
        yield "--hwq-timeout", f"{settings.timeout:g}", ended


# What judges or stores, and what names cells or the conditions of all: never followed by silence.
_NEED_MEASURING = (
    "compare", "against", "save", "scheduler", "noise", "workload", "priority", "fault",
    "cache",
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest: a command-line option and an ini key for each row.

    `pytest --help` lists the common options, by topic, with one line each.
    """
    group = parser.getgroup("hwqueue", "hardware queues ([default]; more of it: `hwq help`)")
    for option in OPTIONS:
        # Of a list its first entry is enough here.
        how: dict[str, Any] = {"metavar": option.metavar.partition("[")[0]}
        if option.flag:
            how = {"action": "store_const", "const": "yes"}
        elif option.repeatable:
            how["action"] = "append"
        # argparse expands %.
        text = option.line_with(option.default).replace("%", "%%")
        text = SUPPRESS if option.rare else text
        # Without `dest`, pytest compares it with each other's.
        group.addoption(option.command_line, dest=option.key, default=None, help=text, **how)
        parser.addini(option.key, option.help, default=None)


def hide_ini_keys(config: pytest.Config) -> None:
    """Leave the ini keys out of `pytest --help`, where they would repeat the options.

    pytest lists every key it knows, with no public way to leave one out.
    """
    known: dict[str, object] = getattr(config._parser, "_inidict", {})
    for option in OPTIONS:
        known.pop(option.key, None)


def read_settings(config: pytest.Config, environment: Mapping[str, str] | None = None) -> Settings:
    """Read what is given: on the command line, else in the environment, else in the ini file.

    Raises:
        BadOption: naming the source of the refused value, the value, and what is valid.

    """
    values: dict[str, Any] = {}
    for option in OPTIONS:
        source, text = _given(config, option, os.environ if environment is None else environment)
        if text:
            values[option.field] = option.parse(source, text)
    return Settings(**values)


def is_given(config: pytest.Config, name: str) -> bool:
    """Whether an option has a value other than by default."""
    return bool(_given(config, BY_NAME[name], os.environ)[1])


def needs_measuring(config: pytest.Config, settings: Settings) -> list[tuple[str, str]]:
    """Return the options given that a session can only follow if it measures, with their sources.

    The others say how to measure and what to write: with nothing to measure they ask for nothing.
    """
    asked = []
    for name in _NEED_MEASURING:
        source, text = _given(config, BY_NAME[name], os.environ)
        if text and getattr(settings, name) not in (False, "", (), ("native",), "hot"):
            asked.append((name, f"{source}={text}"))
    return asked


def _given(
    config: pytest.Config, option: Option[Any], environment: Mapping[str, str]
) -> tuple[str, str]:
    """Return where an option was given, and its text: empty if nowhere, or to switch it off."""
    given = config.getoption(option.key)
    if given is not None:
        values = given if option.repeatable else [given]
        return option.command_line, "\n".join(values) if values[-1] else ""
    if option.variable in environment:
        return f"environment variable {option.variable}", environment[option.variable]
    text = config.getini(option.key)
    return f"ini key {option.key}", "" if text is None else str(text)
