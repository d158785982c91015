"""The ``hwq`` command: one file per command, each a thin layer over pytest."""

from __future__ import annotations

import signal
import sys

_INTERRUPTED = 2


def run() -> None:
    """Run the command. Ctrl-C, also while it imports or leaves, prints no traceback."""
    try:
        from pytest_hwqueue.cli.main import main

        main(prog_name="hwq")
    except KeyboardInterrupt:
        print("hwq: interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    finally:
        # While the interpreter ends there is nobody to catch the exception.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
