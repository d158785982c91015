"""Servers' own logs beside our figures of them, as Markdown: one row a server or stream.

    python -m tools.server_figures [--streams FOLDER] [--seconds S]

Starts ``uvicorn streaming:app`` (tools/streaming.py) on 127.0.0.1 and ::1, over TLS and at a unix
socket, as the server of a scenario's tenant with up to 16 connections and 36 requests a second, and
then once for each stored stream. The server logs what it sent and when; which part is a stream's
first token and which its last, its file says. Ours count from the scheduled time and hold the way
there and back, the log does not: on a machine whose cores others use, too, P99 has their turns. A
row agrees if all counts are equal, no more connections were opened than that many requests take,
and each P50 is within 2 ms. Each row is printed once it is measured, with the reason if it could
not be. Fails if one does not agree, or was not measured. Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import trustme

from pytest_hwqueue.data.document.document import markdown_table, plain
from pytest_hwqueue.data.figures.served import between_tokens_ns
from pytest_hwqueue.data.metrics.numbers import figure
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import RequestLog, TenantResult
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.engine.tenants.colocation_run import LEAD_NS
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, open_scheduler
from tools.streaming import ANSWERED, RECEIVED

STREAMS = Path(__file__).parents[1] / "tests" / "engine" / "tenants" / "streams"
CONNECTIONS = 16
WITHIN_MS = 2.0
# Evenly, so that requests do not queue for the server before it can log them.
_ARRIVAL = "constant: 36/s"
# A window whose load generator was late is measured again.
_ATTEMPTS = 5
_QUANTILES = (0.5, 0.99)
_HEAD = (
    "server", "stream", "requests", "completed", "failed", "tokens", "connections",
    "first token, P50 ms", "P99 ms", "between tokens, P50 ms", "P99 ms", "",
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """A stored stream, and what a client has to make of it.

    Attributes:
        name: of its file.
        first: the part with its first token; None where it fails.
        last: the part with its last token.
        tokens: how many it has.

    """

    name: str
    first: int | None
    last: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Logged:
    """What a server logged of one request; times in ns.

    Attributes:
        stream: which it got.
        received_ns: when.
        port: its client's; None at a unix socket, which has none.
        sent_ns: when each part that was sent was; empty if the answer did not end.
        tokens: in these parts.

    """

    stream: Stream
    received_ns: int
    port: int | None
    sent_ns: Sequence[int] = ()
    tokens: int = 0

    @property
    def good(self) -> bool:
        """Whether all its tokens were sent, in a stream that does not fail."""
        return self.stream.first is not None and len(self.sent_ns) > self.stream.last

    @property
    def first_ns(self) -> int:
        """Time from when the request was received to its first token."""
        assert self.stream.first is not None
        return self.sent_ns[self.stream.first] - self.received_ns

    @property
    def between_ns(self) -> float:
        """Mean time between tokens."""
        assert self.stream.first is not None
        span_ns = self.sent_ns[self.stream.last] - self.sent_ns[self.stream.first]
        return span_ns / max(1, self.tokens - 1)


def read_streams(folder: Path) -> dict[str, Stream]:
    """Return the streams of a folder, by name."""
    return {path.stem: _stream(path) for path in sorted(folder.glob("*.json"))}


def _stream(path: Path) -> Stream:
    said = json.loads(path.read_text(encoding="utf-8"))
    expected = said["expect"]
    if expected["outcome"] == "failed":
        return Stream(path.stem, None)
    due_ms = list(accumulate(wait_ms for wait_ms, _ in said["parts"]))
    span_ms = expected["tbt_ms"] * (expected["tokens"] - 1)
    first, last = (due_ms.index(at) for at in (expected["ttft_ms"], expected["ttft_ms"] + span_ms))
    return Stream(path.stem, first, last, expected["tokens"])


def streaming(
    name: str, folders: Sequence[Path], at: Sequence[str], url: str, socket: str | None = None
) -> Server:
    """Return the server that plays a stream.

    Args:
        name: of the stream; with ``?every_second`` behind it, in turns with the plain one.
        folders: of the streams.
        at: uvicorn's options of where it listens.
        url: of that place, without a path.
        socket: as a server's field.

    """
    name, _, query = name.partition("?")
    return Server(
        url=f"{url}/{name}/v1/chat/completions?{query}",
        command=(
            "env", f"STREAMS={os.pathsep.join(map(str, folders))}",
            "{python}", "-m", "uvicorn", "--app-dir", str(Path(__file__).parent), *at,
            "--no-access-log", "--timeout-keep-alive", "60", "streaming:app",
        ),
        socket=socket, protocol="openai", method="POST", body='{"model": "m", "stream": true}',
    )  # fmt: skip


TCP = (("--host", "127.0.0.1", "--port", "{port}"), "http://127.0.0.1:{port}")
IPV6 = (("--host", "::1", "--port", "{port}"), "http://[::1]:{port}")
UNIX = (("--uds", "{socket}"), "http://localhost", "{socket}")


@contextmanager
def over_tls(folder: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield where a server with a certificate of its own listens; this process trusts that."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = {name: str(folder / f"{name}.pem") for name in ("authority", "key", "chain")}
    authority.cert_pem.write_to_path(files["authority"])
    certificate.private_key_pem.write_to_path(files["key"])
    certificate.cert_chain_pems[0].write_to_path(files["chain"])
    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = files["authority"]
    try:
        options = ("--ssl-keyfile", files["key"], "--ssl-certfile", files["chain"])
        yield (*TCP[0], *options), "https://127.0.0.1:{port}"
    finally:
        del os.environ["SSL_CERT_FILE"]
        if before is not None:
            os.environ["SSL_CERT_FILE"] = before


def read_log(text: str, streams: Mapping[str, Stream]) -> list[Logged]:
    """Return a server's log, of which other lines are its own, in the order of receipt."""
    received, answered = (_lines(text, begin) for begin in (RECEIVED, ANSWERED))
    return [
        Logged(
            streams[said["stream"]],
            said["received"],
            said["port"],
            *((end["sent"], end["tokens"]) if (end := answered.get(number)) else ()),
        )
        for number, said in sorted(received.items())
    ]


