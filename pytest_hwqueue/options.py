"""Every --hwq-* option, ini key and environment variable in one table, read once into Settings.

An option ``--hwq-max-time`` is also the ini key ``hwq_max_time`` and the environment variable
``HWQ_MAX_TIME``; the command line wins over the environment, the environment over the ini file.
The ``hwq`` command takes the same options without the ``hwq-``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.faults.specification import BadFault, Fault, describe_faults, parse_fault

if TYPE_CHECKING:
    import pytest

MAXIMUM_STREAMS = 1024
DISPATCHES = ("eager", "graph")
SYNC_MODES = ("per_iteration", "end_only", "none")
SIZES = ("auto", "tiny", "small", "full")
PRIORITIES = ("P0", "P1", "P2", "P3")
ISOLATIONS = ("process", "none")
SCHEDULERS = ("native", "stream-priority")


class BadOption(ValueError):
    """An option's value was refused; the text names the option, the value and what is valid."""

    def __init__(self, option: str, value: str, valid: str) -> None:
        self.option, self.value, self.valid = option, value, valid
        super().__init__(f"{option}: {value!r} is not valid; {valid}")


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(option: str, value: str) -> str:
        if value not in choices:
            raise BadOption(option, value, f"choose from {', '.join(choices)}")
        return value

    return parse


def _some_of(*choices: str) -> Callable[[str, str], tuple[str, ...]]:
    def parse(option: str, value: str) -> tuple[str, ...]:
        parts = _split(value)
        for part in parts:
            if part not in choices:
                raise BadOption(option, part, f"choose one or more of {', '.join(choices)}")
        if not parts:
            raise BadOption(option, value, f"choose one or more of {', '.join(choices)}")
        return tuple(dict.fromkeys(parts))

    return parse


