"""Files of JSON that say by themselves whether they are as they were written.

The last field of such a file is the SHA-256 of all bytes before it. Its layout is exact, so that a
file which another tool has written again, or somebody by hand, has no seal and is read by its
content; who changes a figure and leaves the layout is found out.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from pytest_hwqueue.data.errors import RecordError, complaint, files
from pytest_hwqueue.data.metrics.estimate import PlainData
from pytest_hwqueue.data.metrics.latency import PERCENTILES, LatencySummary

_FIELD = "sha256"
_BEGINS = f',"{_FIELD}":"'.encode()
_ENDS = b'"}'
_LENGTH = len(_BEGINS) + 2 * sha256().digest_size + len(_ENDS)


def _describe(schema: dict[str, Any]) -> None:
    schema["properties"][_FIELD] = {
        "type": "string",
        "description": "of the file's bytes before this field; absent if another tool wrote them",
    }


class SealedData(PlainData):
    """What is written by `sealed`. The seal is the file's, and no part of the data."""

    model_config = ConfigDict(json_schema_extra=_describe)

    known_by: ClassVar[str] = "schema"
    """A field that no file of another kind has, whatever its version."""

    @model_validator(mode="before")
    @classmethod
    def _leave_seal(cls, data: Any) -> Any:
        if isinstance(data, dict) and _FIELD in data:
            return {name: value for name, value in data.items() if name != _FIELD}
        return data


Model = TypeVar("Model", bound=BaseModel)
Sealed = TypeVar("Sealed", bound=SealedData)


def sealed(text: str) -> str:
    """Return the text of a JSON object with its seal as the last field."""
    body = text.rstrip().removesuffix("}")
    digest = sha256(body.encode()).hexdigest()
    return f"{body}{_BEGINS.decode()}{digest}{_ENDS.decode()}"


def read_sealed(path: Path, model: type[Sealed], what: str) -> tuple[Sealed, bool]:
    """Read a file of one of our schemas; return also whether its seal has vouched for it.

    Args:
        path: of the file.
        model: its schema.
        what: the file should be, for people, with its article.

    Raises:
        RecordError: naming the file that cannot be read, is not ``what``, or is not as it was
            written.

    """
    with files("read", path):
        data = path.read_bytes()
    body, seal = data[:-_LENGTH], data[-_LENGTH:]
    has_seal = seal.startswith(_BEGINS)
    if has_seal and seal[len(_BEGINS) :] != sha256(body).hexdigest().encode() + _ENDS:
        raise RecordError(
            f"{path} is damaged: its bytes are not those that were written, by its {_FIELD}; "
            "measure again, or restore it"
        )
    return content_of(path, data, model, what), has_seal


def read_model(path: Path, model: type[Model], what: str) -> Model:
    """Read a file of one of our schemas that has no seal.

    Args:
        path: of the file.
        model: its schema.
        what: the file should be, for people, with its article.

    Raises:
        RecordError: as `content_of` does, or if the file cannot be read.

    """
    with files("read", path):
        data = path.read_bytes()
    return content_of(path, data, model, what)


def content_of(path: Path, data: bytes, model: type[Model], what: str) -> Model:
    """Return what a file holds.

    Raises:
        RecordError: naming the file if it is not ``what``, or of another version of it.

    """
    try:
        return model.model_validate_json(data)
    except ValueError as error:
        content = _table(data)
        if versions := _other_version(content, model):
            theirs, ours = versions
            raise RecordError(
                f"{path} is {what}, but of version {theirs}, and this version of pytest-hwqueue "
                f"reads version {ours} alone; measure again"
            ) from error
        if other := _other_kind(content, model):
            raise RecordError(f"{path} is not {what}: it is {other}") from error
        raise RecordError(f"{path} is not {what}: {complaint(error)}") from error


# Each by a field that no file of another kind has.
_KINDS = {
    "cell_id": "a cell's record",
    "plan": "a co-location's record, which `hwq which --from` and `hwq report` read",
}


def _other_kind(content: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return what kind of record a file is, if it is of another than the model; else nothing."""
    own = model.known_by if issubclass(model, SealedData) else ""
    found = [kind for field, kind in _KINDS.items() if field in content and field != own]
    return found[0] if found and own not in content else ""


def _table(data: bytes) -> dict[str, Any]:
    """Return a file's JSON object; empty if it is none, or nested too deep."""
    content = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(data)
    return content if isinstance(content, dict) else {}


def _other_version(
    content: Mapping[str, Any], model: type[BaseModel]
) -> tuple[object, object] | None:
    """Return the version of a file of the model's kind, and the model's; None unless they differ.

    Sealed records count their versions; other files name theirs behind their kind.
    """
    if "schema_" in model.model_fields:
        kind, _, ours = model.model_fields["schema_"].default.rpartition("/")
        its_kind, _, theirs = str(content.get("schema")).rpartition("/")
        return (theirs, ours) if its_kind == kind and theirs != ours else None
    if "schema_version" in model.model_fields and issubclass(model, SealedData):
        counted, found = model.model_fields["schema_version"].default, content.get("schema_version")
        return (found, counted) if model.known_by in content and found != counted else None
    return None


# Figures are computed from the same whole numbers; another machine may round the last digits
# another way.
_ROUNDING = 1e-9
_NS_PER_MS = 1e6


def contradictions(name: str, summary: LatencySummary, samples_ns: Sequence[int]) -> Iterator[str]:
    """Say which of a summary's figures are not those of its samples.

    Without NumPy, which sessions that compare nothing do without.

    Args:
        name: of the series, for people.
        summary: of these samples, in ms.
        samples_ns: of the series.

    """
    if summary.n != len(samples_ns):
        yield f"{name}.n is {summary.n}, and there are {len(samples_ns)} samples"
        return
    ordered = sorted(samples_ns)
    expected = {"mean": math.fsum(ordered) / summary.n, "max": float(ordered[-1])}
    shown = {"mean": summary.mean, "max": summary.max}
    for each, quantile in PERCENTILES.items():
        estimate = getattr(summary, each)
        if estimate.value is None:
            continue
        at = quantile * (summary.n - 1)
        below = int(at)
        above = ordered[min(below + 1, summary.n - 1)]
        expected[each] = ordered[below] + (above - ordered[below]) * (at - below)
        shown[each] = estimate.value
        if not estimate.low <= estimate.value <= estimate.high:
            yield (
                f"{name}.{each} is {estimate.value} ms, and its interval is {estimate.low} to "
                f"{estimate.high}"
            )
    for each, value in expected.items():
        if not math.isclose(shown[each], value / _NS_PER_MS, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            yield (
                f"{name}.{each} is {shown[each]} ms, and its own samples have {value / _NS_PER_MS}"
            )