def _lines(text: str, begin: str) -> dict[int, dict[str, Any]]:
    said = [json.loads(line) for line in re.findall(rf"^{begin} (.*)$", text, re.MULTILINE)]
    return {each["number"]: each for each in said}


class NotMeasuredError(Exception):
    """A server could not be measured; the text says why."""


def in_window(log: Sequence[Logged], requests: RequestLog) -> list[Logged]:
    """Return what a server logged since its window began, however many requests that were.

    Before a window nobody sends anything for a while. Of several pauses that are as long, as where
    a machine stood still, it is the one after which the window's own times lead to the log's end.

    Raises:
        NotMeasuredError: if there is none.

    """
    by_time = sorted(log, key=lambda each: each.received_ns)
    ended_ns = max(ns for each in log for ns in (each.received_ns, *each.sent_ns))
    lasted_ns = max(requests.finished_ns) - min(requests.started_ns)
    begins = [
        number
        for number, (one, other) in enumerate(pairwise(by_time), 1)
        if other.received_ns - one.received_ns >= LEAD_NS
    ]
    if not begins:
        raise NotMeasuredError("the server's log has no pause before the window")
    begin = min(begins, key=lambda n: abs(by_time[n].received_ns + lasted_ns - ended_ns))
    return by_time[begin:]


