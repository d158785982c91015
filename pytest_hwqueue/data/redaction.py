"""What is left out of whatever is written or shown: the secrets of users' servers and commands.

Two ways, since a name is not always near, and a value not always known: by value, where a process
knows what is secret (`known_forms`), and by the rules, which go by the name in front of a value.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from pytest_hwqueue.data.safe_files import open_output

REDACTED = "<redacted>"

REFERENCE = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A value that the environment has; `$${NAME}` is that text itself."""

SHORTEST = 4
"""Characters of the shortest value that is looked for by itself.

`1`, `on` or `GET` stand in every text: without them nothing could be read, and they keep no secret.
"""

# As headers, query parameters, options, variables and JSON fields call them. `tokens` and
# `max_tokens`, which count, are none: a name ends where its word does. Nor are the tokens of a
# model's vocabulary, and those that are timed.
_OF_A_MODEL = (
    r"(?!(?:[\w-]*[_-])?(?:eos|bos|pad|unk|sep|cls|mask|stop|first|last|next|inter|per|max|min|new|input"
    r"|output|prompt|decode|generated|completion)"
    r"[_-]token(?![\w-]))"
)
_NAMES = (
    rf"{_OF_A_MODEL}[\w-]*(?:authorization|cookie|(?:api|access|account|secret|private|signing)[_-]?key|token"
    r"|password|passwd|passphrase|secret|signature|credentials?)"
)
# Those of headers, whose values may hold spaces.
_HEADERS = rf"(?:[\w-]*(?:authorization|cookie)|(?=\w*-){_NAMES})"
_SHELLS_QUOTE = "'\"'\"'"
"""A quote within single quotes, as shlex.join writes it."""
_IN_SINGLE = rf"(?:{_SHELLS_QUOTE}|[^'])*"
_IN_DOUBLE = r"(?:\\.|[^\"\\])*"
# A quote that nothing closes is a character.
_WORD = rf"(?:'[^']*'|\"{_IN_DOUBLE}\"|\\.|[^\s'\"\\]|['\"\\](?=\S))+"
# Of a URL in a text: what ends the text's sentence or quotation is none of its own.
_OF_QUERY = rf"(?:{_SHELLS_QUOTE}|[^\s&#\"])+?(?=['\"]?[,;:.)\]]*(?:[\s&#]|\"(?!'\"')|$))"
# What follows in a list of JSON, Python or YAML.
_NEXT = r"\s*(?::=|=>|[:,=]|\n[ \t]*-[ \t])\s*"
# `--token --port 1` is a switch and another option.
_NO_OPTION = r"(?!--[a-z][a-z0-9-]*(?:[\s=,\]]|$))"
# Between a name and its value, as shells, ini files and Python write it, makefiles and Go (`:=`),
# Ruby and PHP (`=>`); `a == b` compares.
_EQUALS = (
    rf"(?:[ \t]*(?::=|=>)[ \t]*{_NO_OPTION}"
    rf"|=|=[ \t]+{_NO_OPTION}|[ \t]+=(?!=)[ \t]*{_NO_OPTION})"
)
# What says that there is no secret is none.
NOTHING = ("none", "null", "true", "false")
_NO_WORD = rf"(?!(?:{'|'.join(NOTHING)})(?:[,;]?(?:\s|$)|['\")\]}}]))"
_SCHEME = r"(?:(?:Bearer|Basic|Digest|Token)\s+)?"
# What is known by value is out already, and the sentence around it says something.
_NOT_YET = rf"(?!=?\s*(?:\w+\s+)?{REDACTED})"


def _rule(before: str, secret: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<before>{before})(?P<secret>{secret})", re.IGNORECASE | re.DOTALL)


