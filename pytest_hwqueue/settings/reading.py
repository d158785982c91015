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
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pytest

    # Returns what an option is called in this place, and its text there: None if it is not given.
    Place = Callable[[Option], tuple[str, str | None]]


def is_distributed(config: pytest.Config) -> bool:
    """Return whether xdist runs the tests in several processes."""
    return bool(config.getoption("dist", "no") != "no")


def check_combinations(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be followed together.

    Raises:
        BadInput: naming both.

    """
    distributed = is_distributed(config)
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    in_process = settings.isolation == "none" or bool(debugged)
    ranked = False
    if "RANK" in os.environ:
        from pytest_hwqueue.ranks.launched import launched_rank

        ranked = launched_rank(os.environ) is not None
    if ranked and not hasattr(config, "workerinput"):
        if distributed:
            valid = "the ranks that torchrun has started run the same tests: leave out xdist's -n"
            raise _combined("--dist", str(config.getoption("dist")), valid)
        _check_ranks(settings)
    if settings.budget is not None:
        _check_budget(settings, f"{settings.budget:g}s", distributed, ranked)
    if settings.save_records and not settings.save:
        raise _combined(
            "--hwq-save-records", "yes", "records are kept with a baseline: give --hwq-save"
        )
    if not (distributed or in_process):
        return
    _check_schedulers(settings, distributed)
    if settings.noise:
        valid = "noise runs with one worker process only: leave out " + (
            "xdist's -n" if distributed else "--hwq-isolation=none, --pdb, --trace"
        )
        raise _combined("--hwq-noise", ",".join(settings.noise), valid)
    _check_runs(settings, distributed)
    if settings.isolation == "none" and config.getoption("hwq_timeout") is not None:
        valid = "a cell is ended with its process: leave out --hwq-isolation=none"
        raise _combined("--hwq-timeout", f"{settings.timeout:g}", valid)


def _check_ranks(settings: Settings) -> None:
    for name, value in (("compare", settings.compare), ("against", settings.against)):
        if value:
            valid = (
                "one session decides which cells are measured again: leave out torchrun, and "
                "local ranks are started; or compare stored runs with `hwq compare`"
            )
            raise _combined(f"--hwq-{name}", value, valid)


def _check_budget(settings: Settings, text: str, distributed: bool, ranked: bool) -> None:
    if ranked:
        valid = "ranks of torchrun run the same tests, whatever time they take: leave one out"
        raise _combined("--hwq-budget", text, valid)
    if distributed:
        raise _combined("--hwq-budget", text, "it is one session's: leave out xdist's -n")
    if settings.against:
        valid = "--hwq-against measures --hwq-pairs of each test: leave one out"
        raise _combined("--hwq-budget", text, valid)


def _check_schedulers(settings: Settings, distributed: bool) -> None:
    from pytest_hwqueue.schedulers.syntax import needs_environment

    for text in filter(needs_environment, settings.scheduler):
        valid = "it needs a process started for it: leave out --hwq-isolation=none, --pdb, --trace"
        if distributed:
            valid = "it serves one process at a time: leave out xdist's -n"
        raise _combined("--hwq-scheduler", text, valid)


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
        raise _combined(option, value, "runs are counted in one session: leave out xdist's -n")
    valid = "each run needs a process: leave out --hwq-isolation=none, --pdb, --trace"
    raise _combined(option, value, valid)


# What judges or stores, and what names cells or the conditions of all: never followed by silence.
_NEED_MEASURING = (
    "compare", "against", "save", "scheduler", "noise", "workload", "priority", "fault",
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
        text = SUPPRESS if option.rare else _line(option)
        # Without `dest`, pytest compares it with each other's.
        group.addoption(option.command_line, dest=option.key, default=None, help=text, **how)
        parser.addini(option.key, option.help, default=None)


def _line(option: Option) -> str:
    """Return an option's line, with its default; argparse expands % in it."""
    default = "" if option.flag or not option.default else f" [{option.default}]"
    return f"{option.line}{default}".replace("%", "%%")


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
    places = _places(config, os.environ if environment is None else environment)
    return read_places(places, OPTIONS)


def read_places(places: Sequence[Place], options: Iterable[Option]) -> Settings:
    """Read what some options are given, in places of which the first binds most.

    Raises:
        BadOption: naming the source of the refused value, the value, and what is valid.

    """
    options = list(options)
    given: dict[str, list[tuple[Option, str, str]]] = {}
    for place in reversed(places):
        for option in options:
            source, text = place(option)
            if text is None:
                continue
            parts = given.setdefault(option.setting, [])
            if not text or not option.part_of:
                parts[:] = [each for each in parts if each[0] is not option]
            if text:
                parts.append((option, source, text))
    values: dict[str, Any] = {}
    for setting, parts in given.items():
        for option, source, text in parts:
            value = option.parse(source, text)
            if option.part_of:
                value = values.get(setting, getattr(Settings(), setting)) | value
            values[setting] = value
    return Settings(**values)


def is_given(config: pytest.Config, name: str) -> bool:
    """Whether an option has a value other than by default."""
    return bool(_given(config, BY_NAME[name])[1])


def needs_measuring(config: pytest.Config, settings: Settings) -> list[tuple[str, str]]:
    """Return the options given that a session can only follow if it measures, with their sources.

    The others say how to measure and what to write: with nothing to measure they ask for nothing.
    """
    asked = []
    for name in _NEED_MEASURING:
        if is_given(config, name) and getattr(settings, name) not in (False, "", (), ("native",)):
            source, text = _given(config, BY_NAME[name])
            asked.append((name, f"{source}={text}"))
    return asked


def _places(config: pytest.Config, environment: Mapping[str, str]) -> list[Place]:
    def typed(option: Option) -> tuple[str, str | None]:
        given = config.getoption(option.key)
        if given is None:
            return option.command_line, None
        values = given if option.repeatable else [given]
        return option.command_line, "\n".join(values) if values[-1] else ""

    def exported(option: Option) -> tuple[str, str | None]:
        return f"environment variable {option.variable}", environment.get(option.variable)

    def filed(option: Option) -> tuple[str, str | None]:
        text = config.getini(option.key)
        return f"ini key {option.key}", None if text is None else str(text)

    return [typed, exported, filed]


def _given(config: pytest.Config, option: Option) -> tuple[str, str]:
    """Return where an option was given, and its text: empty if nowhere, or to switch it off."""
    found = [place(option) for place in _places(config, os.environ)]
    return next(((source, text) for source, text in found if text is not None), ("", ""))


def _combined(option: str, value: str, valid: str) -> BadInput:
    """Return why an option, whose value is valid, cannot be followed together with another."""
    return BadInput(f"{option}={shortened(value)} cannot be followed here: {valid}")
