"""Records of other projects' load generators: what each says of a request.

The files of AIPerf 0.13.0 and guidellm 0.8.1 are from runs against `examples/servers/serve.py`,
with the fields that are read; vLLM's is written after its source: its client was not run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import HwqError, RecordError
from pytest_hwqueue.data.records.plan import ClientFormat
from pytest_hwqueue.engine.tenants.client_records import (
    ClientLog,
    ClientRequest,
    StreamedTokens,
    read_client_log,
)
from pytest_hwqueue.engine.tenants.external_client import load_of
from pytest_hwqueue.engine.tenants.open_loop import Window

FILES = Path(__file__).parent / "clients"
MS = 1_000_000


def test_aiperf_by_its_wall_clock_and_without_its_warm_up() -> None:
    log = read_client_log(FILES / "aiperf.jsonl", "aiperf")
    lines = (FILES / "aiperf.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines][1:]
    assert log.clock == "wall"
    assert [each.due_ns for each in log.requests] == [
        each["metadata"]["credit_issued_ns"] for each in written
    ]
    first, *_, failed = log.requests
    start_ns = written[0]["metadata"]["request_start_ns"]
    assert first.started_ns == start_ns
    metrics = written[0]["metrics"]
    ttft_ms, took_ms = (metrics[n]["value"] for n in ("time_to_first_token", "request_latency"))
    at_ns = start_ns + round(ttft_ms * MS)
    assert first.tokens == StreamedTokens(at_ns, at_ns, start_ns + round(took_ms * MS), 38)
    assert failed.tokens is None
    assert failed.failure.startswith("InvalidInferenceResultError InvalidInferenceResultError('Inv")


def test_guidellm_from_when_a_request_was_due() -> None:
    log = read_client_log(FILES / "guidellm.json", "guidellm")
    assert log.clock == "wall"
    first = log.requests[0]
    # Dispatched 21 ms after it was due.
    assert round((first.started_ns - first.due_ns) / MS) == 22
    assert first.tokens is not None
    assert round((first.tokens.first_ns - first.started_ns) / MS) == 12
    assert (first.tokens.number, first.failure) == (8, "")
    # Cancelled by the client, as its time was over.
    assert [each.failure for each in log.requests] == ["", "", "Request was cancelled"]


def test_vllm_with_its_own_queue_before_the_start() -> None:
    log = read_client_log(FILES / "vllm.json", "vllm")
    assert log.clock == "monotonic"
    first, second, failed = log.requests
    tokens = StreamedTokens(100_004 * MS, 100_004 * MS, 100_009 * MS, 3)
    assert first == ClientRequest(100_000 * MS, 100_000 * MS, 100_009 * MS, tokens)
    assert (second.due_ns, second.started_ns) == (100_250 * MS, 100_500 * MS)
    assert failed.failure == "ClientOSError: [Errno 104] Connection reset by peer"


@pytest.mark.parametrize("written_by", get_args(ClientFormat))
@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"metadata": {}}', '{"benchmarks": [{"requests": null}]}', "1",
        '{"benchmarks": {}}', '{"benchmarks": ""}',
    ],
)  # fmt: skip
def test_what_is_no_such_file_is_refused_by_name(
    written_by: ClientFormat, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "records"
    file.write_text(text)
    if written_by == "aiperf" and not text:
        # A client that ended before its first request.
        assert read_client_log(file, written_by).requests == []
        return
    with pytest.raises(RecordError, match=f"{file} is no file of requests that {written_by}"):
        read_client_log(file, written_by)


def test_results_of_vllm_without_details_name_the_option(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text('{"duration": 1.0, "completed": 3}')
    with pytest.raises(RecordError, match="give the client --save-detailed"):
        read_client_log(file, "vllm")


def request(due_ms: int, started_ms: int, took_ms: int, failure: str = "") -> ClientRequest:
    start_ns = started_ms * MS
    end_ns = start_ns + took_ms * MS
    tokens = None if failure else StreamedTokens(start_ns + MS, start_ns + MS, end_ns, 4)
    return ClientRequest(due_ms * MS, start_ns, end_ns, tokens, failure)


def shift(made: ClientRequest, by_ns: int) -> ClientRequest:
    """Return a request on a clock that is so far ahead."""
    due_ns, started_ns, finished_ns = (each + by_ns for each in made[:3])
    tokens = made.tokens
    if tokens is not None:
        first_ns, last_ns = tokens.first_ns + by_ns, tokens.last_ns + by_ns
        tokens = StreamedTokens(first_ns, first_ns, last_ns, tokens.number)
    return ClientRequest(due_ns, started_ns, finished_ns, tokens, made.failure)


AHEAD_NS = 10**18
WINDOW = Window(1_000 * MS, 2_000 * MS)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 500), st.integers(1, 400))))
def test_only_requests_due_and_sent_in_the_window_count(times: list[tuple[int, int, int]]) -> None:
    """A truth by each request's own times, whatever the others are."""
    made = [request(due, due + late, took) for due, late, took in times]
    shifted = [shift(each, AHEAD_NS) for each in made]
    log = ClientLog(sorted(shifted, key=lambda each: each.due_ns), "wall")
    inside = sorted(
        (each for each in made if each.due_ns >= 1_000 * MS and each.started_ns < 2_000 * MS),
        key=lambda each: each.due_ns,
    )
    if not inside:
        with pytest.raises(HwqError, match="none of its"):
            load_of(log, AHEAD_NS, WINDOW)
        return
    load = load_of(log, AHEAD_NS, WINDOW)
    begin_ns = WINDOW.begin_ns
    assert list(load.scheduled_ns) == [each.due_ns - begin_ns for each in inside]
    assert list(load.finished_ns) == [each.finished_ns - begin_ns for each in inside]
    assert [reply.first_ns for reply in load.replies if reply] == [
        each.started_ns + MS for each in inside
    ]
    at_once = [
        sum(other.started_ns <= each.started_ns < other.finished_ns for other in inside)
        for each in inside
    ]
    assert load.most_at_once == max(at_once)


