"""Per-request records of load generators of other projects, each format a function.

Written from their source: AIPerf 0.13 (``MetricRecordInfo``), guidellm 0.8 (``RequestTimings``) and
vLLM 0.33 (``vllm bench serve --save-detailed``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from pytest_hwqueue.data.errors import RecordError, complaint, translated
from pytest_hwqueue.data.records.plan import ClientFormat
from pytest_hwqueue.data.safe_files import refuse_special
from pytest_hwqueue.engine.tenants.open_loop import MOST_TOKENS

_NS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "sec": 1e9, "s": 1e9, "seconds": 1e9}
# The last one that the machine's clocks can have.
_LAST_NS = 2**63 - 1
# A client may have two clocks for the two, one of which is set meanwhile.
_MOST_AFTER_NS = 10_000_000


NO_TOKEN = "no token"
"""Why a request failed whose answer has nothing where others have tokens."""


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
        id: the client's name of it; empty for none.

    """

    due_ns: int
    started_ns: int
    finished_ns: int
    tokens: StreamedTokens | None
    failure: str = ""
    id: str = ""


class ClientLog(NamedTuple):
    """What a client recorded.

    Attributes:
        requests: in the order in which they were due.
        clock: of its times: the wall's, or `time.monotonic_ns`.

    """

    requests: list[ClientRequest]
    clock: Literal["wall", "monotonic"]


class _Written(BaseModel):
    """What is read of a client's file: fields that are not named here may be there, too."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


_Seconds = Annotated[float, Field(ge=0, le=_LAST_NS / 1e9)]
_Nanoseconds = Annotated[int, Field(ge=0, le=_LAST_NS)]
_Number = Annotated[int, Field(ge=0, le=MOST_TOKENS)]


def read_client_log(file: Path, written_by: ClientFormat) -> ClientLog:
    """Read a client's records.

    Raises:
        RecordError: if the file cannot be read, or is no such records.

    """
    read, clock = _READERS[written_by]
    problem = f"{file} is no file of requests that {written_by} writes"
    with translated(RecordError, problem, OSError, ValueError, RecursionError):
        refuse_special(file)
        text = file.read_text(encoding="utf-8")
        # A request that was sent as soon as it could be may be due a moment later.
        found = [each._replace(due_ns=min(each.due_ns, each.started_ns)) for each in read(text)]
    for each in found:
        _refuse_disorder(each, file)
    times_of = Counter(each.id for each in found if each.id)
    for name, times in times_of.items():
        if times > 1:
            raise RecordError(f"{file}: request {name} stands there {times} times")
    return ClientLog(sorted(found, key=lambda each: each.due_ns), clock)


def _refuse_disorder(request: ClientRequest, file: Path) -> None:
    """Raise RecordError for times that cannot be: such figures would be no one's."""
    tokens = request.tokens
    times = [request.started_ns, request.finished_ns]
    if tokens is not None:
        latest_ns = request.finished_ns + _MOST_AFTER_NS
        answer_ns = tokens.first_ns if tokens.answer_ns is None else tokens.answer_ns
        times = [request.started_ns, tokens.first_ns, answer_ns, tokens.last_ns, latest_ns]
    if times != sorted(times) or request.finished_ns < request.started_ns:
        had = "" if tokens is None else f", with tokens from {tokens.first_ns} to {tokens.last_ns}"
        raise RecordError(
            f"{file}: the times of a request are in no order: sent at {request.started_ns} ns and "
            f"ended at {request.finished_ns}{had}"
        )


def _streamed(
    first_ns: int, answer_ns: int | None, last_ns: int, number: int
) -> tuple[StreamedTokens | None, str]:
    """Return an answer's tokens, and why it failed."""
    if number == 0:
        return None, NO_TOKEN
    return StreamedTokens(first_ns, answer_ns, last_ns, number), ""


class _Metric(_Written):
    value: Annotated[float, Field(ge=0)]
    unit: str

    def after(self, start_ns: int) -> int:
        if self.unit not in _NS:
            raise ValueError(f"a time has the unit {self.unit!r}")
        return start_ns + round(self.value * _NS[self.unit])


class _AiperfMetadata(_Written):
    benchmark_phase: str
    request_start_ns: _Nanoseconds
    request_end_ns: _Nanoseconds
    credit_issued_ns: _Nanoseconds | None = None
    was_cancelled: bool = False
    x_request_id: str | None = None


class _AiperfMetrics(_Written):
    time_to_first_token: _Metric | None = None
    time_to_first_output_token: _Metric | None = None
    request_latency: _Metric | None = None
    output_sequence_length: _Metric | None = None


class _AiperfLine(_Written):
    metadata: _AiperfMetadata
    metrics: _AiperfMetrics
    error: Any = None


def _aiperf(text: str) -> Iterator[ClientRequest]:
    """Read ``profile_export.jsonl``: a request a line; those of its warm-up are left out.

    An answer that is all reasoning has no ``time_to_first_output_token``. Where none has, nobody
    told reasoning apart.
    """
    tells_answers = '"time_to_first_output_token"' in text
    # Not splitlines: a text of JSON may hold the separators of lines that only Unicode has.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = _AiperfLine.model_validate_json(line)
            if record.metadata.benchmark_phase == "profiling":
                yield _of_aiperf(record, tells_answers)
        except ValueError as error:
            raise ValueError(f"line {number}: {complaint(error)}") from error


