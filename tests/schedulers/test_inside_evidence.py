"""What a tenant sees of itself from inside: mapped files, priorities, its own output."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.schedulers.inside_evidence import (
    InsideEvidence,
    gather,
    is_mapped,
    loaded_files,
    why_not_loaded,
)

_GATHER = """
import dataclasses, json, sys
class Stream:
    priority = 2
class Pool:
    streams = [Stream()]
    def device_priorities(self):
        return [-2]
print("first line", flush=True)
print("to stderr", file=sys.stderr, flush=True)
from pytest_hwqueue.schedulers.inside_evidence import gather
with open(sys.argv[1], "w") as file:
    json.dump(dataclasses.asdict(gather(Pool())), file)
"""


def test_mapped_files_are_named_once_with_links_resolved() -> None:
    files = loaded_files()
    assert len(files) == len(set(files))
    assert is_mapped(files, Path(sys.executable))
    assert not is_mapped(files, Path(sys.executable + ".absent"))


def test_a_library_is_found_under_its_link(tmp_path: Path) -> None:
    (real := tmp_path / "real.so").touch()
    (link := tmp_path / "link.so").symlink_to(real)
    assert is_mapped([str(real)], link)
    assert not is_mapped([str(tmp_path / "other.so")], link)


def test_names_match_from_their_beginning() -> None:
    maps = ["/x/libshimcuda.so", "/y/libcuda.so.580.1", "/libcuda.so/libc.so"]
    assert InsideEvidence(maps, []).mapped("libcuda.so") == ["/y/libcuda.so.580.1"]


def test_a_pool_of_the_host() -> None:
    with HostDevice().open_streams(2) as pool:
        seen = gather(pool)
    assert seen.stream_priorities == [0, 0]
    assert seen.asked_priorities == [0, 0]
    assert (seen.capability, seen.multiprocessors) == (None, None)
    assert seen.mapped("libtorch")


@pytest.mark.parametrize("to_file", [True, False])
def test_a_process_reads_its_own_output(tmp_path: Path, to_file: bool) -> None:
    log, answer = tmp_path / "log", tmp_path / "answer.json"
    with open(log, "wb") as file:
        subprocess.run(
            [sys.executable, "-c", _GATHER, str(answer)],
            stdout=file if to_file else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
        )
    seen = InsideEvidence(**json.loads(answer.read_text()))
    assert seen.output == ("first line\nto stderr\n" if to_file else None)
    assert (seen.stream_priorities, seen.asked_priorities) == ([-2], [2])
    assert InsideEvidence(**json.loads(json.dumps(dataclasses.asdict(seen)))) == seen


def test_why_a_library_is_not_loaded(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in why_not_loaded(tmp_path / "absent.so")
    (text := tmp_path / "text.so").write_text("not a library at all, really")
    assert "no shared library" in why_not_loaded(text)
    (empty := tmp_path / "empty.so").touch()
    assert "no shared library" in why_not_loaded(empty)
    header = bytearray(Path(sys.executable).read_bytes()[:64])
    header[18:20] = (21).to_bytes(2, sys.byteorder)
    (foreign := tmp_path / "foreign.so").write_bytes(bytes(header))
    assert "another architecture (PowerPC64, 64 bits)" in why_not_loaded(foreign)
    header = bytearray(Path(sys.executable).read_bytes()[:64])
    header[4] = 3 - header[4]
    (narrow := tmp_path / "narrow.so").write_bytes(bytes(header))
    assert "another architecture" in why_not_loaded(narrow)
    (sound := tmp_path / "sound.so").write_bytes(Path(sys.executable).read_bytes()[:64])
    assert "the loader left" in why_not_loaded(sound)
