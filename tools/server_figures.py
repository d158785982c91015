"""Servers' own logs beside our figures of them, as Markdown: one row a server or stream.

    python -m tools.server_figures [--streams FOLDER] [--seconds S]

Starts ``uvicorn streaming:app`` (tools/streaming.py) on 127.0.0.1 and ::1, over TLS and at a unix
socket, as the server of a scenario's tenant with up to 16 connections and 36 requests a second, and
then once for each stored stream. The server logs what it sent and when; which part is a stream's
first token and which its last, its file says. Ours count from the scheduled time and hold the way
there and back, the log does not: on a machine whose cores others use, too, P99 has their turns. A
row agrees if all counts are equal and each P50 is within 2 ms. Fails if one does not. Run it from
the top of the tree.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import trustme

from pytest_hwqueue.data.figures.served import between_tokens_ns
from pytest_hwqueue.data.metrics.numbers import figure
from pytest_hwqueue.data.records.plan import Colocation, Server, Tenant
from pytest_hwqueue.data.records.tenants import TenantResult
from pytest_hwqueue.engine.tenants.colocation import TenantSet
from pytest_hwqueue.parts.schedulers.syntax import SchedulerPaths, open_scheduler
from tools.noise_table import print_table
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
class Answered:
    """What a server logged of one request; times in ns."""

    stream: Stream
    received_ns: int
    sent_ns: Sequence[int]

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
        return span_ns / max(1, self.stream.tokens - 1)


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


@dataclass(frozen=True)
class Log:
    """What a server wrote.

    Attributes:
        answered: its requests, in the order in which they ended.
        connections: from how many ports they came; None at a unix socket, which has none.

    """

    answered: Sequence[Answered]
    connections: int | None


def read_log(text: str, streams: Mapping[str, Stream]) -> Log:
    """Read a server's log, of which other lines are its own."""
    said = [json.loads(line) for line in re.findall(rf"^{ANSWERED} (.*)$", text, re.MULTILINE)]
    ports = {*re.findall(rf"^{RECEIVED} (.*)$", text, re.MULTILINE)}
    return Log(
        [Answered(streams[each["stream"]], each["received"], each["sent"]) for each in said],
        None if "None" in ports else len(ports),
    )


def measure(server: Server, folder: Path, seconds: float) -> tuple[TenantResult, str]:
    """Return what was measured of a server in a window, and its log.

    Raises:
        SystemExit: if it could not be measured.

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
    sys.exit(f"{server.url}: {record.status}: {record.reason}")


@dataclass(frozen=True)
class Row:
    """What a server's log has, and what we measured.

    Attributes:
        counts: requests, completed, failed, tokens, connections; None where the log has none.
        first_ms: time to the first token: P50, P99; empty where nothing completed.
        between_ms: mean time between tokens: likewise.

    """

    counts: Sequence[tuple[int, int] | None]
    first_ms: Sequence[tuple[float, float]] = ()
    between_ms: Sequence[tuple[float, float]] = ()

    @property
    def agrees(self) -> bool:
        """Whether counts are equal, and times near."""
        medians_ms = [times[0] for times in (self.first_ms, self.between_ms) if times]
        return all(pair is None or pair[0] == pair[1] for pair in self.counts) and all(
            abs(log - ours) <= WITHIN_MS for log, ours in medians_ms
        )

    def cells(self) -> list[str]:
        """Return them as a table has them: one number where both are equal."""
        return [
            *map(_both, self.counts),
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


def compare(result: TenantResult, log: Log) -> Row:
    """Compare a window's figures with the log of its server since its start."""
    assert result.issued is not None
    assert result.server is not None
    # What came before the window warmed up.
    own = log.answered[-result.issued :]
    good = [each for each in own if each.stream.first is not None]
    tokens = result.server.tokens
    counts = [
        (len(own), result.issued),
        (len(good), result.completed or 0),
        (len(own) - len(good), result.failed or 0),
        (sum(each.stream.tokens for each in good), sum(tokens.tokens) if tokens else 0),
        None if log.connections is None else (log.connections, result.server.connections or 0),
    ]
    if tokens is None or not good:
        return Row(counts)
    # One of a single token has none.
    between_ns = [each or 0.0 for each in between_tokens_ns(tokens)]
    return Row(
        counts,
        _quantiles_ms([each.first_ns for each in good], tokens.ttft_ns),
        _quantiles_ms([each.between_ns for each in good], between_ns),
    )


def _quantiles_ms(sent_ns: Sequence[float], seen_ns: Sequence[float]) -> list[tuple[float, float]]:
    return [(_quantile_ms(sent_ns, each), _quantile_ms(seen_ns, each)) for each in _QUANTILES]


def _quantile_ms(times_ns: Sequence[float], quantile: float) -> float:
    """Return a quantile by nearest rank."""
    return sorted(times_ns)[math.ceil(quantile * len(times_ns)) - 1] / 1e6


def main() -> None:
    """Measure each server, print the table, and fail if a row differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=Path, default=STREAMS, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S")
    given = parser.parse_args()
    folders = [given.streams.absolute(), STREAMS]
    streams = read_streams(STREAMS) | read_streams(given.streams)
    print(f"{machine()}.\n")
    rows: list[list[str]] = []
    differ = []
    with tempfile.TemporaryDirectory() as temporary, over_tls(Path(temporary)) as tls:
        asked = [
            *((what, "slow", place) for what, place in
              (("TCP", TCP), ("TLS", tls), ("IPv6", IPV6), ("unix socket", UNIX))),
            *(("TCP", name, TCP) for name in read_streams(given.streams)),
        ]  # fmt: skip
        for number, (what, name, place) in enumerate(asked):
            in_turns = "?every_second" if streams[name].first is None else ""
            server = streaming(name + in_turns, folders, *place)
            result, log = measure(server, Path(temporary) / str(number), given.seconds)
            row = compare(result, read_log(log, streams))
            rows.append([what, name, *row.cells()])
            if not row.agrees:
                differ.append(f"{name} over {what}")
    print_table(_HEAD, rows, [])
    if differ:
        sys.exit(f"these differ: {', '.join(differ)}")


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
