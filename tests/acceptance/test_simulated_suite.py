"""The suite on the simulated device, as users run it: green, labelled, and the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Sessions

SUITE = Path(__file__).parents[2] / "benchmarks"
VARYING = (
    "started", "duration_s", "command", "fingerprint", "telemetry", "nodeid", "git_commit",
    "git_dirty",
)  # fmt: skip


def _measure(sessions: Sessions, folder: Path, *arguments: str) -> tuple[str, list[dict[str, Any]]]:
    folder.mkdir()
    done = sessions.run(
        SUITE.parent, str(SUITE), "-m", "P0", "--hwq-device=sim:h200", "--hwq-streams=1,8,32",
        *arguments, f"--hwq-json={folder}/session.json", f"--hwq-dir={folder}/records",
        "-p", "no:cacheprovider",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "session.json").read_text())["records"]


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        (("--hwq-iterations=100",), 8),
        pytest.param((), 8, marks=pytest.mark.slow),
        pytest.param(("--hwq-dispatch=graph", "--hwq-iterations=20"), 8, marks=pytest.mark.slow),
    ],
)
def test_two_runs_agree_to_the_nanosecond(
    sessions: Sessions, tmp_path: Path, arguments: tuple[str, ...], cells: int
) -> None:
    output, first = _measure(sessions, tmp_path / "first", *arguments)
    _, second = _measure(sessions, tmp_path / "second", *arguments)
    assert "simulated NVIDIA H200" in output
    assert len(first) == cells
    for record, again in zip(first, second, strict=True):
        assert record["status"] == "ok"
        assert record["fingerprint"]["hard"]["device_kind"] == "sim"
        assert record["fingerprint"]["hard"] == again["fingerprint"]["hard"]
        assert any(note.startswith("simulated:") for note in record["notes"])
        # Its host's threads measure nothing: absent, not 0.
        assert record["counters"] is None
        for varying in VARYING:
            del record[varying], again[varying]
        assert record == again


# Quick ones, of different kinds; they are in the baseline that comes with the plugin.
SOME = "large_gemm_only or graph_subgraphs or moe"


def _held_against_the_reference(
    sessions: Sessions, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Compare with the baseline that comes with the plugin, from where there is no other."""
    return sessions.run(
        folder, str(SUITE), "--hwq-device=sim:h200", "--hwq-compare=reference",
        f"--hwq-dir={folder}/records", f"--rootdir={folder}", "-p", "no:cacheprovider", *arguments,
    )  # fmt: skip


@pytest.mark.parametrize(
    "selected", [("-k", SOME), pytest.param((), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_the_suite_is_as_fast_as_its_reference(
    sessions: Sessions, tmp_path: Path, selected: tuple[str, ...]
) -> None:
    done = _held_against_the_reference(sessions, tmp_path, *selected)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "incomparable" not in done.stdout
    assert "no-baseline" not in done.stdout


@pytest.mark.parametrize(
    "selected",
    [("-k", "large_gemm_only"), pytest.param((), marks=pytest.mark.slow)],
    ids=["one", "all"],
)
def test_a_slower_device_fails_against_the_reference(
    sessions: Sessions, tmp_path: Path, selected: tuple[str, ...]
) -> None:
    done = _held_against_the_reference(sessions, tmp_path, "--hwq-fault=slower:10", *selected)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "regression" in done.stdout


def test_a_bad_profile_is_refused_with_file_field_and_reason(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text("name: mine\nunknown: 1\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest_hwqueue", "run", "large_gemm_only",
         f"--device=sim:{profile}", f"--dir={tmp_path}/records"],
        cwd=SUITE.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert f"{profile}: " in done.stderr
    assert "unknown: unknown field" in done.stderr
    assert "host: missing" in done.stderr
