"""The laws that a stored result of `hwq preempt` has, and the waits they rest on, as Markdown.

    python -m tools.preempt_table FILE

Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_hwqueue.answers.preempt.file import PreemptFile
from pytest_hwqueue.answers.preempt.report import preempt_document
from pytest_hwqueue.data.document.document import markdown
from pytest_hwqueue.data.records.sealed import read_model


def main() -> None:
    """Print the document of a result, without the device and the question above it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    found = read_model(parser.parse_args().file, PreemptFile, "a result of `hwq preempt`")
    print(markdown(preempt_document(found)).partition("\n")[2].strip())


if __name__ == "__main__":
    main()