def _of_aiperf(record: _AiperfLine, tells_answers: bool) -> ClientRequest:
    about, metrics = record.metadata, record.metrics
    start_ns, due_ns = about.request_start_ns, about.credit_issued_ns
    failure = _failure(record.error)
    if about.was_cancelled:
        failure = failure or "cancelled"
    # Its latency of a request ends with the last token.
    first, last, number = (
        metrics.time_to_first_token, metrics.request_latency, metrics.output_sequence_length,
    )  # fmt: skip
    tokens = None
    if not failure and first is not None and last is not None:
        if number is None:
            raise ValueError("it has times of tokens, and no output_sequence_length")
        if not number.value.is_integer() or number.value > MOST_TOKENS or number.unit in _NS:
            raise ValueError(f"output_sequence_length is {number.value:g} {number.unit}")
        answer = metrics.time_to_first_output_token if tells_answers else first
        tokens, failure = _streamed(
            first.after(start_ns),
            None if answer is None else answer.after(start_ns),
            last.after(start_ns),
            int(number.value),
        )
    return ClientRequest(
        due_ns or start_ns, start_ns, about.request_end_ns, tokens, failure,
        about.x_request_id or "",
    )  # fmt: skip


class _GuidellmTimings(_Written):
    targeted_start: _Seconds | None = None
    request_start: _Seconds | None
    request_end: _Seconds | None
    resolve_end: _Seconds | None
    first_token_iteration: _Seconds | None = None
    first_output_token_iteration: _Seconds | None = None
    last_token_iteration: _Seconds | None = None


class _GuidellmInfo(_Written):
    timings: _GuidellmTimings
    error: Any = None


class _GuidellmRequest(_Written):
    info: _GuidellmInfo
    output_tokens: _Number | None = None
    request_id: str | None = None


class _GuidellmRequests(_Written):
    successful: list[_GuidellmRequest] | None
    errored: list[_GuidellmRequest] | None
    incomplete: list[_GuidellmRequest] | None


class _GuidellmBenchmark(_Written):
    requests: _GuidellmRequests


class _GuidellmReport(_Written):
    benchmarks: list[_GuidellmBenchmark]


def _guidellm(text: str) -> Iterator[ClientRequest]:
    """Read the report of ``guidellm benchmark``: requests by how they ended, times in seconds.

    An answer that is all reasoning has no ``first_output_token_iteration``.
    """
    for benchmark in _GuidellmReport.model_validate_json(text).benchmarks:
        requests = benchmark.requests
        for each in requests.successful or ():
            yield from _of_guidellm(each, _failure(each.info.error))
        for each in requests.errored or ():
            yield from _of_guidellm(each, _failure(each.info.error) or "errored")
        for each in requests.incomplete or ():
            yield from _of_guidellm(each, _failure(each.info.error) or "incomplete")


def _of_guidellm(request: _GuidellmRequest, failure: str) -> Iterator[ClientRequest]:
    """Return a request, if it was sent."""
    times = request.info.timings
    if (start_s := times.request_start) is None:
        return
    if (end_s := times.resolve_end if times.request_end is None else times.request_end) is None:
        raise ValueError("a request that was sent has neither request_end nor resolve_end")
    tokens, first_s = None, times.first_token_iteration
    if not failure and first_s is not None:
        answer_s, last_s = times.first_output_token_iteration, times.last_token_iteration
        if last_s is None or request.output_tokens is None:
            raise ValueError("a request has a first token, and no last one or no output_tokens")
        tokens, failure = _streamed(
            _ns(first_s), None if answer_s is None else _ns(answer_s), _ns(last_s),
            request.output_tokens,
        )  # fmt: skip
    due_s = times.targeted_start or start_s
    yield ClientRequest(
        _ns(due_s), _ns(start_s), _ns(end_s), tokens, failure, request.request_id or ""
    )


class _VllmResult(_Written):
    # Without details none of the lists is there.
    start_times: list[_Seconds] | None = None
    latencies: list[_Seconds] = Field(default_factory=list)
    queue_times: list[_Seconds | None] = Field(default_factory=list)
    ttfts: list[_Seconds] = Field(default_factory=list)
    itls: list[list[_Seconds]] = Field(default_factory=list)
    output_lens: list[_Number] = Field(default_factory=list)
    errors: list[str | None] = Field(default_factory=list)


def _vllm(text: str) -> Iterator[ClientRequest]:
    """Read the result of ``vllm bench serve --save-result --save-detailed``: a list for each fact.

    Its times are of `time.perf_counter`, on Linux the monotonic clock. A latency ends with the last
    token; tokens of reasoning are not told apart.
    """
    found = _VllmResult.model_validate_json(text)
    if found.start_times is None:
        raise ValueError("it has no start_times: give the client --save-detailed")
    columns = (
        found.start_times, found.latencies, found.queue_times, found.ttfts, found.itls,
        found.output_lens, found.errors,
    )  # fmt: skip
    if len({len(each) for each in columns}) > 1:
        raise ValueError("its lists have different lengths: give the client --save-detailed")
    for start_s, took_s, queued_s, ttft_s, gaps_s, number, error in zip(*columns, strict=True):
        tokens, failure = None, _failure(error)
        if not failure:
            first_s = start_s + ttft_s
            first_ns = _ns(first_s)
            tokens, failure = _streamed(first_ns, first_ns, _ns(first_s + sum(gaps_s)), number)
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
