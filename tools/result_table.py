"""What a stored result of `hwq preempt` or `hwq certify` says, with its tables, as Markdown.

    python -m tools.result_table FILE

Run it from the top of the tree.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_hwqueue.answers.certify.file import CertificateFile
from pytest_hwqueue.answers.certify.report import certificate_document
from pytest_hwqueue.answers.preempt.file import PreemptFile
from pytest_hwqueue.answers.preempt.report import preempt_document
from pytest_hwqueue.data.document.document import Document, markdown
from pytest_hwqueue.data.records.sealed import read_model


def main() -> None:
    """Print the document of a result, without the question above it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    print(markdown(_document(parser.parse_args().file)).partition("\n")[2].strip())


def _document(path: Path) -> Document:
    if f'"{PreemptFile.model_fields["schema_"].default}"' in path.read_text(encoding="utf-8"):
        return preempt_document(read_model(path, PreemptFile, "a result of `hwq preempt`"))
    return certificate_document(read_model(path, CertificateFile, "a result of `hwq certify`"))


if __name__ == "__main__":
    main()
