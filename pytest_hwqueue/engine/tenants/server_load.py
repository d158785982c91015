"""Load for users' servers: the client and the generator.

aiohttp, since httpx cannot send 1,000 requests/s in time (docs/decisions.md has figures of both).

The schedule is made before the window, and latency counts from the scheduled time. A request that
is due while all connections are busy waits for one, and its wait counts: no coordinated omission
(Tene, "How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

import asyncio
import errno
import json
import math
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import aiohttp

from pytest_hwqueue.data.errors import HwqError, InvalidMeasurement, shortened
from pytest_hwqueue.data.records.plan import Server
from pytest_hwqueue.data.records.tenants import RequestFailure, RequestLog
from pytest_hwqueue.data.redaction import redacted, without_begun, without_known
from pytest_hwqueue.engine.tenants.completion import CompletionReader, RequestFailed
from pytest_hwqueue.engine.tenants.event_stream import EventTooLong
from pytest_hwqueue.engine.tenants.open_loop import (
    MOST_FAILURES_IN_A_ROW,
    Demand,
    Load,
    Reply,
    StoppedServing,
    Window,
    require_early,
)
from pytest_hwqueue.engine.tenants.prompts import PromptRequest, text_of
from pytest_hwqueue.engine.tenants.server_variables import expand, expand_url
from pytest_hwqueue.engine.tenants.servers import CHAT, host_and_port, ready_url, secrets_of
from pytest_hwqueue.parts.devices.cpu_counters import RunDelays

_POLL_S = 0.05
_ONE_POLL_S = 5.0
_SHOWN = 200
# Behind an announced end, and after it.
_MOST_REST_BYTES, _MOST_REST_S = 65_536, 1.0


# What this process may not have more of: files of its own or of all, and local ports.
_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})
# Of a process that has as many connections: for its log, its pipes, the event loop.
_OTHER_FILES = 64


def _failure(error: Exception, secrets: Collection[str] = ()) -> HwqError:
    """Return the failure that a request's error means: itself, or its kind and message."""
    if isinstance(error, HwqError):
        return error
    if isinstance(error, EventTooLong) or getattr(error, "errno", None) in _OWN_LIMITS:
        return InvalidMeasurement(f"the load generator's own limit was reached: {error}")
    name = type(error).__name__
    return RequestFailed(f"{name}: {shortened(without_known(str(error), secrets))}", name)


