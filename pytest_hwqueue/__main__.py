"""``python -m pytest_hwqueue`` is ``hwq``."""

from __future__ import annotations

from pytest_hwqueue.cli import run

if __name__ == "__main__":
    run()