_RULES = (
    # In a URL, up to the last @ before its path: a password may hold one itself.
    _rule(r"(?<=://)", rf"(?:{_SHELLS_QUOTE}|[^\s/?#\"])+(?=@)"),
    # An argument, header or variable that was quoted as a whole.
    _rule(rf"(?<=')(?:--?)?{_NAMES}(?:[ \t]+:=|[ \t]*=|:\s*)", rf"{_NOT_YET}{_IN_SINGLE}"),
    _rule(rf"(?<=\")(?:--?)?{_NAMES}(?:[ \t]+:=|[ \t]*=|:\s*)", rf"{_NOT_YET}{_IN_DOUBLE}"),
    # Fields of JSON, also within a text of JSON, and of Python.
    _rule(rf"(?<!\\)(?P<quote>\\*[\"']){_NAMES}(?P=quote){_NEXT}b?(?P<other>\\+[\"'])",
          r"(?:(?!(?P=other)).)+"),
    _rule(rf"(?<!\\)(?P<quote>\\*[\"']){_NAMES}(?P=quote){_NEXT}b?(?P<other>[\"'])",
          rf"(?:{_SHELLS_QUOTE}|\\.|(?!(?P=other)).)+"),
    _rule(rf"[?&](?:{_NAMES}|key|sig)=", _OF_QUERY),
    _rule(rf"(?<![\w?&'\"-])(?:--?)?{_NAMES}{_EQUALS}", rf"{_NO_WORD}{_SCHEME}{_WORD}"),
    # In a list of YAML, each argument may be a line.
    _rule(rf"(?<![\w-])--?{_NAMES}(?:\s+|[ \t]*\n[ \t]*-[ \t]+)(?!-[ \t])"
          rf"(?!(?::=|=>)[ \t]*{REDACTED})",
          rf"{_NO_OPTION}{_NO_WORD}{_SCHEME}{_WORD}"),
    # Or it is of one line, without quotes.
    _rule(rf"(?:(?<=\[)|(?<=,[ ]))--?{_NAMES},[ ]*", rf"{_NO_OPTION}{_NO_WORD}[^\s,\]\"']+"),
    # To the end of the line: a scheme, a value and its parameters follow each other.
    _rule(rf"(?<![\w'\"-]){_HEADERS}:[ \t]*(?![ \t])", rf"{_NOT_YET}[^\r\n]+"),
    _rule(rf"(?<![\w'\"-]){_NAMES}(?<!token)[ \t]*:[ \t]*(?![ \t])", rf"{_NOT_YET}{_WORD}"),
    # A number behind `first token:` is one.
    _rule(rf"(?<![\w'\"-]){_NAMES}(?<=token):[ \t]*(?![ \t])",
          rf"{_NOT_YET}(?![\d.]+(?!\w)){_WORD}"),
    _rule(r"\b(?:Bearer|Basic)\s+", r"[^\s'\",;]+"),
)  # fmt: skip

# Words in names of variables, as OPENAI_KEY, PGPASS and licenseKey have them: of a value that
# stands alone.
_OF_SECRETS = re.compile(
    r"auth|authorization|cookie|credentials?|passphrase|pin|pw|pwd|signature"
    r"|\w*(?:key|pass|passwd|password|secret|token)",
    re.IGNORECASE,
)

_FIELD = rf"(?<!\\)(?P<quote>\\*[\"']){_NAMES}(?P=quote)\s*(?::=?|=>)\s*"
_NUMBER = _rule(_FIELD, r"-?\d[\w.+-]*")
"""A field of JSON that is a number: it is found by its name alone, as numbers stand everywhere."""
_LIST = _rule(rf"{_FIELD}\[", r"(?:(?P=quote).*?(?<!\\)(?P=quote)|[^\]\"'])*")
"""A field of JSON with several values, as servers in Go print headers."""
_STRING = re.compile(r"(?P<quote>\\*[\"'])(?P<secret>.*?)(?<!\\)(?P=quote)", re.DOTALL)
_BARE_NUMBER = re.compile(r"(?:^|(?<=[,\s]))-?\d[\w.+-]*(?=\s*(?:,|$))")

# Most texts have none of this, and need none of the rules: thousands of requests may fail.
_HINT = re.compile(
    r"authorization|cookie|key|token|passw|passphrase|secret|signature|credential|sig=|://.*@"
    r"|bearer|basic",
    re.IGNORECASE | re.DOTALL,
)


