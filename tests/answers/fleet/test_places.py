"""Which GPU of a fleet it is: machines of one name, and GPUs of one."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pytest_hwqueue.answers.fleet import check, cluster
from pytest_hwqueue.answers.fleet.check import AGAIN, Place, write_check
from pytest_hwqueue.answers.fleet.cluster import is_loopback, node_names
from pytest_hwqueue.answers.fleet.collected import collect
from pytest_hwqueue.answers.fleet.report import (
    drain_commands,
    fleet_document,
    fleet_json,
    prometheus_text,
)
from pytest_hwqueue.answers.fleet.verdicts import judge_fleet
from pytest_hwqueue.cli.main import main
from pytest_hwqueue.data.document.document import markdown
from pytest_hwqueue.data.errors import HwqError
from tests.answers.fleet.test_merge import change, fleet_of, measured

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["measured"]

UUID = "8f1a2b3c-0000-1111-2222-{:012}"


def node(name: str, number: int) -> dict[str, Any]:
    return {
        "NodeID": f"{number:08x}" * 7, "NodeName": name, "NodeManagerHostname": "host",
        "NodeManagerAddress": "10.0.0.1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("a", "b"), ["a", "b"]),
        # What `ray start` gives none is called as its machine.
        (("10.0.0.1", "b"), ["host", "b"]),
        (("a", "a", "b"), ["a-00000001", "a-00000002", "b"]),
        (("10.0.0.1", "10.0.0.1"), ["host-00000001", "host-00000002"]),
        (("gpu", "GPU"), ["gpu-00000001", "GPU-00000002"]),
        # Folders: one of the check itself, and one outside.
        ((AGAIN, "b"), ["again-00000001", "b"]),
        (("../../x", "/", "..", ".a"), ["-..-x", "-", "node", "a"]),
        (("x/y", "x:y"), ["x-y-00000001", "x-y-00000002"]),
        # A name that is another's with its part of the id.
        (("a", "a", "a-00000001"), [f"a-{'00000001' * 7}", f"a-{'00000002' * 7}", "a-00000001"]),
    ],
)
def test_no_two_nodes_have_one_name(names: tuple[str, ...], expected: list[str]) -> None:
    nodes = [node(name, number) for number, name in enumerate(names, start=1)]
    assert [*node_names(nodes).values()] == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)  # fmt: skip
def test_what_only_this_machine_reaches(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


def test_a_cluster_of_our_own_that_others_reach_is_refused() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)):
        cluster._require_loopback()
    with socket.create_server(("0.0.0.0", 0)), pytest.raises(HwqError, match="--address auto"):
        cluster._require_loopback()


def test_machines_of_one_name_keep_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LIMIT_S", 0.1)
    monkeypatch.setattr(platform, "node", lambda: "host")
    for _ in range(2):
        check.check_devices([("sim-h200-0", "sim:h200")], tmp_path, [])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["host", "host-2"]
    first, _ = collect([tmp_path])
    assert [(gpu.node, gpu.device) for gpu in first] == [
        ("host", "sim-h200-0"), ("host-2", "sim-h200-0")
    ]  # fmt: skip


def test_a_folder_with_another_machines_records_takes_those_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LIMIT_S", 0.1)
    write_check(tmp_path / "other" / "cuda-0", Place("other", "cuda-0", "cuda:0"), 1.0, "lost")
    arguments = ["fleet", "check", "--device", "sim:h200", "--out", str(tmp_path)]
    assert CliRunner().invoke(main, arguments).exit_code == 1
    assert (tmp_path / platform.node()).is_dir()
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, f"{platform.node()} is not empty" in again.stderr) == (4, True)


def identified(gpus: list[Path], uuids: Mapping[int, int]) -> None:
    """Give GPUs' records the UUIDs and addresses of real ones."""
    for at, number in uuids.items():
        change(gpus[at], "soft", "device_uuid", UUID.format(number))
        change(gpus[at], "soft", "pci_bus_id", f"00000000:{number:02X}:00.0")


def test_machines_of_one_name_in_two_folders_are_two(tmp_path: Path, measured: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        gpus = fleet_of(folder, 2, measured)
        identified(gpus, {0: 2 * number, 1: 2 * number + 1})
    first, _ = collect(folders)
    assert len({(gpu.node, gpu.device) for gpu in first}) == 4
    assert sorted(gpu.uuid for gpu in first) == [UUID.format(number) for number in range(4)]
    # One that fails on one machine takes nothing from the other.
    write_check(folders[0] / "node" / "gpu1", Place("node", "gpu1", "cuda:1"), 1.0, "lost")
    verdicts = judge_fleet(collect(folders)[0]).gpus
    assert sorted((gpu.uuid, gpu.verdict) for gpu in verdicts) == [
        (UUID.format(number), "unreachable" if number == 1 else "not judged") for number in range(4)
    ]


def test_the_same_gpu_in_two_folders_is_one(tmp_path: Path, measured: Path) -> None:
    (gpu,) = fleet_of(tmp_path / "a", 1, measured)
    identified([gpu], {0: 7})
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (found,), _ = collect([tmp_path])
    assert found.uuid == UUID.format(7)


def test_a_verdict_has_the_uuid_and_the_address(tmp_path: Path, measured: Path) -> None:
    gpus = fleet_of(tmp_path, 6, measured)
    identified(gpus, {number: number for number in range(6)})
    change(gpus[3], "soft", "ecc_uncorrected_errors", 2)
    found = judge_fleet(collect([tmp_path])[0])
    (named,) = found.named
    uuid, pci = UUID.format(3), "00000000:03:00.0"
    assert (named.uuid, named.pci) == (uuid, pci)
    said = f"({uuid}, {pci})"
    assert named.called.endswith(said)
    assert said in markdown(fleet_document(found)).replace("\\", "")
    assert said in drain_commands(found, "slurm")[0]
    assert f'uuid="{uuid}",pci="{pci}",verdict="faulty"}} 1' in prometheus_text(found)
    assert json.loads(fleet_json(found))["gpus"][0]["uuid"] == uuid
