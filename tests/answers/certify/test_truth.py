"""The certificate of a simulated device says what the model does, and `--from` says it again.

Groups of multiprocessors are apart in it, copies share one engine, and the threads of a process
share a lock. It has neither an L2 cache nor a memory whose bandwidth is shared.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pytest_hwqueue.answers.certify.file import CertificateFile
from pytest_hwqueue.answers.page.cells import find_records
from pytest_hwqueue.answers.page.render import page_of
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.records.tenants import records_in, write_colocation

GREEN = "threads-green-context:victim=64"


def hwq(*arguments: str | Path, columns: int = 200) -> Result:
    env = {"COLUMNS": str(columns)}
    return CliRunner().invoke(main, [*map(str, arguments)], prog_name="hwq", env=env)


def stored(folder: Path) -> CertificateFile:
    text = (folder / "certificate.json").read_text(encoding="utf-8")
    return CertificateFile.model_validate_json(text)


@pytest.fixture(name="session", scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A session of green contexts, held to copies, too; and what the command printed."""
    folder = tmp_path_factory.mktemp("certify")
    result = hwq(
        "certify", GREEN, "--device", "sim:h200", "--rounds", "3", "--duration", "500ms",
        "--claims", "copies", "--resources", "multiprocessors,memory,copies,launches",
        "--dir", folder,
    )  # fmt: skip
    (session,) = folder.iterdir()
    return session, result


def test_what_the_model_keeps_apart_is_shown_and_what_it_shares_is_refuted(
    session: tuple[Path, Result],
) -> None:
    folder, result = session
    assert result.exit_code == 1, result.output
    found = stored(folder)
    rows = {each.resource: each for each in found.resources}
    assert {name: row.verdict for name, row in rows.items()} == {
        "multiprocessors": "shown", "memory": "not measured", "copies": "refuted",
        "launches": "not claimed",
    }  # fmt: skip
    # Another's products are on other multiprocessors; under native they take turns.
    assert rows["multiprocessors"].slower.value == pytest.approx(0, abs=0.01)
    assert rows["multiprocessors"].native_slower.value == pytest.approx(1, abs=0.1)
    assert rows["copies"].slower.value == pytest.approx(1, abs=0.02)
    assert rows["launches"].slower.value > 1  # type: ignore[operator]
    assert rows["memory"].reason == "the simulator does not model it"
    assert rows["memory"].slower.value is None
    # 256 blocks are four waves of 64 multiprocessors, and two of 132.
    assert found.share is not None
    assert found.share.claimed == pytest.approx(64 / 132)
    assert found.share.share.value == pytest.approx(0.5, abs=0.01)
    assert found.share.verdict == "shown"
    assert "memory bandwidth: the simulator does not model it" in result.stdout


def test_records_say_the_same_again_and_other_terms_are_other_verdicts(
    session: tuple[Path, Result], tmp_path: Path
) -> None:
    folder, result = session
    again = hwq("certify", "--from", folder, "--json", tmp_path / "again.json")
    assert again.exit_code == 1
    assert again.stdout == result.stdout
    same = (tmp_path / "again.json").read_text(encoding="utf-8")
    assert same == (folder / "certificate.json").read_text(encoding="utf-8")
    # Alone and beside under the mode, for three that are modelled; under native for two claims.
    assert len(records_in(folder)) == 3 * (2 * 3 + 2 * 2)
    assert "resource: copies" in (folder / "certify.hwq.yaml").read_text(encoding="utf-8")
    fewer = hwq("certify", "--from", folder, "--resources", "multiprocessors", "--bound", "1%",
                "--markdown", tmp_path / "page.md")  # fmt: skip
    # 50.1 % of native's products are more than 48.5 %, and a hundredth of that.
    assert fewer.exit_code == 1
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "is shown to keep multiprocessors apart" in page
    assert "does NOT keep the victim's share" in page
    assert "copies" not in page
    # A claim that nothing was measured of is not left out in silence.
    more = hwq("certify", "--from", folder, "--claims", "l2,copies")
    assert more.exit_code == 4
    assert "--claims: 'l2' is not valid" in more.output
    # A model's windows and a machine's are no pair.
    (both := tmp_path / "both").mkdir()
    for path, record in records_in(folder)[:2]:
        shutil.copy(path, both)
        write_colocation(both / f"cpu-{path.name}", record.model_copy(update={"device": "cpu"}))
    mixed = hwq("certify", "--from", both)
    assert mixed.exit_code == 4
    assert "has windows of cpu and sim:h200, which are not compared" in mixed.output
    # Nobody wrote a result before a session was killed.
    (folder / "certificate.json").rename(tmp_path / "certificate.json")
    try:
        killed = hwq("certify", "--from", folder)
    finally:
        (tmp_path / "certificate.json").rename(folder / "certificate.json")
    assert killed.exit_code == 1
    assert "INCOMPLETE" in killed.stdout
    # What it was held to, its windows under native tell.
    assert "does NOT keep copies to the device apart" in killed.stdout
    assert "Not claimed; slower beside the stressor: launches" in killed.stdout


