"""Reads names of noises, such as ``none,cpu,heavy``; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.data.extensions import Registry, origin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NONE = "none"


class NoiseDeclaration(NamedTuple):
    """A noise before it is opened: its help text, and what it is made of.

    ``parts`` are neighbours of `noise.neighbours`. Instead of them another package's has a
    ``factory``: the ``module:function`` that takes `NoisePlaces` and returns a `Noise`.
    """

    help: str
    parts: tuple[str, ...] = ()
    remedy: Literal["pinned", "isolated"] | None = None
    factory: str = ""


def _adopt(point: EntryPoint, found: Any) -> NoiseDeclaration:
    """Declare another package's factory; the first line of its docstring is the help."""
    if not callable(found):
        raise BadInput(f"{origin(point)} names {found!r}, which is no function")
    help_line = (found.__doc__ or point.value).partition("\n")[0]
    return NoiseDeclaration(help_line, factory=point.value)


# A package adds one by the entry point ``NAME = "module:function"``.
NOISES = Registry(
    "pytest_hwqueue.noises",
    {
        NONE: NoiseDeclaration("no load: the reference for the others"),
        "cpu": NoiseDeclaration("stress-ng computes Fourier transforms on all cores", ("cpu",)),
        "network": NoiseDeclaration(
            "iperf3 sends 10 parallel streams through the loopback interface", ("network",)
        ),
        "disk": NoiseDeclaration(
            "fio writes blocks of 4 KiB at random places, 4 jobs with 32 in flight each", ("disk",)
        ),
        "heavy": NoiseDeclaration("cpu, network and disk at once", ("cpu", "network", "disk")),
        "optimised": NoiseDeclaration(
            "cpu, with the measured process pinned to some cores and its priority raised",
            ("cpu",), "pinned",
        ),
        "isolated": NoiseDeclaration(
            "optimised, with the neighbours kept off those cores and their hyperthreads",
            ("cpu",), "isolated",
        ),
    },
    _adopt,
)  # fmt: skip


def describe_noises() -> dict[str, str]:
    """Return what every built-in noise is, by name."""
    return {name: each.help for name, each in NOISES.built_in.items()} | {
        "FILE.yaml": "a command that the file describes"
    }


def noise_id(name: str) -> str:
    """Return a noise's part of a test's id."""
    return "quiet" if name == NONE else f"beside-{PurePath(name).stem}"


def seconds_of_a_cell(max_time_s: float) -> int:
    """Return how long neighbours may run for one cell, in seconds.

    The measured pass and its references last at most twice the measuring time; a run that outlasts
    its neighbours cannot be compared.
    """
    return 60 + round(3 * max_time_s)


def noise_file(name: str, folder: Path) -> str:
    """Return a name for `open_noise`: a description's file is looked up in ``folder``."""
    return str(folder / name) if name not in NOISES and not Path(name).is_absolute() else name


def parse_noises(text: str) -> tuple[str, ...]:
    """Read comma-separated names of noises, each once; ``none`` always comes first.

    A name that is not built in refers to a description, which `neighbours.open_noise` looks up.

    Raises:
        BadInput: if there is no name at all.

    """
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise BadInput(f"give one or more of {', '.join(NOISES)}, or a description's name or file")
    return tuple(dict.fromkeys((NONE, *names)))
