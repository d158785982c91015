"""A streamed completion, as OpenAI's API and the servers that follow it stream one.

What counts as a token, as a failure, and as the end, is said in docs/servers.md.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pytest_hwqueue.data.errors import HwqError, shortened
from pytest_hwqueue.data.records.tenants import TokensCounted
from pytest_hwqueue.data.redaction import without_known
from pytest_hwqueue.engine.tenants.event_stream import STRAY, EventStream, ServerSentEvent
from pytest_hwqueue.engine.tenants.open_loop import MOST_TOKENS, Reply

DONE = b"[DONE]"
"""Data of the event after which nothing comes."""

_SHOWN = 200
# Reasons to finish that are none of an answer: SGLang's, vLLM's, TensorRT-LLM's, DeepSeek's and
# Zhipu's of what they gave up.
_GIVEN_UP = frozenset(
    {
        "abort", "aborted", "cancelled", "canceled", "error", "insufficient_system_resource",
        "network_error", "timeout",
    }
)  # fmt: skip
_ASK = "is it streamed (`stream: true`)?"


class RequestFailed(HwqError):
    """A request that was not answered as expected.

    Attributes:
        kind: what failures of its kind have in common, where their texts differ.

    """

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind or reason


class CompletionReader:
    """Reads one answer.

    Args:
        secrets: that no message may hold.

    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        """Begin with the first byte."""
        self._events = EventStream()
        self._secrets = secrets
        self._first_ns = self._last_ns = self._done_ns = 0
        self._answer_ns: int | None = None
        self._tokens = self._thoughts = 0
        # The server's count, and how many events had a token when it came.
        self._usage: tuple[int, int] | None = None
        self._others = 0
        self._unseen_thoughts = 0
        self._announced = False
        self._reasons: list[str] = []
        # Of several choices.
        self._last_choice = 0
        self._finished: set[int] = set()

    def feed(self, chunk: bytes, now_ns: int) -> bool:
        """Take a chunk; return whether the end was announced (`[DONE]`).

        Raises:
            RequestFailed: if the answer says that it failed, or is no completion.
            EventTooLong: if an event is longer than is read.

        """
        for event in self._events.feed(chunk, now_ns):
            self._take(event)
        return self._announced

    def end(self, now_ns: int) -> Reply:
        """Return what the answer was, once it has ended.

        Raises:
            RequestFailed: if it failed, or has no token.

        """
        for event in self._events.end(now_ns):
            # One that was cut off may have all that it says.
            if event.type == STRAY or event.data.strip() == DONE or _parsed(event.data) is not None:
                self._take(event)
        for reason in self._reasons:
            if reason.lower() in _GIVEN_UP:
                raise RequestFailed(f"the server gave up: finish_reason {reason}")
        if self._others and not self._tokens:
            kind = "no completion: its events have no `choices`"
            raise RequestFailed(
                f"{kind}; give a url of completions or chat completions, as OpenAI's API has them",
                kind,
            )
        if self._done_ns and not self._announced and len(self._finished) <= self._last_choice:
            raise RequestFailed(
                "the answer broke off: it ended without [DONE] and without a finish_reason"
            )
        if not self._tokens:
            raise RequestFailed(f"the answer ended without a token: {_ASK}")
        tokens, counted = self._count()
        return Reply(
            self._first_ns,
            self._answer_ns,
            self._last_ns,
            tokens,
            counted,
            self._done_ns,
        )

    def _take(self, event: ServerSentEvent) -> None:
        if self._announced:
            return
        data = event.data.strip()
        if not data and event.type != "error":
            return
        if event.type == STRAY:
            raise self._stray(data)
        self._done_ns = event.at_ns
        if data == DONE:
            self._announced = True
            return
        if event.type == "error":
            kind = "an error event"
            raise RequestFailed(f"{kind}: {self._shown(data)}", kind)
        said = _parsed(data)
        if not isinstance(said, dict):
            if event.type != "message":
                return
            kind = "not an event of a completion"
            raise RequestFailed(f"{kind}: {self._shown(data)}", kind)
        choices = said.get("choices")
        # What has choices and no error is none; nearly all events are such.
        if (not choices or "error" in said) and (error := _error_in(said)):
            kind = "an error behind the expected status"
            raise RequestFailed(f"{kind}: {self._text(error)}", kind)
        if choices is None and "usage" not in said and "choices" not in said:
            self._others += 1
        thought = answer = False
        for choice in _tables(choices):
            if (index := choice.get("index")) and type(index) is int:
                self._last_choice = max(self._last_choice, index)
            if (reason := choice.get("finish_reason")) and (found := _reason(reason)):
                self._reasons += found
                self._finished.add(index if type(index) is int else 0)
            if error := choice.get("error"):
                kind = "an error in a choice"
                raise RequestFailed(f"{kind}: {self._text(error)}", kind)
            thought, answer = _added(choice, thought, answer)
        if thought or answer:
            self._tokens += 1
            self._thoughts += thought
            self._first_ns = self._first_ns or event.at_ns
            self._last_ns = event.at_ns
            if answer and self._answer_ns is None:
                self._answer_ns = event.at_ns
        if "usage" in said:
            self._read_usage(said["usage"])

    def _read_usage(self, usage: object) -> None:
        """Keep the server's counts; what is none says nothing, as a null that comes early."""
        if not isinstance(usage, dict):
            return
        if (count := _whole(usage.get("completion_tokens"))) is not None:
            self._usage = count, self._tokens
        details = usage.get("completion_tokens_details")
        if isinstance(details, dict):
            self._unseen_thoughts = _whole(details.get("reasoning_tokens")) or 0

    def _count(self) -> tuple[int, TokensCounted]:
        """Return how many tokens were streamed, and who says so."""
        counted, of_events = self._usage or (0, 0)
        if of_events < self._tokens:
            # More came behind it.
            counted = 0
        if not self._thoughts:
            # They took time before the first token, and none between those that came.
            counted -= self._unseen_thoughts
        return (counted, "usage") if counted > 0 else (self._tokens, "events")

    def _stray(self, line: bytes) -> RequestFailed:
        """Return what a line that is no event means."""
        said = _parsed(line)
        if isinstance(said, dict) and (error := _error_in(said)):
            kind = "an error in the stream"
            return RequestFailed(f"{kind}: {self._text(error)}", kind)
        kind = "the answer has what is no event"
        return RequestFailed(f"{kind}: {self._shown(line)}: {_ASK}", kind)

    def _shown(self, data: bytes) -> str:
        return repr(without_known(data.decode(errors="replace"), self._secrets)[:_SHOWN])

    def _text(self, error: object) -> str:
        text = error if isinstance(error, str) else json.dumps(error, ensure_ascii=False)
        return shortened(" ".join(without_known(text, self._secrets).split()))


