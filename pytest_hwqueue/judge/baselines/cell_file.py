"""The files of a baseline: lines of JSON, the last of which seals the others.

A cell's file is its header, one line for each run, and a trailer with the number of runs and the
SHA-256 of all bytes before it. A run added is a line added (and the trailer changed), so
diffs of two commits read well; a file that is cut off or changed anywhere is refused.
"""

from __future__ import annotations

import json
import stat
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from pytest_hwqueue.data.errors import RecordError, files, in_utf8, translated, within
from pytest_hwqueue.data.records.files import cell_file_name
from pytest_hwqueue.data.records.samples import GRID, decode_samples
from pytest_hwqueue.data.safe_files import write_text
from pytest_hwqueue.judge.baselines.runs import SCHEMA, CellBaseline, CellHeader, Count, StoredRun

_REPAIR = "restore it from version control, or remove it and store its runs again"


@dataclass(frozen=True)
class Trailer:
    """The last line: how many lines follow the header, and a hash of everything before it."""

    lines: Count
    sha256: str

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)


_RUN = TypeAdapter(StoredRun)


def read_cell(path: Path) -> CellBaseline:
    """Read a cell's file. Samples stay encoded, but figures are checked to be theirs.

    Raises:
        RecordError: naming the file if it is damaged, cut off, of another version, or another
            cell's, with the reason and what to do.

    """
    lines = read_lines(path, SCHEMA)
    header = _header(path, lines[0])
    runs = []
    for number, line in enumerate(lines[1:], start=2):
        with read_as(path, f"line {number}"):
            run = _RUN.validate_json(line)
            _check_figures(run)
        runs.append(run)
    if not runs:
        raise damaged(path, "it holds no run")
    return CellBaseline(header, tuple(runs))


def _check_figures(run: StoredRun) -> None:
    """Raise ValueError, naming the field, where a run's figures are not those of its samples.

    A sample is stored to half a step of its grid, so a quantile is known as well; and a figure is
    rounded to whole ns. Of a tag only its figures are stored, which must ascend.
    """
    import numpy as np

    names = ("p50_ns", "p90_ns", "p95_ns", "p99_ns", "p999_ns", "max_ns")
    stored = np.array([getattr(run, name) for name in names], dtype=np.float64)
    ordered = np.sort(decode_samples(run.samples, run.n))
    at = np.array((0.5, 0.9, 0.95, 0.99, 0.999, 1.0)) * (run.n - 1)
    below = at.astype(np.int64)
    step = ordered[np.minimum(below + 1, run.n - 1)] - ordered[below]
    exact = ordered[below] + step * (at - below)
    wrong = np.flatnonzero(np.abs(stored - exact) > (GRID**0.5 - 1) * np.maximum(stored, exact) + 1)
    if wrong.size:
        first = wrong[0]
        raise ValueError(
            f"{names[first]} is {stored[first]:.0f}, and the run's own samples have "
            f"{exact[first]:.0f}"
        )
    for tag, each in run.tags.items():
        figures = ("p50_ns", "p90_ns", "p95_ns", "p99_ns")
        for less, more in pairwise(figures):
            if getattr(each, less) > getattr(each, more):
                raise ValueError(
                    f"tags.{tag}.{more} is {getattr(each, more)}, below {less} of "
                    f"{getattr(each, less)}"
                )


def write_cell(path: Path, cell: CellBaseline) -> None:
    """Replace a cell's file; the old one stays intact if that fails.

    Raises:
        RecordError: if it cannot be written.

    """
    header = cell.header.model_dump(mode="json", by_alias=True)
    write_lines(path, [line_of(header), *(line_of(asdict(run)) for run in cell.runs)])


def read_lines(path: Path, schema: str) -> list[bytes]:
    """Return the lines of a sealed file without its trailer.

    Raises:
        RecordError: if a byte is missing or changed, or the first line names another schema; where
            git changed it, by what it did.

    """
    with files("read", path):
        # A link could lead anywhere, and reading a pipe would wait for ever.
        if not stat.S_ISREG(path.lstat().st_mode):
            raise RecordError(f"{path} is not a plain file; put the file itself there")
        data = path.read_bytes()
    if reason := _changed_by_git(data):
        raise RecordError(f"{path} {reason.format(path=path)}")
    lines = data.split(b"\n")
    found = _schema(lines[0])
    if found is not None and found != schema:
        raise RecordError(
            f"{path} is of schema {found!r}, and this version of pytest-hwqueue reads {schema!r}: "
            "use the version that wrote it, or remove the file and store its runs again"
        )
    end = data.rfind(b"\n", 0, -1) + 1
    body = data[:end]
    if end == 0 or data[end:] != _trailer(body).encode():
        whole = data.endswith(b"\n") and data[end:].startswith(b'{"lines": ')
        raise damaged(
            path,
            "its contents are not those that were stored (its last line does not fit them)"
            if whole
            else "it is cut off: its last line is not the one that vouches for the others",
        )
    return lines[:-2]


def _changed_by_git(data: bytes) -> str:
    """Return what git has made of a file, and what helps; empty if it left it as it was."""
    if data.startswith(b"version https://git-lfs"):
        return "is git-lfs's pointer in place of the file: run `git lfs pull`"
    if b"\n<<<<<<< " in b"\n" + data:
        return (
            "has git's conflict markers: take one side whole, with `git checkout --ours -- {path}` "
            "or `--theirs`; `baselines/** -text -merge` in .gitattributes keeps git from merging"
        )
    if b"\r\n" in data:
        return (
            "has line ends that git converted (core.autocrlf): put `baselines/** -text` into "
            ".gitattributes, remove the file, and `git checkout -- {path}`"
        )
    return ""


def write_lines(path: Path, lines: list[str]) -> None:
    """Write lines and their trailer atomically.

    Raises:
        RecordError: if that is not possible.

    """
    body = "".join(f"{line}\n" for line in lines)
    write_whole(path, body + _trailer(body.encode()))


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        RecordError: if that is not possible.

    """
    with within(remedy="what was stored before is still there"):
        write_text(path, text)


def line_of(data: dict[str, Any]) -> str:
    """Return one line of JSON, without its end."""
    return in_utf8(json.dumps(data, ensure_ascii=False, allow_nan=False))


def damaged(path: Path, reason: str) -> RecordError:
    """Return the error for a file that does not hold what was stored."""
    return RecordError(f"{path} is damaged: {reason}; {_REPAIR}")


def read_as(path: Path, said: str) -> AbstractContextManager[None]:
    """Let what does not hold what was stored be an error that names the file; ``said`` of what."""
    return translated(partial(damaged, path), said, ValueError)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of any line of a cell's file."""
    lines: TypeAdapter[Any] = TypeAdapter(CellHeader | StoredRun | Trailer)
    return lines.json_schema(by_alias=True)


def _header(path: Path, line: bytes) -> CellHeader:
    with read_as(path, "line 1"):
        header = CellHeader.model_validate_json(line)
    if path.name != cell_file_name(header.cell.id):
        raise RecordError(
            f"{path} holds the cell {header.cell.id}, whose file is "
            f"{cell_file_name(header.cell.id)}: give it its name back, or remove it"
        )
    return header


def _trailer(body: bytes) -> str:
    return line_of(asdict(Trailer(body.count(b"\n") - 1, sha256(body).hexdigest()))) + "\n"


def _schema(line: bytes) -> str | None:
    """Return the schema that a file's first line names, None if it names none."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = header.get("schema") if isinstance(header, dict) else None
    return found if isinstance(found, str) else None
