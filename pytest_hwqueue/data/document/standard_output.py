"""Text on standard streams that cannot encode all of it: a terminal in ASCII, a pipe in Latin-1."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

_HANDLER = "pytest-hwqueue"
# As wide as what they stand for where columns depend on it.
_INSTEAD = str.maketrans(
    {
        **dict.fromkeys("─–—", "-"), **dict.fromkeys("│┃", "|"), **dict.fromkeys("█▇▆▅▄▃▂▁", "#"),
        **{digit: f"^{value}" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        "·": ".", "µ": "u", "μ": "u", "×": "x", "±": "+-", "°": " deg", "∞": "inf", "Δ": "delta ",
        "≤": "<=", "≥": ">=", "≈": "~", "→": "->", "…": "...", "’": "'", "“": '"', "”": '"',
        "✓": "ok", "✔": "ok", "✗": "x", "❌": "x", "\N{WORD JOINER}": "", "\N{NO-BREAK SPACE}": " ",
    }
)  # fmt: skip


def _instead(error: UnicodeError) -> tuple[str, int]:
    """Return plain characters for those that a stream lacks, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    plain = error.object[error.start : error.end].translate(_INSTEAD)
    return plain.encode("ascii", "replace").decode("ascii"), error.end


codecs.register_error(_HANDLER, _instead)


def readable(text: str) -> str:
    """Return text as the process's standard output can encode it."""
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return text.encode(encoding, _HANDLER).decode(encoding)


def make_writable() -> None:
    """Have standard streams take any text; one that is closed goes nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
