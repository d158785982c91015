"""A mode of another package: the one of docs/schedulers.md, found by its entry point alone."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_hwqueue.data.errors import BadInput, NotProven
from pytest_hwqueue.data.records.plan import Tenant
from pytest_hwqueue.parts.schedulers.declaration import BUILT_IN, SCHEDULERS, SimulatedSharing
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import (
    needs_environment,
    open_scheduler,
    parse_scheduler,
    parse_schedulers,
    tenant_requests,
)

if TYPE_CHECKING:
    from tests.conftest import RunInProcess, Sessions

from .processes import needs_compiler

_DOCS = Path(__file__).parents[3] / "docs" / "schedulers.md"
_FILE, _ENTRY_POINTS = re.findall(
    r"```(?:python|toml)\n(.*?)```", _DOCS.read_text().partition("## Add a scheduler")[2], re.DOTALL
)


def add(package: Path, **values: str) -> None:
    """Let the package have entry points of these names and values, and no others."""
    folder = package / "my_package-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    points = (f"{name} = {value}\n" for name, value in values.items())
    (folder / "entry_points.txt").write_text(f"[{SCHEDULERS.group}]\n{''.join(points)}")
    _search_again()


def _search_again() -> None:
    vars(SCHEDULERS).pop("added", None)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The documentation's file, as a module of a package on the path, which adds its mode."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "fair.py").write_text(_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    add(tmp_path, **dict(re.findall(r'^(\w+) = "(.*)"$', _ENTRY_POINTS, re.MULTILINE)))
    yield tmp_path
    _search_again()
    for name in ("my_package", "my_package.fair"):
        sys.modules.pop(name, None)


def test_it_is_read_refused_and_opened_by_its_declaration() -> None:
    read = parse_schedulers("native,fair:window=04,fair")
    assert list(map(str, read)) == ["native", "fair:window=4", "fair"]
    assert [spec.value("window") for spec in read[1:]] == ["4", "8"]
    assert read[1].declaration.usage == "fair[:window=8]"
    assert read[1].simulated == SimulatedSharing(together=True, priorities="two-levels")
    for text, said in (
        ("fair:window=65", "fair: window: '65' is not valid; give a whole number from 1 to 64"),
        ("fair:widnow=4", "fair has no parameter 'widnow'; it has window"),
        ("fiar", "no scheduler mode 'fiar'; did you mean fair. there are native, .*, fair"),
    ):
        with pytest.raises(BadInput, match=said):
            parse_scheduler(text)
    assert needs_environment("fair:window=2")
    mode = open_scheduler("fair:window=2")
    differ = tenant_requests([Tenant("low", "resnet18"), Tenant("high", "resnet18", priority=1)])
    assert mode.environment(differ[1]) == {
        "LD_PRELOAD": "libfair.so", "FAIR_WINDOW": "2", "FAIR_PRIORITY": "1",
    }  # fmt: skip
    reasons = [mode.unavailable(kind, differ) for kind in ("cpu", "cuda", "sim", "hip")]
    refused = "fair:window=2 needs an NVIDIA GPU or the CPU, not hip"
    assert reasons == [None, None, None, refused]
    equal = tenant_requests(
        [Tenant("low", "resnet18", priority=1), Tenant("high", "resnet18", priority=1)]
    )
    assert "would change nothing: all tenants" in (mode.unavailable("sim", equal) or "")
    with pytest.raises(NotProven, match=r"tenant cell does not have libfair\.so mapped"):
        mode.proof({"cell": 1}, {"cell": InsideEvidence([], [0])})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("fair", "my_package.fair:Fair", "'my_package.fair.Fair'>, which is no SchedulerDecl"),
        ("unfair", "my_package.fair:FAIR", "names the declaration of a mode 'fair'"),
    ],
)
def test_an_entry_point_that_declares_no_mode_of_its_name_is_named(
    package: Path, name: str, value: str, said: str
) -> None:
    add(package, **{name: value})
    with pytest.raises(BadInput, match=f"entry point {name} = {value} of .*{re.escape(said)}"):
        parse_scheduler(name)
    assert parse_scheduler("native").declaration in BUILT_IN


@needs_compiler
def test_an_installed_package_adds_it_to_sessions(
    package: Path, library: Path, sessions: Sessions
) -> None:
    shutil.copy(library, package / "libfair.so")
    (package / "test_mine.py").write_text(
        "import os\n"
        "def test_mine(hwq):\n"
        "    assert os.environ['FAIR_WINDOW'] == '4'\n"
        "    hwq.measure(lambda: None)\n"
    )
    result = sessions.result(
        package, "--hwq-device=cpu", "--hwq-streams=1", "--hwq-iterations=20", "--hwq-json=s.json",
        "--hwq-scheduler=fair:window=4", LD_LIBRARY_PATH=str(package),
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    (record,) = json.loads((package / "s.json").read_text())["records"]
    assert record["scheduler_proof"]["evidence"] == "libfair.so mapped in all tenants"


_APART = """
from pytest_hwqueue import Proof, Scheduler, SchedulerDeclaration

APART = SchedulerDeclaration("apart", "of threads", "my_package.apart:Apart",
                             needs_environment=False)


class Apart(Scheduler):
    placements = frozenset({"threads"})

    def proof(self, pids, inside):
        return Proof(self.mode, "as it says", ())
"""


def test_a_mode_of_threads_alone_skips_processes_that_launch(
    package: Path, run_in_process: RunInProcess
) -> None:
    (package / "my_package" / "apart.py").write_text(_APART)
    add(package, apart="my_package.apart:APART")
    suite = Path(__file__).parents[3] / "benchmarks" / "test_latency_sensitive.py"
    result = run_in_process(
        str(suite), "--import-mode=importlib", "-rs", "--hwq-workload=launch_contention",
        "--hwq-device=cpu", "--hwq-streams=1", "--hwq-iterations=5", "--hwq-scheduler=apart",
        "--hwq-param=launchers=processes",
    )  # fmt: skip
    result.assert_outcomes(skipped=1, deselected=None)
    assert "apart is of one process's streams" in result.stdout.str().replace("\n", " ")
