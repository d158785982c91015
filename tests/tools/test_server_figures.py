"""What a server's log and our figures of it have to agree in; each fault that a row must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_hwqueue.data.records.tenants import RequestLog, ServerLoad, TenantResult, TokenTimes
from pytest_hwqueue.engine.tenants.colocation_run import LEAD_NS
from tools.server_figures import (
    Logged,
    NotMeasuredError,
    Row,
    Stream,
    compare,
    in_window,
    least_way_ms,
    print_rows,
)

MS = 1_000_000
_STREAM = Stream("plain", 0, 1, 2)
_WARM_UP, _REQUESTS, _EACH_NS = 20, 12, 10 * MS
# Each request: on its way for 0.1 ms, its tokens are sent after 5 and 10 ms, and take 0.1 ms back.
_WAY_NS = 100_000
_SENT_NS = (5 * MS, 10 * MS)


def _logged(received_ns: int, port: int) -> Logged:
    sent = [received_ns + ns for ns in _SENT_NS]
    return Logged(_STREAM, received_ns, port, sent, _STREAM.tokens)


def _log(ports: int = 4) -> list[Logged]:
    """Return the log of a warm-up, and of a window one lead and a while later."""
    begin_ns = _WARM_UP * _EACH_NS + LEAD_NS
    warm_up = [n * _EACH_NS for n in range(_WARM_UP)]
    window = [begin_ns + n * _EACH_NS + _WAY_NS for n in range(_REQUESTS)]
    return [_logged(ns, n % ports) for n, ns in enumerate([*warm_up, *window])]


def _result(late_ns: Sequence[int] = [0] * _REQUESTS) -> TenantResult:
    """Return our figures of that window, with each first token dated later by so much."""
    due_ns = [n * _EACH_NS for n in range(_REQUESTS)]
    first_ns, last_ns = (2 * _WAY_NS + ns for ns in _SENT_NS)
    tokens = TokenTimes(
        ttft_ns=[first_ns + late for late in late_ns],
        last_ns=[last_ns] * _REQUESTS,
        answer_ns=[first_ns] * _REQUESTS,
        tokens=[2] * _REQUESTS,
        counted="events",
    )
    return TenantResult(
        name="high", issued=_REQUESTS, completed=_REQUESTS, failed=0,
        requests=RequestLog(due_ns, due_ns, [due + last_ns for due in due_ns]),
        server=ServerLoad(url="http://a/", connections=4, most_at_once=2, tokens=tokens),
    )  # fmt: skip


def test_a_window_is_all_that_came_after_its_pause_and_agrees() -> None:
    row = compare(_result(), _log(), 4)
    assert row.agrees
    assert row.counts == [(12, 12), (12, 12), (0, 0), (24, 24), (4, 4)]
    # At a unix socket there is nothing to count connections by.
    unnamed = [replace(each, port=None) for each in _log()]
    assert compare(_result(), unnamed, 4).agrees
    assert compare(_result(), unnamed, 4).counts[-1] is None


def test_requests_sent_twice_are_seen() -> None:
    log = _log()
    again = [replace(each, received_ns=each.received_ns + MS) for each in log[-5:]]
    row = compare(_result(), [*log, *again], 4)
    assert row.counts[0] == (17, 12)
    assert not row.agrees
    assert row.cells()[0] == "17 → 12"


def test_one_that_was_received_and_never_answered_is_seen() -> None:
    log = _log()
    row = compare(_result(), [*log[:-1], replace(log[-1], sent_ns=(), tokens=0)], 4)
    assert row.counts[1:4] == [(11, 12), (1, 0), (22, 24)]
    assert not row.agrees


def test_a_machine_that_stands_still_begins_no_window() -> None:
    log = _log()
    # In the warm-up, as long as the pause: all that follows is that much later.
    stalled = [
        replace(
            each,
            received_ns=each.received_ns + LEAD_NS,
            sent_ns=[ns + LEAD_NS for ns in each.sent_ns],
        )
        for each in log[5:]
    ]
    result = _result()
    assert result.requests is not None
    assert in_window([*log[:5], *stalled], result.requests) == stalled[-_REQUESTS:]
    with pytest.raises(NotMeasuredError, match="no pause before the window"):
        in_window(log[-_REQUESTS:], result.requests)


def test_connections_that_are_not_kept_are_seen_whatever_we_count() -> None:
    result, log = _result(), _log(ports=32)
    assert result.server is not None
    server = result.server.model_copy(update={"connections": 32})
    row = compare(result.model_copy(update={"server": server}), log, 4)
    assert row.counts[-1] == (32, 32)
    assert not row.agrees
    assert row.cells()[4] == "32, not 2 to 4"
    # One of which the stream fails may be closed.
    failing = [replace(each, stream=Stream("error", None)) for each in log[:_WARM_UP]]
    kept = [replace(each, port=n % 24) for n, each in enumerate([*failing, *log[_WARM_UP:]])]
    server = server.model_copy(update={"connections": 24})
    assert compare(result.model_copy(update={"server": server}), kept, 4).agrees


@pytest.mark.parametrize(
    ("late_ns", "way_ms"),
    [
        ([0] * _REQUESTS, 0.2),
        # As beside busy cores: one goes at once, and those read together keep their order.
        ([0] + [50 * MS] * (_REQUESTS - 1), 0.2),
        # As if the end of the answer were taken for its first token.
        ([5 * MS] * _REQUESTS, 5.2),
        ([-MS] * _REQUESTS, -0.8),
    ],
)
def test_first_tokens_that_are_all_dated_late_or_early_are_seen(
    late_ns: list[int], way_ms: float
) -> None:
    assert least_way_ms(_result(late_ns), _log()) == pytest.approx(way_ms)


def test_a_row_is_printed_once_measured_and_one_that_fails_hides_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = []

    def measured() -> Row:
        printed.append(capsys.readouterr().out)
        return compare(_result(), _log(), 4)

    def fails() -> Row:
        printed.append(capsys.readouterr().out)
        raise NotMeasuredError("invalid: the generator\nwas late")

    asked = [("TCP", "plain", measured), ("TLS", "slow", fails), ("IPv6", "plain", measured)]
    assert print_rows(asked) == ["slow over TLS"]
    head, first, second = printed
    assert head.startswith("| server | stream |")
    assert first.startswith("| TCP | plain | 12 | 12 | 0 | 24 | 4 |")
    assert "| TLS | slow | — |" in second
    assert second.endswith("| **not measured**: invalid: the generator was late |\n")
    assert "IPv6" in capsys.readouterr().out
    assert len({line.count("|") for line in "".join(printed).splitlines()}) == 1
