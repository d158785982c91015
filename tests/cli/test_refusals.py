"""What every command refuses (refusals.txt): with its status, the reason, and nothing started."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.records.cell import Metrics, write_record
from pytest_hwqueue.engine.tenants.servers import MISSING_AIOHTTP
from pytest_hwqueue.parts.workloads.registry import WORKLOADS
from tests.answers.conftest import make
from tests.answers.stored import DEVICE, noisy, put, session_file
from tests.cli.conftest import Launched, hwq
from tests.conftest import make_record

LINES = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8").splitlines()
REFUSED = [line.split(" | ") for line in LINES if line[:1].isdigit()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with baselines, of which one is damaged, sessions, records and other files."""
    h100: dict[str, Any] = {"device_name": "NVIDIA H100"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("refused"))
        for name in ("main", "both", "damaged"):
            put(name, "a", noisy(10, 1))
        put("both", "a", noisy(10, 1), hard=h100)
        put("new", "a", noisy(2, 2))
        put("other", "c", noisy(2, 2))
        put("plain", "a", noisy(10, 1), metrics=Metrics())
        put("plain", "b", noisy(10, 1))
        put("pairs", "a", noisy(3, 1), sessions="xxx")
        put("driver", "a", noisy(3, 1), sessions="yyy", hard={"driver_major": 590})
        (damaged,) = (Path("baselines") / DEVICE / "damaged").glob("*.jsonl")
        damaged.write_bytes(damaged.read_bytes()[:-10])
        failed = make_record("a", 1, status="failed", reason="no memory", samples=None)
        faulty = make_record("a", 1, faults=["slower:10"])
        two = (make_record("a", 1), make_record("b", 1, hard=h100))
        for file, records in (("failed", [failed]), ("faulty", [faulty]), ("two", two)):
            Path(session_file(*records)).rename(f"{file}.json")
        write_record(Path("session"), make())
        for name in ("empty", "stored", "bin"):
            Path(name).mkdir()
        files = {"main.txt": "no JSON", "other.json": "{}", "broken.json": "{", "test_mine.py": ""}
        for name, text in {**files, "stored/cell.jsonl": "", "bin/nsys": ""}.items():
            Path(name).write_text(text)
        Path("bin/nsys").chmod(0o755)
        author = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
        for tag in ("v0", "v1", "v2"):
            subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", tag], check=True)
            subprocess.run(["git", "tag", tag], check=True)
        return Path.cwd()


def contents(folder: Path) -> set[tuple[Path, bytes]]:
    """All files but git's own."""
    files = (each for each in folder.rglob("*") if each.is_file() and ".git" not in each.parts)
    return {(each, each.read_bytes()) for each in files}


@pytest.mark.parametrize(("status", "line", "says"), REFUSED, ids=[row[1] for row in REFUSED])
def test_it_is_refused_with_the_reason_before_anything_starts(
    status: str, line: str, says: str, folder: Path, launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    before = contents(folder)
    result = hwq(*words)
    assert result.exit_code == int(status), result.output
    shown = " ".join(result.output.split())
    texts = says.replace("{workloads}", " & ".join(WORKLOADS)).split(" & ")
    assert [text for text in texts if text not in shown] == []
    assert "Traceback" not in result.output
    assert not launched.commands
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["which", "capacity --tenant=api"])
def test_servers_need_a_client_before_anything_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: Launched
) -> None:
    file = tmp_path / "served.hwq.yaml"
    file.write_text(
        "name: served\nduration: 1 s\ntenants:\n- name: api\n  server: {url: 'http://127.0.0.1:9/'}\n"
        "  arrival: 'poisson: 10/s'\n"
        "goals: [api.p99 < 100 ms]\n"
    )
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = hwq(*command.split(), str(file), "--device=cpu", f"--dir={tmp_path / 'records'}")
    assert MISSING_AIOHTTP in " ".join(result.output.split())
    assert result.exit_code == 4
    assert not (tmp_path / "records").exists()
