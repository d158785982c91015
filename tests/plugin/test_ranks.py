"""Sessions of several ranks end together: one that did not begin, or did worse, fails the first."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.processes.launched import LaunchedRank
from pytest_hwqueue.plugin import ranks
from pytest_hwqueue.plugin.keys import SETTINGS
from pytest_hwqueue.plugin.ranks import RankedSession


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "rank 1 has not ended 0.1 s after rank 0; it does not run the same tests, or hangs"),
        ({"status": 5, "failed": []}, "rank 1 failed: exit status 5"),
        ({"status": 1, "failed": ["t::a (call)"]}, "rank 1 failed: t::a (call)"),
        ({"status": 0, "failed": []}, ""),
    ],
)
def test_a_rank_that_did_not_begin_or_measured_nothing_fails_the_session(
    said: dict[str, Any] | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    monkeypatch.setattr(ranks, "_STACKS_S", 0.1)
    config = SimpleNamespace(
        stash=pytest.Stash(), invocation_params=SimpleNamespace(dir=tmp_path)
    )  # fmt: skip
    config.stash[SETTINGS] = Settings(timeout=0.1)
    store = HashStore()
    first = RankedSession(
        LaunchedRank(0, 2, 0, 2, "127.0.0.1", 1, store_exists=True), store,
        cast("pytest.Config", config),
    )  # fmt: skip
    if said is not None:
        store.set("ended/1", json.dumps(said))
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    ending = first.pytest_sessionfinish(cast("pytest.Session", session))
    next(ending)
    with suppress(StopIteration):
        ending.send(None)
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if told else pytest.ExitCode.OK)
    lines: list[str] = []
    reporter = SimpleNamespace(write_line=lambda line, **_: lines.append(line))
    first.pytest_terminal_summary(cast("pytest.TerminalReporter", reporter))
    assert [told in line for line in lines] == [True] * bool(told)
