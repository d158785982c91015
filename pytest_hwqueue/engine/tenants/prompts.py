"""Prompts and lengths of answers from a file, for requests to a server.

Three forms of a request, told apart by their fields: one's own lines of JSON (``prompt``,
``max_tokens``); conversations of ShareGPT (``conversations``, of which the first two turns count,
as in vLLM's benchmark); and the trace of Mooncake (``timestamp``, ``input_length``,
``output_length``, ``hash_ids``; Qin et al., FAST 2025), which has lengths and no text.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

from pytest_hwqueue.data.errors import BadInput, shortened, translated, within
from pytest_hwqueue.data.records.plan import Prompts
from pytest_hwqueue.data.safe_files import refuse_special

# They are kept in memory, as text.
_MOST_BYTES = 64 << 20
_MOST_TOKENS = 10_000_000
# Of Mooncake's: so many tokens have one id.
_BLOCK_TOKENS = 512
# No tokenizer is at hand: a token is three quarters of an English word, OpenAI's rule of thumb.
_TOKENS_PER_WORD = 4 / 3
# Common words, of one token each in most vocabularies.
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
    "they", "which", "one", "you", "were", "all", "her", "she", "there", "would", "their", "we",
    "him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so", "up", "said",
    "what", "its", "about", "than", "into", "them", "can", "only", "other", "time", "new", "some",
    "could", "these",
)  # fmt: skip


class PromptRequest(NamedTuple):
    """What one request asks for.

    Attributes:
        text: the prompt; empty if only its length is known.
        words: of a prompt that is made up.
        blocks: ids of its parts of 512 words: equal ids stand for equal text; empty if nobody says.
        max_tokens: the most in its answer; None if nobody says.
        place: in its file, if its prompt is made up: what has no id is no other request's text.

    """

    text: str
    words: int
    blocks: tuple[int, ...]
    max_tokens: int | None
    place: str = ""


def read_prompts(name: str, folder: Path) -> tuple[Prompts, list[PromptRequest]]:
    """Read a file once: what a plan holds of it, and its requests in their order.

    Raises:
        BadInput: with file and line, or place in the list, if it cannot be read or used.

    """
    file = folder / name
    with translated(BadInput, f"the prompts in {file} cannot be read", OSError, ValueError):
        refuse_special(file)
        if (size := file.stat().st_size) > _MOST_BYTES:
            raise BadInput(
                f"{file} has {size:,} bytes, and prompts are kept in memory: give at most "
                f"{_MOST_BYTES:,}, such as its first lines"
            )
        content = file.read_bytes()
        text = content.decode("utf-8")
    found: list[PromptRequest] = []
    for place, fields in _entries(file, text):
        with within(f"{file}, {place}"):
            request = _request(place, fields)
        if request is not None:
            found.append(request)
    if not found:
        raise BadInput(f"{file} has no prompt; give one in a line, such as {_EXAMPLE}")
    return Prompts(name, sha256(content).hexdigest(), len(found)), found


_EXAMPLE = '{"prompt": "Why is the sky blue?", "max_tokens": 64}'


def _entries(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        with translated(BadInput, f"{file} is no list of JSON", ValueError, RecursionError):
            for number, fields in enumerate(json.loads(text), start=1):
                yield f"entry {number}", fields
        return
    # Not splitlines: a text of JSON may hold the separators of lines that only Unicode has.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            with translated(
                BadInput, f"{file}, line {number}: no line of JSON", ValueError, RecursionError
            ):
                yield f"line {number}", json.loads(line)


def _request(place: str, fields: Any) -> PromptRequest | None:
    """Return what an entry asks for; None for a conversation without an answer."""
    if not isinstance(fields, Mapping):
        raise BadInput(f"{shortened(str(fields))!r} is no table of fields")
    if "conversations" in fields:
        return _of_conversation(fields["conversations"])
    if "prompt" in fields:
        prompt, most = fields["prompt"], fields.get("max_tokens")
        if not isinstance(prompt, str) or not prompt:
            raise BadInput(f"prompt is {shortened(repr(prompt))}; give text")
        most = None if most is None else _count("max_tokens", most)
        return PromptRequest(prompt, 0, (), most)
    if "input_length" in fields:
        words = _count("input_length", fields["input_length"])
        most = _count("output_length", fields.get("output_length", 1))
        blocks = fields.get("hash_ids") or ()
        if not isinstance(blocks, list | tuple) or not all(type(each) is int for each in blocks):
            raise BadInput(f"hash_ids is {shortened(repr(blocks))}; give whole numbers")
        return PromptRequest("", words, tuple(blocks), most, place)
    raise BadInput(f"has neither prompt, conversations nor input_length; give such as {_EXAMPLE}")


def _of_conversation(turns: Any) -> PromptRequest | None:
    if not isinstance(turns, list) or not all(isinstance(each, Mapping) for each in turns):
        raise BadInput(f"conversations is {shortened(repr(turns))}; give a list of turns")
    texts = [each.get("value", each.get("content")) for each in turns]
    if len(texts) < 2 or not all(isinstance(each, str) and each.strip() for each in texts[:2]):
        return None
    prompt, answer = texts[:2]
    return PromptRequest(prompt, 0, (), math.ceil(len(answer.split()) * _TOKENS_PER_WORD))


def _count(what: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
        raise BadInput(
            f"{what} is {shortened(repr(value))}; give a whole number from 1 to {_MOST_TOKENS:,}"
        )
    return value


def drawn(requests: list[PromptRequest], seed: int, *, in_order: bool) -> Iterator[PromptRequest]:
    """Return requests without end: those of a file in its order, again and again, or drawn from it.

    Args:
        requests: of the file.
        seed: of the draws, with replacement.
        in_order: whether the file's order is kept.

    """
    if in_order:
        return cycle(requests)
    draw = random.Random(seed)
    return (draw.choice(requests) for _ in count())


def text_of(request: PromptRequest) -> str:
    """Return a prompt's text; where only its length is known, as many common English words."""
    if request.text:
        return request.text
    words: list[str] = []
    for block in request.blocks:
        words += _block(block)
    while len(words) < request.words:
        words += _block(f"{request.place}, from {len(words)}")
    return " ".join(words[: request.words])


@lru_cache(maxsize=4096)
def _block(seed: int | str) -> tuple[str, ...]:
    return tuple(random.Random(seed).choices(_WORDS, k=_BLOCK_TOKENS))
