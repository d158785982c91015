"""Per-request records of load generators of other projects, each format a function.

Written from their source: AIPerf 0.13 (``MetricRecordInfo``), guidellm 0.8 (``RequestTimings``) and
vLLM 0.33 (``vllm bench serve --save-detailed``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pytest_hwqueue.data.errors import RecordError, translated
from pytest_hwqueue.data.records.plan import ClientFormat

_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "sec": 1e9, "s": 1e9, "seconds": 1e9}


class StreamedTokens(NamedTuple):
    """The tokens of an answer, in ns on the clock of their log.

    Attributes:
        first_ns: when the first one came, whatever it is of.
        answer_ns: the first one that is of the answer and no reasoning; None if nobody says.
        last_ns: the last one.
        number: how many were streamed.

    """

    first_ns: int
    answer_ns: int | None
    last_ns: int
    number: int


class ClientRequest(NamedTuple):
    """One request, in ns on the clock of its log.

    Attributes:
        due_ns: when it was due, as far as the client says; else when it was sent.
        started_ns: when it was sent.
        finished_ns: when its answer was whole, or it failed.
        tokens: those of its answer; None if it failed, or nobody says.
        failure: why it failed; empty if it did not.

    """

    due_ns: int
    started_ns: int
    finished_ns: int
    tokens: StreamedTokens | None
    failure: str = ""


class ClientLog(NamedTuple):
    """What a client recorded.

    Attributes:
        requests: in the order in which they were due.
        clock: of its times: the wall's, or `time.monotonic_ns`.

    """

    requests: list[ClientRequest]
    clock: Literal["wall", "monotonic"]


def read_client_log(file: Path, written_by: ClientFormat) -> ClientLog:
    """Read a client's records.

    Raises:
        RecordError: if the file cannot be read, or is no such records.

    """
    read, clock = _READERS[written_by]
    problem = f"{file} is no file of requests that {written_by} writes"
    # What a format lacks shows as a missing key, a null, or a value of another type.
    with translated(
        RecordError, problem,
        OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
    ):  # fmt: skip
        text = file.read_text(encoding="utf-8")
        # A request that was sent as soon as it could be may be due a moment later.
        found = [each._replace(due_ns=min(each.due_ns, each.started_ns)) for each in read(text)]
    for each in found:
        _refuse_disorder(each, file)
    return ClientLog(sorted(found, key=lambda each: each.due_ns), clock)


def _refuse_disorder(request: ClientRequest, file: Path) -> None:
    """Raise RecordError for times that cannot be: such figures would be no one's."""
    tokens = request.tokens
    times = [request.started_ns, request.finished_ns]
    if tokens is not None:
        times = [request.started_ns, tokens.first_ns, tokens.last_ns]
        if tokens.number < 1:
            raise RecordError(f"{file}: a request has {tokens.number} tokens and their times")
    if times != sorted(times) or request.finished_ns < request.started_ns:
        raise RecordError(
            f"{file}: a request sent at {request.started_ns} ns ended, or had its tokens, before "
            f"that or in another order: {times[1:]}"
        )


def _aiperf(text: str) -> Iterator[ClientRequest]:
    """Read ``profile_export.jsonl``: a request a line; those of its warm-up are left out."""
    for line in text.splitlines():
        record = json.loads(line)
        about, metrics = record["metadata"], record["metrics"]
        if about["benchmark_phase"] != "profiling":
            continue
        start_ns = int(about["request_start_ns"])
        failure = _failure(record.get("error"))
        if about.get("was_cancelled"):
            failure = failure or "cancelled"
        first_ns = _after(start_ns, metrics.get("time_to_first_token"))
        # Its latency of a request ends with the last token.
        last_ns = _after(start_ns, metrics.get("request_latency"))
        tokens = None
        if not failure and first_ns is not None and last_ns is not None:
            answer_ns = _after(start_ns, metrics.get("time_to_first_output_token"))
            number = int(metrics["output_sequence_length"]["value"])
            tokens = StreamedTokens(first_ns, answer_ns or first_ns, last_ns, number)
        due_ns = int(about.get("credit_issued_ns") or start_ns)
        yield ClientRequest(due_ns, start_ns, int(about["request_end_ns"]), tokens, failure)


def _after(start_ns: int, metric: Mapping[str, Any] | None) -> int | None:
    if metric is None:
        return None
    return start_ns + round(float(metric["value"]) * _NS[metric["unit"]])


def _guidellm(text: str) -> Iterator[ClientRequest]:
    """Read the report of ``guidellm benchmark``: requests by how they ended, times in seconds."""
    for benchmark in json.loads(text)["benchmarks"]:
        for ended in ("successful", "errored", "incomplete"):
            for each in benchmark["requests"][ended] or ():
                times = each["info"]["timings"]
                if (start_s := times["request_start"]) is None:
                    # Never sent.
                    continue
                failure = ""
                if ended != "successful":
                    failure = _failure(each["info"].get("error")) or ended
                tokens, first_s = None, times.get("first_token_iteration")
                if not failure and first_s is not None:
                    answer_s = times.get("first_output_token_iteration")
                    tokens = StreamedTokens(
                        _ns(first_s), None if answer_s is None else _ns(answer_s),
                        _ns(times["last_token_iteration"]), int(each["output_tokens"]),
                    )  # fmt: skip
                yield ClientRequest(
                    _ns(times.get("targeted_start") or start_s), _ns(start_s),
                    _ns(times["request_end"] or times["resolve_end"]), tokens, failure,
                )  # fmt: skip


_VLLM = ("start_times", "latencies", "queue_times", "ttfts", "itls", "output_lens", "errors")


def _vllm(text: str) -> Iterator[ClientRequest]:
    """Read the result of ``vllm bench serve --save-result --save-detailed``: a list for each fact.

    Its times are of `time.perf_counter`, on Linux the monotonic clock. A latency ends with the last
    token; tokens of reasoning are not told apart.
    """
    found = json.loads(text)
    if "start_times" not in found:
        raise ValueError("it has no start_times: give the client --save-detailed")
    columns = (found[name] for name in _VLLM)
    for start_s, took_s, queued_s, ttft_s, gaps_s, number, error in zip(*columns, strict=True):
        failure, first_s = _failure(error), start_s + ttft_s
        tokens = None
        if not failure:
            last_s = first_s + sum(gaps_s)
            tokens = StreamedTokens(_ns(first_s), _ns(first_s), _ns(last_s), int(number))
        due_s = start_s - (queued_s or 0.0)
        yield ClientRequest(_ns(due_s), _ns(start_s), _ns(start_s + took_s), tokens, failure)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _failure(error: Any) -> str:
    """Return an error's last line, whole, since it may hold a secret; empty for none."""
    if isinstance(error, Mapping):
        parts = (str(error.get(name) or "") for name in ("code", "type", "message"))
        error = " ".join(filter(None, parts)) or "failed"
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    # A traceback's last line says what it was.
    return lines[-1] if lines else ""


_READERS: Mapping[
    ClientFormat,
    tuple[Callable[[str], Iterator[ClientRequest]], Literal["wall", "monotonic"]],
] = {
    "aiperf": (_aiperf, "wall"),
    "guidellm": (_guidellm, "wall"),
    "vllm": (_vllm, "monotonic"),
}