def _parsed(data: bytes) -> object:
    """Return what JSON says; None for what is none, or is nested too deep to be read."""
    try:
        # Of bytes json would first find out the encoding, which here is always UTF-8.
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def _tables(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def _error_in(said: Mapping[str, Any]) -> object:
    """Return the error that an object is, as OpenAI, vLLM, SGLang, TGI and FastAPI write one."""
    if error := said.get("error"):
        return error
    if "error" in (said.get("object"), said.get("type")):
        return said.get("message") or dict(said)
    if "choices" not in said and "usage" not in said:
        return said.get("detail") or (said.get("message") if "code" in said else None)
    return None


def _reason(value: object) -> list[str]:
    """Return why a choice finished, if it did; SGLang's own is a table."""
    if isinstance(value, dict):
        value = value.get("type")
    return [value] if isinstance(value, str) and value else []


_THOUGHTS = frozenset({"reasoning", "reasoning_content", "reasoning_details", "thinking"})
_ANSWERS = frozenset({"content", "text", "refusal", "tool_calls", "function_call", "audio"})


def _added(choice: Mapping[str, Any], thought: bool, answer: bool) -> tuple[bool, bool]:
    """Return whether an event adds reasoning and an answer, given what its other choices do.

    A chat's choice has it in ``delta``, that of a completion in itself.
    """
    delta = choice.get("delta")
    for key, value in (delta if isinstance(delta, dict) else choice).items():
        if key in _ANSWERS:
            for part in value if isinstance(value, list) else (value,):
                if _is_generated(part):
                    is_thought = isinstance(part, dict) and part.get("type") == "thinking"
                    thought, answer = thought or is_thought, answer or not is_thought
        elif key in _THOUGHTS and _is_generated(value):
            thought = True
    return thought, answer


# Parts of a content are two or three deep.
_MOST_LEVELS = 6
_OF_PARTS = (
    "text", "thinking", "refusal", "function", "custom", "name", "arguments", "input",
    # Of audio.
    "data", "transcript",
)  # fmt: skip


def _is_generated(value: object, levels: int = _MOST_LEVELS) -> bool:
    """Whether a field has something of a model's: text, parts with text, a name, an input."""
    if isinstance(value, str):
        return bool(value)
    if isinstance(value, list):
        return levels > 0 and any(_is_generated(each, levels - 1) for each in value)
    if isinstance(value, dict):
        return levels > 0 and any(_is_generated(value.get(key), levels - 1) for key in _OF_PARTS)
    return False


def _whole(value: object) -> int | None:
    """Return a count of tokens, also one written as a float; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value <= MOST_TOKENS or value != int(value):
        return None
    return int(value)
