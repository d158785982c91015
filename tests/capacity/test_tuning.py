"""`hwq tune` on known truth: the best threshold is found, and what has no effect wins nothing."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.capacity import tuning
from pytest_hwqueue.capacity.tune_file import TuneFile
from pytest_hwqueue.capacity.tuning import Trial, Tuner, best_of, compared, space_of
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.records.provenance import provenance_of
from pytest_hwqueue.scenarios.file import Scenario, read_scenario
from pytest_hwqueue.scenarios.goals import CONFIDENCE, evaluate, parse_goal
from pytest_hwqueue.scenarios.planned_runs import cases
from pytest_hwqueue.schedulers.declaration import (
    SchedulerDeclaration,
    SchedulerParameter,
    SimulatedSharing,
    Tunable,
)
from pytest_hwqueue.schedulers.declared import NATIVE, SCHEDULERS
from pytest_hwqueue.schedulers.mode import SchedulerPaths
from pytest_hwqueue.schedulers.syntax import parse_scheduler
from pytest_hwqueue.tenancy import figures
from pytest_hwqueue.tenancy import sessions as over_sessions
from pytest_hwqueue.tenancy.figures import Served
from pytest_hwqueue.which.session import Measurer, WhichSettings

pytest.importorskip("optuna")

SCENARIO = """\
name: tuned
duration: 5s
warmup: 100ms
schedulers: [native]
tenants:
  - {name: high, workload: large_gemm_only, arrival: "poisson: 400/s", priority: 1}
  - {name: low, model: resnet18, batch: 64, arrival: closed}
goals:
  - high.p99 < 2 ms