def measure(server: Server, folder: Path, seconds: float) -> tuple[TenantResult, str]:
    """Return what was measured of a server in a window, and its log.

    Raises:
        NotMeasuredError: if it could not be.

    """
    tenant = Tenant("high", server=server, arrival=_ARRIVAL, concurrency=CONNECTIONS)
    plan = Colocation(
        "figures", (tenant,), duration_s=seconds, warmup_s=0.2, folder=str(Path.cwd())
    )
    for attempt in range(_ATTEMPTS):
        records = folder / str(attempt)
        records.mkdir(parents=True)
        mode = open_scheduler("native", SchedulerPaths())
        record = TenantSet(mode, lambda *_: None, records).once(plan)
        if record.status == "ok":
            (log,) = records.glob("figures*/server-high.log")
            return record.tenants[0], log.read_text(encoding="utf-8")
        if record.status != "invalid":
            break
    raise NotMeasuredError(f"{record.status}: {record.reason}")


@dataclass(frozen=True)
class Row:
    """What a server's log has, and what we measured.

    Attributes:
        counts: requests, completed, failed, tokens, connections; None where the log has none.
        first_ms: time to the first token: P50, P99; empty where nothing completed.
        between_ms: mean time between tokens: likewise.
        connections: the fewest and the most that such requests take.

    """

    counts: Sequence[tuple[int, int] | None]
    first_ms: Sequence[tuple[float, float]] = ()
    between_ms: Sequence[tuple[float, float]] = ()
    connections: tuple[int, int] = (0, CONNECTIONS)

    @property
    def counts_agree(self) -> bool:
        """Whether counts are equal, and connections as many as they should be."""
        least, most = self.connections
        opened = self.counts[-1]
        return all(pair is None or pair[0] == pair[1] for pair in self.counts) and (
            opened is None or least <= opened[0] <= most
        )

    @property
    def agrees(self) -> bool:
        """Whether counts agree, and times are near."""
        medians_ms = [times[0] for times in (self.first_ms, self.between_ms) if times]
        return self.counts_agree and all(abs(log - ours) <= WITHIN_MS for log, ours in medians_ms)

    def cells(self) -> list[str]:
        """Return them as a table has them: one number where both are equal."""
        least, most = self.connections
        opened = self.counts[-1]
        beyond = opened is not None and not least <= opened[0] <= most
        return [
            *map(_both, self.counts[:-1]),
            _both(opened) + f", not {least} to {most}" * beyond,
            *(
                f"{figure(log)} → {figure(ours)}"
                for log, ours in [*self.first_ms, *self.between_ms]
            ),
            "agrees" if self.agrees else "**differs**",
        ]


def _both(pair: tuple[int, int] | None) -> str:
    if pair is None:
        return "—"
    log, ours = pair
    return f"{ours:,}" if log == ours else f"{log:,} → {ours:,}"


def compare(result: TenantResult, log: Sequence[Logged], most: int = CONNECTIONS) -> Row:
    """Compare a window's figures with its server's log.

    Args:
        result: of the window.
        log: since the server's start.
        most: how many requests may be in flight.

    """
    assert result.issued is not None
    assert result.server is not None
    assert result.requests is not None
    own = in_window(log, result.requests)
    good = [each for each in own if each.good]
    tokens = result.server.tokens
    ports = {each.port for each in log}
    # After an answer that fails its connection may be closed; all others are kept.
    failed = sum(not each.good for each in log)
    connections = (result.server.most_at_once, most + failed)
    counts = [
        (len(own), result.issued),
        (len(good), result.completed or 0),
        (len(own) - len(good), result.failed or 0),
        (sum(each.tokens for each in good), sum(tokens.tokens) if tokens else 0),
        None if None in ports else (len(ports), result.server.connections or 0),
    ]
    if tokens is None or not good:
        return Row(counts, connections=connections)
    # One of a single token has none.
    between_ns = [each or 0.0 for each in between_tokens_ns(tokens)]
    return Row(
        counts,
        _quantiles_ms([each.first_ns for each in good], tokens.ttft_ns),
        _quantiles_ms([each.between_ns for each in good], between_ns),
        connections,
    )


