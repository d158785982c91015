"""A mode of another package: the one of docs/schedulers.md, found by its entry point alone."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue import extensions
from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.schedulers.declaration import BUILT_IN, SCHEDULERS, SchedulerDeclaration
from pytest_hwqueue.schedulers.syntax import (
    needs_environment,
    open_scheduler,
    parse_scheduler,
    parse_schedulers,
    tenant_requests,
)
from pytest_hwqueue.suite import plugin_name
from pytest_hwqueue.tenancy.colocation import colocate
from pytest_hwqueue.tenancy.spec import Colocation, TenantSpec

from .processes import needs_compiler

_ROOT = Path(__file__).parents[2]
_SECTION = (_ROOT / "docs" / "schedulers.md").read_text().partition("## Add a scheduler")[2]
_FILE, _ENTRY_POINTS = re.findall(r"```(?:python|toml)\n(.*?)```", _SECTION, re.DOTALL)

LOW, HIGH = "low", "high"


def add(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Let entry points of these names give these values."""
    points = [EntryPoint(name, value, SCHEDULERS.group) for name, value in values.items()]
    monkeypatch.setattr(extensions, "entry_points", lambda group: points)
    _forget()


def _forget() -> None:
    SCHEDULERS._adopted.clear()
    SCHEDULERS.__dict__.pop("added", None)


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    _forget()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The documentation's file, as a module of a package on the path."""
    folder = tmp_path / "site"
    (folder / "my_package").mkdir(parents=True)
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "fair.py").write_text(_FILE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("my_package", "my_package.fair"):
        sys.modules.pop(name, None)


@pytest.fixture
def fair(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode, by its entry point."""
    (name, value) = re.findall(r'^(\w+) = "(.*)"$', _ENTRY_POINTS, re.MULTILINE)[0]
    add(monkeypatch, **{name: value})


@pytest.mark.usefixtures("fair")
def test_its_text_is_read_by_its_declaration() -> None:
    read = parse_schedulers("native,fair:window=04,fair")
    assert list(map(str, read)) == ["native", "fair:window=4", "fair"]
    assert [spec.value("window") for spec in read[1:]] == ["4", "8"]
    assert read[1].declaration.usage == "fair[:window=8]"
    for text, said in (
        ("fair:window=65", "fair: window=65 is not valid; give a whole number from 1 to 64"),
        ("fair:widnow=4", "fair has no parameter 'widnow'; it has window"),
        ("fiar", "there is no scheduler mode 'fiar'; there are native, .*, preload, fair"),
    ):
        with pytest.raises(BadScheduler, match=said):
            parse_scheduler(text)


@pytest.mark.usefixtures("fair")
def test_it_says_what_it_needs_and_refuses_what_it_cannot_do() -> None:
    assert needs_environment("fair:window=2")
    mode = open_scheduler("fair:window=2")
    differ = tenant_requests([(LOW, 0, None), (HIGH, 1, None)])
    assert mode.environment(differ[1]) == {
        "LD_PRELOAD": "libfair.so", "FAIR_WINDOW": "2", "FAIR_PRIORITY": "1",
    }  # fmt: skip
    assert [mode.unavailable(kind, differ) for kind in ("cpu", "cuda", "sim")] == [None] * 3
    reason = "fair:window=2 needs an NVIDIA GPU or the CPU, not hip"
    assert mode.unavailable("hip", differ) == reason
    equal = tenant_requests([(LOW, 1, None), (HIGH, 1, None)])
    assert "would change nothing: all tenants" in (mode.unavailable("sim", equal) or "")


def served(folder: Path, scheduler: str) -> tuple[str, str, list[Any]]:
    """Run two tenants on a simulated device; return status, reason, and what each got."""
    tenants = (
        TenantSpec(LOW, workload="large_gemm_only"),
        TenantSpec(HIGH, workload="tiny_kernel_stress", arrival="constant: 200/s", priority=1),
    )
    plan = Colocation(
        "pair", tenants, duration_s=0.3, warmup_s=0.0, device="sim:h200", scheduler=scheduler
    )
    record = colocate(plan, open_scheduler(scheduler), lambda *_: None, folder)
    got = [tenant.model_dump(exclude={"causes"}) for tenant in record.tenants]
    return record.status, record.reason, got


@pytest.mark.usefixtures("fair")
def test_the_simulated_device_is_shared_as_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fair, as_declared, turns = (
        served(tmp_path, text) for text in ("fair:window=4", "mps-priority", "native")
    )
    assert fair == as_declared
    assert fair[0] == "ok"
    assert fair[2] != turns[2]
    text = _FILE.replace('SimulatedSharing(together=True, priorities="two-levels")', "None")
    assert text != _FILE
    (tmp_path / "unmodelled.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    add(monkeypatch, fair="unmodelled:FAIR")
    status, reason, _ = served(tmp_path, "fair")
    assert (status, reason) == (
        "skipped",
        "fair is no part of the model of a device; use a real one",
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("my_package.fair:Fair", "'my_package.fair.Fair'>, which is no SchedulerDeclaration"),
        ("my_package.fiar:FAIR", "cannot be loaded: ModuleNotFoundError"),
        ("my_package.fair:FIAR", "cannot be loaded: AttributeError"),
    ],
)
def test_an_entry_point_that_declares_no_mode_is_named(
    package: Path, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    add(monkeypatch, fair=value)
    with pytest.raises(BadScheduler, match=f"entry point fair = {value} of .*{re.escape(said)}"):
        parse_scheduler("fair")


def test_a_name_is_one_mode(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(monkeypatch, unfair="my_package.fair:FAIR")
    with pytest.raises(BadScheduler, match="names the declaration of a mode 'fair'"):
        parse_scheduler("unfair")
    add(monkeypatch, native="my_package.fair:FAIR")
    assert parse_scheduler("native").declaration in BUILT_IN
    with pytest.raises(BadScheduler, match="takes a name that is built in"):
        parse_scheduler("fair")


def test_every_built_in_mode_is_declared_whole() -> None:
    names = [each.name for each in BUILT_IN]
    assert len(set(names)) == len(names)
    for each in BUILT_IN:
        assert isinstance(each, SchedulerDeclaration)
        text = f"{each.name}:x" if each.argument else each.name
        assert str(parse_scheduler(text)) == text
        for parameter in each.parameters:
            # A default that its own reader refuses could not be written out.
            assert parameter.read(parameter.default) == parameter.default


@needs_compiler
def test_an_installed_package_adds_it_to_sessions(
    package: Path, library: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = package / "my_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[pytest_hwqueue.schedulers]\nfair = my_package.fair:FAIR\n"
    )
    shutil.copy(library, pytester.path / "libfair.so")
    monkeypatch.setenv("PYTHONPATH", f"{_ROOT}:{package}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(pytester.path))
    pytester.makepyfile(
        """
        import os

        def test_mine(hwq, hwq_scheduler):
            asked = os.environ.get("FAIR_WINDOW")
            assert asked == {"native": None, "fair:window=4": "4"}[hwq_scheduler.mode]
            hwq.measure(lambda: None)
        """
    )
    options = ["-p", plugin_name(), "--hwq-device=cpu", "--hwq-streams=1", "--hwq-iterations=20"]
    result = pytester.runpytest_subprocess(
        *options, "--hwq-scheduler=native,fair:window=4", "--hwq-json=s.json"
    )
    result.assert_outcomes(passed=2)
    found = json.loads((pytester.path / "s.json").read_text())["records"]
    proofs = [record["scheduler_proof"]["evidence"] for record in found]
    assert proofs[1] == "libfair.so mapped in all tenants"
    (pytester.path / "libfair.so").unlink()
    result = pytester.runpytest_subprocess(*options, "--hwq-scheduler=fair:window=4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("*fair:window=4: tenant cell does not have libfair.so mapped*")
    refused = pytester.runpytest_subprocess(*options, "--hwq-scheduler=fair:window=0")
    assert "give a whole number from 1 to 64" in refused.stderr.str()
