"""``hwq fleet run`` on Ray clusters of this machine, with nodes that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from pytest_hwqueue import __version__
from pytest_hwqueue.answers.fleet import cluster as fleet_cluster
from pytest_hwqueue.answers.fleet.check import AGAIN, read_check
from pytest_hwqueue.answers.fleet.cluster import Cluster, run_fleet
from pytest_hwqueue.answers.fleet.collected import checked_gpus, collect
from pytest_hwqueue.answers.fleet.verdicts import confirmed, judge_fleet
from pytest_hwqueue.data.errors import RecordError
from pytest_hwqueue.data.safe_files import write_bytes

pytestmark = [
    # Ray's own: sockets that it leaves to the garbage collector.
    pytest.mark.filterwarnings("default"),
    pytest.mark.slow,
]
ray = pytest.importorskip("ray", reason="the extra fleet is not there")
cluster_utils = pytest.importorskip("ray.cluster_utils")

LABEL = "sim:h200"
QUICK = ["--hwq-size=tiny", "--hwq-runs=4", "--hwq-sim-noise=session=0.01,run=0.005"]
SLOW = "sim-h200-3"


@pytest.fixture(name="nodes")
def _nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without GPUs; `add` makes a node with simulated ones."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield cluster
    cluster.shutdown()


def add(nodes: Any, name: str, gpus: int) -> Any:
    return nodes.add_node(num_cpus=2, resources={LABEL: gpus}, node_name=name)


def options(name: str) -> list[str]:
    return [*QUICK, "--hwq-fault=slower:20"] if name == SLOW else QUICK


def test_the_slow_gpu_of_a_fleet_is_named_after_a_second_look(nodes: Any, tmp_path: Path) -> None:
    add(nodes, "a", 6)
    add(nodes, "b", 3)
    cluster = Cluster(nodes.address, [LABEL], 1)
    try:
        assert len(cluster.targets) == 9
        run_fleet(cluster, tmp_path, options)
    finally:
        cluster.close()
    first, again = collect([tmp_path])
    assert (len(first), len(again)) == (9, 9)
    found = confirmed(judge_fleet(first), again)
    assert [(gpu.node, gpu.device, gpu.verdict) for gpu in found.named] == [("a", SLOW, "slow")]
    assert found.named[0].reasons[-1] == "measured again: likewise"
    # Nothing is left to do.
    assert len(checked_gpus(tmp_path)) == 9
    assert (tmp_path / AGAIN).is_dir()


def test_nodes_of_one_name_keep_their_own_records(nodes: Any, tmp_path: Path) -> None:
    for _ in range(2):
        add(nodes, "a", 1)
    cluster = Cluster(nodes.address, [LABEL], 1)
    try:
        ids = {target.node: target.node_id for target in cluster.targets}
        assert [*ids] == [f"a-{number[:8]}" for number in ids.values()]
        run_fleet(cluster, tmp_path, lambda name: QUICK)
    finally:
        cluster.close()
    checks = [read_check(path) for path in tmp_path.glob("*/*/check.json")]
    assert {each.node: each.node_id for each in checks} == ids
    assert len({(gpu.node, gpu.device) for gpu in collect([tmp_path])[0]}) == 2


def test_a_cluster_of_our_own_is_out_of_others_reach_and_leaves_nothing(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("RAY_", "TMPDIR"))
    }
    command = ("fleet", "run", "--device", LABEL, "--count", "2", "--out", str(out), "--repeats",
               "4", "--size", "tiny")  # fmt: skip
    log = tmp_path / "log"
    with open(log, "w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest_hwqueue", *command],
            env={**environment, "HOME": str(home)}, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
    heard: set[str] = set()
    folders: set[Path] = set()
    running = psutil.Process(process.pid)
    while process.poll() is None:
        own = {each.pid for each in (running, *running.children(recursive=True))}
        heard |= {
            each.laddr.ip
            for each in psutil.net_connections("inet")
            if each.pid in own and each.status == psutil.CONN_LISTEN and each.laddr
        }
        folders |= {*Path("/tmp").glob("hwq-ray-*")}
        time.sleep(0.2)
    assert process.returncode == 0, log.read_text()
    assert heard
    assert all(map(fleet_cluster.is_loopback, heard)), heard
    assert folders
    assert not any(folder.exists() for folder in folders)
    # Ray would keep a token of all its clusters there.
    assert not list(home.iterdir())


def test_a_node_that_dies_costs_its_own_gpus(nodes: Any, tmp_path: Path) -> None:
    add(nodes, "stays", 5)
    dying = add(nodes, "dies", 2)

    def end_once_it_measures() -> None:
        while not list(tmp_path.glob("dies/*/*/*.json")):
            time.sleep(0.1)
        nodes.remove_node(dying, allow_graceful=False)

    thread = Thread(target=end_once_it_measures)
    thread.start()
    cluster = Cluster(nodes.address, [LABEL], 1)
    try:
        run_fleet(cluster, tmp_path, lambda name: QUICK)
    finally:
        cluster.close()
        thread.join()
    found = judge_fleet(collect([tmp_path])[0])
    verdicts = {(gpu.node, gpu.device): gpu.verdict for gpu in found.gpus}
    assert [verdict for (node, _), verdict in verdicts.items() if node == "stays"] == ["ok"] * 5
    lost = [read_check(path) for path in tmp_path.glob("dies/*/check.json")]
    assert "unreachable" in [each.status for each in lost]
    assert all(each.reason for each in lost if each.status == "unreachable")


def test_each_gpu_of_a_node_is_asked_once_and_again(nodes: Any, tmp_path: Path) -> None:
    """Ray says that there are two; torch sees none here."""
    nodes.add_node(num_cpus=2, num_gpus=2, node_name="g")
    cluster = Cluster(nodes.address, ["all"], 1)
    try:
        for folder in (tmp_path / "first", tmp_path / "second"):
            cluster.check(cluster.targets, folder, lambda name: QUICK)
            checks = [read_check(path) for path in sorted(folder.glob("g/*/check.json"))]
            assert [each.device for each in checks] == ["gpu-0", "gpu-1"]
            assert {each.status for each in checks} == {"unreachable"}
            assert checks[0].reason.startswith("the session ended with status 4")
            assert "visible here: cpu" in (folder / "g" / "gpu-0" / "check.log").read_text()
    finally:
        cluster.close()


def test_a_gpu_that_another_job_holds_and_another_version_cost_what_they_concern(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.add_node(num_cpus=2, num_gpus=3, node_name="g")
    monkeypatch.setattr(fleet_cluster, "START_S", 30)
    cluster = Cluster(nodes.address, ["all"], 1)
    try:
        holder = ray.remote(num_gpus=1)(_Holder).remote()
        held = ray.get(holder.gpu.remote())
        cluster.check(cluster.targets, tmp_path / "held", lambda name: QUICK)
        reasons = _reasons(tmp_path / "held")
        assert sorted(reasons) == ["gpu-0", "gpu-1", "gpu-2"]
        by_job = [name for name, reason in reasons.items() if "another job holds it" in reason]
        assert by_job == [f"gpu-{held}"]
        ray.kill(holder)
        monkeypatch.setattr(fleet_cluster, "__version__", "0.0")
        cluster.check(cluster.targets, tmp_path / "version", lambda name: QUICK)
        for reason in _reasons(tmp_path / "version").values():
            assert f"pytest-hwqueue is {__version__} there, and 0.0 here" in reason
    finally:
        cluster.close()


class _Holder:
    def gpu(self) -> int:
        return int(ray.get_gpu_ids()[0])


def _reasons(folder: Path) -> dict[str, str]:
    checks = map(read_check, folder.glob("g/*/check.json"))
    return {each.device: each.reason for each in checks}


def test_a_full_disk_ends_the_run_which_goes_on_once_there_is_room(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(nodes, "a", 3)

    def full(path: Path, content: bytes) -> None:
        if checked_gpus(tmp_path):
            raise RecordError(f"{path}: No space left on device")
        write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(fleet_cluster, "write_bytes", full)
        with pytest.raises(RecordError, match="No space"):
            _run(nodes, tmp_path)
    _no_session_is_left(tmp_path)
    (done,) = checked_gpus(tmp_path)
    _run(nodes, tmp_path)
    assert done in checked_gpus(tmp_path)
    assert len(checked_gpus(tmp_path)) == 3


def _run(nodes: Any, folder: Path) -> None:
    cluster = Cluster(nodes.address, [LABEL], 1)
    try:
        run_fleet(cluster, folder, lambda name: QUICK)
    finally:
        cluster.close()


def test_an_interrupted_run_goes_on(nodes: Any, tmp_path: Path) -> None:
    add(nodes, "a", 4)
    cluster = Cluster(nodes.address, [LABEL], 1)
    thread = Thread(target=_interrupt_once, args=(tmp_path,))
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_fleet(cluster, tmp_path, lambda name: QUICK)
    finally:
        cluster.close()
        thread.join()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("a/*/check.json")}
    assert 0 < len(done) < 4
    _no_session_is_left(tmp_path)
    _run(nodes, tmp_path)
    assert len(checked_gpus(tmp_path)) == 4
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for path in tmp_path.glob("a/*/*/session.json"):
        json.loads(path.read_text())


def test_a_head_that_ends_is_told_from_its_gpus_and_the_run_goes_on_with_another(
    tmp_path: Path,
) -> None:
    """Ray would end the command itself after a minute, with the status of a named GPU."""
    head = {"num_cpus": 2, "resources": {LABEL: 5}, "node_name": "a"}
    with cluster_of(head) as cluster, command(cluster, tmp_path) as running:
        while not list(tmp_path.glob("a/*/check.json")):
            time.sleep(0.1)
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
        said, _ = running.communicate(timeout=120)
        assert running.returncode == 2, said
        assert "the cluster's head is gone (" in said
        assert f"go on with hwq fleet run --resume --out {tmp_path}" in said
    _no_session_is_left(tmp_path)
    checks = [read_check(path) for path in tmp_path.glob("a/*/check.json")]
    assert {each.status for each in checks} == {"measured"}
    with cluster_of(head) as cluster, command(cluster, tmp_path, "--resume") as running:
        said, _ = running.communicate(timeout=300)
        assert running.returncode == 0, said
        assert "5 GPUs: 5 ok; 0 named" in said


@contextmanager
def cluster_of(head: dict[str, Any]) -> Iterator[Any]:
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def command(cluster: Any, folder: Path, *more: str) -> subprocess.Popen[str]:
    asked = ("--address", cluster.address, "--device", LABEL, "--out", str(folder))
    session = ("--repeats", "4", "--size", "tiny", "--sim-noise", "session=0.01,run=0.005")
    return subprocess.Popen(
        [sys.executable, "-m", "pytest_hwqueue", "fleet", "run", *asked, *session, *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def _interrupt_once(folder: Path) -> None:
    while not list(folder.glob("a/*/check.json")):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def _no_session_is_left(folder: Path) -> None:
    end = time.monotonic() + 20
    while left := [each for each in psutil.process_iter(["cmdline"]) if _is_session(each)]:
        assert time.monotonic() < end, left
        time.sleep(0.2)


def _is_session(process: psutil.Process) -> bool:
    return any("hwq-fleet-" in part for part in process.info["cmdline"] or ())
