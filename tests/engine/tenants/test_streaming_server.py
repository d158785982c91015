"""A real server, uvicorn with starlette: its own log beside our figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.records.plan import Server
from pytest_hwqueue.engine.tenants.completion import CompletionReader, RequestFailed
from tests.engine.tenants.test_server_tenants import log_of, measured, run
from tools.server_figures import (
    CONNECTIONS,
    IPV6,
    STREAMS,
    TCP,
    UNIX,
    compare,
    least_way_ms,
    over_tls,
    read_log,
    read_streams,
    streaming,
)
from tools.streaming import tokens_in

_READ = read_streams(STREAMS)


@pytest.mark.parametrize("name", _READ)
def test_a_stored_stream_is_read_as_its_file_says(name: str) -> None:
    said = json.loads((STREAMS / f"{name}.json").read_text(encoding="utf-8"))
    expected, reader, now_ms = said["expect"], CompletionReader(), 0.0

    def read() -> Any:
        nonlocal now_ms
        for wait_ms, text in said["parts"]:
            now_ms += wait_ms
            if reader.feed(text.encode(), round(now_ms * 1e6)):
                break
        return reader.end(round(now_ms * 1e6))

    if expected["outcome"] == "failed":
        with pytest.raises(RequestFailed):
            read()
        return
    reply = read()
    between_ms = (reply.last_ns - reply.first_ns) / (reply.tokens - 1) / 1e6
    found = (reply.tokens, reply.first_ns / 1e6, between_ms)
    assert found == (expected["tokens"], expected["ttft_ms"], expected["tbt_ms"])


def outcome(pieces: Sequence[bytes]) -> tuple[str, object]:
    """Return what pieces of an answer are read as, whatever the time."""
    reader = CompletionReader()
    try:
        for piece in pieces:
            if reader.feed(piece, 1):
                break
        reply = reader.end(1)
    except RequestFailed as failed:
        return failed.kind, None
    return "", (reply.tokens, reply.counted, reply.answer_ns is None)


@pytest.mark.parametrize("name", _READ)
def test_a_stored_stream_is_the_same_however_it_is_cut(name: str) -> None:
    said = json.loads((STREAMS / f"{name}.json").read_text(encoding="utf-8"))
    whole = "".join(text for _, text in said["parts"]).encode()
    # What follows the end is not waited for, so that nobody knows whether it comes.
    whole = whole.partition(b"[DONE]\n\n")[0] + (b"[DONE]\n\n" if b"[DONE]" in whole else b"")
    expected = outcome([whole])
    assert expected == outcome([bytes([each]) for each in whole])
    assert all(outcome([whole[:at], whole[at:]]) == expected for at in range(0, len(whole), 7))


@pytest.mark.parametrize(
    ("name", "sent", "tokens"),
    [
        ("plain", None, 8),
        ("plain", 4, 3),
        ("usage_with_the_finish", None, 5),
        ("vllm_several_in_one", None, 16),
        ("text_then_tool_calls", None, 20),
        ("error_object", None, 1),
        ("done_alone", None, 0),
    ],
)
def test_the_server_logs_the_tokens_that_it_sent(name: str, sent: int | None, tokens: int) -> None:
    parts = json.loads((STREAMS / f"{name}.json").read_text(encoding="utf-8"))["parts"]
    assert tokens_in("".join(text for _, text in parts[:sent])) == tokens


def assert_agree(folder: Path, server: Server, **load: Any) -> None:
    """Compare our figures with the log; of times what no turn of another program changes."""
    folder.mkdir()
    tenant = measured(run(folder, server, **load))
    log = read_log(log_of(folder), _READ)
    row = compare(tenant, log, load["concurrency"])
    assert row.counts_agree, row
    # The way there and back is in ours: this machine's own clock dates both.
    assert all(ours >= sent for sent, ours in row.first_ms)
    # How long it is depends on what else runs here; tools.server_figures prints it.
    assert 0 <= least_way_ms(tenant, log) <= min(ours - sent for sent, ours in row.first_ms)
    assert tenant.server is not None
    assert tenant.server.tokens is not None
    answers = [each for each in tenant.server.tokens.answer_ns if each is not None]
    assert len(answers) == tenant.completed


@pytest.mark.usefixtures("own_leases")
def test_figures_are_those_of_the_servers_own_log(tmp_path: Path) -> None:
    server = streaming("reasoning", [STREAMS], *TCP)
    load = {"arrival": "closed", "concurrency": CONNECTIONS, "duration_s": 1.0}
    assert_agree(tmp_path / "all", server, **load)
    # Of two requests one fails.
    server = streaming("error_object?every_second", [STREAMS], *TCP)
    assert_agree(tmp_path / "half", server, **load)


@pytest.mark.usefixtures("own_leases")
@pytest.mark.parametrize("way", ["tls", "ipv6", "unix"])
def test_other_ways_to_the_same_server(tmp_path: Path, way: str) -> None:
    load = {"arrival": "closed", "concurrency": 4, "duration_s": 0.5}
    with over_tls(tmp_path) as tls:
        server = {
            "tls": streaming("plain", [STREAMS], *tls),
            "ipv6": streaming("plain", [STREAMS], *IPV6),
            "unix": streaming("plain", [STREAMS], *UNIX),
        }[way]
        assert_agree(tmp_path / "records", server, **load)
