"""The client against answers made byte by byte on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pytest_hwqueue.data.errors import HwqError, InvalidMeasurement
from pytest_hwqueue.data.records.plan import Server
from pytest_hwqueue.data.redaction import REDACTED
from pytest_hwqueue.engine.tenants import server_load
from pytest_hwqueue.engine.tenants.completion import RequestFailed
from pytest_hwqueue.engine.tenants.event_stream import MOST_BYTES
from pytest_hwqueue.engine.tenants.open_loop import Reply
from pytest_hwqueue.engine.tenants.server_load import Client, allow_files

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_HTTP = Server("", timeout_s=5)
_OPENAI = Server("", protocol="openai", method="POST", body="{}", timeout_s=5)


async def answering(answer: Answer, use: Callable[[str], Awaitable[None]]) -> None:
    """Serve ``answer`` on loopback while ``use`` runs with the server's URL."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                               if line.startswith(b"content-length:")), 0)  # fmt: skip
                await answer(head + await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        await use(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    finally:
        server.close()
        for writer in writers:
            writer.close()


def ask(spec: Server, answer: Answer) -> Reply | None:
    """Return what one request brings."""
    replies: list[Reply | None] = []

    async def use(url: str) -> None:
        async with Client(replace(spec, url=url), 1) as client:
            replies.append(await client.request())

    asyncio.run(answering(answer, use))
    return replies[0]


def saying(*parts: bytes) -> Answer:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


async def breaking(request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(_OK[:-1])
    writer.close()


def stream(*events: object) -> bytes:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    body = b"".join(f"data: {text}\n\n".encode() for text in texts)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_method_headers_and_body_are_sent_as_given_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9/")
    seen = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        writer.write(_OK)

    spec = replace(_HTTP, method="PUT", headers={"X-Mine": "1"}, body="häh")
    assert ask(spec, answer) is None
    (request,) = seen
    assert request.startswith(b"PUT / HTTP/1.1\r\n")
    assert b"\r\nX-Mine: 1\r\n" in request
    assert request.endswith("\r\n\r\nhäh".encode())


def test_connections_are_kept_limited_and_counted() -> None:
    async def use(url: str) -> None:
        async with Client(replace(_HTTP, url=url), 3) as client:
            await asyncio.gather(*(client.request() for _ in range(20)))
            assert 1 <= client.opened <= 3

    asyncio.run(answering(saying(_OK), use))


@pytest.mark.parametrize(
    ("spec", "parts", "reason"),
    [
        (_HTTP, [b"HTTP/1.1 503 x\r\nContent-Length: 9\r\n\r\nnot\r\n now"], "status 503, not 200: "
         "not now"),
        (_HTTP, [b"HTTP/1.1 302 x\r\nLocation: /else\r\nContent-Length: 0\r\n\r\n"], "status 302"),
        (replace(_HTTP, status=204), [_OK], "status 200, not 204"),
        (replace(_HTTP, timeout_s=0.2), [], "no whole answer within 0.2 s"),
        (replace(_HTTP, timeout_s=0.2), [_OK[:-1]], "no whole answer within 0.2 s"),
        (_HTTP, [b"nonsense\r\n\r\n"], "Bad status line"),
        (_HTTP, None, "ClientPayloadError"),
        (_OPENAI, [stream("x" * 600_000)], "not an event of a completion"),
        (_OPENAI, [stream("[DONE]")], "the answer ended without a token"),
        (_OPENAI, [_OK], "the answer ended without a token"),
        (_OPENAI, [stream("{nonsense")], "not an event of a completion: '{nonsense'"),
        (_OPENAI, [stream([1, 2])], "not an event of a completion"),
        (_OPENAI, [stream({"error": {"message": "no memory"}})], "no memory"),
    ],
)  # fmt: skip
def test_every_wrong_answer_is_a_failure_that_says_what_came(
    spec: Server, parts: list[bytes] | None, reason: str
) -> None:
    with pytest.raises(HwqError) as failed:
        ask(spec, breaking if parts is None else saying(*parts))
    assert reason in str(failed.value)


def text(word: str) -> dict[str, object]:
    return {"choices": [{"text": word}]}


DELTAS: tuple[dict[str, str], ...] = (
    {"role": "assistant"}, {"reasoning_content": "hm"}, {"content": "so"}, {},
)  # fmt: skip
CHAT = [{"choices": [{"delta": delta}]} for delta in DELTAS]


@pytest.mark.parametrize(
    ("events", "tokens"),
    [
        ([text(""), text("a"), text("b")], 2),
        (CHAT, 2),
        ([*CHAT, {"choices": [], "usage": {"completion_tokens": 5}}], 5),
    ],
)
def test_tokens_are_counted_by_events_with_text_or_by_the_server(
    events: list[dict[str, object]], tokens: int
) -> None:
    reply = ask(_OPENAI, saying(stream(*events, "[DONE]")))
    assert reply is not None
    assert reply.tokens == tokens


def test_tokens_are_timed_when_they_come() -> None:
    gap_s = 0.05

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        whole = stream(text("a"), text("b"), "[DONE]")
        head, events = whole.split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        for event in events.split(b"\n\n")[:-1]:
            await asyncio.sleep(gap_s)
            writer.write(event + b"\n\n")

    reply = ask(_OPENAI, answer)
    assert reply is not None
    # No less than what the server waits between them, whatever the machine adds.
    assert reply.last_ns - reply.first_ns > 0.5 * gap_s * 1e9


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def piece(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def test_time_ends_with_the_announced_end_and_the_connection_is_used_again() -> None:
    rest_s = 0.05

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        events = stream(text("a"), text("b"), "[DONE]").split(b"\r\n\r\n", 1)[1]
        writer.write(CHUNKED + piece(events))
        await asyncio.sleep(rest_s)
        writer.write(piece(b": bye\n\n") + b"0\r\n\r\n")

    async def use(url: str) -> None:
        async with Client(replace(_OPENAI, url=url), 1) as client:
            for _ in range(5):
                reply = await client.request()
                assert reply is not None
                # What comes behind the end is read, and not waited for.
                assert time.monotonic_ns() - reply.done_ns >= 0.5 * rest_s * 1e9
            assert client.opened == 1

    asyncio.run(answering(answer, use))


def test_an_end_that_does_not_come_costs_its_connection_and_not_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_load, "_MOST_REST_S", 0.02)
    events = stream(text("a"), "[DONE]").split(b"\r\n\r\n", 1)[1]

    async def use(url: str) -> None:
        async with Client(replace(_OPENAI, url=url), 1) as client:
            replies = [await client.request() for _ in range(3)]
            assert [reply and reply.tokens for reply in replies] == [1] * 3
            assert client.opened == 3

    asyncio.run(answering(saying(CHUNKED + piece(events)), use))


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_no_request_is_sent_twice(method: str) -> None:
    """A kept connection that the server drops costs the request that was sent on it."""
    seen = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(request)
        if len(seen) % 3 == 2:
            writer.close()
        else:
            writer.write(_OK)

    async def use(url: str) -> None:
        async with Client(replace(_HTTP, url=url, method=method), 1) as client:
            for number in range(1, 13):
                if number % 3 == 2:
                    with pytest.raises(RequestFailed, match="Disconnected"):
                        await client.request()
                else:
                    await client.request()

    asyncio.run(answering(answer, use))
    assert len(seen) == 12


def test_a_server_that_knows_how_is_asked_to_count_tokens_and_another_is_not() -> None:
    bodies: list[dict[str, object]] = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        body = json.loads(request.split(b"\r\n\r\n", 1)[1])
        bodies.append(body)
        options = body.get("stream_options")
        if options and body["model"] == "old":
            writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno")
            return
        counted = {"choices": [], "usage": {"completion_tokens": 7}}
        asked = [counted] if options and options["include_usage"] else []
        writer.write(stream(text("a"), *asked, "[DONE]"))

    def tokens(**body: object) -> list[int]:
        found = []

        async def use(url: str) -> None:
            spec = replace(_OPENAI, body=json.dumps(body))
            async with Client(replace(spec, url=url), 1) as client:
                for _ in range(2):
                    await client.first_request()
                reply = await client.request()
                assert reply is not None
                found.append(reply.tokens)

        bodies.clear()
        asyncio.run(answering(answer, use))
        return [*found, len(bodies)]

    # Found out once: the next window's first request is sent as the last was.
    assert tokens(model="new") == [7, 3]
    assert bodies[-1]["stream_options"] == {"include_usage": True}
    # A refusal that is not repeated was none.
    assert tokens(model="old") == [1, 5]
    assert bodies[-1] == {"model": "old"}
    assert [len(body) for body in bodies] == [2, 1, 2, 1, 1]
    # Who says so himself is not asked for more.
    assert tokens(model="new", stream_options={"include_usage": False}) == [1, 3]
    assert bodies[0]["stream_options"] == {"include_usage": False}


def test_one_failure_of_the_first_request_is_no_refusal_to_count() -> None:
    asked: list[bool] = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(b"stream_options" in request)
        if len(asked) == 1:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno")
            return
        counted = [{"choices": [], "usage": {"completion_tokens": 7}}] if asked[-1] else []
        writer.write(stream(text("a"), *counted, "[DONE]"))

    async def use(url: str) -> None:
        async with Client(replace(_OPENAI, url=url, body='{"model": "m"}'), 1) as client:
            await client.first_request()
            reply = await client.request()
            assert reply is not None
            assert (reply.tokens, reply.counted) == (7, "usage")

    asyncio.run(answering(answer, use))
    assert asked == [True, False, True, True]


def test_a_connection_is_used_again_where_something_follows_the_end_bit_by_bit() -> None:
    events = stream(text("a"), "[DONE]").split(b"\r\n\r\n", 1)[1]

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + piece(events))
        for _ in range(3):
            await asyncio.sleep(0.002)
            writer.write(piece(b": more\n\n"))
        writer.write(piece(b""))

    async def use(url: str) -> None:
        async with Client(replace(_OPENAI, url=url), 1) as client:
            for _ in range(5):
                await client.request()
            assert client.opened == 1

    asyncio.run(answering(answer, use))


def test_our_own_limits_are_no_failure_of_the_server() -> None:
    have, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes: list[Reply | BaseException | None] = []

    async def use(url: str) -> None:
        async with Client(replace(_HTTP, url=url), 500) as client:
            few = len(os.listdir("/proc/self/fd")) + 20
            resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
            try:
                sent = (client.request() for _ in range(100))
                outcomes.extend(await asyncio.gather(*sent, return_exceptions=True))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (have, most))

    async def slow(request: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(_OK)

    asyncio.run(answering(slow, use))
    refused = [str(each) for each in outcomes if isinstance(each, InvalidMeasurement)]
    assert refused
    assert "the load generator's own limit was reached" in refused[0]
    assert "Too many open files" in refused[0]
    with pytest.raises(InvalidMeasurement, match="an event has more than"):
        ask(replace(_OPENAI, timeout_s=20), saying(stream("x" * (MOST_BYTES + 1))))


def test_files_are_allowed_as_far_as_the_user_may(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (90, 1000)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda which, now: limits.update(now=now))
    allow_files(16)
    assert limits["now"] == (90, 1000)
    allow_files(400)
    assert limits["now"] == (464, 1000)
    with pytest.raises(HwqError, match=r"concurrency 1000 needs 1064 open files, .* have 1000"):
        allow_files(1000)
    limits["now"] = (464, resource.RLIM_INFINITY)
    allow_files(5000)
    assert limits["now"] == (5064, resource.RLIM_INFINITY)


def wait(spec: Server, answer: Answer) -> None:
    async def use(url: str) -> None:
        async with Client(replace(spec, url=url), 1) as client:
            await client.wait_until_ready()

    asyncio.run(answering(answer, use))


def test_readiness_is_asked_for_until_it_is_there_or_what_was_last_said_is_told() -> None:
    asked = []

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> None:
        asked.append(request.split()[1])
        status = b"503 x" if len(asked) < 3 else b"204 x"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)

    wait(replace(_HTTP, ready="/health"), answer)
    assert asked == [b"/health"] * 3
    # Without a URL a connection is enough, even to one that never answers.
    wait(_HTTP, saying())
    with pytest.raises(HwqError, match=r"/health was not ready within 0\.1 s: .* status 503"):
        wait(replace(_HTTP, ready="/health", ready_s=0.1),
             saying(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"))  # fmt: skip


def test_a_variable_is_sent_and_what_repeats_it_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "h1dden-t&ken")
    heads: list[bytes] = []

    async def repeats(request: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(request)
        text = b"x" * 150 + b" not h1dden-t&ken; X-Mine: literal-secret, literal-secret"
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        await writer.drain()

    headers = {"X-Mine": "literal-secret"}
    asked: list[str] = []

    async def use(url: str) -> None:
        at = f"{url.replace('//', '//me:${TOKEN}@')}?token=${{TOKEN}}"
        async with Client(replace(_HTTP, url=at, headers=headers), 1) as client:
            with pytest.raises(HwqError) as refused:
                await client.request()
            asked.append(str(refused.value))

    asyncio.run(answering(repeats, use))
    assert b"GET /?token=h1dden-t%26ken " in heads[0]
    assert b"Basic " + base64.b64encode(b"me:h1dden-t&ken") in heads[0]
    # The last one is cut off within the 200 bytes that are shown.
    assert asked == [
        f"status 500, not 200: {'x' * 150} not {REDACTED}; X-Mine: {REDACTED}, {REDACTED}"
    ]
    for event in ({"error": "not h1dden-t&ken"}, "literal-secret"):
        with pytest.raises(HwqError) as refused:
            ask(replace(_OPENAI, headers={**headers, "X-Other": "${TOKEN}"}), saying(stream(event)))
        assert REDACTED in str(refused.value)
        assert "h1dden" not in str(refused.value)
        assert "literal" not in str(refused.value)


def test_a_header_and_the_url_that_says_when_it_is_ready_have_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "h1dden-t&ken")
    heads: list[bytes] = []

    async def refuses(request: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(request)
        writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def garbles(request: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(request)
        writer.write(b"h1dden-t&ken is no status\r\n\r\n")
        writer.close()

    spec = replace(_HTTP, ready="/up?n=${TOKEN}", ready_s=0.0, headers={"X-Mine": "T ${TOKEN}"})

    async def wait(url: str) -> None:
        async with Client(replace(spec, url=url), 1) as client:
            await client.wait_until_ready()

    with pytest.raises(HwqError) as refused:
        asyncio.run(answering(refuses, wait))
    assert b"GET /up?n=h1dden-t%26ken " in heads[0]
    assert str(refused.value).endswith(
        f"/up?n={REDACTED} was not ready: it answered with status 403"
    )
    with pytest.raises(HwqError) as refused:
        ask(spec, garbles)
    assert b"X-Mine: T h1dden-t&ken\r\n" in heads[1]
    assert f"{REDACTED} is no status" in str(refused.value)
    assert "h1dden" not in str(refused.value)
