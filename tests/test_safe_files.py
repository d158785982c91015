"""Files are written whole, and follow no link."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

import pytest_hwqueue
from pytest_hwqueue.errors import RecordError
from pytest_hwqueue.safe_files import write_text

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
    with pytest.raises((RecordError, UnicodeEncodeError)):
        write_text(tmp_path / "session.json", "\udce9")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_writers_of_equal_process_ids_tear_nothing_and_follow_no_planted_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a folder have the same process ids."""
    path, victim = tmp_path / "record.json", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".record.json.{os.getpid()}.tmp").symlink_to(victim)
    monkeypatch.setattr(os, "getpid", lambda: 1)
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
