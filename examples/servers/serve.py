"""A server of one worker, in the standard library: copy it to try a scenario, then serve yours.

    python serve.py --port 8000 --service-ms 5

`GET /` answers after a fixed time, requests one after the other; `POST /v1/completions` streams
tokens as OpenAI's API does; `GET /health` answers at once.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Worker:
    """The one worker: a request's work begins when the one before it is done."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._free_s = 0.0

    def work(self, seconds: float) -> None:
        """Wait for the worker, and then for as long as it works."""
        with self._turn:
            done_s = self._free_s = max(self._free_s, time.monotonic()) + seconds
        time.sleep(max(0.0, done_s - time.monotonic()))


class Handler(BaseHTTPRequestHandler):
    """Answers on connections that stay open."""

    protocol_version = "HTTP/1.1"
    # An answer is a few small writes: without this, the last one waits for an acknowledgement.
    disable_nagle_algorithm = True
    worker = Worker()
    service_s = 0.005

    def do_GET(self) -> None:
        """Answer after the service time."""
        if self.path != "/health":
            self.worker.work(self.service_s)
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    def do_POST(self) -> None:
        """Stream as many tokens as are asked for, one per service time."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(asked.get("max_tokens", 16)):
            self.worker.work(self.service_s)
            choice = {"index": 0, "text": f" {number}", "finish_reason": None}
            self._event(json.dumps({"object": "text_completion", "choices": [choice]}))
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Write no line for each request."""

    def _event(self, data: str) -> None:
        text = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--service-ms", type=float, default=5.0)
    asked = parser.parse_args()
    Handler.service_s = asked.service_ms / 1e3
    ThreadingHTTPServer(("127.0.0.1", asked.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
