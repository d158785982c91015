"""The ``hwq`` command: one file per command, each a thin layer over pytest."""

from __future__ import annotations

import signal
import sys

# As `options.of_commands` has it, which is imported later.
_STATUS = 2


def run() -> None:
    """Run the command. Ctrl-C, also while it imports or leaves, prints no traceback."""
    try:
        from pytest_hwqueue.data.document.standard_output import make_writable

        make_writable()
        from pytest_hwqueue.cli.main import main

        main(prog_name="hwq")
    except KeyboardInterrupt:
        print("hwq: interrupted", file=sys.stderr)
        sys.exit(_STATUS)
    finally:
        # `python -m` ends by SIGINT, whatever the status, once code made from text, as dataclasses
        # are, was interrupted, even if that was handled; it forgets that with the next such code.
        exec("")
        # While the interpreter ends there is nobody to catch the exception.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