"""
WINDOW_S = 0.5


def write(folder: Path, text: str = SCENARIO) -> Path:
    file = folder / "tuned.hwq.yaml"
    file.write_text(text)
    return file


def tuner(file: Path, mode: str, seed: int = 0) -> Tuner:
    scenario = read_scenario(file)
    folder = file.parent / f"records-{seed}"
    folder.mkdir(exist_ok=True)
    settings = WhichSettings(
        device="sim:h200", size="full", duration_s=WINDOW_S, seed=seed, timeout_s=60,
        scheduler_paths=SchedulerPaths(None, ()), folder=folder, scenario_folder=file.parent,
        weights=None, command="", provenance=provenance_of(file.parent, ""),
    )  # fmt: skip
    measurer = Measurer(scenario, settings, lambda *_: None, lambda *_: None)
    return Tuner(scenario, replace(cases(scenario)[0], scheduler=mode), measurer)


def hwq(*arguments: str | Path) -> Result:
    return CliRunner().invoke(
        main, ["tune", *map(str, arguments)], prog_name="hwq", env={"COLUMNS": "200"}
    )


def test_best_threshold_is_found_and_confirmed(tmp_path: Path) -> None:
    file = write(tmp_path)
    truth = tuner(file, "xsched:batch=1")
    every = [truth._try(f"xsched:threshold={each},batch=1") for each in range(1, 10)]
    scores = [trial.score for trial in every if trial.score is not None]
    kept = [score for score in scores if score >= 0]
    assert 0 < len(kept) < len(scores) == 9
    result = hwq(file, "--scheduler", "xsched:batch=1", "--device", "sim:h200", "--size", "full",
                 "--window", "500ms", "--budget", "20s", "--dir", tmp_path / "d", "--json",
                 tmp_path / "t.json")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = TuneFile.model_validate_json((tmp_path / "t.json").read_bytes())
    assert max(trial.score or 0 for trial in found.trials) >= max(kept) - 0.01
    assert found.space == {"threshold": (1, 64)}
    assert all(",batch=1" in trial.scheduler for trial in found.trials)
    assert found.won
    assert "native misses high.p99 < 2 ms" in found.reason
    assert [goal.verdict for goal in found.goals] == ["met"]
    assert f"Use {found.winner}: in fresh windows" in result.stdout
    assert "SIMULATED" in result.stdout


def test_equal_seeds_propose_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(self: Tuner, scheduler: str) -> Trial:
        threshold = int(parse_scheduler(scheduler).value("threshold"))
        return Trial(scheduler, -abs(np.log(threshold / 7)))

    monkeypatch.setattr(Tuner, "_try", trial)
    proposed = []
    for seed in (3, 3, 4):
        trials = tuner(write(tmp_path), "xsched").search(15, seed)
        assert len({each.scheduler for each in trials}) == 15
        proposed.append([each.scheduler for each in trials])
        best = best_of(trials)
        assert best is not None
        assert 4 <= int(parse_scheduler(best.scheduler).value("threshold")) <= 11
    assert proposed[0] == proposed[1] != proposed[2]


@pytest.fixture(name="idle")
def mode_without_effect(monkeypatch: pytest.MonkeyPatch) -> str:
    knob = SchedulerParameter.whole("knob", 1, 99, default=1, tunable=Tunable(1, 99))
    declared = SchedulerDeclaration(
        "idle", "native with a knob", NATIVE.implementation, (knob,), needs_environment=False,
        simulated=SimulatedSharing(),
    )  # fmt: skip
    monkeypatch.setitem(SCHEDULERS.built_in, "idle", declared)
    return "idle"


def test_a_mode_without_effect_wins_nothing(tmp_path: Path, idle: str) -> None:
    # A bound that native's P99 is about at: now kept, now missed, as windows fall.
    text = SCENARIO.replace("2 ms", "6.5 ms")
    file = write(tmp_path, text)
    for seed in range(3):
        tried = tuner(file, idle, 100 * seed)
        best = best_of(tried.search(3, seed))
        assert best is not None
        assert not tried.confirm(best.scheduler, 2).won


def noisy(random: np.random.Generator) -> Served:
    """A window of native and of its equal: 1 % of requests are slow, throughput varies."""
    n = int(random.poisson(500))
    latency = np.where(random.random(n) < 0.01, 20e6, 1e6).astype(int).tolist()
    finished = np.sort(random.uniform(0, 5e9, n)).astype(int).tolist()
    return Served(n, latency, finished, 5 * 10**9)


def test_equals_with_lucky_windows_win_nothing_in_any_of_many_seeds() -> None:
    goal, won = parse_goal("high.p99 < 10 ms"), 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        # The luckiest of 20 proposals leads the search; its fresh windows are like any.
        own, native = ([noisy(random) for _ in range(4)] for _ in range(2))
        kept = over_sessions.ratio(figures.throughput, own, native, CONFIDENCE)
        won += compared([evaluate(goal, own)], [evaluate(goal, native)], {"low": kept}).won
    assert won == 0


def test_better_throughput_alone_wins_if_native_misses_nothing() -> None:
    random = np.random.default_rng(1)
    fast = [noisy(random) for _ in range(8)]
    slow = [replace(w, finished_ns=w.finished_ns[::2]) for w in fast]
    goal = parse_goal("high.throughput > 1/s")
    kept = over_sessions.ratio(figures.throughput, fast, slow, CONFIDENCE)
    met, same = [evaluate(goal, fast)], [evaluate(goal, slow)]
    assert compared(met, same, {"low": kept}).won
    back = over_sessions.ratio(figures.throughput, slow, fast, CONFIDENCE)
    assert not compared(same, met, {"low": back}).won
    missed = [evaluate(parse_goal("high.throughput > 10000/s"), fast)]
    assert "not shown to meet" in compared(missed, missed, {"low": kept}).reason


def scenario(tmp_path: Path) -> Scenario:
    return read_scenario(write(tmp_path))


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("xsched", ["threshold", "batch"]),
        ("xsched:threshold=4", ["batch"]),
        ("mps-partition", ["low"]),
    ],
)
def test_space_is_what_declarations_say_and_the_mode_leaves_open(
    tmp_path: Path, mode: str, names: list[str]
) -> None:
    space = space_of(parse_scheduler(mode), scenario(tmp_path).tenants)
    assert list(space) == names


def test_declared_ranges_are_values_that_their_parameters_take() -> None:
    for name in SCHEDULERS:
        declared = SCHEDULERS[name]
        for each in (*declared.parameters, declared.per_tenant):
            if each is not None and each.tunable is not None:
                for value in (each.tunable.least, each.tunable.most):
                    assert each.read(f"{value}{each.tunable.unit}") == f"{value}{each.tunable.unit}"


def test_a_mode_without_parameters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="no parameter to search"):
        space_of(parse_scheduler("native"), scenario(tmp_path).tenants)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--scheduler", "native"), "it leaves no parameter to search"),
        (("--scheduler", "nonsense"), "there is no scheduler mode"),
        (("--scheduler", "xsched", "--budget", "20s"), "3 trials and the confirmation take"),
        (("--scheduler", "xsched", "--window", "100ms"), "requests that it needs take"),
        (("--scheduler", "xsched", "--variant", "x"), "the scenario has none"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    result = hwq(write(tmp_path), "--device", "sim:h200", *options, "--dir", tmp_path / "d")
    assert result.exit_code == 4, result.output
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "d").exists()


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really: Callable[..., Any] = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError(name)
        return really(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"pytest-hwqueue\[tune\]"):
        tuner(write(tmp_path), "xsched").search(3, 0)
    assert "pytest-hwqueue[tune]" in tuning.INSTALL


def test_failed_trials_say_why(tmp_path: Path) -> None:
    # The simulation has no model of level 3.
    result = hwq(write(tmp_path), "--scheduler", "xsched:level=3", "--device", "sim:h200",
                 "--window", "500ms", "--budget", "20s", "--dir", tmp_path / "d",
                 "--json", tmp_path / "t.json")  # fmt: skip
    assert result.exit_code == 1, result.output
    found = TuneFile.model_validate_json((tmp_path / "t.json").read_bytes())
    assert (found.winner, found.won, len(found.trials)) == (None, False, 3)
    assert "no part of the model" in found.reason
    assert "No trial came to figures" in result.stdout
