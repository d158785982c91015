"""A program that stands for XSched's xserver, and XQueues as it reports them."""

from __future__ import annotations

from typing import Any

# Its answers and faults are files beside it; the policies have the real one's numbers.
XSERVER = """
import http.server, json, os, pathlib, signal, socket, sys, time
root = pathlib.Path(__file__).resolve().parent.parent
policy, port = sys.argv[1], int(sys.argv[2])
numbers = {"HPF": 1, "HHPF": 2, "CHPF": 3, "UP": 4, "PUP": 5, "CFS": 10, "MLFQ": 11}
def leave(number, frame):
    print("stopped by SIGINT", flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, leave)
(root / "pid").write_text(str(os.getpid()))
(root / "port").write_text(str(port))
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
        body = json.dumps({"processes": [], "xqueues": []})
        if self.path == "/policy":
            given = root / "policy"
            number = int(given.read_text()) if given.exists() else numbers[policy]
            body = json.dumps({"policy": number})
        elif (root / "answer.json").exists():
            body = (root / "answer.json").read_text()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(("127.0.0.1", port), Handler, bind_and_activate=False)
server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.server_bind()
server.server_activate()
server.serve_forever()
"""


def queue(pid: int, **changed: int) -> dict[str, Any]:
    """An XQueue as ``GET /xqueues`` of XSched 1.2 has it."""
    batch = changed.pop("batch", 8)
    return {
        "batch_size": batch, "device": 8589936128, "handle": 1, "level": 1, "pid": pid,
        "ready": False, "suspended": False, "threshold": 16, **changed,
    }  # fmt: skip
