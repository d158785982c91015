"""Reads names of noises, such as ``none,cpu,heavy``; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path, PurePath

from pytest_hwqueue.errors import BadNoise

NONE = "none"

NOISES = {
    NONE: "nothing beside: what the others are compared with",
    "cpu": "stress-ng computes Fourier transforms on all cores",
    "network": "iperf3 sends 10 parallel streams through the loopback interface",
    "disk": "fio writes blocks of 4 KiB at random places, 4 jobs with 32 in flight each",
    "heavy": "cpu, network and disk at once",
    "optimised": "cpu, with what is measured pinned to some cores and its priority raised",
    "isolated": "optimised, with the neighbours kept off those cores and their hyperthreads",
}


def describe_noises() -> str:
    """Return every noise with what it does, for help texts."""
    built_in = "; ".join(f"{name} ({what})" for name, what in NOISES.items())
    return f"{built_in}; NAME or a path ending in .yaml (a command that the file describes)"


def noise_id(name: str) -> str:
    """Return a noise's part of a test's id."""
    return "quiet" if name == NONE else f"beside-{PurePath(name).stem}"


def seconds_of_a_cell(max_time_s: float) -> int:
    """Return how long neighbours may run for one cell, in seconds.

    The measured pass and its references last twice the measuring time at most; a run that
    outlasts its neighbours is no comparison.
    """
    return 60 + round(3 * max_time_s)


def noise_file(name: str, folder: Path) -> str:
    """Return a name for `opening.open_noise`: a description's file is looked up in ``folder``."""
    return str(folder / name) if name not in NOISES and not Path(name).is_absolute() else name


def parse_noises(text: str) -> tuple[str, ...]:
    """Read comma-separated names of noises, each once; ``none`` always comes first.

    A name that is not built in refers to a description, which `opening.open_noise` looks up.

    Raises:
        BadNoise: if there is no name at all.

    """
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    if not names:
        raise BadNoise(f"give one or more of {', '.join(NOISES)}, or a description's name or file")
    return tuple(dict.fromkeys((NONE, *names)))
