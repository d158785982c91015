"""The law that is found of a simulated device is the one that it has, and `--from` finds it again.

Threads share it kernel by kernel: an urgent one waits for the one under way. Processes have it in
time slices of 2 ms: an urgent one waits for the end of a slice, however long the kernel is. With
priorities of streams it waits for the blocks that have begun.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.answers.page.cells import find_records
from pytest_hwqueue.answers.page.render import page_of
from pytest_hwqueue.answers.preempt.file import PreemptFile
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.records.tenants import records_in
from pytest_hwqueue.parts.devices.simulated.profile import load_profile

GROUPS = "green-context:urgent=32"


def hwq(*arguments: str | Path, columns: int = 200) -> Result:
    env = {"COLUMNS": str(columns)}
    return CliRunner().invoke(main, [*map(str, arguments)], prog_name="hwq", env=env)


@pytest.fixture(name="session", scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A session of three modes, and what the command printed."""
    folder = tmp_path_factory.mktemp("preempt")
    result = hwq(
        "preempt", "--device", "sim:h200", "--lengths", "8ms,12ms,16ms", "--rounds", "3",
        "--requests", "460", "--schedulers", "native,threads-native,threads-stream-priority",
        "--dir", folder,
    )  # fmt: skip
    (session,) = folder.iterdir()
    return session, result


def test_modes_have_the_laws_of_the_model(session: tuple[Path, Result]) -> None:
    folder, result = session
    assert result.exit_code == 0, result.output
    text = (folder / "preempt.json").read_text(encoding="utf-8")
    found = {law.id: law for law in PreemptFile.model_validate_json(text).laws}
    shared = found["threads-native"]
    assert shared.verdict == "waits"
    assert shared.slope.value == pytest.approx(0.99, abs=0.03)
    assert shared.slope.low < 1 < shared.slope.high + 0.02
    # Its kernels last as long as was asked for, and as long as the next takes to start.
    for wait in shared.waits:
        assert wait.kernel_us.value == pytest.approx(wait.asked_us, rel=0.001)
    # Urgent blocks are the first to start where others end: a wave lasts a quarter of a kernel.
    urgent = found["threads-stream-priority"]
    assert urgent.verdict == "shorter"
    assert urgent.slope.value == pytest.approx(0.99 / 4, abs=0.01)
    slices = found["native"]
    assert slices.verdict == "bounded"
    slice_us = load_profile("h200").sharing.time_slice_ns.value / 1e3
    for wait in slices.waits:
        assert wait.p99_us.value == pytest.approx(slice_us, rel=0.05)
    assert "no preemption below kernel level" in result.stdout
    assert "whatever the victim: preempts" in result.stdout


def test_records_give_the_same_again_and_say_what_was_measured(
    session: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, result = session
    again = hwq("preempt", "--from", folder, "--json", tmp_path / "again.json")
    assert again.exit_code == 0
    assert again.stdout == result.stdout
    same = (tmp_path / "again.json").read_text(encoding="utf-8")
    assert same == (folder / "preempt.json").read_text(encoding="utf-8")
    # The urgent tenant alone, and beside three victims; each victim alone, of few and many kernels.
    modes, rounds, victims = 3, 3, 3
    assert len(records_in(folder)) == modes * rounds * victims + 2 * rounds + 2 * victims
    assert "workload: occupy" in (folder / "preempt.hwq.yaml").read_text(encoding="utf-8")


def test_the_page_begins_with_the_laws_and_draws_them(session: tuple[Path, Result]) -> None:
    folder, _ = session
    page = page_of(find_records([folder]), folder / "report.html")
    assert page.headline.sentence.startswith("Simulated, not measured: ")
    assert len(page.headline.more) == 2
    assert page.simulated
    (answer,) = page.answers
    assert any(getattr(part, "title", "").startswith("Wait over") for part in answer.parts)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--requests", "459"], "give at least 460"),
        (["--lengths", "1ms,2ms"], "at least 3 lengths"),
        (["--waves", "65"], "give whole numbers from 0 to 64"),
        (["--depths", "0"], "whole numbers from 1"),
        (["--depths", "1000"], "kernels of up to 4 ms a window takes up to 2 h 46 min"),
        (["--schedulers", "nativ"], "native"),
        (["--schedulers", "preload:nothing"], "nothing"),
        (["--device", "cpu"], "give --waves 0, or an accelerator"),
        (["--rounds", "2"], "2 is not in the range x>=3"),
        (["--json", "there/is/none.json"], "there is no folder there/is"),
        (["--from", "."], ". has no window of `hwq preempt`"),
    ],
)
def test_what_cannot_be_measured_is_refused_before(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = hwq("preempt", "--device", "sim:h200", *arguments)
    assert refused.exit_code == 4
    assert says in " ".join(refused.output.split())
    assert not any(tmp_path.iterdir())


def test_a_mode_that_cannot_be_opened_is_told_and_nothing_is_a_law(tmp_path: Path) -> None:
    # In processes there are no groups; the CPU's own kernels have one block.
    result = hwq(
        "preempt", "--device", "sim:h200", "--lengths", "8ms,12ms,16ms", "--rounds", "3",
        "--requests", "460", "--schedulers", GROUPS, "--dir", tmp_path / "d",
        "--svg", tmp_path / "none.svg",
    )  # fmt: skip
    assert result.exit_code == 1
    assert f"{GROUPS} was not measured at enough lengths" in result.output
    assert "needs tenants in threads" in " ".join(result.output.split())
    assert "is not drawn" in result.output
    assert not (tmp_path / "none.svg").exists()