def redacted(text: str, known: Collection[str] = ()) -> str:
    """Return text without secrets; a reference to the environment (`${NAME}`) is none, and stays.

    Args:
        text: to be written or shown.
        known: what else must not be in it, as `known_forms` returns it.

    """
    text = without_known(text, known)
    if _HINT.search(text) is None:
        return text
    text = _LIST.sub(lambda match: f"{match['before']}{_without_strings(match['secret'])}", text)
    # A string again, so that what was JSON still is.
    text = _NUMBER.sub(lambda match: f"{match['before']}{_quoted(REDACTED, match)}", text)
    for rule in _RULES:
        text = rule.sub(lambda match: f"{match['before']}{mask(match['secret'])}", text)
    return text


def _quoted(text: str, match: re.Match[str]) -> str:
    return f"{match['quote']}{text}{match['quote']}"


def _without_strings(values: str) -> str:
    values = _BARE_NUMBER.sub(f'"{REDACTED}"', values)
    return _STRING.sub(lambda match: _quoted(mask(match["secret"]), match), values)


def redacted_arguments(arguments: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """Return a command's arguments without secrets: an option's value may be the next argument."""
    return [
        redacted(argument, known) if secret is None else f"{before}{mask(secret)}"
        for argument, before, secret, _ in _divided(arguments)
    ]


def redacted_command(arguments: Sequence[str], known: Collection[str] = ()) -> str:
    """Return a command as a shell takes it, without secrets."""
    return shlex.join(redacted_arguments(arguments, known))


# What stands around a reference, and says nothing: quotes, a scheme, the colon before a password.
_PLAIN = re.compile(r"[\s'\":]*(?:(?:Bearer|Basic|Token)\s+)?", re.IGNORECASE)


def is_called_secret(name: str, value: str) -> bool:
    """Whether a header's or variable's name says that its value is a secret."""
    words = re.split(r"[_-]|(?<=[a-z])(?=[A-Z])", name)
    if any(_OF_SECRETS.fullmatch(word) for word in words):
        return True
    return next(secrets_in(f"{name}={value}"), None) is not None


def mask(secret: str) -> str:
    """Return what stands in place of a secret: the references in it, and what hides the rest."""
    shown, end = "", 0
    for reference in REFERENCE.finditer(secret):
        shown += _mask_text(secret[end : reference.start()]) + reference[0]
        end = reference.end()
    return shown + _mask_text(secret[end:])


def _mask_text(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else REDACTED


def secrets_in(text: str) -> Iterator[str]:
    """Return the values that the rules leave out of a text, but for numbers."""
    for match in _LIST.finditer(text):
        yield from (each["secret"] for each in _STRING.finditer(match["secret"]))
    for rule in _RULES:
        for match in rule.finditer(text):
            yield match["secret"]


def secrets_among(arguments: Sequence[str]) -> Iterator[str]:
    """Return the values that the rules leave out of a command's arguments.

    What may be a further value is one if it is long: a model's name, ``llama3-8b``, would be left
    out of all that a server prints.
    """
    for argument, _, secret, is_further in _divided(arguments):
        if secret is None:
            yield from secrets_in(argument)
        elif not is_further or len(secret) >= _LONG:
            yield secret


_LONG = 16


_VALUE_OF_NAME = _rule(rf"(?:--?)?{_NAMES}[ \t]*=", ".*")
_NAMED_OPTION = re.compile(rf"--?{_NAMES}=?", re.IGNORECASE)
# What follows an option's value may be another value, or an argument of its own: a number, a word,
# a path, a file, a test or a setting is taken for that.
_PLAIN_ARGUMENT = re.compile(
    r"-.*|[\d.,:]*|[a-z._:@-]*|.*/.*|.*\.[a-z]{1,4}|.*::.*|[a-z_]\w*=[^=].*", re.I | re.DOTALL
)
_ANY_OPTION = re.compile(r"--[a-z][a-z0-9-]*(?:=.*)?", re.DOTALL)


def _divided(arguments: Sequence[str]) -> Iterator[tuple[str, str, str | None, bool]]:
    """Return each argument, and the secret that it ends in, behind what; or None.

    Last comes whether it is only a further value of an option, or may be one.
    """
    secret_follows = more_follow = False
    for argument in arguments:
        match = _VALUE_OF_NAME.fullmatch(argument)
        is_first = secret_follows and not _ANY_OPTION.fullmatch(argument)
        is_further = more_follow and not _PLAIN_ARGUMENT.fullmatch(argument)
        if (is_first or is_further) and _may_be_one(argument):
            yield argument, "", argument, not is_first
        elif match is not None and _may_be_one(match["secret"]):
            yield argument, match["before"], match["secret"], False
        else:
            yield argument, "", None, False
        more_follow = is_first or is_further
        secret_follows = _NAMED_OPTION.fullmatch(argument) is not None


def _may_be_one(value: str) -> bool:
    return value.lower() not in NOTHING


def known_forms(values: Iterable[str]) -> frozenset[str]:
    """Return how secret values may stand in a text, but for characters that a URL encodes.

    Args:
        values: each as a whole; those below `SHORTEST` characters are left to the rules.

    """
    forms: set[str] = set()
    for value in values:
        for plain in (value, value.strip(), unquote(value)):
            quoted = {plain.replace("'", _SHELLS_QUOTE), json.dumps(plain)[1:-1]}
            # A reason is one line.
            forms |= {plain, " ".join(plain.split())} | quoted
    return frozenset(form for form in forms if len(form) >= SHORTEST)


def without_known(text: str, known: Collection[str]) -> str:
    """Return text without values that are known to be secret, as `known_forms` returns them."""
    return _pattern(frozenset(known)).sub(REDACTED, text) if known else text


def without_begun(text: str, known: Collection[str]) -> str:
    """Return text that was cut off without a known value that it ends in the middle of."""
    begun = (
        length
        for value in known
        if text[-SHORTEST:] in value
        for length in range(SHORTEST, min(len(value), len(text) + 1))
        if text.endswith(value[:length])
    )
    longest = max(begun, default=0)
    return text[: len(text) - longest] + REDACTED if longest else text


_BLOCK_BYTES = 1 << 20


def remove_known(file: Path, known: Collection[str]) -> None:
    """Remove known values from a file that nobody writes to any more.

    Args:
        file: rewritten.
        known: the values, none of them empty.

    Raises:
        OSError: if it cannot be read or written; it then is as it was.

    """
    if not known:
        return
    temporary = file.with_name(f".{file.name}.{os.urandom(8).hex()}.tmp")
    try:
        with open(file, "rb") as source, open_output(temporary) as target:
            for part in blocks_without(iter(lambda: source.read(_BLOCK_BYTES), b""), known):
                target.write(part)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def blocks_without(blocks: Iterable[bytes], known: Collection[str]) -> Iterator[bytes]:
    """Yield a text without known values, none of them empty; a block may end amidst one."""
    pattern = re.compile(_bytes(_pattern(frozenset(known)).pattern))
    most = max(_LONGEST_CODE * len(_bytes(value)) for value in known) - 1
    rest = b""
    for block in chain(blocks, [b""]):
        content = rest + block
        settled, end = len(content) - most if block else len(content), 0
        for match in pattern.finditer(content):
            if match.start() >= settled:
                break
            yield content[end : match.start()] + REDACTED.encode()
            end = match.end()
        settled = max(end, settled)
        yield content[end:settled]
        rest = content[settled:]


@lru_cache
def _pattern(known: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern of known values, with their characters as they are or encoded.

    Which ones are, is up to the writer: Python's URLs have `%27` and aiohttp's `'`, JSON of Go's
    has `\\u0026`, and a page `&amp;`.
    """
    # The longest first: a shorter one may be its beginning.
    values = sorted(known, key=len, reverse=True)
    return re.compile("|".join("".join(map(_in_any_code, value)) for value in values))


_FURTHER_CODES = {
    " ": ("+",), "&": ("&amp;",), "<": ("&lt;",), ">": ("&gt;",), '"': ("&quot;", "&#34;"),
    "'": ("&#x27;", "&#39;"),
}  # fmt: skip
_LONGEST_CODE = len("&quot;")


def _in_any_code(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    in_url = "".join(f"%{byte:02x}" for byte in _bytes(character))
    # The character itself is the beginning of some of its codes.
    codes = [re.escape(each) for each in _FURTHER_CODES.get(character, ())]
    codes += [f"(?i:{in_url})", rf"(?i:\\u{ord(character):04x})", re.escape(character)]
    return f"(?:{'|'.join(codes)})"


def _bytes(text: str) -> bytes:
    # As Python has variables of the environment that are no UTF-8.
    return text.encode(errors="surrogateescape")