def allow_files(connections: int) -> None:
    """Let this process have a file for each connection, as far as its user may.

    Raises:
        HwqError: if it may not.

    """
    have, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if have == resource.RLIM_INFINITY or have >= needed:
        return
    if most != resource.RLIM_INFINITY and most < needed:
        raise HwqError(
            f"concurrency {connections} needs {needed} open files, and this user's processes may "
            f"have {most}: lower the tenant's concurrency, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


class Client:
    """Connections to one server; use it as an asynchronous context.

    Args:
        spec: the server and its requests, with port and socket filled in.
        connections: the greatest number open at once.

    Attributes:
        opened: connections made so far.

    Raises:
        HwqError: if a variable of the environment that they need is not set.

    """

    def __init__(self, spec: Server, connections: int) -> None:
        self.opened = 0
        self._spec = spec
        self._connections = connections
        self._secrets = secrets_of(spec)
        self._sent_to = expand_url(spec.url)
        self._headers = {name: expand(value) for name, value in spec.headers.items()}
        # What each request asks for, where it is not the same for all.
        self._prompts: Iterator[PromptRequest] | None = None
        # Whether the server takes being asked for a count of tokens: the first request finds out.
        self._fields = _fields_of(spec.body)
        self._asks_usage = (
            spec.protocol == "openai"
            and self._fields is not None
            and "stream_options" not in self._fields
        )
        self._found_out = not self._asks_usage
        self._body = self._encoded()
        self._read = {"http": _read_all, "openai": _read_tokens}[spec.protocol]

    async def __aenter__(self) -> Client:
        async def count(*_: object) -> None:
            self.opened += 1

        watch = aiohttp.TraceConfig()
        watch.on_connection_create_end.append(count)
        path, limit = self._spec.socket, self._connections
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit)
            if path is None
            else aiohttp.UnixConnector(path, limit=limit),
            # Every request is the same, whatever earlier answers set.
            cookie_jar=aiohttp.DummyCookieJar(),
            # By default aiohttp rounds long ones up to whole seconds.
            timeout=aiohttp.ClientTimeout(total=self._spec.timeout_s, ceil_threshold=math.inf),
            trace_configs=[watch],
            # Nor does a proxy from the environment take it elsewhere.
            trust_env=False,
        )
        # No request is sent twice, not even one that a kept connection dropped.
        self._session._retry_connection = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(self) -> Reply | None:
        """Send one request and read the whole answer; return its tokens' times, if it has any.

        Raises:
            HwqError: on a time-out, a wrong status, no token, or any other error.

        """
        spec = self._spec
        try:
            async with self._session.request(
                spec.method, self._sent_to, data=self._next_body(), headers=self._headers,
                allow_redirects=False,
            ) as response:  # fmt: skip
                if response.status != spec.status:
                    start = await _start_of(response, self._secrets)
                    kind = f"status {response.status}, not {spec.status}"
                    raise RequestFailed(f"{kind}: {start}", kind)
                return await self._read(response, self._secrets)
        except asyncio.TimeoutError:
            raise RequestFailed(f"no whole answer within {spec.timeout_s:g} s") from None
        except Exception as error:  # whatever aiohttp raises, the request was not answered
            raise _failure(error, self._secrets) from None

    async def first_request(self) -> None:
        """Send a request, and find out whether the server counts tokens when it is asked to.

        Raises:
            HwqError: as `request` does.

        """
        if self._found_out:
            await self.request()
            return
        self._found_out = True
        # Some take no field that they don't know. What fails once may fail for another reason.
        if await self._is_answered():
            return
        self._ask_usage(False)
        await self.request()
        self._ask_usage(True)
        if not await self._is_answered():
            self._ask_usage(False)

    async def _is_answered(self) -> bool:
        try:
            await self.request()
        except RequestFailed:
            return False
        return True

    def _ask_usage(self, asks: bool) -> None:
        self._asks_usage = asks
        self._body = self._encoded()

    def ask(self, prompts: Iterator[PromptRequest]) -> None:
        """Take what each request from now on asks for from here."""
        self._prompts = prompts

    def _next_body(self) -> bytes | None:
        if self._prompts is None:
            return self._body
        asked, most = next(self._prompts), self._spec.most_tokens
        fields: dict[str, Any] = {}
        if self._spec.url.partition("?")[0].endswith(CHAT):
            fields["messages"] = [{"role": "user", "content": text_of(asked)}]
        else:
            fields["prompt"] = text_of(asked)
        lengths = [each for each in (asked.max_tokens, most) if each is not None]
        if lengths:
            fields["max_tokens"] = min(lengths)
        return self._encoded(fields)

    def _encoded(self, more: Mapping[str, Any] = MappingProxyType({})) -> bytes | None:
        """Return the body of a request with further fields, and the asking for a count."""
        body = self._spec.body
        if self._asks_usage:
            more = {**more, "stream_options": _USAGE}
        if more:
            body = json.dumps({**(self._fields or {}), **more})
        return None if body is None else body.encode()

    async def wait_until_ready(self) -> None:
        """Wait until the server is ready; one that runs already and states no URL must be.

        Raises:
            HwqError: if it is not within its time.

        """
        spec, ready = self._spec, ready_url(self._spec)
        url = None if ready is None else expand_url(ready)
        waits_s = spec.ready_s if spec.ours or url is not None else 0.0
        deadline = time.monotonic() + waits_s
        while (problem := await self._problem(url)) is not None:
            if time.monotonic() >= deadline:
                within = f" within {waits_s:g} s" if waits_s else ""
                at = "" if spec.socket is None else f" on the unix socket {spec.socket}"
                text = f"{url or self._sent_to}{at} was not ready{within}: {problem}"
                raise HwqError(redacted(text, self._secrets))
            await asyncio.sleep(_POLL_S)

    async def _problem(self, url: str | None) -> str | None:
        """Return why the server is not ready; None if it is."""
        try:
            if url is None:
                path = self._spec.socket
                opening = (
                    asyncio.open_connection(*host_and_port(self._sent_to))
                    if path is None
                    else asyncio.open_unix_connection(path)
                )
                _, writer = await asyncio.wait_for(opening, _ONE_POLL_S)
                writer.close()
                await writer.wait_closed()
                return None
            limit = aiohttp.ClientTimeout(total=_ONE_POLL_S)
            async with self._session.get(url, timeout=limit, allow_redirects=False) as response:
                return None if response.ok else f"it answered with status {response.status}"
        except asyncio.TimeoutError:
            return f"no answer within {_ONE_POLL_S:g} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"{type(error).__name__}: {error}"


