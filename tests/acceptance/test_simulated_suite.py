"""The suite on the simulated device, as users run it: green, labelled, and the same every time."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pytest_hwqueue.answers.page.command import report

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

SUITE = str(Path(__file__).parents[2] / "benchmarks")
VARYING = (
    "started", "duration_s", "command", "fingerprint", "telemetry", "nodeid", "git_commit",
    "git_dirty",
)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        ("--hwq-streams=8 --hwq-iterations=20", 3),
        pytest.param("--hwq-streams=1,8,32", 8, marks=pytest.mark.slow),
        pytest.param(
            "--hwq-streams=1,8,32 --hwq-dispatch=graph --hwq-iterations=20", 8,
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_two_runs_agree_to_the_nanosecond(
    sessions: Sessions, tmp_path: Path, arguments: str, cells: int
) -> None:
    found: list[list[dict[str, Any]]] = []
    for _ in range(2):
        given = ("-m", "P0", "--hwq-device=sim:h200", "--hwq-json=s.json", *arguments.split())
        done = sessions.run(tmp_path, SUITE, *given)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "simulated NVIDIA H200" in done.stdout
        found.append(json.loads((tmp_path / "s.json").read_text())["records"])
    assert len(found[0]) == cells
    for record, again in zip(*found, strict=True):
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
SOME = ("-k", "large_gemm_only or graph_subgraphs or moe")


@pytest.mark.parametrize(
    ("selected", "slower"),
    [
        (SOME, False),
        # At one look, which takes fewer runs than several. That a regression fails its test and
        # names its command stands in test_regression.py.
        pytest.param(("-k", "large_gemm_only", "--hwq-runs=5"), True, marks=pytest.mark.slow),
        pytest.param((), False, marks=pytest.mark.slow),
        pytest.param(("--hwq-runs=5",), True, marks=pytest.mark.slow),
    ],
)
def test_the_suite_is_as_fast_as_its_reference_unless_the_device_is_slower(
    sessions: Sessions, tmp_path: Path, selected: tuple[str, ...], slower: bool
) -> None:
    """Compare with the baseline that comes with the plugin, from where there is no other."""
    done = sessions.run(
        tmp_path, SUITE, "--hwq-device=sim:h200", "--hwq-compare=reference", "--hwq-causes=never",
        f"--rootdir={tmp_path}", "-p", "no:cacheprovider", *selected,
        *["--hwq-fault=slower:10"] * slower, GITHUB_ACTIONS="true",
    )  # fmt: skip
    assert done.returncode == slower, done.stdout + done.stderr
    assert ("regression" in done.stdout) == slower
    assert "incomparable" not in done.stdout
    assert "no-baseline" not in done.stdout
    # The suite's files are in nobody's checkout.
    assert ("::error title=regression%3A large_gemm_only" in done.stdout) == slower
    assert "file=" not in done.stdout
    if "-k" in selected and slower:
        (command,) = set(
            re.findall(r"^reproduce: python -m pytest (.+)$", done.stdout, re.MULTILINE)
        )
        assert "--hwq-runs=5" in command
        again = sessions.run(tmp_path, *shlex.split(command))
        assert again.returncode == 1, again.stdout + again.stderr
        assert "1 failed" in again.stdout
        # Of a session that compared itself, a report says what it found.
        page = tmp_path / "report.html"
        CliRunner().invoke(report, ["--dir", str(tmp_path / ".hwqueue"), "-o", str(page)])
        assert "Worse than sim-h200/reference: P99 of large_gemm_only" in page.read_text()


def test_a_bad_profile_is_refused_with_file_field_and_reason(
    pytester: pytest.Pytester, run_in_process: RunInProcess
) -> None:
    profile = pytester.path / "mine.yaml"
    profile.write_text("name: mine\nunknown: 1\n", encoding="utf-8")
    refused = run_in_process(SUITE, f"--hwq-device=sim:{profile}")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    for told in (f"{profile}: ", "unknown: unknown field", "host: missing"):
        assert told in refused.stderr.str()
