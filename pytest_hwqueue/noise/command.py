"""A user's own neighbour: any command, described in a YAML file."""

from __future__ import annotations

import re
import shutil
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from pytest_hwqueue.errors import BadDescription, BadNoise
from pytest_hwqueue.noise.names import NOISES
from pytest_hwqueue.noise.neighbour import NeighbourOrder, NeighbourProgram, NeighbourRound
from pytest_hwqueue.noise.programs import run_program
from pytest_hwqueue.schedulers.description_file import (
    described_in,
    find_description,
    read_description,
)
from pytest_hwqueue.schedulers.preload_file import ServiceDescription

_PLACEHOLDER = re.compile(r"\{(seconds|cores|scratch|folder)\}")

# Of one core: less than that is what a sleeping program uses.
_LEAST_OF_A_CORE = 0.01


class NoiseDescription(ServiceDescription):
    """A command that loads the machine.

    ``command`` and the values of ``environment`` may contain ``{seconds}`` (after which it must end
    by itself), ``{cores}`` (how many it may use), ``{scratch}`` (its own folder, next to its log,
    removed afterwards) and ``{folder}`` (the folder of the description).
    """

    install: str = Field("", description="how to install the program")


class DescribedCommand:
    """A described command.

    Args:
        name: of the noise.
        file: of the description.
        description: its contents.

    """

    notes: Sequence[str] = ()

    def __init__(self, name: str, file: Path, description: NoiseDescription) -> None:
        self.name = name
        self._folder = file.parent.resolve()
        self._description = description

    def unavailable(self) -> str | None:
        """Return that its program is missing, with the description's hint, or None."""
        if shutil.which(self._program()) is not None:
            return None
        hint = f"; {self._description.install}" if self._description.install else ""
        return f"{self._program()} is no program that can be run{hint}"

    def version(self) -> None:
        """Return None: not every program reports a version."""

    @contextmanager
    def running(self, order: NeighbourOrder) -> Iterator[Sequence[NeighbourProgram]]:
        """Run the command; if the description says how to detect readiness, wait for it."""
        values = {
            "seconds": str(order.seconds),
            "cores": str(len(order.cores)),
            "scratch": str(order.logs.resolve() / f"scratch-{uuid.uuid4().hex}"),
            "folder": str(self._folder),
        }
        described = self._description
        command = [self._program(), *(_filled(each, values) for each in described.command[1:])]
        environment = {name: _filled(text, values) for name, text in described.environment.items()}
        with run_program(
            Path(self._program()).name, command, order, folder=Path(values["scratch"]),
            stop=signal.Signals[f"SIG{described.stop}"], environment=environment,
        ) as started:  # fmt: skip
            ready, log = described.ready, started.service.log
            if ready is not None:
                started.service.wait_until(
                    lambda: re.search(ready, _read(log), re.MULTILINE) is not None,
                    f"wrote nothing that matches {ready!r}",
                )
            yield [started]

    def shortfall(self, round_: NeighbourRound) -> str | None:
        """Judge by whether its processes did anything at all; what they load is unknown."""
        done = round_.done
        if done.on_cpu_s is None:
            return "what its processes did cannot be read from /proc"
        of_a_core = (done.on_cpu_s + (done.waiting_s or 0.0)) / round_.duration_s
        if of_a_core < _LEAST_OF_A_CORE:
            return f"its processes used {of_a_core:.2%} of a core, as if they slept"
        return None

    def _program(self) -> str:
        first = self._description.command[0]
        return str(self._folder / first) if "/" in first else first


def load(name: str, folders: Sequence[Path]) -> DescribedCommand:
    """Find a description by name in ``folders`` or by path, and read it.

    Raises:
        BadNoise: if there is none, or if it is wrong, naming the file and the field.

    """
    file = find_description(name, folders)
    if file is None:
        there_are = ", ".join([*NOISES, *described_in(folders)])
        raise BadNoise(
            f"there is no noise {name!r}; there are {there_are}, or give the path of a description"
        )
    try:
        return DescribedCommand(name, file, read_description(file, NoiseDescription))
    except BadDescription as error:
        raise BadNoise(str(error)) from None


def _filled(text: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
