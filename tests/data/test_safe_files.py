"""Files are written whole and follow no link, and all of the package writes so, or says why not."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

import pytest_hwqueue
from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.metrics.timeline import Timeline
from pytest_hwqueue.data.safe_files import open_output, write_text
from pytest_hwqueue.engine.causes.pictures import Picture, write_csv
from pytest_hwqueue.parts.devices.launches import write_trace
from pytest_hwqueue.parts.processes.reaper import run
from pytest_hwqueue.plugin import budget

_PACKAGE = Path(pytest_hwqueue.__file__).parent


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("fsync", OSError(errno.ENOSPC, "full"), "cannot write {}: full"),
        ("replace", OSError(errno.ENOSPC, "full"), "cannot write {}: full"),
        ("fsync", KeyboardInterrupt(), ""),
        ("", None, f"cannot write {{}}: {os.strerror(errno.EFBIG)}"),
    ],
)
def test_what_cannot_be_written_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException | None,
    said: str, smaller_files: Callable[[int], AbstractContextManager[None]],
) -> None:  # fmt: skip
    path = tmp_path / "session.json"
    for text in ("a long text", "short", "µ\u2028"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    with monkeypatch.context() as patch:
        if error is not None:
            patch.setattr(os, call, Mock(side_effect=error))
        limited = nullcontext() if error else smaller_files(4096)
        with limited, pytest.raises((RecordError, KeyboardInterrupt)) as refused:
            write_text(path, "x" * 100_000)
    assert str(refused.value) == said.format(path)
    assert path.read_text(encoding="utf-8") == "µ\u2028"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_refused_and_what_is_there_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "session.json", tmp_path / "folder"):
        with pytest.raises(RecordError, match=f"cannot write {path}: .*(directory|exists)"):
            write_text(path, "text")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_bytes_of_a_path_that_are_no_text_become_escapes(tmp_path: Path) -> None:
    write_text(tmp_path / "told", f"in {os.fsdecode(b'caf' + bytes([0xE9]))}, µs")
    assert (tmp_path / "told").read_text(encoding="utf-8") == r"in caf\udce9, µs"


def test_writers_of_equal_process_ids_tear_nothing_and_follow_no_planted_link(
    tmp_path: Path,
) -> None:
    """Containers that share a folder have the same process ids, as threads of one process have."""
    path, victim = tmp_path / "record.json", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".record.json.{os.getpid()}.tmp").symlink_to(victim)
    texts = [letter * 200_000 for letter in "abcd"]
    torn = []

    def write(text: str) -> None:
        for _ in range(20):
            write_text(path, text)
            if path.read_text() not in texts:
                torn.append(text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, texts))
    assert torn == []
    assert victim.read_text() == "mine"
    assert {each.name for each in tmp_path.iterdir() if each.suffix == ".tmp"} <= {
        each.name for each in tmp_path.iterdir() if each.is_symlink()
    }


def test_a_temporary_file_that_is_there_is_neither_followed_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".record.json.{'00' * 8}.tmp").symlink_to(victim)
    with pytest.raises(RecordError, match=r"cannot write .*record\.json: File exists"):
        write_text(tmp_path / "record.json", "ours")
    assert victim.read_text() == "mine"
    assert (tmp_path / f".record.json.{'00' * 8}.tmp").is_symlink()


def _output(path: Path) -> None:
    open_output(path).close()


_WRITERS: dict[str, Callable[[Path], object]] = {
    "trace": lambda path: write_trace(Timeline((), 1, 0), str(path)),
    "picture": lambda path: Picture("virtual").write(path, {}),
    "events": lambda path: write_csv(path, 1, {}, Picture("virtual")),
    "durations": lambda path: budget._write(path, ["1.0\ttest"]),
    "output": _output,
    "command's output": lambda path: run(["true"], path.parent, dict(os.environ), path),
}


@pytest.mark.parametrize("writer", _WRITERS)
def test_a_link_of_the_files_name_is_replaced_and_not_followed(tmp_path: Path, writer: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    path.symlink_to(victim)
    _WRITERS[writer](path)
    assert victim.read_text() == "mine"
    assert path.is_file()
    assert not path.is_symlink()


_REASONS = {
    "data/safe_files.py": "the writers themselves",
    "parts/devices/host.py": "/proc/self, which no link leads out of",
    "parts/devices/kernel_trace.py": "torch's profiler, to a temporary folder of this process's",
    "parts/devices/lease.py": "locks' notes, opened without following links: all users share them",
    "answers/versions/imports.py": "standard library alone in a side's process; a random, new name",
    "answers/versions/scratch.py": "locks in a folder of this user's alone, of a random name",
    "parts/processes/channel.py": "a descriptor that is open already",
    "answers/baselines/command.py": "/dev/null, in place of a closed standard output",
    "answers/session/outcome.py": "GitHub's summary, a file of the runner's that steps add to",
    "data/document/standard_output.py": "/dev/null, in place of a closed stream",
}


def _mode(call: ast.Call, position: int) -> str:
    """Return the mode that a call opens a file with; ``w`` where it is no constant."""
    modes = [each.value for each in call.keywords if each.arg == "mode"]
    modes += call.args[position : position + 1]
    return str(modes[0].value if isinstance(modes[0], ast.Constant) else "w") if modes else "r"


def _writes(node: ast.AST) -> bool:
    """Whether a call may write to a file of a name."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "open" and not {*_mode(node, 1)}.isdisjoint("wax+")
    if not isinstance(node.func, ast.Attribute):
        return False
    what, owner = node.func.attr, ast.unparse(node.func.value)
    if what in ("write_text", "write_bytes"):
        # click's, which write help.
        return owner != "formatter"
    if what == "export_chrome_trace":
        return True
    if what == "open" and owner == "os":
        # Constants that only read.
        return "O_RDONLY" not in ast.unparse(node)
    return what == "open" and not {*_mode(node, 0)}.isdisjoint("wax+")


def _writers(code: str) -> list[str]:
    return [ast.unparse(node) for node in ast.walk(ast.parse(code)) if _writes(node)]


def test_all_that_is_written_is_written_safely_or_has_a_reason() -> None:
    writers = {
        str(path.relative_to(_PACKAGE)): found
        for path in sorted(_PACKAGE.rglob("*.py"))
        # Installed, the package has examples and benchmarks.
        if path.relative_to(_PACKAGE).parts[0] not in ("examples", "benchmarks")
        if (found := _writers(path.read_text(encoding="utf-8")))
    }
    past = {name: found for name, found in writers.items() if name not in _REASONS}
    assert past == {}, "write it by pytest_hwqueue.data.safe_files, or give a reason here"
    assert _REASONS.keys() <= writers.keys(), "reasons for what no longer writes"


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("open(p, 'wb')", True),
        ("open(p, mode='a')", True),
        ("open(p, mode)", True),
        ("p.open('x')", True),
        ("p.write_text(t)", True),
        ("Path(p).write_bytes(b)", True),
        ("os.open(p, flags)", True),
        ("open(p)", False),
        ("p.open(encoding='utf-8')", False),
        ("os.open(p, os.O_RDONLY | os.O_DIRECTORY)", False),
        ("write_text(p, t)", False),
    ],
)
def test_what_counts_as_writing(code: str, *, seen: bool) -> None:
    assert bool(_writers(code)) == seen
