"""What is left out of whatever is written or shown: the secrets of users' servers and commands."""

from __future__ import annotations

import re

REDACTED = "<redacted>"

# As headers, query parameters, options and JSON fields call them. `tokens` and `max_tokens`, which
# count, are none: a name ends where its word does.
_NAMES = (
    r"(?:[\w-]*[_-])?(?:authorization|cookie|api[_-]?key|token|password|passwd|secret|signature"
    r"|credentials?|private[_-]key)"
)
_RULES = (
    # In a URL, up to the last @ before its path: a password may hold one itself.
    (re.compile(r"(?<=://)[^\s/?#'\"]+(?=@)"), REDACTED),
    (re.compile(r"\b(Bearer|Basic)\s+[^\s'\",;]+", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(rf"(?<![\w-])((?:--)?{_NAMES}=)[^\s&'\",;]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(rf"(--{_NAMES}\s+)[^\s'\"-][^\s'\"]*", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(rf"([\"']{_NAMES}[\"']\s*:\s*[\"'])[^\"']+", re.IGNORECASE), rf"\1{REDACTED}"),
)


def redacted(text: str) -> str:
    """Return text without secrets: in URLs, headers, options, and fields that are named so."""
    for pattern, shown in _RULES:
        text = pattern.sub(shown, text)
    return text
