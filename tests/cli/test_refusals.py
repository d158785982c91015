"""What every command refuses: with its status, the reason, and nothing started or written."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from pytest_hwqueue.records.cell import Metrics, write_record
from pytest_hwqueue.workloads.registry import WORKLOADS
from tests.cli.conftest import Launched, hwq
from tests.cli.stored import DEVICE, noisy, put, session_file
from tests.conftest import make_record
from tests.reports.conftest import make

BOTH = "write nvidia-h100/both or nvidia-h200/both"
DAMAGED = f"baselines/{DEVICE}/damaged/a & is damaged & restore it from version control"
SIDES = "name two sides"
ACCEPT = "baseline accept main --reason x --from"
NSYS = "trace hetero_kernels --tool nsys"
PARAMETERS = "No such option --mm-dims; the parameters of hetero_kernels are & --chain-length"

# As in a shell, variables may stand in front; " & " parts texts that must all be there.
REFUSED = [
    # Those that measure end with pytest's status for wrong usage.
    *((f"{each} no_such_workload", 4, " & ".join(["no_such_workload", *WORKLOADS]))
      for each in ("run", "sweep", "trace", "run tiny_kernel_stress")),
    *((f"{each} hetero_kernels --mm-dims 512", 4, PARAMETERS)
      for each in ("run", "sweep", "profile")),
    ("run tiny_kernel_stress --streams many", 4, "--streams: 'many' is not valid"),
    ("run tiny_kernel_stress --param mm_dim", 4, "give NAME=VALUE"),
    ("run tiny_kernel_stress --sync-mode sometimes", 4, "choose from per_iteration"),
    ("run tiny_kernel_stress --no-such", 4, "No such option"),
    ("run P0,P7", 4, "is not one of 'P0', 'P1'"),
    ("run P0 large_gemm_only", 4, "not both"),
    ("run P0 --priority P1", 4, "not both"),
    ("run P0 --mm-dim 64", 4, "where it is named alone"),
    ("run hetero_kernels --mm-dim many", 4,
     "hetero_kernels.mm_dim='many': Input should be a valid integer"),
    # Of several workloads the owner must be said.
    ("run hetero_kernels tiny_kernel_stress --mm-dim 512", 4, "--param hetero_kernels.mm_dim=512"),
    ("run", 4, "Missing argument"),
    ("no-such-command", 4, "No such command"),
    ("sweep all --mm-dim 64", 4, "options where it is named alone"),
    ("doctor --device all", 4, "one device at a time"),
    ("doctor --device sim:h200", 4, "real devices only"),
    ("doctor --device cuda:99", 4, "visible here"),
    ("help nosuch", 4, "'nosuch'; topics are streams, scheduler, "),
    ("trace moe[cpu]", 4, "is no cell's id"),
    ("trace test_mine.py::test_mine[cpu-s8-native-eager]", 4, "is no workload of the suite"),
    ("trace moe[cpu-s8-native-eager-beside-cpu]", 4, "'beside' in the cell's id"),
    ("trace moe[cpu-s8-native-sometimes]", 4, "is no cell's id"),
    ("trace moo", 4, "is not one of"),
    (f"PATH=empty {NSYS}", 4, "no nsys on PATH; it is part of NVIDIA Nsight Systems"),
    ("PATH=bin trace moe --tool rocprofv3", 4, "no rocprofv3 on PATH; it is part of ROCm"),
    (f"PATH=bin {NSYS} --device sim:h200", 4, "sim:h200 is a model, which runs no kernels"),
    (f"PATH=bin {NSYS} --isolation process", 4, "leave out --isolation process"),
    (f"PATH=bin {NSYS} --csv", 4, "--csv: nsys writes a file of its own"),
    ("report", 4, "has no session"),
    ("report empty", 4, "empty holds no records"),
    ("report stored", 4, "but a stored baseline, of which only samples are kept"),
    ("report other.json", 4, "is neither a record nor a table of `hwq which`"),
    ("report broken.json", 4, "broken.json is damaged"),
    ("report session -o empty", 4, "empty is a folder: name a file"),
    ("report session --baseline nothing", 4, "is neither a baseline nor a file nor a folder"),
    # Of those that compare, 1 is a regression alone.
    ("compare --baseline main", 2, SIDES),
    ("compare main --test new", 2, SIDES),
    ("compare main new third", 2, SIDES),
    ("compare", 2, SIDES),
    ("compare main new --rate 2", 2, "--rate: '2' is not valid"),
    ("compare main new --rate 30%", 2, "screen"),
    ("compare main new --on-missing cry", 2, "choose from pass, warn, fail"),
    ("compare main new --fail-on p98", 2, "nvidia-h200/main has a figure 'p98'"),
    ("compare main new --fail-on ,", 2, "--fail-on: ',' is not valid"),
    ("compare main new --fail-on other_ratio", 2, "has a figure 'other_ratio'"),
    ("compare plain new --fail-on convoy_ratio", 2, "that is in both & a figure convoy_ratio"),
    ("compare main new --sentinel fixed", 2, "--sentinel: 'fixed' is no cell of"),
    # A file that cannot be written hides no verdict.
    ("compare main new --json main.txt/x", 2, "1 pass & cannot write main.txt/x"),
    ("compare main new --markdown main.txt/x", 2, "1 pass & main.txt"),
    ("GITHUB_STEP_SUMMARY=no/such/folder.md compare main new", 2, "1 pass & no/such/folder.md"),
    ("HWQ_TAU=much compare main new", 2, "environment variable HWQ_TAU: 'much' is not valid"),
    ("compare main nothing", 2, "'nothing' is neither a baseline nor a file nor a folder"),
    ("compare nothing new", 2, "nvidia-h200/main, nvidia-h200/new"),
    ("compare main empty", 2, "neither records (*.json) nor cells (*.jsonl)"),
    ("compare main main.txt", 2, "main.txt is not a session file"),
    ("compare main other", 2, "name is a in the baseline and c here"),
    ("compare main failed.json", 2, "nothing to compare"),
    ("compare both both", 2, BOTH),
    ("compare damaged new", 2, DAMAGED),
    ("compare new damaged", 2, DAMAGED),
    ("baseline", 2, "Commands:"),
    ("baseline no-such", 2, "No such command"),
    ("baseline list", 2, DAMAGED),
    ("baseline show", 2, "Missing argument"),
    ("baseline show nothing", 2, "there are & nvidia-h200/main"),
    ("baseline show nvidia-h100/main", 2, "there is no baseline 'main' for nvidia-h100"),
    ("baseline show ../main", 2, "'..' is not the folder of a device"),
    ("baseline show main --fail-on p98", 2, "no cell has a figure 'p98'"),
    ("baseline show main b", 2, "has no cell 'b'; its cells are:\n  a["),
    ("baseline show both", 2, BOTH),
    ("baseline show damaged", 2, DAMAGED),
    ("baseline history nothing", 2, "no baseline 'nothing'"),
    ("baseline history both", 2, BOTH),
    ("baseline history damaged", 2, DAMAGED),
    ("baseline accept main --from new", 2, "--reason"),
    ("baseline accept main --from new --reason ' '", 2, "needs a reason"),
    (f"{ACCEPT} main", 2, "the baseline itself"),
    (f"{ACCEPT} new --cell b", 2, "nvidia-h200/new has no cell 'b'"),
    (f"{ACCEPT} failed.json", 2, "no cell that went well"),
    (f"{ACCEPT} faulty.json", 2, "planted faults (slower:10)"),
    (f"{ACCEPT} two.json", 2, "several devices: write nvidia-h100/main or nvidia-h200/main"),
    (f"{ACCEPT} damaged", 2, DAMAGED),
    ("baseline accept nvidia-h100/main --from new --reason x", 2,
     "no cell of nvidia-h100; it has cells of nvidia-h200"),
    ("baseline accept 'ma in' --from new --reason x", 2, "cannot name a baseline"),
    ("baseline prune main --keep 0", 2, "--keep"),
    ("baseline prune nothing --keep 5", 2, "no baseline 'nothing'"),
    ("baseline prune both --keep 1", 2, BOTH),
    ("baseline prune damaged --keep 1", 2, DAMAGED),
    ("baseline calibrate", 2, "Missing argument"),
    ("baseline calibrate main", 2, "no session has two runs & hwq run P0 --runs 3 --save aa"),
    ("baseline calibrate main --fail-on p98", 2, "no cell has a figure 'p98'"),
    ("baseline calibrate both", 2, BOTH),
    ("baseline calibrate damaged", 2, DAMAGED),
    ("baseline calibrate faulty.json", 2, "planted faults (slower:10)"),
    ("baseline calibrate pairs driver", 2, f"{DEVICE}/driver & driver_major is 580"),
    ("history nothing", 2, "is neither a baseline nor a file nor a folder"),
    ("history main --cell b", 2, "--cell: no cell is 'b'"),
    ("history main --figure p98", 2, "--figure: no cell has a figure 'p98'; there are p50"),
    ("history main --rate 50%", 2, "--rate: '50%' is not valid; give a share above 0 and below"),
    ("history main --rate 0.01%", 2, "--rate: 0.01% is below 0.02%"),
    ("history main --repository nowhere", 2, "--repository"),
    ("bisect test_mine.py v0", 2, "Missing argument 'BAD'"),
    ("bisect nothing v0 v2", 2, "'nothing' is neither a workload (see `hwq list`) nor a test"),
    ("bisect test_mine.py v9 v2", 2, "GOOD: 'v9' is no commit, branch or tag"),
    ("bisect test_mine.py v0 -v", 2, "No such option"),
    ("bisect test_mine.py v2 v0", 2, "GOOD: v2 is no ancestor of v0"),
    ("bisect test_mine.py v1 v1", 2, "GOOD and BAD are the same commit"),
    ("bisect test_mine.py v0 v2 --pairs 2", 2, "2 is not in the range x>=3"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with baselines, of which one is damaged, sessions, records and other files."""
    h100 = {"device_name": "NVIDIA H100"}
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


@pytest.mark.parametrize(("line", "status", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_it_is_refused_with_the_reason_before_anything_starts(
    line: str, status: int, says: str, folder: Path, launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    before = contents(folder)
    result = hwq(*words)
    assert result.exit_code == status, result.output
    shown = f"{result.output} {' '.join(result.output.split())}"
    assert [text for text in says.split(" & ") if text not in shown] == []
    assert "Traceback" not in result.output
    assert not launched.commands
    assert contents(folder) == before