def _integer(least: int) -> Callable[[str, str], int]:
    def parse(option: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise BadOption(option, value, f"give a whole number of at least {least}")
        return number

    return parse


def _runs(option: str, value: str) -> int | None:
    return None if value == "auto" else _integer(1)(option, value)


def _seconds(option: str, value: str) -> float:
    text = value[:-1] if value.endswith("s") else value
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise BadOption(option, value, "give seconds greater than 0, such as 20 or 0.5")
    return number


def _streams(option: str, value: str) -> tuple[int, ...] | None:
    if value == "auto":
        return None
    valid = f"give a count from 1 to {MAXIMUM_STREAMS}, a list such as 1,2,4,8, or auto"
    counts = []
    for part in _split(value):
        # The length first: Python refuses to read thousands of digits.
        if not part.isdecimal() or len(part) > 9 or not 1 <= int(part) <= MAXIMUM_STREAMS:
            raise BadOption(option, part, valid)
        counts.append(int(part))
    if not counts:
        raise BadOption(option, value, valid)
    return tuple(dict.fromkeys(counts))


def _device(option: str, value: str) -> str:
    kind, colon, index = value.partition(":")
    indexed = kind in ("cuda", "hip") and (not colon or index.isdecimal())
    simulated = kind == "sim" and bool(index)
    if not indexed and not simulated and value not in ("auto", "cpu", "all"):
        valid = "choose from auto, cpu, cuda, cuda:N, hip, hip:N, all, sim:h200, sim:FILE.yaml"
        raise BadOption(option, value, valid)
    return value


def _parameters(option: str, value: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for line in value.splitlines():
        if not line.strip():
            continue
        name, equals, text = line.partition("=")
        if not equals or not name.strip():
            raise BadOption(option, line, "give NAME=VALUE or WORKLOAD.NAME=VALUE")
        pairs.append((name.strip(), text.strip()))
    return tuple(pairs)


def _faults(option: str, value: str) -> tuple[Fault, ...]:
    faults = []
    for text in value.split():
        try:
            faults.append(parse_fault(text))
        except BadFault as error:
            raise BadOption(option, text, str(error)) from None
    return tuple(faults)


def _noise(option: str, value: str) -> str:
    from pytest_hwqueue.devices.simulated.noise import parse_noise

    try:
        parse_noise(value, 0)
    except ValueError as error:
        raise BadOption(option, value, str(error)) from None
    return value


def _names(_option: str, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_split(value)))


def _path(_option: str, value: str) -> Path | None:
    return Path(value) if value else None


def _flag(option: str, value: str) -> bool:
    lowered = value.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise BadOption(option, value, "give yes or no")


@dataclass(frozen=True)
class Option:
    """One setting: its names derive from ``name``; ``help`` is the documentation users read."""

    name: str
    default: str
    parse: Callable[[str, str], Any]
    metavar: str
    help: str
    repeatable: bool = False
    flag: bool = False

    @property
    def command_line(self) -> str:
        """Such as ``--hwq-max-time``."""
        return f"--hwq-{self.name}"

    @property
    def key(self) -> str:
        """The ini key and the attribute in pytest's options, such as ``hwq_max_time``."""
        return "hwq_" + self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable, such as ``HWQ_MAX_TIME``."""
        return self.key.upper()

    @property
    def field(self) -> str:
        """The field of Settings, such as ``max_time``."""
        return self.name.replace("-", "_")

    @property
    def help_with_default(self) -> str:
        """The help text closed by the default."""
        return f"{self.help} (default: {self.default or 'none'})"


OPTIONS: tuple[Option, ...] = (
    Option(
        "device", "auto", _device, "DEVICE",
        "device to measure: auto (an accelerator if there is one, else the CPU), cpu, cuda[:N], "
        "hip[:N] (N counts the visible devices), all accelerators, or a simulated GPU: sim:h200, "
        "sim:mi300x, sim:FILE.yaml",
    ),
    Option(
        "streams", "auto", _streams, "N[,N...]",
        f"concurrent streams, 1 to {MAXIMUM_STREAMS}: one count, a list to sweep, or auto (the "
        "workload's recommended count; 8 for your own tests)",
    ),
    Option(
        "scheduler", "native", _some_of(*SCHEDULERS), "NAME[,NAME...]",
        "scheduler modes to measure under: native (one priority for all streams), stream-priority "
        "(streams that the workload calls urgent get a higher device priority)",
    ),
    Option(
        "dispatch", "eager", _some_of(*DISPATCHES), "MODE[,MODE...]",
        "how work reaches the queues: eager (every kernel launched from Python), graph (captured "
        "once, replayed; accelerators only)",
    ),
    Option(
        "sync-mode", "per_iteration", _one_of(*SYNC_MODES), "MODE",
        "when the host waits: per_iteration (after each), end_only (once, after the last), none "
        "(never inside the measured window; device events give the times)",
    ),
    Option(
        "size", "auto", _one_of(*SIZES), "SIZE",
        "problem size: tiny (at most about 20 ms an iteration on two CPU cores), small, full; auto "
        "is full on an accelerator and tiny on the CPU",
    ),
    Option(
        "param", "", _parameters, "NAME=VALUE",
        "set a workload's parameter, such as mm_dim=2048 or large_gemm_only.dtype=bf16; repeatable",
        repeatable=True,
    ),
    Option(
        "iterations", "1000", _integer(1), "N",
        "measured iterations per cell, at most; P99 with a 95 % interval needs 368, P99.9 needs "
        "3688",
    ),
    Option("warmup", "10", _integer(0), "N",
           "warm-up iterations, at least; more follow until the time per iteration is stable"),
    Option("max-time", "20", _seconds, "SECONDS",
           "measuring time per cell, at most, in seconds"),
    Option(
        "runs", "auto", _runs, "N",
        "measure every cell in N fresh processes, interleaved: each measures every cell once. auto "
        "is 1",
    ),
    Option("priority", "", lambda o, v: _some_of(*PRIORITIES)(o, v) if v else (), "P0[,P1...]",
           "run only benchmarks with one of these priority marks"),
    Option("workload", "", _names, "NAME[,NAME...]",
           "run only benchmarks of these workloads, by name (see `hwq list`)"),
    Option("seed", "0", _integer(0), "N", "seed of every random choice and of all input data"),
    Option("timeout", "300", _seconds, "SECONDS",
           "time a cell may take in all, in seconds; a cell that hangs is ended and recorded"),
    Option("isolation", "process", _one_of(*ISOLATIONS), "MODE",
           "process: cells run in a worker process, so that a crash, a hang or a device error "
           "costs one cell; none: in pytest's own process (implied by --pdb and --trace)"),
    Option("dir", ".hwqueue", _path, "DIR",
           "folder for records; each cell's is written as soon as it is measured"),
    Option("json", "", _path, "FILE", "write all records of the session to one JSON file"),
    Option("profile", "no", _flag, "",
           "also write a trace of one pass per cell that Perfetto can read", flag=True),
    Option("profile-dir", "hwq-profiles", _path, "DIR", "folder for the traces of --hwq-profile"),
    Option(
        "sim-noise", "", _noise, "NAME=AMPLITUDE,...",
        "noise on a simulated device's kernels, seeded by --hwq-seed or seed=N: session, run, "
        "jitter (each a factor within 1 ± AMPLITUDE), drift (slower per hour), burst (slower for "
        "10 ms in each second), such as run=0.05,jitter=0.1",
    ),
    Option(
        "fault", "", _faults, "NAME[:NUMBER...]",
        "testing aid: plant a fault in every cell, to see that it is caught; its records say so "
        f"and become no baseline; repeatable. {describe_faults()}",
        repeatable=True,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """All settings of a session, checked. Times are in seconds, as the user gave them."""

    device: str
    streams: tuple[int, ...] | None
    scheduler: tuple[str, ...]
    dispatch: tuple[str, ...]
    sync_mode: str
    size: str
    param: tuple[tuple[str, str], ...]
    iterations: int
    warmup: int
    max_time: float
    runs: int | None
    priority: tuple[str, ...]
    workload: tuple[str, ...]
    seed: int
    timeout: float
    isolation: str
    dir: Path
    json: Path | None
    profile: bool
    profile_dir: Path
    sim_noise: str
    fault: tuple[Fault, ...]


def add_options(parser: pytest.Parser) -> None:
    """Register the table with pytest: a command-line option and an ini key for each row."""
    group = parser.getgroup("hwqueue", "hardware queues (pytest-hwqueue)")
    for option in OPTIONS:
        # argparse expands % in help texts.
        text = option.help_with_default.replace("%", "%%")
        if option.flag:
            group.addoption(
                option.command_line, action="store_const", const="yes", default=None, help=text
            )
        elif option.repeatable:
            group.addoption(
                option.command_line, action="append", metavar=option.metavar, default=None,
                help=text,
            )  # fmt: skip
        else:
            group.addoption(option.command_line, metavar=option.metavar, default=None, help=text)
        parser.addini(option.key, option.help_with_default, default=None)


def read_settings(config: pytest.Config, environment: Mapping[str, str] | None = None) -> Settings:
    """Read every option once: command line, then environment, then ini file, then default.

    Raises:
        BadOption: naming where the refused value came from, the value, and what is valid.

    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for option in OPTIONS:
        given = config.getoption(option.key)
        source, text = option.command_line, given
        if option.repeatable and given is not None:
            text = "\n".join(given)
        if text is None and option.variable in environment:
            source, text = f"environment variable {option.variable}", environment[option.variable]
        if text is None:
            text = config.getini(option.key)
            source = f"ini key {option.key}"
        if text is None or text == "":
            source, text = option.command_line, option.default
        values[option.field] = option.parse(source, str(text))
    return Settings(**values)