def test_a_request_without_a_token_failed_where_others_have_them() -> None:
    kept = request(1_100, 1_100, 50)
    log = ClientLog([kept, kept._replace(tokens=None), request(1_200, 1_200, 5, "reset")], "wall")
    load = load_of(log, 0, WINDOW)
    assert [(each.index, each.kind) for each in load.failed] == [(1, "no token"), (2, "reset")]
    # Whole answers, not streamed: nobody has tokens, and nobody failed.
    whole = load_of(ClientLog([kept._replace(tokens=None)], "wall"), 0, WINDOW)
    assert (list(whole.failed), list(whole.replies)) == ([], [None])


@pytest.mark.parametrize(
    "changed",
    [
        {"start_times": [float("inf")]},
        {"start_times": [float("nan")]},
        {"ttfts": [-0.5]},
        {"latencies": [-1.0], "errors": ["reset"]},
        {"output_lens": [-1]},
        {"output_lens": [True]},
        {"itls": [[-1.0]]},
        {"itls": [[1e21]]},
        {"itls": [[1e3]]},
        {"start_times": [1e21]},
        {"start_times": ["100.0"]},
        {"start_times": [True]},
        {"start_times": [100.0, 101.0]},
    ],
    ids=str,
)
def test_times_and_numbers_that_cannot_be_are_refused(
    changed: dict[str, list[object]], tmp_path: Path
) -> None:
    whole = {
        "start_times": [100.0], "latencies": [0.5], "queue_times": [0.0], "ttfts": [0.1],
        "itls": [[0.1]], "output_lens": [2], "errors": [""],
    }  # fmt: skip
    file = tmp_path / "result.json"
    file.write_text(json.dumps(whole))
    assert len(read_client_log(file, "vllm").requests) == 1
    file.write_text(json.dumps({**whole, **changed}))
    with pytest.raises(RecordError, match=f"{file}"):
        read_client_log(file, "vllm")


def test_an_answer_of_no_token_is_one_failed_request(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(
        json.dumps({
            "start_times": [100.0, 101.0], "latencies": [0.5, 0.5], "queue_times": [0.0, 0.0],
            "ttfts": [0.1, 0.1], "itls": [[0.1], []], "output_lens": [2, 0], "errors": ["", ""],
        })
    )  # fmt: skip
    first, second = read_client_log(file, "vllm").requests
    assert (first.failure, second.failure, second.tokens) == ("", "no token", None)


def aiperf_lines(*changes: Mapping[str, Mapping[str, object]]) -> str:
    """Return lines as AIPerf wrote them, each with fields changed."""
    written = json.loads((FILES / "aiperf.jsonl").read_text().splitlines()[1])
    lines = [
        {**written, **{at: {**written[at], **to} for at, to in each.items()}} for each in changes
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {"was_cancelled": "false"}}, "line 2: metadata.was_cancelled"),
        ({"metadata": {"request_end_ns": "17"}}, "line 2: metadata.request_end_ns"),
        ({"metadata": {"request_end_ns": True}}, "line 2: metadata.request_end_ns"),
        ({"metadata": {"request_end_ns": 10**30}}, "line 2: metadata.request_end_ns"),
        (
            {"metrics": {"request_latency": {"value": 1e30, "unit": "ms"}}},
            "the times of a request are in no order: sent at",
        ),
        ({"metrics": {"request_latency": {"value": 1, "unit": "h"}}}, "line 2: a time has the un"),
        *(
            (
                {"metrics": {"time_to_first_output_token": {"value": ms, "unit": "ms"}}},
                "the times of a request are in no order",
            )
            for ms in (1, 99_999)
        ),
        *(
            ({"metrics": {"output_sequence_length": {"value": value, "unit": unit}}}, "line 2: out")
            for value, unit in ((10**15, "tokens"), (8, "ms"))
        ),
        (
            {"metrics": {"output_sequence_length": {"value": 3.5, "unit": "tokens"}}},
            "line 2: output_sequence_length is 3.5",
        ),
        ({"metrics": {"output_sequence_length": None}}, "line 2: it has times of tokens, and no"),
    ],
    ids=str,
)
def test_values_of_another_kind_are_refused_with_their_line(
    change: dict[str, dict[str, object]], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "profile_export.jsonl"
    file.write_text(aiperf_lines({}, {"metadata": {"x_request_id": "2"}, **change}))
    with pytest.raises(RecordError, match=said):
        read_client_log(file, "aiperf")


def test_a_request_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "profile_export.jsonl"
    named = {"metadata": {"x_request_id": "7"}}
    file.write_text(aiperf_lines({}, named, named))
    with pytest.raises(RecordError, match="request 7 stands there 2 times"):
        read_client_log(file, "aiperf")


def test_lists_of_different_lengths_are_called_so(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text('{"start_times": [1.0], "latencies": [1.0]}')
    with pytest.raises(RecordError, match="its lists have different lengths"):
        read_client_log(file, "vllm")


def test_a_line_is_what_json_lines_call_one(tmp_path: Path) -> None:
    file = tmp_path / "profile_export.jsonl"
    file.write_text(
        aiperf_lines({"metadata": {"conversation_id": "a\u2028b\x85c"}}) + "\n", encoding="utf-8"
    )
    assert len(read_client_log(file, "aiperf").requests) == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "records")
    with pytest.raises(RecordError, match="it is no regular file"):
        read_client_log(tmp_path / "records", "aiperf")
