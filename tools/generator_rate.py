"""The greatest rate of the load generator of servers' tenants, as Markdown.

    python -m tools.generator_rate [--rounds N] [--seconds S]

Closed loops of 1, 16 and 64 connections ask a server in a process of its own on 127.0.0.1, which
answers each request with bytes that were made before: with two, or with a stream of 16 tokens, an
event a write. Requests per second and the generator's own CPU time per request are medians over
rounds, in turns. The server takes CPU time, too: where that is more than the generator's, the rate
is the server's. Run it from the top of the tree, on a machine with two idle cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.records.plan import Server
from pytest_hwqueue.engine.tenants.open_loop import GREEDY, Window
from pytest_hwqueue.engine.tenants.server_load import Client, generate
from tools.noise_table import print_table
from tools.server_figures import machine

TOKENS = 16
_CONNECTIONS = (1, 16, 64)
_AHEAD_NS = 50_000_000
_HEAD = (
    "answer", "connections", "requests/s", "generator's CPU, µs a request",
    "server's CPU, µs a request",
)  # fmt: skip
_PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def _stream() -> list[bytes]:
    """Return the writes of an answer of 16 tokens."""
    events = [{"choices": [{"index": 0, "delta": {"content": " a"}}]}] * TOKENS
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    said = [*map(json.dumps, [*events, last]), "[DONE]"]
    texts = [f"data: {each}\n\n".encode() for each in said]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return [head, *(b"%x\r\n%s\r\n" % (len(text), text) for text in texts), b"0\r\n\r\n"]


class _Answering(asyncio.Protocol):
    """Answers requests of one connection: a GET by two bytes, a POST by a stream."""

    streamed = _stream()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        self._begun += data
        head, end, body = self._begun.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET"):
            self._begun = b""
            self._transport.write(_PLAIN)
            return
        _, _, length = head.lower().partition(b"content-length: ")
        if len(body) >= int(length.partition(b"\r\n")[0]):
            self._begun = b""
            for part in self.streamed:
                self._transport.write(part)


def serve(parent: Connection) -> None:
    """Serve until the parent has gone; tell it the port, and the CPU time whenever it asks."""

    async def answer() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Answering, "127.0.0.1", 0, backlog=128)
        parent.send(server.sockets[0].getsockname()[1])
        ended = asyncio.Event()

        def tell() -> None:
            try:
                parent.recv()
            except EOFError:
                ended.set()
            else:
                parent.send(time.process_time())

        loop.add_reader(parent.fileno(), tell)
        await ended.wait()

    asyncio.run(answer())


class Rate(NamedTuple):
    """What one round came to."""

    per_s: float
    cpu_us: float
    servers_cpu_us: float


async def measure(server: Server, connections: int, seconds: float, to_server: Connection) -> Rate:
    """Ask a server in closed loops for so long.

    Raises:
        HwqError: if a request failed.

    """

    def servers_s() -> float:
        to_server.send(None)
        seconds: float = to_server.recv()
        return seconds

    async with Client(server, connections) as client:
        await asyncio.gather(*(client.request() for _ in range(connections)))
        gc.collect()
        begin_ns = time.monotonic_ns() + _AHEAD_NS
        window = Window(begin_ns, begin_ns + round(seconds * 1e9))
        theirs_s, before_s = servers_s(), time.process_time()
        load = await generate(client.request, GREEDY, window, connections)
        own_s, theirs_s = time.process_time() - before_s, servers_s() - theirs_s
    if load.failed:
        raise HwqError(f"{len(load.failed)} requests failed: {load.failed[-1].reason}")
    n = len(load.started_ns)
    took_s = max(load.finished_ns) / 1e9
    return Rate(n / took_s, own_s / n * 1e6, theirs_s / n * 1e6)


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each round")
    given = parser.parse_args()
    to_server, parent = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(parent,))
    process.start()
    parent.close()
    url = f"http://127.0.0.1:{to_server.recv()}/"
    servers = {
        "2 bytes": Server(url),
        f"{TOKENS} tokens": Server(url, protocol="openai", method="POST", body="{}"),
    }
    asked = [(answer, connections) for answer in servers for connections in _CONNECTIONS]
    rounds = [
        {
            each: asyncio.run(measure(servers[each[0]], each[1], given.seconds, to_server))
            for each in asked
        }
        for _ in range(given.rounds)
    ]
    to_server.close()
    process.join()
    print(f"{machine()}.\n")
    rows = []
    for answer, connections in asked:
        found = [each[answer, connections] for each in rounds]
        per_s, own_us, theirs_us = (statistics.median(each) for each in zip(*found, strict=True))
        rows.append(
            [answer, str(connections), f"{per_s:,.0f}", f"{own_us:.0f}", f"{theirs_us:.0f}"]
        )
    print_table(_HEAD, rows, [])


if __name__ == "__main__":
    main()