_USAGE = {"include_usage": True}


def _fields_of(body: str | None) -> dict[str, Any] | None:
    """Return the fields of a body that is a table of JSON; None if it is something else."""
    try:
        fields = json.loads(body or "")
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


async def _start_of(response: aiohttp.ClientResponse, secrets: Collection[str]) -> str:
    """Return the beginning of an answer's text, on one line and without known secrets.

    Requests go on meanwhile: what is secret by its name is left out where the record is made.
    """
    text = " ".join((await response.content.read(_SHOWN)).decode(errors="replace").split())
    return without_known(without_begun(text, secrets), secrets)


async def _read_all(response: aiohttp.ClientResponse, secrets: Collection[str]) -> None:
    """Read an answer to its end; nothing of it is kept."""
    async for _ in response.content.iter_any():
        pass


async def _read_tokens(response: aiohttp.ClientResponse, secrets: Collection[str]) -> Reply:
    """Read a streamed completion (OpenAI's API, `stream: true`)."""
    reader = CompletionReader(secrets)
    async for chunk in response.content.iter_any():
        if reader.feed(chunk, time.monotonic_ns()):
            await _read_rest(response)
            break
    return reader.end(time.monotonic_ns())


async def _read_rest(response: aiohttp.ClientResponse) -> None:
    """Read what follows an announced end, so that the connection can be used again; for a while."""
    if response.content.at_eof():
        return
    try:
        await asyncio.wait_for(_drain(response.content), _MOST_REST_S)
    except (asyncio.TimeoutError, aiohttp.ClientError):
        # The answer is whole; only its connection is not used again.
        response.close()


async def _drain(content: aiohttp.StreamReader) -> None:
    left = _MOST_REST_BYTES
    while left > 0 and (chunk := await content.readany()):
        left -= len(chunk)


# epoll counts in whole milliseconds. The rest of each wait is spent looking at the clock, with
# answers taken in meanwhile; it costs a core, and sleeping lets others have that core for longer.
_SPIN_NS = 1_500_000
# A turn of the event loop in which nothing was to do takes some 10 µs; to read a part some 100 µs.
_IDLE_NS = 50_000
# Whoever asks for so much more than the warm-up's requests allow cannot get it.
_MOST_BEYOND = 1.2
_LEAST_TO_JUDGE = 50

Request = Callable[[], Awaitable[Reply | None]]