def test_the_page_begins_with_the_certificate(session: tuple[Path, Result]) -> None:
    folder, _ = session
    page = page_of(find_records([folder]), folder / "report.html")
    assert page.headline.level == "bad"
    assert page.headline.sentence.startswith(f"Simulated, not measured: {GREEN} is shown to keep")
    assert page.simulated
    assert len(page.answers) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give the MODE to certify"),
        (["nativ"], "native"),
        (["native", "--claims", "l3"], "choose from multiprocessors"),
        (["native", "--claims", "copies", "--resources", "memory"], "name these among --resources"),
        (["native", "--resources", "l2"], "contend for multiprocessors, copies, launches"),
        (["native", "--bound", "0"], "give a share above 0"),
        (["native", "--duration", "soon"], "--duration"),
        (["native", "--waits", "1ms"], "takes windows of at least 4.6 s"),
        (["native", "--rounds", "2"], "2 is not in the range x>=3"),
        (["native", "--json", "there/is/none.json"], "there is no folder there/is"),
        (["native", "--from", "."], "leave it out"),
        (["--from", "."], ". has no window of `hwq certify`"),
        (["green-context:victim=64"], "write threads-green-context:victim=64"),
        (["threads-green-context:high=64"], "the tenants are called victim and stressor"),
        (["mps-static:victim=4"], "no partition for stressor"),
        (["mps-static:cell=4"], "no tenant is called cell; there are victim, stressor"),
        (["preload:nothing"], "nothing"),
    ],
)
def test_what_cannot_be_measured_is_refused_before(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = hwq("certify", "--device", "sim:h200", *arguments)
    assert refused.exit_code == 4
    assert says in " ".join(refused.output.split())
    assert not any(tmp_path.iterdir())


def test_a_mode_that_only_says_that_it_is_active_is_not_certified(tmp_path: Path) -> None:
    lie = tmp_path / "lie.yaml"
    lie.write_text("environment: {MINE: '1'}\nproof: {output: '^mine is in charge'}\n", "utf-8")
    result = hwq(
        "certify", f"preload:{lie}", "--device", "cpu", "--size", "tiny", "--rounds", "3",
        "--resources", "launches", "--claims", "launches", "--duration", "200ms",
        "--dir", tmp_path / "d",
    )  # fmt: skip
    assert result.exit_code == 1, result.output
    assert f"It is not decided whether preload:{lie} keeps launches" in result.stdout
    assert "wrote nothing that matches '^mine is in charge'" in result.stdout
    (folder,) = (tmp_path / "d").iterdir()
    assert stored(folder).verdicts == ["not decided"]


def test_a_mode_that_the_simulator_does_not_model_is_not_certified(tmp_path: Path) -> None:
    result = hwq(
        "certify", "mps-partition:victim=70%", "--device", "sim:h200", "--rounds", "3",
        "--resources", "multiprocessors", "--dir", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 1
    assert "the simulator does not model" in result.stdout


def test_a_mode_without_claims_decides_nothing(tmp_path: Path) -> None:
    result = hwq(
        "certify", "native", "--device", "sim:h200", "--rounds", "3", "--resources", "copies",
        "--dir", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 3
    assert "native claims none of these, and is held to none" in result.stdout


def test_threads_wait_for_a_product_and_no_longer(tmp_path: Path) -> None:
    result = hwq(
        "certify", "threads-native", "--device", "sim:h200", "--rounds", "3", "--duration", "5s",
        "--resources", "multiprocessors", "--waits", "0.1ms", "--dir", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 1
    assert "threads-native does NOT keep an urgent kernel's wait at most 0.1 ms" in result.stdout
    (folder,) = tmp_path.iterdir()
    wait = stored(folder).wait
    assert wait is not None
    # A product of 2048 x 2048 x 2048 lasts 325 µs on the model.
    assert wait.p99_us.value == pytest.approx(325, rel=0.5)
    longer = hwq("certify", "--from", folder, "--waits", "1ms")
    assert longer.exit_code == 0
    assert "is shown to keep an urgent kernel's wait at most 1 ms" in longer.stdout


def test_ctrl_c_leaves_what_there_is(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "pytest_hwqueue", "certify", GREEN, "--device", "sim:h200",
        "--resources", "multiprocessors,launches", "--duration", "2s", "--dir", str(tmp_path),
    ]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as running:  # type: ignore[call-overload]
        for line in running.stderr:
            if "run 1 ok" in line:
                break
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate()
    assert running.returncode == 2
    assert "INCOMPLETE: interrupted before all was measured." in printed
    (folder,) = tmp_path.iterdir()
    assert not stored(folder).complete
    again = hwq("certify", "--from", folder, columns=80)
    assert again.exit_code == 3
    assert "INCOMPLETE" in again.stdout
