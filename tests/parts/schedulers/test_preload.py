"""Preloaded schedulers, by their descriptions; test_any_test.py runs one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_hwqueue.data.errors import BadInput, NotProven
from pytest_hwqueue.parts.processes.services import ServiceFailed
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.syntax import (
    CELL,
    Scheduler,
    SchedulerPaths,
    TenantRequest,
    open_scheduler,
)

from .processes import SERVER, fails, program, served_pids, wait_for

LOW = TenantRequest("low", priority=3, share=0.5)


def described(folder: Path, **fields: Any) -> Scheduler:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(fields))
    return open_scheduler("preload:tiny", SchedulerPaths(preloads=(folder,)))


def test_a_library_that_is_in_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/mine")
    mode = described(
        tmp_path,
        preload=["libtiny.so", "./lib/other.so"],
        library_path=["lib"],
        environment={"TINY_PRIORITY": "{priority} of {name} at {share} in {folder}"},
        proof={"maps": r"libtiny\.so$", "output": "^tiny scheduler in charge"},
    )
    assert mode.environment(LOW) == {
        "TINY_PRIORITY": f"3 of low at 0.5 in {tmp_path}",
        "LD_PRELOAD": f"libtiny.so:{tmp_path}/lib/other.so",
        "LD_LIBRARY_PATH": f"{tmp_path}/lib:/opt/mine",
    }
    assert mode.unavailable("cpu", [LOW]) is None
    maps = ["/x/libtiny.so", f"{tmp_path}/lib/other.so"]
    evidence = InsideEvidence(maps, [-2], output="first\ntiny scheduler in charge\n")
    proof = mode.proof({"low": 1}, {"low": evidence})
    assert (proof.mode, proof.device_priorities) == ("preload:tiny", (-2,))
    assert r"mapped 'libtiny\\.so$', written '^tiny scheduler in charge'" in proof.evidence


@pytest.mark.parametrize(
    ("fields", "output", "said"),
    [
        ({"preload": ["libtiny.so"], "proof": {"maps": "libc"}}, "",
         "(process 1) does not have libtiny.so mapped: the loader did not find it"),
        ({"preload": ["./no.so"], "proof": {"maps": "libc"}}, "ld.so: cannot be preloaded",
         "cannot be read: No such file or directory; the process wrote: ld.so: cannot be"),
        ({"preload": ["./tiny.yaml"], "proof": {"maps": "libc"}}, "", "no shared library"),
        ({"proof": {"output": "the server answers"}}, "ready",
         "wrote nothing that matches 'the server answers' (proof.output"),
        ({"proof": {"maps": "libtiny"}}, "", "no file mapped that matches 'libtiny' (proof.maps"),
        ({"proof": {"maps": "libc", "output": "^ready"}}, "not ready", "matches '^ready'"),
        ({"proof": {"output": "x"}}, None, "output goes to no file"),
    ],
)  # fmt: skip
def test_what_the_description_promises_must_be_seen(
    tmp_path: Path, fields: dict[str, Any], output: str | None, said: str
) -> None:
    evidence = InsideEvidence(["/lib/libc.so.6"], [0], output=output)
    with pytest.raises(NotProven, match=re.escape(said)):
        described(tmp_path, **fields).proof({"low": 1}, {"low": evidence})


_SERVED = {"command": ["./server", "at", "once"], "stop": "INT", "ready": "^ready to serve"}


def test_its_services_run_beside_the_tenants_and_are_stopped_by_their_signal(
    tmp_path: Path,
) -> None:
    program(tmp_path / "server", SERVER)
    mode = described(tmp_path, services=[_SERVED, _SERVED], proof={"output": "x"})
    logs = [tmp_path / "logs" / f"tiny-{number}.log" for number in range(2)]
    with mode.services(tmp_path / "logs"):
        mode.check()
        assert all("ready to serve at once" in log.read_text() for log in logs)
        os.kill(served_pids(tmp_path)[1], signal.SIGKILL)
        wait_for(lambda: fails(mode.check), "its end to be noticed")
        with pytest.raises(ServiceFailed, match=r"server .* died by SIGKILL"):
            mode.proof({}, {})
    assert "left by SIGINT" in logs[0].read_text()
    # One that cannot start stops those before it.
    mode = described(tmp_path, services=[_SERVED, {"command": ["./no"]}], proof={"output": "x"})
    with pytest.raises(ServiceFailed, match="no could not be started"), mode.services(tmp_path):
        pytest.fail("one of them does not exist")
    assert "left by SIGINT" in (tmp_path / "tiny-0.log").read_text()


_PROOF = {"maps": "x"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "proof: Field required"),
        ({"proof": {}}, "proof: give maps or output"),
        ({"proof": {"maps": "("}}, "proof.maps: is no regular expression"),
        ({"proof": _PROOF, "prelaod": []}, "prelaod: Extra inputs"),
        ({"proof": _PROOF, "environment": {"LD_PRELOAD": "x"}}, "use the field preload"),
        ({"proof": _PROOF, "services": [{"command": []}]}, "services.0.command: List"),
        ({"proof": _PROOF, "services": [{"command": ["x"], "stop": "NOW"}]},
         "services.0.stop: Input should be"),
    ],
)  # fmt: skip
def test_a_description_is_checked_by_field(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=f"{tmp_path}/tiny.yaml: .*{re.escape(said)}"):
        described(tmp_path, **fields)


@pytest.mark.parametrize(
    ("name", "folders", "said"),
    [
        ("tini", 1, r"no tini.yaml in .*; there are bad, tiny; or give"),
        ("tiny", 0, r"\(none\); there are no descriptions"),
        ("absent.yaml", 1, r"absent\.yaml: .*No such file"),
        ("bad", 1, r"bad.yaml: "),
    ],
)
def test_a_description_is_found_by_name_or_path(
    tmp_path: Path, name: str, folders: int, said: str
) -> None:
    described(tmp_path, proof=_PROOF)
    (tmp_path / "bad.yaml").write_text("proof: [")
    assert open_scheduler(f"preload:{tmp_path}/tiny.yaml").mode == f"preload:{tmp_path}/tiny.yaml"
    with pytest.raises(BadInput, match=said):
        open_scheduler(f"preload:{name}", SchedulerPaths(preloads=(tmp_path,) * folders))


def test_where_it_is_unavailable_and_what_threads_can_share(tmp_path: Path) -> None:
    plain = described(tmp_path, proof=_PROOF, environment={"HOME_OF_IT": "{folder}"})
    assert plain.placements == {"processes", "threads"}
    assert "simulated" in (plain.unavailable("sim", [LOW]) or "")
    mode = described(tmp_path, proof=_PROOF, environment={"SHARE": "{share}"})
    assert mode.placements == {"processes"}
    assert mode.unavailable("cpu", [LOW]) is None
    assert "cell has no share" in (mode.unavailable("cpu", [LOW, CELL]) or "")
    mode = described(tmp_path, proof=_PROOF, preload=["./a b.so"])
    assert "blanks and colons" in (mode.unavailable("cpu", [LOW]) or "")
