"""``hwq fleet run``: the check on every GPU of a Ray cluster, from one place.

An actor holds each GPU until all of the run is over, so that Ray hands out none of them twice. It
runs the session of `hwq fleet check`, and sends each file as soon as it is written; the folder that
comes of it is one of `hwq fleet check`. Simulated GPUs are custom resources, named as their
devices, and wait for a core each.

A node whose processes end, or do not begin, costs its own GPUs. Nothing of ours outlives the
process that called: actors belong to it, and sessions to their actor.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from importlib.util import find_spec
from ipaddress import IPv6Address, ip_address
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import psutil

from pytest_hwqueue import __version__
from pytest_hwqueue.answers.fleet.check import (
    AGAIN,
    CHECK_FILE,
    LIMIT_S,
    Place,
    follow,
    names_of,
    read_check,
    seeded,
    write_check,
)
from pytest_hwqueue.answers.fleet.collected import checked_gpus, collect, set_damaged_aside
from pytest_hwqueue.answers.fleet.verdicts import judge_fleet, to_measure_again
from pytest_hwqueue.data.errors import BadOption, HwqError, complaint
from pytest_hwqueue.data.safe_files import write_bytes
from pytest_hwqueue.parts.devices.kinds import choose_devices

START_S = 120.0
"""A GPU on which no process has begun by then is held by another job."""
# Beyond a session's own limit: until the cluster has noticed that a node is gone.
_SILENCE_S = 60.0
# Ray itself ends a process with status 1 once its head has been gone for a minute.
_HEAD_S = 20.0
_GPUS = "all"
_LOOPBACK = "127.0.0.1"
_LONGEST_FOLDER = 24
_SHOWN_OF_ID = 8
_EXTRA = "hwq fleet run needs Ray: pip install 'pytest-hwqueue[fleet]'"


class _Gpu:
    """An actor: one GPU, or a simulated one."""

    def check(
        self,
        version: str,
        given: Sequence[str],
        options: Sequence[str],
        done: frozenset[str],
    ) -> Iterator[tuple[str, bytes]]:
        """Measure; yield each file's path below NODE/DEVICE/ and content, after the GPU's name.

        Args:
            version: pytest-hwqueue's, of who asks.
            given: its `Place`, whose name is empty if it is a real one: Ray knows that.
            options: of the session.
            done: names of GPUs of this node that were measured before.

        Raises:
            HwqError: if this node has another version.

        """
        if version != __version__:
            raise HwqError(f"pytest-hwqueue is {__version__} there, and {version} here")
        place = Place(*given)
        if not place.device:
            import ray

            place = replace(place, device=f"gpu-{ray.get_gpu_ids()[0]}")
        yield place.device, b""
        if place.device in done:
            return
        with TemporaryDirectory(prefix="hwq-fleet-") as temporary:
            folder = Path(temporary)
            for path in follow(place, folder, options):
                yield path.relative_to(folder).as_posix(), path.read_bytes()


@dataclass
class _Target:
    """One GPU of the cluster, what is known of it so far, and who holds a real one."""

    node: str
    node_id: str
    label: str
    name: str
    simulated: bool
    asked_s: float = 0.0
    began_s: float | None = None
    actor: Any = None

    @property
    def key(self) -> tuple[str, str]:
        return self.node, self.name

    @property
    def place(self) -> Place:
        return Place(self.node, self.name, self.label, self.node_id)


class Cluster:
    """A connection to a Ray cluster, or one of this machine alone, on loopback.

    Attributes:
        targets: its GPUs, of the devices asked for.

    """

    def __init__(self, address: str | None, devices: Sequence[str], count: int) -> None:
        """Connect.

        Args:
            address: of the cluster, as `ray.init` takes it; None starts one for this process.
            devices: labels of simulated devices, or ``all`` for the GPUs.
            count: how many of each simulated device a cluster of our own has.

        Raises:
            HwqError: if Ray is missing or not reached, or the cluster has no such device.
            BadOption: if a device is neither simulated nor ``all``.

        """
        simulated = [label for label in devices if label != _GPUS]
        for choice in (each for label in simulated for each in choose_devices(label)):
            if not choice.capabilities.simulated:
                valid = f"a cluster's are {_GPUS}, or simulated ones: sim:h200"
                raise BadOption("--device", choice.label, valid)
        if find_spec("ray") is None:
            raise HwqError(_EXTRA)
        # It would send reports on its use from the cluster that we start.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ended = ExitStack()
        settings: dict[str, Any] = {"address": address}
        if address is None:
            settings = self._ended.enter_context(_cluster_of_our_own())
            settings["resources"] = dict.fromkeys(simulated, count)
        import ray

        self._ended.callback(ray.shutdown)
        try:
            ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR)
            if address is None:
                _require_loopback()
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            self.close()
            raise HwqError(
                f"no Ray cluster at {address or 'this machine'}: {complaint(error)}"
            ) from error
        except HwqError:
            self.close()
            raise
        nodes = [node for node in ray.nodes() if node["Alive"]]
        names = node_names(nodes)
        self.targets = [
            _Target(names[node["NodeID"]], node["NodeID"], label, name, label in simulated)
            for node in nodes
            for label in devices
            for name in _names(node["Resources"], label, label in simulated)
        ]
        if not self.targets:
            self.close()
            asked = ", ".join("GPU" if label == _GPUS else label for label in devices)
            raise HwqError(
                f"no node of the cluster has the resource {asked}; see `ray status`, or name "
                "simulated devices as resources: ray start --resources='{\"sim:h200\": 8}'"
            )

    def close(self) -> None:
        """Let go of all GPUs; a cluster of our own ends, and its folder goes."""
        self._ended.close()

    def check(
        self,
        targets: Sequence[_Target],
        folder: Path,
        options: Callable[[str], Sequence[str]],
        done: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """Check GPUs, all at once; each record is in NODE/DEVICE/ below ``folder`` at once.

        Args:
            targets: which.
            folder: receives the records.
            options: of the session on a GPU of that name.
            done: nodes and names of GPUs that are left out.

        Raises:
            RecordError: if a record cannot be written here.
            ConnectionError: if the cluster's head does not answer any more.

        """
        import ray
        from ray.exceptions import RayError

        left = [target for target in targets if not (target.simulated and target.key in done)]
        running = {self._ask(target, options, done): target for target in left}
        began_s = time.monotonic()

        def end(answers: Any, lost: str = "") -> None:
            target = running.pop(answers)
            place, ended = folder / target.node / target.name, len(left) - len(running)
            if lost:
                write_check(place, target.place, time.monotonic() - target.asked_s, lost)
            left_s = (time.monotonic() - began_s) / ended * len(running)
            print(
                f"hwq fleet run: {ended}/{len(left)} {target.node}/{target.name} "
                f"{read_check(place / CHECK_FILE).status}, about {left_s:.0f} s left",
                file=sys.stderr,
            )

        while running:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=1, fetch_local=True)
            # Without it all GPUs would seem unreachable.
            _require(ray.get_runtime_context().gcs_address)
            for answers in ready:
                target = running[answers]
                try:
                    path, content = ray.get(next(answers))
                except StopIteration:
                    end(answers)
                except RayError as error:
                    end(answers, _why(error))
                else:
                    self._take(target, folder, path, content)
            for answers, reason in _late(running):
                end(answers, reason)

    def _ask(
        self,
        target: _Target,
        options: Callable[[str], Sequence[str]],
        done: frozenset[tuple[str, str]],
    ) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        needs: dict[str, Any] = {"num_cpus": 0, "num_gpus": 1}
        if target.simulated:
            needs = {"num_cpus": 1, "resources": {target.label: 1}}
        here = NodeAffinitySchedulingStrategy(target.node_id, soft=False)
        actor = target.actor or ray.remote(_Gpu).options(**needs, scheduling_strategy=here).remote()
        if not target.simulated:
            # Forgotten, it ends, and Ray gives its GPU to the next one.
            target.actor = actor
        target.asked_s, target.began_s = time.monotonic(), None
        names = frozenset(name for node, name in done if node == target.node)
        asked = actor.check.options(num_returns="streaming")
        place = target.place if target.simulated else replace(target.place, device="")
        return asked.remote(__version__, astuple(place), list(options(target.name)), names)

    def _take(self, target: _Target, folder: Path, path: str, content: bytes) -> None:
        target.began_s = target.began_s or time.monotonic()
        if not content and "/" not in path:
            # The GPU that was thought to be this one is another, which nobody has asked yet.
            for other in self.targets:
                if other.key == (target.node, path):
                    other.name = target.name
            target.name = path
            return
        file = folder / target.node / PurePosixPath(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content)


def run_fleet(cluster: Cluster, folder: Path, options: Callable[[str], Sequence[str]]) -> None:
    """Measure all GPUs that ``folder`` does not have yet, or damaged, and suspicious ones again.

    Args:
        cluster: whose.
        folder: of the records.
        options: of the session on a GPU of that name.

    Raises:
        RecordError: if a record cannot be read or written here.
        ConnectionError: if the cluster's head does not answer any more.

    """
    set_damaged_aside(folder)
    cluster.check(
        cluster.targets, folder, lambda name: seeded(options(name), name), checked_gpus(folder)
    )
    first, again = collect([folder])
    wanted = to_measure_again(judge_fleet(first)) - {(gpu.node, gpu.device) for gpu in again}
    targets = [target for target in cluster.targets if target.key in wanted]
    if targets:
        print(f"hwq fleet run: {len(targets)} GPUs again, suspicious and others", file=sys.stderr)
        cluster.check(
            targets, folder / AGAIN, lambda name: seeded(options(name), f"{AGAIN} {name}")
        )


def _require(head: str) -> None:
    """Raise ConnectionError if nobody listens at HOST:PORT for a while."""
    host, _, port = head.rpartition(":")
    end_s = time.monotonic() + _HEAD_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_HEAD_S).close()
            return
        except OSError as error:
            if time.monotonic() > end_s:
                raise ConnectionError(f"the cluster's head is gone ({head}: {error})") from error
            time.sleep(1)


@contextmanager
def _cluster_of_our_own() -> Iterator[dict[str, Any]]:
    """Yield the settings of a cluster that nobody else reaches; its folder goes afterwards.

    Ray is to be imported within: it reads variables as it is loaded.
    """
    variables = {
        # Ray takes 127.0.0.1 for the address that others reach, and listens on all, unless told
        # that its clusters are of one machine, as it does itself on Windows and macOS.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Else one for all clusters is kept at home, in a file that every user may read. Releases
        # without tokens ignore it.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    # Ray gives its folders mode 0777; nobody gets through the one around them. Sockets in them have
    # names of at most 107 bytes, for which a long TMPDIR leaves no room.
    parent = None if len(gettempdir()) < _LONGEST_FOLDER else "/tmp"
    with TemporaryDirectory(prefix="hwq-ray-", dir=parent, ignore_cleanup_errors=True) as folder:
        try:
            yield {
                "address": "local", "_node_ip_address": _LOOPBACK, "include_dashboard": False,
                "_temp_dir": str(Path(folder, "r")),
            }  # fmt: skip
        finally:
            for name, text in before.items():
                if text is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = text


def _require_loopback() -> None:
    """Refuse a cluster of our own that listens where other machines reach it.

    Raises:
        HwqError: naming the address.

    """
    this = psutil.Process()
    own = {each.pid for each in (this, *this.children(recursive=True))}
    for each in psutil.net_connections("inet"):
        if each.pid not in own or each.status != psutil.CONN_LISTEN or not each.laddr:
            continue
        if not is_loopback(each.laddr.ip):
            raise HwqError(
                f"Ray (process {each.pid}) listens on {each.laddr.ip}:{each.laddr.port}, where "
                "whoever reaches this machine may run code as you, so it was ended: start a "
                "cluster behind a firewall, and name it: ray start --head; hwq fleet run "
                "--address auto"
            )


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address, also one of IPv4 written as IPv6."""
    found = ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def node_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return each node's name by its id: a folder's name, which no other node has.

    Nodes of one name, or of names that file systems do not tell apart, have a part of Ray's id
    behind it; so has one that is called as the folder of what is measured again.
    """
    plain = {
        node["NodeID"]: re.sub(r"[^A-Za-z0-9._-]+", "-", _node_name(node)).lstrip(".") or "node"
        for node in nodes
    }
    for shown in (_SHOWN_OF_ID, None):
        times = Counter([AGAIN, *(name.casefold() for name in plain.values())])
        named = {
            node: name if times[name.casefold()] == 1 else f"{name}-{node[:shown]}"
            for node, name in plain.items()
        }
        if len({name.casefold() for name in named.values()}) == len(named):
            break
    return named


def _node_name(node: Mapping[str, Any]) -> str:
    """Return the name that `ray start --node-name` gave, or else the machine's."""
    given = str(node["NodeName"])
    return str(node["NodeManagerHostname"]) if given == node["NodeManagerAddress"] else given


def _names(resources: Mapping[str, float], label: str, simulated: bool) -> list[str]:
    """Return the names of a node's devices; a real one's is known once a process has it."""
    if simulated:
        return [name for name, _ in names_of([label], int(resources.get(label, 0)))]
    return [f"gpu-{index}" for index in range(int(resources.get("GPU", 0)))]


def _late(running: Mapping[Any, _Target]) -> Iterator[tuple[Any, str]]:
    """Yield what is not waited for any longer, and why."""
    now_s = time.monotonic()
    for answers, target in list(running.items()):
        if target.began_s is not None:
            if now_s - target.began_s > LIMIT_S + _SILENCE_S:
                yield answers, f"no answer for {LIMIT_S + _SILENCE_S:g} s"
        elif not target.simulated and now_s - target.asked_s > START_S:
            yield answers, f"another job holds it: Ray gave no process on it in {START_S:g} s"


def _why(error: Exception) -> str:
    """Return what a node said, or Ray says, in a line."""
    cause = getattr(error, "cause", None) or error
    return " ".join(str(cause).split())[:300] or type(cause).__name__
