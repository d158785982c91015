"""A loop by hand beside a tenant: ratios that were planted are found, and both sides measure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_hwqueue.data.metrics.latency import LatencySummary, summarise_latency
from tools.bare_loop import main, table

MS = 1_000_000


def side(*longer: float, ms: float = 5.0, n: int = 1200) -> list[LatencySummary]:
    """A round for each factor, of latencies around so many ms."""
    return [
        summarise_latency([round(ms * MS * factor * (1 + place % 10 / 1e3)) for place in range(n)])
        for factor in longer
    ]


@pytest.mark.parametrize(
    ("tenant", "within", "longer"),
    [
        ((1.004, 1.006, 1.005, 1.005), "yes", 0.005),
        ((1.05, 1.051, 1.049, 1.05), "no", 0.05),
        ((1.0, 1.1, 0.95, 1.02), "undecided", 0.0161),
    ],
)
def test_what_the_tenants_loop_adds_is_found(
    tenant: tuple[float, ...], within: str, longer: float
) -> None:
    rounds = {
        ("resnet18", "loop"): side(1, 1, 1, 1),
        ("resnet18", "tenant"): side(*tenant),
        ("torchvision:resnet18", "loop"): side(0.9, 0.9, 0.9, 0.9),
        ("torchvision:resnet18", "tenant"): side(0.9, 0.9, 0.9, 0.9),
    }
    (first, second), _ = table(["resnet18", "torchvision:resnet18"], rounds)
    assert first[:3] == ["resnet18", "1,200", "5.02"]
    assert float(first[6].partition(" %")[0]) / 100 == pytest.approx(longer, abs=1e-4)
    assert (first[8], first[9]) == (within, "")
    assert second[8] == "yes"
    assert second[9].startswith("-10.0 % ")


def test_too_few_requests_have_no_p99_and_say_how_many_it_takes() -> None:
    rounds = {("resnet18", each): side(1, 1.01, n=100) for each in ("loop", "tenant")}
    (row,), notes = table(["resnet18"], rounds)
    assert (row[3], row[5], row[7]) == ("—", "—", "—")
    assert notes.lines(1) == [
        "tenant's P99 longer refused for the cell: has 100 samples; 1000 independent ones suffice"
    ]


def test_one_round_has_no_interval() -> None:
    rounds = {("resnet18", each): side(1) for each in ("loop", "tenant")}
    (row,), _ = table(["resnet18"], rounds)
    assert row[8] == "undecided"


def test_the_loop_by_hand_serves_the_schedule(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "samples.json"
    command = [
        sys.executable, "-m", "tools.bare_loop", "resnet18", "--device=cpu", "--warmup=0.01",
        "--seconds=0.2", "--arrival=constant: 50/s", f"--samples={file}",
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    samples = json.loads(file.read_text(encoding="utf-8"))
    assert len(samples) == 10
    assert min(samples) > 0


def test_an_unknown_model_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bare_loop", "resnet17", "--device=cpu"])
    with pytest.raises(SystemExit, match=r"^no model 'resnet17'; there are resnet18"):
        main()
