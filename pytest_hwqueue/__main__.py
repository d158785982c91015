"""``python -m pytest_hwqueue`` is ``hwq``."""

from __future__ import annotations

from pytest_hwqueue.cli.main import main

if __name__ == "__main__":
    main(prog_name="hwq")
