"""Placeholders in a server's texts, and variables of the environment.

`${NAME}` is a variable, `$${NAME}` that text, and `{name}` a placeholder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.redaction import REFERENCE

_ESCAPED_OR_NOT = re.compile(r"\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# User and password, the place, and the query of a URL.
_URL = re.compile(r"(?P<user>\w+://[^/?#]*@)?(?P<place>[^?]*)(?P<query>.*)", re.DOTALL)


def variables_in(texts: Iterable[str]) -> list[str]:
    """Return the names of the variables that texts refer to."""
    return [name for text in texts for name in REFERENCE.findall(text)]


def unset_reason(name: str) -> str | None:
    """Return why a variable cannot be filled in, and what to do; None if it can."""
    if os.environ.get(name):
        return None
    # A secret that a CI does not hand out is set, to nothing.
    how = "is empty" if name in os.environ else "is not set"
    return (
        f"the environment variable {name} {how}: give it a value, or write $${{{name}}} for the "
        f"text ${{{name}}}"
    )


def expand(text: str, encoded: Callable[[str], str] = str) -> str:
    """Return text with each `${NAME}` replaced by that variable of the environment.

    Args:
        text: as it is stored.
        encoded: is applied to each value.

    Raises:
        HwqError: if a variable is not set, or empty.

    """

    def value(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        if (reason := unset_reason(match[1])) is not None:
            raise HwqError(reason)
        return encoded(os.environ[match[1]])

    return _ESCAPED_OR_NOT.sub(value, text)


def fill(text: str, placeholders: Mapping[str, str]) -> str:
    """Return text with variables as `expand` fills them in, and placeholders.

    What is filled in stays as it is, whatever it looks like.

    Args:
        text: as it is stored.
        placeholders: such as ``{port}``, and what stands for each.

    Raises:
        HwqError: if a variable is not set, or empty.

    """

    def value(match: re.Match[str]) -> str:
        known = placeholders.get(match[0])
        return expand(match[0]) if known is None else known

    places = "|".join(map(re.escape, placeholders))
    return re.sub(f"{_ESCAPED_OR_NOT.pattern}|{places}", value, text)


def expand_url(url: str) -> str:
    """Return a URL likewise; values in user, password and query are percent-encoded."""

    def encoded(value: str) -> str:
        return quote(value, safe="", errors="surrogateescape")

    parts = _URL.fullmatch(url)
    assert parts is not None
    user, query = (expand(parts[name] or "", encoded) for name in ("user", "query"))
    return f"{user}{expand(parts['place'])}{query}"
