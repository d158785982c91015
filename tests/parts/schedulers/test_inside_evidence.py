"""What a tenant sees of itself from inside: mapped files, priorities, its own output."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence, gather, why_not_loaded


def test_mapped_files_are_named_once_with_links_resolved(tmp_path: Path) -> None:
    with HostDevice().open_streams(2) as pool:
        seen = gather(pool)
    assert seen.stream_priorities == seen.asked_priorities == [0, 0]
    assert (seen.capability, seen.multiprocessors) == (None, None)
    assert seen.mapped("libtorch")
    assert len(seen.maps) == len(set(seen.maps))
    (link := tmp_path / "link").symlink_to(sys.executable)
    assert seen.has_mapped(link)
    assert not seen.has_mapped(tmp_path / "absent")
    maps = ["/x/libshimcuda.so", "/y/libcuda.so.580.1", "/libcuda.so/libc.so"]
    assert InsideEvidence(maps, []).mapped("libcuda.so") == ["/y/libcuda.so.580.1"]


def test_why_a_library_is_not_loaded(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in why_not_loaded(tmp_path / "absent.so")
    sound = Path(sys.executable).read_bytes()[:64]
    power = (21).to_bytes(2, sys.byteorder)
    for content, said in (
        (b"not a library at all, really", "no shared library"),
        (b"", "no shared library"),
        (sound[:18] + power + sound[20:], "another architecture than this Python"),
        (sound[:4] + bytes([3 - sound[4]]) + sound[5:], "another architecture"),
        (sound, "the loader left"),
    ):
        (library := tmp_path / "library.so").write_bytes(content)
        assert said in why_not_loaded(library)
