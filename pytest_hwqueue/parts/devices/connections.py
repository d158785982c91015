"""How many hardware queues a process has: a variable that the vendor's runtime reads at start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Connections(NamedTuple):
    """A runtime's variable for the number of its hardware queues.

    Attributes:
        variable: its name.
        default: the number where it is not set.
        most: the greatest number that the runtime takes; None if it names none.

    """

    variable: str
    default: int
    most: int | None

    def count(self, environment: Mapping[str, str], default: int | None = None) -> int:
        """Return the number that the runtime goes by.

        Args:
            environment: of the process.
            default: of the device, if it is another than the runtime's.

        """
        text = environment.get(self.variable, "")
        if not _is_number(text):
            return self.default if default is None else default
        return int(text) if self.most is None else min(int(text), self.most)

    def problem(self, text: str) -> str:
        """Return why a value is not the number that the runtime goes by; empty if it is."""
        valid = f"from 1 to {self.most}" if self.most is not None else "of at least 1"
        if text and not _is_number(text):
            return f"{text!r} is no number {valid}, so the default, {self.default}, is assumed"
        if text and self.most is not None and int(text) > self.most:
            return f"the runtime takes numbers {valid}: {text} is {self.most}"
        return ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) > 0


# CUDA programming guide, "CUDA environment variables"; HIP documentation, "environment variables".
CONNECTIONS = {
    "cuda": Connections("CUDA_DEVICE_MAX_CONNECTIONS", 8, 32),
    "hip": Connections("GPU_MAX_HW_QUEUES", 4, None),
}
