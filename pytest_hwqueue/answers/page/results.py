"""What other answers came to, as the page shows it, whichever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_hwqueue.answers.certify import on_page as of_certify
from pytest_hwqueue.answers.preempt import on_page as of_preempt
from pytest_hwqueue.answers.which import on_page as of_which
from pytest_hwqueue.data.document.document import Document, Headline

Result = of_which.Result | of_preempt.PreemptFile | of_certify.CertificateFile


def read_result(schema: str, path: Path) -> Result | None:
    """Read a result; None if a file with this schema is none.

    Raises:
        RecordError: if it is damaged.

    """
    return (
        of_which.read_result(schema, path)
        or of_preempt.read_laws(schema, path)
        or of_certify.read_certificate(schema, path)
    )


def place_of(result: Result) -> int:
    """Return where a result stands among others: tables, capacities, laws, certificates."""
    if isinstance(result, of_certify.CertificateFile):
        return 3
    return 2 if isinstance(result, of_preempt.PreemptFile) else of_which.place_of(result)


def result_document(result: Result, details: Mapping[tuple[str, str], str]) -> Document:
    """Return a result's tables; ``details`` as `which_document` takes them."""
    if isinstance(result, of_certify.CertificateFile):
        return of_certify.certificate_document(result)
    if isinstance(result, of_preempt.PreemptFile):
        return of_preempt.preempt_document(result)
    return of_which.result_document(result, details)


def results_headline(results: Sequence[Result]) -> Headline:
    """Return the headline of results, at least one.

    Of schedulers' tables, where there are any; else of certificates, which have verdicts.
    """
    laws = [each for each in results if isinstance(each, of_preempt.PreemptFile)]
    certificates = [each for each in results if isinstance(each, of_certify.CertificateFile)]
    others = [
        each for each in results
        if not isinstance(each, (of_preempt.PreemptFile, of_certify.CertificateFile))
    ]  # fmt: skip
    if others:
        return of_which.results_headline(others)
    if certificates:
        return of_certify.certificates_headline(certificates)
    return of_preempt.laws_headline(laws)