async def generate(request: Request, demand: Demand, window: Window, concurrency: int) -> Load:
    """Send the requests of a window; return once each has its answer, or has failed.

    Args:
        request: sends one and waits for its answer; one that raises has failed.
        demand: when requests are asked for; closed loops are as many as ``concurrency``.
        window: when to measure, on the clock of `time.monotonic_ns`.
        concurrency: the greatest number in flight at once.

    Raises:
        InvalidMeasurement: if the window began before everything was ready.
        StoppedServing: if 10,000 requests failed in a row.

    """
    require_early(time.monotonic_ns(), window)
    schedule = demand.schedule
    run = _Run(request, window, concurrency, closed=schedule is None)
    with run.watched():
        if schedule is None:
            await asyncio.gather(*(run.keep_sending(demand) for _ in range(concurrency)))
        else:
            await run.send_all(schedule)
    return run.load(schedule)


def refuse_impossible(warm: Load, warm_up: Window, demand: Demand, duration_s: float) -> None:
    """Refuse arrivals that this process cannot send, by what its warm-up's requests took it.

    Raises:
        HwqError: if sending and reading them would take it longer than the window.

    """
    n = len(warm.started_ns)
    if demand.schedule is None or warm.worked is None or n < _LEAST_TO_JUDGE:
        return
    each_s = warm.worked * warm_up.duration_ns / 1e9 / n
    rate = len(demand.schedule) / duration_s
    if rate * each_s > _MOST_BEYOND:
        raise HwqError(
            f"the arrivals ask for {rate:,.0f} requests/s, and the load generator can send some "
            f"{1 / each_s:,.0f}/s ({each_s * 1e3:.2g} ms of a core each in the warm-up): lower the "
            "rate"
        )


class _Busy:
    """What a window costs the thread that generates: time on a core, and waiting for one.

    Looking at the clock while nothing else is to do is taken off.

    Attributes:
        worked_ns: on a core; known once it has ended.
        waited_ns: for a core, likewise.

    """

    def __init__(self) -> None:
        self.worked_ns = self.waited_ns = 0
        self._idle_ns = self._idle_until_ns = 0
        self._waits: RunDelays | None = None

    def begin(self) -> None:
        """Count from now on."""
        # Of the time on the run queue a kernel may keep none.
        self._waits = RunDelays([threading.get_native_id()])
        self._idle_ns = 0
        self.worked_ns = -time.thread_time_ns()

    def end(self) -> None:
        """Count no more; a second call does nothing."""
        if self._waits is not None:
            self.worked_ns = max(0, self.worked_ns + time.thread_time_ns() - self._idle_ns)
            self.waited_ns = sum(self._waits.step().values())
            self._waits.close()
            self._waits = None

    def idled(self, from_ns: int, until_ns: int) -> None:
        """Take off a look at the clock, unless it took so long that something was done in it."""
        if until_ns - from_ns <= _IDLE_NS and from_ns >= self._idle_until_ns:
            self._idle_ns += until_ns - from_ns
            # Of several that look at the same time one counts.
            self._idle_until_ns = until_ns


