"""``mps-static``: MPS with a static partition of the multiprocessors for each tenant.

Written against NVIDIA's MPS documentation ("Using Static SM Partitioning": the control daemon's
option -S, its commands sm_partition and lspart, the variable CUDA_MPS_SM_PARTITION); not run, since
it needs a driver of CUDA 13.1. The partitions end with the daemon that has them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pytest_hwqueue.data.errors import NotProven
from pytest_hwqueue.data.records.proof import Proof
from pytest_hwqueue.parts.processes.services import Service, ServiceFailed, service_environment
from pytest_hwqueue.parts.schedulers.declaration import SchedulerSpec
from pytest_hwqueue.parts.schedulers.inside_evidence import InsideEvidence
from pytest_hwqueue.parts.schedulers.mps import ANSWER_S, Mps
from pytest_hwqueue.parts.schedulers.mps_daemons import CONTROL, VISIBLE
from pytest_hwqueue.parts.schedulers.syntax import CELL, SchedulerPaths, TenantRequest

# CUDA 13.1, as `nvidia-cuda-mps-control -v` numbers it.
_LEAST_VERSION = 13010
_PARTITION = "CUDA_MPS_SM_PARTITION"


class _PartitionLine(NamedTuple):
    """A line of ``lspart``: a device, or one of its partitions.

    Attributes:
        device: the beginning of its UUID.
        partition: its name, possibly cut short; empty for the device itself.
        numbers: of chunks, and then of multiprocessors; of a partition only those in use.

    """

    device: str
    partition: str
    numbers: tuple[int, ...]


class MpsStatic(Mps):
    """MPS whose tenants have multiprocessors of their own, which no other tenant uses."""

    daemon_options = ("-S",)

    def __init__(self, spec: SchedulerSpec, paths: SchedulerPaths) -> None:
        super().__init__(spec, paths)
        self._chunks = {name: int(count) for name, count in spec.parameters.items()}
        self._partitions: dict[str, str] = {}

    def pointless(self, tenants: Sequence[TenantRequest]) -> str | None:
        """Require a partition for every tenant: without one a process cannot open the device."""
        names = [tenant.name for tenant in tenants]
        if unknown := self.unknown(names):
            return unknown
        if without := [name for name in names if name not in self._chunks]:
            each = ",".join(f"{name}={self._chunks.get(name, 4)}" for name in names)
            return (
                f"{self.mode}: no partition for {', '.join(without)}, and CUDA opens the device "
                f"in no process without one; give every tenant its chunks, such as "
                f"mps-static:{each}"
            )
        return None

    def missing(self, device_kind: str, tenants: Sequence[TenantRequest]) -> str | None:
        """Require a control program that knows static partitions."""
        reason = super().missing(device_kind, tenants)
        control = shutil.which(CONTROL)
        return reason or (control and self._too_old(control))

    def prepare(self, daemon: Service) -> None:
        """Create each tenant's partition."""
        try:
            # The first such question makes the daemon open the devices.
            daemon.wait_until(lambda: bool(self._listed()), "`lspart` lists no device")
            device = self._only_device()
            self._partitions = {
                name: self._created(device, name, chunks) for name, chunks in self._chunks.items()
            }
        except ServiceFailed:
            raise
        except NotProven as error:
            raise ServiceFailed(str(error)) from error

    def environment(self, tenant: TenantRequest) -> dict[str, str]:
        """Return the daemon's pipes, and the tenant's partition."""
        return {**super().environment(tenant), _PARTITION: self._partitions[tenant.name]}

    def proof(self, pids: Mapping[str, int], inside: Mapping[str, InsideEvidence]) -> Proof:
        """Require clients of the daemon, and that each sees the multiprocessors of its partition.

        The daemon's list says how many these are, and of how many chunks.
        """
        proof = super().proof(pids, inside)
        listed = self._listed()
        # A single test's process knows its partition from its environment alone.
        partitions = self._partitions or {CELL.name: os.environ.get(_PARTITION, "")}
        evidence = []
        for name in pids:
            chunks, multiprocessors = self._given(name, partitions[name], listed)
            seen = inside[name].multiprocessors if name in inside else None
            if seen not in (None, multiprocessors):
                raise NotProven(
                    f"{self.mode}: {name} sees {seen} multiprocessors, and its partition has "
                    f"{multiprocessors}"
                )
            by = "not told from inside" if seen is None else f"{seen} seen"
            evidence.append(f"{name}: {chunks} chunks, {multiprocessors} multiprocessors ({by})")
        said = f"{proof.evidence}; their static partitions: {'; '.join(evidence)}"
        return replace(proof, evidence=said)

    def _too_old(self, control: str) -> str | None:
        try:
            answer = subprocess.run(
                [control, "-v"],
                stdin=subprocess.DEVNULL,
                env=service_environment({}),
                capture_output=True,
                text=True,
                timeout=ANSWER_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self.mode}: `{CONTROL} -v` does not tell its version: {error}"
        said = " ".join((answer.stdout + answer.stderr).split())
        version = re.search(r"version\D*(\d+)", said, re.IGNORECASE)
        if version is not None and int(version[1]) >= _LEAST_VERSION:
            return None
        return (
            f"{self.mode}: static partitions came with CUDA 13.1 (version {_LEAST_VERSION} of "
            f"{CONTROL}), and `{CONTROL} -v` says {said!r}: update the driver, or use mps-partition"
        )

    def _only_device(self) -> str:
        devices = {each.device for each in self._listed()}
        if len(devices) > 1:
            raise ServiceFailed(
                f"{self.mode}: the daemon serves several devices ({', '.join(sorted(devices))}), "
                f"and partitions are one device's: name yours by UUID in {VISIBLE}"
            )
        return devices.pop()

    def _created(self, device: str, name: str, chunks: int) -> str:
        question = f"sm_partition add {device} {chunks}"
        said = self.answer(question)
        # The documentation has the partition alone; some versions answer in a sentence. Its name
        # may have slashes, too.
        created = re.search(r"\S+/\S+", said)
        if created is None or not created[0].startswith(device):
            raise ServiceFailed(
                f"{self.mode}: no partition of {chunks} chunks for {name}: {CONTROL} answered "
                f"{question!r} with {' '.join(said.split())!r}; it has {self._free(device)}"
            )
        return created[0]

    def _free(self, device: str) -> str:
        numbers = [each.numbers for each in self._listed() if not each.partition and each.numbers]
        return f"{numbers[0][0]} free chunks of {device}" if numbers else f"none of {device}"

    def _given(
        self, name: str, partition: str, listed: Sequence[_PartitionLine]
    ) -> tuple[int, int]:
        """Return how many chunks and multiprocessors the daemon lists for a partition."""
        own = partition.partition("/")[2]
        found = [
            each.numbers for each in listed if each.partition and own.startswith(each.partition)
        ]
        if len(found) != 1 or len(found[0]) != 2:
            raise NotProven(
                f"{self.mode}: {CONTROL} does not list the partition {partition!r} of {name} once, "
                f"with its chunks and multiprocessors; it lists {listed}"
            )
        chunks, multiprocessors = found[0]
        if chunks != self._chunks[name]:
            raise NotProven(
                f"{self.mode}: the partition of {name} has {chunks} chunks, not "
                f"{self._chunks[name]}"
            )
        return chunks, multiprocessors

    def _listed(self) -> list[_PartitionLine]:
        listed = []
        for line in self.answer("lspart").splitlines():
            words = line.split()
            if not words or not words[0].startswith("GPU-"):
                # The heading, in two lines.
                continue
            named = len(words) > 1 and words[1] != "-" and not words[1].isdecimal()
            numbers = tuple(int(word) for word in words[1:] if word.isdecimal())
            listed.append(_PartitionLine(words[0], words[1].rstrip(".") if named else "", numbers))
        return listed
