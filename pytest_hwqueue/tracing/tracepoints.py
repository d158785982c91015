"""The kernel's tracepoints: their numbers and field layouts, read from tracefs.

If tracefs is not mounted, a short-lived process mounts it in its own mount namespace, so nothing on
the machine changes.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PLACES = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))

SCHED_SWITCH = "sched/sched_switch"
SCHED_WAKEUP = "sched/sched_wakeup"
# The timer's tick and other CPUs' calls are under irq_vectors on x86; Arm has its calls under ipi
# and its tick among the devices' interrupts. irq_work cannot be sampled: perf itself uses it.
_PATTERNS = (
    SCHED_SWITCH,
    SCHED_WAKEUP,
    "irq/irq_handler_entry",
    "irq/irq_handler_exit",
    "irq/softirq_entry",
    "irq/softirq_exit",
    "irq_vectors/*_entry",
    "irq_vectors/*_exit",
    "ipi/ipi_entry",
    "ipi/ipi_exit",
)
_NOT_SAMPLED = "irq_vectors/irq_work_"

_FIELD = re.compile(r"field:(?P<declared>[^;]+);\s*offset:(\d+);\s*size:(\d+);\s*signed:(\d);")
_BRACKETS = re.compile(r"\[\w*\]")
_SYMBOL = re.compile(r'\{ (\d+), "(\w+)" \}')
_SIZES = {1: "b", 2: "h", 4: "i", 8: "q"}


class NoTracepoints(Exception):
    """Tracepoints cannot be read here; the text says why."""


@dataclass(frozen=True)
class Tracepoint:
    """One tracepoint.

    Attributes:
        name: with its group, such as "sched/sched_switch".
        number: what perf_event_open(2) takes as ``config``.
        fields: by name, the offset in a record and the format of `struct` of its value.
        symbols: names of the values of its one symbolic field, such as the softirqs'.

    """

    name: str
    number: int
    fields: Mapping[str, tuple[int, str]]
    symbols: Mapping[int, str]

    def value(self, raw: bytes, field: str) -> int:
        """Return a numeric field of a record."""
        offset, layout = self.fields[field]
        return int(struct.unpack_from(layout, raw, offset)[0])

    def text(self, raw: bytes, field: str) -> str:
        """Return a text field of a record, of fixed length or a __data_loc."""
        offset, layout = self.fields[field]
        if layout.endswith("s"):
            content: bytes = struct.unpack_from(layout, raw, offset)[0]
        else:
            # The upper half is the length, the lower half the offset.
            place = self.value(raw, field) & 0xFFFFFFFF
            content = raw[place & 0xFFFF : (place & 0xFFFF) + (place >> 16)]
        return content.split(b"\0")[0].decode(errors="replace")


def read_tracepoints() -> dict[str, Tracepoint]:
    """Return the tracepoints of switches, wake-ups and interrupts that this kernel has, by name.

    Raises:
        NoTracepoints: without permission to read tracefs or to mount it.

    """
    for place in PLACES:
        if (place / "events" / SCHED_SWITCH / "format").is_file():
            return _parse_all(_formats(place))
    return _parse_all(_formats_in_own_namespace())


def parse(name: str, text: str) -> Tracepoint:
    """Read a tracepoint's file ``format``.

    Raises:
        NoTracepoints: if it has no number.

    """
    number = re.search(r"^ID: (\d+)$", text, re.MULTILINE)
    if number is None:
        raise NoTracepoints(f"the format of tracepoint {name} has no number: {text[:80]!r}")
    fields = {}
    for declared, offset, size, signed in _FIELD.findall(text):
        field = _BRACKETS.sub("", declared).split()[-1]
        if declared.startswith("char ") and "[" in declared:
            layout = f"{size}s"
        else:
            letter = _SIZES.get(int(size), f"{size}s")
            layout = "=" + (letter if int(signed) else letter.upper())
        fields[field] = (int(offset), layout)
    symbols = {int(value): symbol for value, symbol in _SYMBOL.findall(text)}
    return Tracepoint(name, int(number.group(1)), fields, symbols)


def _parse_all(formats: Mapping[str, str]) -> dict[str, Tracepoint]:
    return {
        name: parse(name, text)
        for name, text in formats.items()
        if not name.startswith(_NOT_SAMPLED)
    }


def _formats(place: Path) -> dict[str, str]:
    events = place / "events"
    try:
        return {
            f"{folder.parent.name}/{folder.name}": (folder / "format").read_text()
            for pattern in _PATTERNS
            for folder in sorted(events.glob(pattern))
        }
    except OSError as error:
        raise NoTracepoints(f"tracefs cannot be read: {error}") from error


def _formats_in_own_namespace() -> dict[str, str]:
    files = " ".join(f"events/{pattern}/format" for pattern in _PATTERNS)
    # A pattern without a match stays as it is, and no such file is there.
    script = (
        f"mount -t tracefs none {PLACES[0]} && cd {PLACES[0]} && "
        f'for f in {files}; do [ -f $f ] && echo "FILE $f" && cat $f; done; true'
    )
    try:
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoTracepoints(f"tracefs is not mounted, and cannot be for us: {error}") from error
    if done.returncode != 0 or not done.stdout:
        raise NoTracepoints(
            f"tracefs is not mounted, and cannot be for us: {done.stderr.strip()}; "
            f"`mount -t tracefs none {PLACES[0]}` as root"
        )
    found = {}
    for part in done.stdout.split("FILE ")[1:]:
        path, _, text = part.partition("\n")
        found[path.removeprefix("events/").removesuffix("/format")] = text
    return found
