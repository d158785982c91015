"""A load generator as another project's: one request after the other, records as AIPerf writes.

python client_of_tests.py URL FOLDER REQUESTS HOW
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path


def main(url: str, folder: str, requests: str, how: str) -> None:
    """Send the requests, and fail in the way that is asked for."""
    if how == "fails":
        sys.exit("no such model")
    lines = []
    for _ in range(int(requests)):
        asked = urllib.request.Request(url, json.dumps({"max_tokens": 4}).encode())
        start_ns = time.time_ns()
        with urllib.request.urlopen(asked) as answer:
            first_ns, text = 0, b""
            while chunk := answer.readline():
                text, first_ns = text + chunk, first_ns or time.time_ns()
        end_ns = time.time_ns()
        number = text.count(b'"text"')
        lines.append({
            "metadata": {
                "benchmark_phase": "profiling", "request_start_ns": start_ns,
                "request_end_ns": end_ns,
            },
            "metrics": {
                "time_to_first_token": {"value": (first_ns - start_ns) / 1e6, "unit": "ms"},
                "request_latency": {"value": (end_ns - start_ns) / 1e6, "unit": "ms"},
                "output_sequence_length": {"value": number, "unit": "tokens"},
            },
        })  # fmt: skip
    if how.startswith("tells "):
        # Long enough that a message that is shortened ends within it.
        lines[0] |= {"metrics": {}, "error": {"message": 108 * "x" + how.removeprefix("tells ")}}
    if how == "forgets":
        return
    records = "".join(f"{json.dumps(line)}\n" for line in lines)
    Path(folder, "profile_export.jsonl").write_text(records, encoding="utf-8")
    if how == "stays":
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
