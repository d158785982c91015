"""A program that stands for XSched's xserver, and XQueues as it reports them."""

from __future__ import annotations

from typing import Any

# Its answers and faults are files beside it; the policies have the real one's numbers.
XSERVER = """
import http.server, json, os, pathlib, signal, sys, time
root = pathlib.Path(__file__).resolve().parent.parent
policy, port = sys.argv[1], int(sys.argv[2])
numbers = {"HPF": 1, "HHPF": 2, "CHPF": 3, "UP": 4, "PUP": 5, "CFS": 10, "MLFQ": 11}
def leave(number, frame):
    print("stopped by SIGINT", flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, leave)
(root / "pid").write_text(str(os.getpid()))
if (root / "mute").exists():
    time.sleep(600)
connections = 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def setup(self):
        global connections
        connections += 1
        (root / "connections").write_text(str(connections))
        super().setup()
    def do_GET(self):
        answer = root / "answer.json"
        if self.path == "/policy":
            given = root / "policy"
            number = int(given.read_text()) if given.exists() else numbers[policy]
            body = json.dumps({"policy": number})
        elif self.path == "/xqueues" and answer.exists():
            body = answer.read_text()
        else:
            body = json.dumps({"processes": [], "xqueues": []})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def queue(
    pid: int,
    *,
    handle: int = 1,
    level: int = 1,
    threshold: int = 16,
    batch: int = 8,
    ready: bool = False,
    suspended: bool = False,
) -> dict[str, Any]:
    """An XQueue as ``GET /xqueues`` of XSched 1.2 has it."""
    return {
        "batch_size": batch, "device": 8589936128, "handle": handle, "level": level, "pid": pid,
        "ready": ready, "suspended": suspended, "threshold": threshold,
    }  # fmt: skip
