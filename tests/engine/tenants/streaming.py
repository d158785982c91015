"""A streaming server as people run them: ``uvicorn streaming:app``. It logs each answer it gave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

TOKENS, GAP_S = 8, 0.002


async def complete(request: Request) -> StreamingResponse:
    received_ns = time.monotonic_ns()
    body = await request.json()
    wants_usage = body.get("stream_options", {}).get("include_usage", False)

    async def answer() -> AsyncIterator[str]:
        sent_ns = []
        for number in range(TOKENS):
            await asyncio.sleep(GAP_S)
            # Half of them are thought, in vLLM's words.
            word = "reasoning" if number < TOKENS // 2 else "content"
            choice = {"index": 0, "delta": {word: "a"}, "finish_reason": None}
            sent_ns.append(time.monotonic_ns())
            yield f"data: {json.dumps({'choices': [choice]})}\n\n"
        yield f"data: {json.dumps({'choices': [{'delta': {}, 'finish_reason': 'stop'}]})}\n\n"
        if wants_usage:
            usage = {"completion_tokens": TOKENS,
                     "completion_tokens_details": {"reasoning_tokens": TOKENS // 2}}  # fmt: skip
            yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"
        peer = request.client
        log = {"received": received_ns, "sent": sent_ns, "peer": peer and peer.port}
        print("answered", json.dumps(log), flush=True)

    return StreamingResponse(answer(), media_type="text/event-stream")


app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
