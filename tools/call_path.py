"""Print how a call of the package comes about: the package's functions on the stack.

    python tools/call_path.py FILE:FUNCTION [FILE:FUNCTION ...] -- PYTEST_ARGUMENTS...

Runs pytest in this process and, when a function below pytest_hwqueue/ is first called, prints the
package's frames from the outermost to it as a list. Give ``--hwq-isolation=none`` for tests that
would measure in a worker process. The paths in docs/house.md come from:

    python tools/call_path.py settings/values.py:stream_counts plugin/parameters.py:parametrize \\
        harness/closed_loop.py:_synchronised records/cell.py:write_record -- \\
        benchmarks -k large_gemm_only --hwq-device=sim:h200 --hwq-streams=2 --hwq-isolation=none
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import pytest

_PACKAGE = "/pytest_hwqueue/"


def _place(frame: FrameType) -> str | None:
    _, found, file = frame.f_code.co_filename.rpartition(_PACKAGE)
    return f"{file}:{frame.f_code.co_name}" if found else None


class _Watch:
    """Prints the stack at the first call of each wanted function."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.found: dict[str, list[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        place = _place(frame) if event == "call" else None
        if place not in self.wanted or place in self.found:
            return
        path: list[str] = []
        at: FrameType | None = frame
        while at is not None:
            step = _place(at)
            # Of a generator, a context manager and a lambda only what they serve is of interest.
            if step and "<" not in step and (not path or path[-1] != step):
                path.append(step)
            at = at.f_back
        self.found[place] = path[::-1]


def main() -> int:
    """Run pytest, then print what was found."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    watch = _Watch(set(sys.argv[1:split]))
    sys.path.insert(0, str(Path.cwd()))
    sys.setprofile(watch)
    status = pytest.main(sys.argv[split + 1 :])
    sys.setprofile(None)
    for place in sorted(watch.wanted, key=sys.argv.index):
        print(f"\n{place}" + ("" if place in watch.found else ": never called"))
        for step in watch.found.get(place, []):
            print(f"1. `{step}`")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