class _Run:
    """Sends the requests and logs their times, in ns from the window's start."""

    def __init__(self, request: Request, window: Window, concurrency: int, *, closed: bool) -> None:
        self._request = request
        self._window = window
        self._free = asyncio.Semaphore(concurrency)
        self._closed, self._concurrency = closed, concurrency
        self._log = RequestLog([], [], [])
        self._failed: list[RequestFailure] = []
        self._replies: list[Reply | None] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = self._most_at_once = self._failures_in_a_row = 0
        self._freed_ns: list[int] = []
        self._busy = _Busy()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what the window costs this thread, for a block; what precedes it costs nothing."""
        left_s = max(0, self._window.end_ns - time.monotonic_ns()) / 1e9
        # An answer may come long after its end.
        timer = asyncio.get_running_loop().call_later(left_s, self._busy.end)
        self._busy.begin()
        try:
            yield
        finally:
            timer.cancel()
            self._busy.end()

    async def _until(self, when_ns: int) -> None:
        while (left_ns := when_ns - (now_ns := time.monotonic_ns())) > 0:
            if left_ns > _SPIN_NS:
                await asyncio.sleep((left_ns - _SPIN_NS) / 1e9)
                continue
            await asyncio.sleep(0)
            self._busy.idled(now_ns, time.monotonic_ns())

    async def keep_sending(self, demand: Demand) -> None:
        end_ns = self._window.end_ns
        await self._until(self._window.begin_ns + demand.first_ns)
        while time.monotonic_ns() < end_ns and len(self._log.started_ns) != demand.most:
            await self._send(None)
            self._refuse_hopeless()
            if demand.delay_ns:
                await self._until(min(time.monotonic_ns() + demand.delay_ns, end_ns))

    async def send_all(self, schedule: Sequence[int]) -> None:
        window = self._window
        last_start_ns = window.over_ns
        for scheduled_ns in schedule:
            await self._until(window.begin_ns + scheduled_ns)
            if not await self._connection_before(last_start_ns):
                break
            self._refuse_hopeless()
            task = asyncio.create_task(self._send_and_free(scheduled_ns))
            self._tasks.add(task)
            task.add_done_callback(self._forget)
        # Each has a time-out of its own.
        await asyncio.gather(*self._tasks)

    def _forget(self, task: asyncio.Task[None]) -> None:
        # What did not end by itself is raised where all are waited for.
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)

    def load(self, schedule: Sequence[int] | None) -> Load:
        begun = len(self._log.started_ns)
        unserved = 0 if schedule is None else len(schedule) - begun
        log, busy, lasted_ns = self._log, self._busy, self._window.duration_ns
        busy.end()
        return Load(
            log.scheduled_ns,
            log.started_ns,
            log.finished_ns,
            closed=self._closed,
            failed=self._failed,
            unserved=unserved,
            concurrency=self._concurrency,
            replies=self._replies,
            most_at_once=self._most_at_once,
            freed_ns=self._freed_ns,
            worked=min(1.0, busy.worked_ns / lasted_ns),
            busy=min(1.0, (busy.worked_ns + busy.waited_ns) / lasted_ns),
        )

    async def _connection_before(self, last_ns: int) -> bool:
        """Wait for a free connection; return whether there was one in time."""
        left_s = (last_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            return False
        if not self._free.locked():
            await self._free.acquire()
            return True
        try:
            await asyncio.wait_for(self._free.acquire(), left_s)
        except asyncio.TimeoutError:
            return False
        return True

    async def _send_and_free(self, scheduled_ns: int) -> None:
        try:
            await self._send(scheduled_ns)
        finally:
            self._free.release()

    async def _send(self, scheduled_ns: int | None) -> None:
        log, begin_ns = self._log, self._window.begin_ns
        started_ns = time.monotonic_ns() - begin_ns
        index = len(log.started_ns)
        log.add(started_ns if scheduled_ns is None else scheduled_ns, started_ns, started_ns)
        self._replies.append(None)
        self._freed_ns.append(started_ns)
        self._in_flight += 1
        self._most_at_once = max(self._most_at_once, self._in_flight)
        try:
            reply = self._replies[index] = await self._request()
            self._failures_in_a_row = 0
        except Exception as error:  # whatever it is, nobody was answered
            failure = _failure(error)
            if isinstance(failure, InvalidMeasurement):
                raise failure from None
            kind = failure.kind if isinstance(failure, RequestFailed) else ""
            self._failed.append(RequestFailure(index=index, reason=str(failure), kind=kind))
            self._failures_in_a_row += 1
            reply = None
        finally:
            self._in_flight -= 1
        # What is read behind an announced end is not waited for; its connection is not free yet.
        freed_ns = time.monotonic_ns()
        self._freed_ns[index] = freed_ns - begin_ns
        log.finished_ns[index] = (freed_ns if reply is None else reply.done_ns) - begin_ns

    def _refuse_hopeless(self) -> None:
        if self._failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            raise StoppedServing(
                f"{self._failures_in_a_row:,} requests failed in a row; the last: "
                f"{self._failed[-1].reason}",
                self.load(None),
            )
