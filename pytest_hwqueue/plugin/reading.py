"""Options read once into settings, and combinations that are refused.

The command line takes precedence over the environment, the environment over the ini file.
"""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput, BadOption, HwqError, shortened
from pytest_hwqueue.options.options import BY_NAME, OPTIONS, Option, Settings


@contextmanager
def wrong_usage(place: str = "", *others: type[Exception]) -> Iterator[None]:
    """Let our errors be pytest's of wrong usage, which it prints without a traceback.

    Args:
        place: begins their text, such as an option.
        others: exceptions that mean the same here.

    Raises:
        pytest.UsageError: for those, with their text.

    """
    caught: tuple[type[Exception], ...] = (HwqError, *others)
    try:
        yield
    except caught as error:
        raise pytest.UsageError(f"{place}: {error}" if place else str(error)) from None


def is_distributed(config: pytest.Config) -> bool:
    """Return whether xdist runs the tests in several processes."""
    return bool(config.getoption("dist", "no") != "no")


def check_combinations(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be followed together.

    Raises:
        BadInput: naming both.

    """
    _refuse_first(_CLASHES, config, settings)


def check_ranked(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that ranks started by a launcher cannot follow.

    Raises:
        BadInput: naming the option.

    """
    _refuse_first(_CLASHES_OF_RANKS, config, settings)


_OfSession = Callable[[pytest.Config, Settings], object]
# When an option cannot be followed, its name, its value (nothing if it is not given), and why not,
# with what to do.
_Clash = tuple[_OfSession, str, _OfSession, str]


def _refuse_first(clashes: Sequence[_Clash], config: pytest.Config, settings: Settings) -> None:
    for when, option, value_of, valid in clashes:
        if when(config, settings) and (value := value_of(config, settings)):
            text = shortened(str(value))
            raise BadInput(f"{option}={text} cannot be followed here: {valid}")


def _always(config: pytest.Config, settings: Settings) -> bool:
    return True


def _distributed(config: pytest.Config, settings: Settings) -> bool:
    return is_distributed(config)


def _in_process(config: pytest.Config, settings: Settings) -> bool:
    debugged = config.getoption("usepdb", False) or config.getoption("trace", False)
    return bool(debugged) or settings.isolation == "none"


def _budget(config: pytest.Config, settings: Settings) -> str:
    return "" if settings.budget is None else f"{settings.budget:g}s"


def _scheduler(config: pytest.Config, settings: Settings) -> str:
    from pytest_hwqueue.parts.schedulers.syntax import needs_environment

    return next(filter(needs_environment, settings.scheduler), "")


def _noise(config: pytest.Config, settings: Settings) -> str:
    return ",".join(settings.noise)


def _text(name: str) -> _OfSession:
    """Return what returns a setting's value."""
    return lambda config, settings: getattr(settings, name)


def _several_runs(config: pytest.Config, settings: Settings) -> int | None:
    return None if settings.runs == 1 else settings.runs


# What counts runs, each in a process of its own.
_COUNTED = (
    ("--hwq-save", _text("save")),
    ("--hwq-compare", _text("compare")),
    ("--hwq-against", _text("against")),
    ("--hwq-runs", _several_runs),
)
_NO_XDIST = "leave out xdist's -n"
_NO_DEBUGGER = "leave out --hwq-isolation=none, --pdb, --trace"

# The first that holds is said.
_CLASHES: tuple[_Clash, ...] = (
    (_distributed, "--hwq-budget", _budget, f"it is one session's: {_NO_XDIST}"),
    (
        _text("against"), "--hwq-budget", _budget,
        "--hwq-against measures --hwq-pairs of each test: leave one out",
    ),
    (
        lambda config, settings: settings.cache != "hot",
        "--hwq-cache",
        lambda config, settings: settings.sync_mode != "per_iteration" and settings.cache,
        "iterations follow each other at once, with no time to empty the cache between: leave out "
        "--hwq-sync-mode",
    ),
    (
        lambda config, settings: not settings.against and config.getoption("hwq_setup"),
        "--hwq-setup", _text("setup"),
        "it sets up the sides of --hwq-against: give that, too",
    ),
    (
        lambda config, settings: settings.save_records and not settings.save,
        "--hwq-save-records", lambda config, settings: "yes",
        "records are kept with a baseline: give --hwq-save",
    ),
    (
        _distributed, "--hwq-scheduler", _scheduler,
        f"it serves one process at a time: {_NO_XDIST}",
    ),
    (
        _distributed, "--hwq-noise", _noise,
        f"noise runs with one worker process only: {_NO_XDIST}",
    ),
    *(
        (_distributed, option, value, f"runs are counted in one session: {_NO_XDIST}")
        for option, value in _COUNTED
    ),
    (
        _in_process, "--hwq-scheduler", _scheduler,
        f"it needs a process started for it: {_NO_DEBUGGER}",
    ),
    (
        _in_process, "--hwq-noise", _noise,
        f"noise runs with one worker process only: {_NO_DEBUGGER}",
    ),
    *(
        (_in_process, option, value, f"each run needs a process: {_NO_DEBUGGER}")
        for option, value in _COUNTED
    ),
    (
        lambda config, settings: settings.isolation == "none",
        "--hwq-timeout",
        lambda config, settings: (
            "" if config.getoption("hwq_timeout") is None else f"{settings.timeout:g}"
        ),
        "a cell is ended with its process: leave out --hwq-isolation=none",
    ),
)  # fmt: skip

_ONE_DECIDES = (
    "one session decides which cells are measured again: leave out torchrun, and local ranks are "
    "started; or compare stored runs with `hwq compare`"
)
_CLASHES_OF_RANKS: tuple[_Clash, ...] = (
    (
        _always, "-n",
        lambda config, settings: getattr(config, "workerinput", {}).get("workercount"),
        "the ranks that torchrun has started run the same tests: leave out xdist's -n",
    ),
    (_always, "--hwq-compare", _text("compare"), _ONE_DECIDES),
    (_always, "--hwq-against", _text("against"), _ONE_DECIDES),
    (
        _always, "--hwq-budget", _budget,
        "ranks of torchrun run the same tests, whatever time they take: leave one out",
    ),
)  # fmt: skip


# What judges or stores, and what names cells or the conditions of all: never followed by silence.
_NEED_MEASURING = (
    "compare", "against", "save", "scheduler", "noise", "workload", "priority", "fault",
    "cache",
)  # fmt: skip


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest: a command-line option and an ini key for each row.

    `pytest --help` lists the common options, by topic, and all keys, with one line each.
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
        parser.addini(option.key, option.line, default=None)


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


def refuse_unknown(config: pytest.Config, settings: Settings) -> None:
    """Refuse a device's model or a baseline that the command line names and nobody knows.

    Tests are collected after this, which may take as long as their imports do. What is named
    elsewhere asks for nothing in a session without measuring tests.

    Raises:
        pytest.UsageError: naming the option, and what there is.

    """
    from pytest_hwqueue.data.records.kinds import capabilities_of

    given = config.getoption(BY_NAME["device"].key)
    if given and capabilities_of(settings.device).simulated:
        # Its profile is read by what a session that measures nothing need not import.
        from pytest_hwqueue.parts.devices.simulated.profile import modelled_variable

        with wrong_usage("--hwq-device"):
            modelled_variable(settings.device)
    # What torchrun's ranks compare with is refused whatever it is.
    if "WORLD_SIZE" in os.environ or settings.save == settings.compare:
        return
    if not config.getoption(BY_NAME["compare"].key):
        return
    from pytest_hwqueue.judge.baselines.folders import packaged_folder
    from pytest_hwqueue.judge.baselines.store import Store
    from pytest_hwqueue.judge.stored import load_named

    folder = config.invocation_params.dir
    store = Store(folder / settings.baselines, packaged_folder())
    if not (store.devices_with(settings.compare) or Path(settings.compare).exists()):
        with wrong_usage("--hwq-compare"):
            load_named(settings.compare, store)


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
    try:
        value = config.getini(option.key)
    except (pytest.UsageError, TypeError):
        # pytest 9 keeps the types of [tool.pytest] and pytest.toml, and wants an ini key to have
        # one type. Ours take a number, a list or a word.
        value = _typed(config, option)
    return f"ini key {option.key}", "" if value is None else _as_text(option, value)


def _typed(config: pytest.Config, option: Option[Any]) -> object:
    """Return an ini key's value as the file of pytest's typed configuration holds it."""
    # pytest needs tomli where Python has no reader of its own.
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    assert config.inipath is not None
    content = toml.loads(config.inipath.read_text(encoding="utf-8"))
    table: dict[str, object] = content.get("pytest") or content["tool"]["pytest"]
    return table[option.key]


def _as_text(option: Option[Any], value: object) -> str:
    """Return a typed value as the command line would spell it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) and (option.flag or not value):
        return "yes" if value else ""
    parts = value if isinstance(value, list) else [value]
    if not all(
        isinstance(part, (str, int, float)) and not isinstance(part, bool) for part in parts
    ):
        raise BadOption(
            f"ini key {option.key}", str(value), "give text, a number, or a list of them"
        )
    return ("\n" if option.repeatable else ",").join(map(str, parts))
