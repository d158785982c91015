"""Streamed completions, as servers write them: tokens, failures, ends. Times are the script's.

Whole streams of known servers are in ``streams/``, for test_streaming_server.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_hwqueue.data.redaction import REDACTED, known_forms
from pytest_hwqueue.engine.tenants.completion import CompletionReader, RequestFailed
from pytest_hwqueue.engine.tenants.open_loop import Reply

MS = 1_000_000
Part = tuple[float, str]


def read(parts: Sequence[Part]) -> Reply:
    """Read an answer whose parts come so many milliseconds after each other."""
    reader, now_ns = CompletionReader(), 0
    for wait_ms, text in parts:
        now_ns += round(wait_ms * MS)
        if reader.feed(text.encode(), now_ns):
            break
    return reader.end(now_ns)


def chunk(finish: str | None = None, **delta: Any) -> str:
    said = {"id": "c1", "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}  # fmt: skip
    return event(said)


def event(said: object) -> str:
    return f"data: {said if isinstance(said, str) else json.dumps(said)}\n\n"


def usage(**said: Any) -> str:
    return event({"choices": [], "usage": said})


A, STOP, DONE = chunk(content="a"), chunk("stop"), event("[DONE]")
THOUGHT = chunk(reasoning="hm")


def every(ms: float, *texts: str) -> list[Part]:
    return [(ms, text) for text in texts]


@pytest.mark.parametrize(
    ("parts", "tokens", "ttft_ms", "tbt_ms"),
    [
        pytest.param([*every(5, A, A), (0, STOP), (0, DONE)], 2, 5, 5, id="chat"),
        pytest.param([*every(5, *[event({"choices": [{"text": "a"}]})] * 3), (0, DONE)], 3, 5, 5,
                     id="completion without a finish reason"),
        pytest.param([*every(5, "data:\n\n", A, "data: \n\n", A), (0, STOP), (0, DONE)], 2, 10, 10,
                     id="empty heartbeats"),
        pytest.param([*every(5, ": ping\n\n", A, "event: ping\ndata: hello\n\n", A), (0, STOP)],
                     2, 10, 10, id="comments and other events"),
        pytest.param([*every(5, *[chunk(reasoning_content="hm")] * 2, A), (0, STOP)], 3, 5, 5,
                     id="DeepSeek's reasoning_content"),
        pytest.param([*every(5, *[chunk(refusal="no")] * 2), (0, STOP)], 2, 5, 5, id="a refusal"),
        pytest.param([*every(5, *[chunk(content=[{"type": "text", "text": "a"}])] * 2), (0, STOP)],
                     2, 5, 5, id="content as parts"),
        pytest.param([*every(5, A, A), (0, STOP), (0, usage(completion_tokens="many")), (0, DONE)],
                     2, 5, 5, id="a count that is none"),
        pytest.param([*every(5, A, A), (0, STOP), (0, usage(completion_tokens=10**400))], 2, 5, 5,
                     id="a count that cannot be"),
        pytest.param([(5, event({"choices": [{"delta": {"content": "a"}}],
                                 "usage": {"completion_tokens": 1}})), (5, A), (0, STOP)],
                     2, 5, 5, id="a count that came too early"),
        pytest.param([*every(5, *[chunk(audio={"transcript": "a"})] * 2), (0, STOP)], 2, 5, 5,
                     id="audio and what it says"),
        pytest.param([(50, A), (5, A), (0, STOP), (0, usage(
            completion_tokens=42, completion_tokens_details={"reasoning_tokens": 40}))], 2, 50, 5,
            id="reasoning that was not streamed"),
        pytest.param([*every(5, THOUGHT, A), (0, STOP), (0, usage(
            completion_tokens=6, completion_tokens_details={"reasoning_tokens": 4}))], 6, 5, 1,
            id="reasoning that was"),
        pytest.param([(5, event({"choices": None})), (5, event({"choices": [None, {}]})),
                      *every(5, A, A), (0, STOP)], 2, 15, 5, id="choices that are none"),
        pytest.param([(5, A + A + STOP + DONE)], 2, 5, 0, id="all at once"),
        pytest.param([*every(5, A, A), (0, STOP), (20, event("[DONE]") + A)], 2, 5, 5,
                     id="what follows the end"),
        pytest.param([*every(5, A, A), (0, STOP.rstrip("\n"))], 2, 5, 5, id="no last line end"),
        pytest.param([*every(5, A, A), (0, event({"choices": [{"delta": None,
                      "finish_reason": {"type": "length", "length": 2}}]}))], 2, 5, 5,
                     id="a finish reason that is a table"),
    ],
)  # fmt: skip
def test_a_token_is_whatever_is_generated(
    parts: list[Part], tokens: int, ttft_ms: float, tbt_ms: float
) -> None:
    reply = read(parts)
    between = (reply.last_ns - reply.first_ns) / (reply.tokens - 1)
    assert (reply.tokens, reply.first_ns / MS, between / MS) == (tokens, ttft_ms, tbt_ms)


def test_the_answer_has_a_first_token_of_its_own_where_reasoning_precedes_it() -> None:
    thought = [*every(5, THOUGHT, THOUGHT), (30, A), (5, A), (0, STOP), (7, DONE)]
    reply = read(thought)
    assert (reply.first_ns, reply.answer_ns, reply.last_ns) == (5 * MS, 40 * MS, 45 * MS)
    assert (reply.counted, reply.done_ns) == ("events", 52 * MS)
    assert read([*every(5, A, A), (0, STOP)]).answer_ns == 5 * MS
    # Mistral's parts of one content.
    part = chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}])
    assert read([(5, part), (5, A), (0, STOP)]).answer_ns == 10 * MS
    # All of it thought about: there is no answer.
    assert read([*every(5, THOUGHT), (0, chunk("length"))]).answer_ns is None
    counted = read([(5, A), (0, STOP), (0, usage(completion_tokens=4)), (0, DONE)])
    assert (counted.tokens, counted.counted) == (4, "usage")


@pytest.mark.parametrize(
    ("parts", "kind", "said"),
    [
        pytest.param([(5, A), (5, "data: {\"choices\": [{\"del")], "the answer broke off", "",
                     id="an event that is cut"),
        pytest.param([(5, A), (5, '{"error": {"message": "backend gone"}}\n'), (0, DONE)],
                     "an error in the stream", "backend gone", id="a body in the stream"),
        pytest.param([(5, A), (5, '{"error": {"message": "backend gone"}}')],
                     "an error in the stream", "backend gone", id="a last line in the stream"),
        pytest.param([(5, A + "foo: bar\n\n"), (5, '{"error": "boom"}\n\n'), (0, DONE)],
                     "an error in the stream", "boom", id="an error behind an unknown field"),
        pytest.param([(5, A), (5, event({"error": {"message": "two\nlines"}}))],
                     "an error behind the expected status", "two\\nlines", id="lines in an error"),
        pytest.param([(5, A), (5, "<html>502</html>\n"), (0, DONE)],
                     "the answer has what is no event", "<html>", id="a proxy's page"),
        pytest.param([(5, '{"object": "chat.completion", "choices": []}')],
                     "the answer has what is no event", "is it streamed", id="no stream"),
        pytest.param([(5, A), (5, event({"error": {"message": "no memory"}}))],
                     "an error behind the expected status", "no memory", id="OpenAI's error"),
        pytest.param([(5, event({"error": "overloaded", "error_type": "overloaded"})), (0, DONE)],
                     "an error behind the expected status", "overloaded", id="TGI's error"),
        pytest.param([(5, event({"detail": "Internal Server Error"})), (0, DONE)],
                     "an error behind the expected status", "Internal", id="FastAPI's error"),
        pytest.param([(5, A), (5, 'event: error\ndata: {"message": "gone"}\n\n'), (0, DONE)],
                     "an error event", "gone", id="an error event"),
        pytest.param([(5, A), (5, chunk("abort")), (0, DONE)],
                     "the server gave up: finish_reason abort", "", id="abort"),
        pytest.param([(5, A), (5, chunk("error")), (0, DONE)],
                     "the server gave up: finish_reason error", "", id="error"),
        pytest.param([(5, A), (0, event({"choices": [{"finish_reason": {"type": "abort",
                      "message": "no room"}}]})), (0, DONE)],
                     "the server gave up: finish_reason abort", "", id="SGLang's abort"),
        *(pytest.param([(5, A), (5, chunk(reason)), (0, DONE)],
                       f"the server gave up: finish_reason {reason}", "", id=f"{reason} of "
                       "others'") for reason in ("cancelled", "timeout", "ERROR", "network_error",
                                                "insufficient_system_resource")),
        pytest.param([(5, event({"choices": [{"index": 0, "error": {"message": "no room"}}]}))],
                     "an error in a choice", "no room", id="an error in a choice"),
        pytest.param([(5, event({"choices": [{"index": n, "text": "a"} for n in (0, 1)]})),
                      (5, event({"choices": [{"index": 0, "finish_reason": "stop"}]}))],
                     "the answer broke off", "", id="one of two choices finished"),
        pytest.param([(5, A), (5, 'error: {"code": 500, "message": "no room"}\n\n'), (0, DONE)],
                     "an error in the stream", "no room", id="llama.cpp's field of an error"),
        pytest.param([(5, A), (0, STOP), (5, "upstream connect error: reset\n")],
                     "the answer has what is no event", "upstream", id="a proxy's sentence"),
        pytest.param([(5, event({"type": "response.output_text.delta", "delta": "a"}))],
                     "no completion: its events have no `choices`", "url of completions",
                     id="OpenAI's responses"),
        pytest.param([(5, event({"text_output": "a"})), (5, event({"text_output": "b"}))],
                     "no completion: its events have no `choices`", "url of completions",
                     id="Triton's own"),
        pytest.param([(5, STOP), (0, DONE)], "the answer ended without a token", "stream",
                     id="no token"),
        pytest.param([(5, event("{nonsense"))], "not an event of a completion", "nonsense",
                     id="no JSON"),
    ],
)  # fmt: skip
def test_what_is_a_failure_and_of_which_kind(parts: list[Part], kind: str, said: str) -> None:
    with pytest.raises(RequestFailed) as failed:
        read(parts)
    assert failed.value.kind.startswith(kind)
    assert said in str(failed.value)


def test_content_that_is_nested_is_read_as_far_as_parts_go() -> None:
    for levels, tokens in ((3, 2), (900, 1)):
        nested: object = "a"
        for _ in range(levels):
            nested = [nested]
        assert read([*every(5, A, chunk(content=nested)), (0, STOP)]).tokens == tokens


@pytest.mark.parametrize("secret", ['s3"cr\\et-long-value', "pässwörtlang", 'it\'s "both" quotes'])
@pytest.mark.parametrize(
    "way", ["<html>{}</html>\n", 'data: {{"error": {}}}\n\n', "event: error\ndata: {}\n\n",
            "data: {}\n\n"],
)  # fmt: skip
def test_what_repeats_a_secret_is_not_shown(secret: str, way: str) -> None:
    for said in (secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False)):
        text = way.format(json.dumps(said) if "error" in way and "{{" in way else said)
        reader = CompletionReader(known_forms([secret]))
        with pytest.raises(RequestFailed) as failed:
            reader.feed(text.encode(), 0)
        shown = str(failed.value)
        assert REDACTED in shown
        assert secret[:4] not in shown