def least_way_ms(result: TenantResult, log: Sequence[Logged]) -> float:
    """Return the least time from a request's start to its receipt, plus that of a token back.

    A window's start is not in the log's clock. But no request was received before it started, which
    bounds it from above, and no first token seen before it was sent, which bounds it from below;
    this is what is left between. However busy a machine is, it takes one request only that went at
    once, and one such token. Negative: tokens are dated before they came.
    """
    assert result.requests is not None
    assert result.server is not None
    assert result.server.tokens is not None
    own = in_window(log, result.requests)
    failed = {failure.index for failure in result.failures}
    due_ns = [ns for i, ns in enumerate(result.requests.scheduled_ns) if i not in failed]
    seen_ns = [due + ns for due, ns in zip(due_ns, result.server.tokens.ttft_ns, strict=True)]
    sent_ns = [each.received_ns + each.first_ns for each in own if each.good]
    received_ns = [each.received_ns for each in own]
    at_most_ns = min(_in_order(received_ns, result.requests.started_ns))
    at_least_ns = max(_in_order(sent_ns, seen_ns))
    return (at_most_ns - at_least_ns) / 1e6


def _in_order(logged_ns: Sequence[int], ours_ns: Sequence[int]) -> list[int]:
    """Return by how much the first is after our first, the second after our second, and so on."""
    return [log - ours for log, ours in zip(sorted(logged_ns), sorted(ours_ns), strict=True)]


def _quantiles_ms(sent_ns: Sequence[float], seen_ns: Sequence[float]) -> list[tuple[float, float]]:
    return [(_quantile_ms(sent_ns, each), _quantile_ms(seen_ns, each)) for each in _QUANTILES]


def _quantile_ms(times_ns: Sequence[float], quantile: float) -> float:
    """Return a quantile by nearest rank."""
    return sorted(times_ns)[math.ceil(quantile * len(times_ns)) - 1] / 1e6


def main() -> None:
    """Measure each server, print its row, and fail if one differs or could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=Path, default=STREAMS, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S")
    given = parser.parse_args()
    folders = [given.streams.absolute(), STREAMS]
    streams = read_streams(STREAMS) | read_streams(given.streams)
    print(f"{machine()}.\n")
    with tempfile.TemporaryDirectory() as temporary, over_tls(Path(temporary)) as tls:
        asked = [
            *((what, "slow", place) for what, place in
              (("TCP", TCP), ("TLS", tls), ("IPv6", IPV6), ("unix socket", UNIX))),
            *(("TCP", name, TCP) for name in read_streams(given.streams)),
        ]  # fmt: skip

        def row(number: int, name: str, place: tuple[Any, ...]) -> Row:
            in_turns = "?every_second" if streams[name].first is None else ""
            server = streaming(name + in_turns, folders, *place)
            result, log = measure(server, Path(temporary) / str(number), given.seconds)
            return compare(result, read_log(log, streams))

        failed = print_rows(
            (what, name, partial(row, number, name, place))
            for number, (what, name, place) in enumerate(asked)
        )
    if failed:
        sys.exit(f"these differ, or were not measured: {', '.join(failed)}")


def print_rows(asked: Iterable[tuple[str, str, Callable[[], Row]]]) -> list[str]:
    """Print a row of each server and stream once it is measured; return those that do not agree.

    Args:
        asked: a server, a stream, and what measures it.

    """
    failed = []
    print(markdown_table(_HEAD, []))
    for what, name, row in asked:
        try:
            measured = row()
            cells, agrees = measured.cells(), measured.agrees
        except NotMeasuredError as error:
            cells, agrees = (
                [*["—"] * (len(_HEAD) - 3), f"**not measured**: {plain(str(error))}"],
                False,
            )
        print(markdown_table(_HEAD, [[what, name, *cells]]).splitlines()[-1], flush=True)
        if not agrees:
            failed.append(f"{name} over {what}")
    return failed


def machine() -> str:
    """Return what a table is of: the processor, its cores, Python, and the commit."""
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return (
        f"{cpu[1] if cpu else platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}, commit {commit}"
    )


if __name__ == "__main__":
    main()
