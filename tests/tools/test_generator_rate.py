"""The server that the generator's greatest rate is measured with answers what the client counts."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from pytest_hwqueue.data.errors import HwqError
from pytest_hwqueue.data.records.plan import Server
from pytest_hwqueue.engine.tenants.server_load import Client
from tools.generator_rate import TOKENS, measure, serve


@pytest.fixture(name="serving")
def _serving() -> Iterator[tuple[str, Connection]]:
    to_server, parent = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(parent,))
    process.start()
    parent.close()
    yield f"http://127.0.0.1:{to_server.recv()}/", to_server
    to_server.close()
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
def test_an_answer_is_whole_and_each_request_of_a_round_is_counted(
    serving: tuple[str, Connection],
) -> None:
    url, to_server = serving
    streamed = Server(url, protocol="openai", method="POST", body="{}")

    async def tokens() -> int:
        async with Client(streamed, 1) as client:
            reply = await client.request()
            assert reply is not None
            return reply.tokens

    assert asyncio.run(tokens()) == TOKENS
    for server in (streamed, Server(url)):
        rate = asyncio.run(measure(server, 4, 0.2, to_server))
        assert rate.per_s > 0
        assert rate.cpu_us > 0
        assert rate.servers_cpu_us > 0
    missing = Server(url, status=201)
    with pytest.raises(HwqError, match="status 200, not 201"):
        asyncio.run(measure(missing, 1, 0.2, to_server))
