"""Communication on one stream beside computing on another."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch.distributed as dist
from pydantic import AfterValidator, BeforeValidator, Field

from pytest_hwqueue.data.errors import NotApplicable
from pytest_hwqueue.data.records.declared import Traffic
from pytest_hwqueue.parts.devices.protocol import Stream
from pytest_hwqueue.parts.devices.tensors import TORCH_TYPES
from pytest_hwqueue.parts.workloads.distributed.collectives import Collective, Exchange, bus_factor
from pytest_hwqueue.parts.workloads.numerics import Matmul, poison, set_precision
from pytest_hwqueue.parts.workloads.workload import (
    TORCH_SPELLINGS,
    MatmulType,
    Parameters,
    PrimaryLatency,
    Setup,
    Where,
    Workload,
)

_BUS_TRAFFIC = "GB of one rank's bus traffic"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _matrix_text(given: Any) -> str:
    parts = given if isinstance(given, (list, tuple)) else str(given).split(",")
    sizes = [str(part).strip() for part in parts]
    if len(sizes) not in (1, 3) or not all(s.isdecimal() and int(s) > 0 for s in sizes):
        raise ValueError("give M,N,K or one size for all three, each a whole number above 0")
    sizes = [str(int(size)) for size in sizes]
    return sizes[0] if len(set(sizes)) == 1 else ",".join(sizes)


def _bytes_text(given: Any) -> str:
    found = re.fullmatch(r"(\d+)([KMG]?)", str(given).strip().upper(), re.ASCII)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if size == 0:
        raise ValueError("give bytes as a whole number above 0, with K, M or G for powers of 1024")
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{size // _UNITS[unit]}{unit}"


def _require_real(given: bool) -> bool:
    if not given:
        raise ValueError("collectives are always carried out: leave it out, or give true")
    return given


def _groups_text(given: Any) -> str | None:
    if given is None:
        return None
    rule = "give the ranks of each group, such as [0,1],[2,3]"
    if isinstance(given, str):
        if re.fullmatch(r"\s*\[[\d\s,]*\](\s*,\s*\[[\d\s,]*\])*\s*", given, re.ASCII) is None:
            raise ValueError(rule)
        try:
            given = ast.literal_eval(f"[{given}]")
        except SyntaxError:
            raise ValueError(rule) from None
    try:
        groups = [sorted(int(rank) for rank in group) for group in given]
    except TypeError:
        raise ValueError(rule) from None
    ranks = [rank for group in groups for rank in group]
    if not all(groups) or min(ranks, default=-1) < 0:
        raise ValueError(rule)
    if len(set(ranks)) < len(ranks):
        raise ValueError("a rank may be in one group only")
    if len({len(group) for group in groups}) > 1:
        raise ValueError("groups must be of one size: bandwidth depends on it")
    return ",".join(str(group).replace(" ", "") for group in groups)


class OverlapParameters(Parameters):
    """How much is computed and communicated, and how."""

    mode: Literal["comms_compute", "compute_only", "comms_only"] = Field(
        "comms_compute", description="what an iteration does"
    )
    mm_dim: Annotated[str, BeforeValidator(_matrix_text)] = Field(
        "4096", description="M,N,K of a product of M × K and K × N, or one size for all three"
    )
    # Of a layer's backward: the slope of its inputs, and that of its weights.
    num_compute: int = Field(2, ge=1, description="products per iteration and compute stream")
    comp_dtype: MatmulType = Field("fp32", description="numeric format of the products")
    comm_size: Annotated[str, BeforeValidator(_bytes_text)] = Field(
        "128M",
        description="bytes of a collective's whole array as nccl-tests count it, with K, M or G "
        "for powers of 1024; rounded down to equal parts for all ranks",
    )
    num_coll: int = Field(1, ge=1, description="collectives per iteration and other stream")
    comm_dtype: Annotated[Literal["fp32", "bf16", "fp16"], TORCH_SPELLINGS] = Field(
        "fp32", description="numeric format of the collectives"
    )
    collective: Collective = Field("all_reduce", description="which one")
    compute_streams: int | None = Field(
        None,
        ge=1,
        description="streams that compute, the others communicate; by default all but two, or but "
        "one of two and of three. Each stream that communicates has its own communicator, and "
        "NCCL may hang if more of them are active than fit on the device together",
    )
    # Told by nothing that is kept: it has one value.
    real_collectives: Annotated[bool, AfterValidator(_require_real)] = Field(
        True, exclude=True, description="collectives are always carried out, and never modelled"
    )
    async_op: bool = Field(
        False,
        description="let all collectives of a stream be under way before it waits; on an "
        "accelerator they then run on a stream of NCCL's own, whatever priority the stream has",
    )
    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="what carries collectives; nccl is RCCL on ROCm; auto: the device's"
    )
    process_groups: Annotated[str | None, BeforeValidator(_groups_text)] = Field(
        None, description="ranks that communicate with each other, such as [0,1],[2,3]; else all"
    )

    @property
    def matrix(self) -> tuple[int, int, int]:
        """M, N and K."""
        sizes = [int(size) for size in self.mm_dim.split(",")]
        m, n, k = sizes if len(sizes) == 3 else sizes * 3
        return m, n, k

    @property
    def comm_bytes(self) -> int:
        """The requested size."""
        digits = self.comm_size.rstrip("KMG")
        return int(digits) * _UNITS[self.comm_size[len(digits) :]]

    def groups(self, ranks: int) -> list[list[int]]:
        """Return the groups' members, ascending, for so many ranks; all in one by default."""
        if self.process_groups is None:
            return [list(range(ranks))]
        found: list[list[int]] = ast.literal_eval(f"[{self.process_groups}]")
        return found


# More communicators that are active at once may not fit on an accelerator together, where each
# waits for its like on another rank.
_COMMUNICATING = 2


class CommsComputeOverlap(Workload, declared="comms_compute_overlap"):
    """The first streams run products, the others collectives; nothing waits across streams.

    An iteration enqueues the collectives first, then the products, round by round. Each
    communicating stream has its own communicators, and an iteration's collectives are one launch on
    it: the latency is that of all of them.

    Attributes:
        overlap: the references whose work together is an iteration's; None in the modes that do
            only one of them.

    """

    primary = PrimaryLatency(
        "layer pass", "iteration", "the products and collectives of all streams, side by side"
    )
    parameters: OverlapParameters
    overlap: tuple[str, str] | None = ("compute_only", "comms_only")
    # In fp32 computing would take 60 times as long as communicating, and what is hidden of that
    # would drown in how much the products' time varies.
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"mm_dim": 128, "comm_size": "512K"},
        "small": {"mm_dim": 512, "comm_size": "16M"},
        "full": {"mm_dim": 4096, "comm_size": "128M", "comp_dtype": "bf16"},
    }

    def __init__(self, parameters: OverlapParameters) -> None:
        super().__init__(parameters)
        if parameters.mode != "comms_compute":
            self.overlap = None

    def require_applicable(self, where: Where) -> None:
        """Refuse a backend that is not the device's, and work that leaves streams or ranks idle."""
        backend = self.parameters.backend
        fits = "gloo" if where.capabilities.host else "nccl"
        if backend not in ("auto", fits):
            raise NotApplicable(
                f"{self.name}.backend={backend}: {fits} carries collectives on "
                f"{where.device_kind}; leave it out"
            )
        self._computing(where.streams)
        groups = self.parameters.groups(where.ranks)
        if sorted(rank for group in groups for rank in group) != list(range(where.ranks)):
            raise NotApplicable(
                f"{self.name}.process_groups={self.parameters.process_groups} must name each rank "
                f"from 0 to {where.ranks - 1} once: a rank in none would have nothing to exchange"
            )
        if self._part(len(groups[0])) == 0:
            raise NotApplicable(
                f"{self.name}.comm_size={self.parameters.comm_size} leaves some of "
                f"{len(groups[0])} ranks no element of {self.parameters.comm_dtype}; take a "
                "greater one"
            )

    def setup(self, setup: Setup) -> None:
        """Create inputs and buffers for each stream, and communicators where needed."""
        self.require_applicable(setup.where)
        parameters = self.parameters
        computing = self._computing(setup.streams)
        groups = parameters.groups(setup.ranks.size)
        (members,) = (group for group in groups if setup.ranks.rank in group)
        self._ranks, self._members = setup.ranks.size, len(members)
        set_precision(parameters.comp_dtype)
        generator = setup.generator()
        self.products = [
            Matmul(*parameters.matrix, parameters.comp_dtype, setup, generator)
            for _ in range(computing)
        ]
        elements = self._part(len(members)) * len(members)
        dtype = TORCH_TYPES[parameters.comm_dtype]
        self._array_bytes = elements * dtype.itemsize
        self.exchanges = [
            Exchange(
                parameters.collective, parameters.num_coll, elements, dtype, members,
                _own_group(groups, setup), setup, f"stream {index}", async_op=parameters.async_op,
            )
            for index in range(computing, setup.streams)
        ]  # fmt: skip

    def iterate(self, streams: Sequence[Stream]) -> None:
        """Enqueue the mode's work; the order of collectives is the same on all ranks."""
        self._communicate(streams)
        self._compute(streams)

    def references(self) -> dict[str, Callable[[Sequence[Stream]], None]]:
        """Return the same products, and the same collectives, with the other streams idle."""
        if self.overlap is None:
            return {}
        return {"compute_only": self._compute, "comms_only": self._communicate}

    def work_per_iteration(self) -> dict[str, float]:
        """Return arithmetic of all ranks in TFLOP, and the bytes of one rank that cross the bus.

        Per second these are nccl-tests' bus bandwidth, which is one rank's. With one rank nothing
        crosses the bus; if there is no other work, collectives are counted.
        """
        parameters = self.parameters
        work = {}
        if self.products:
            products = self._ranks * len(self.products) * parameters.num_compute
            work["TFLOP"] = products * self.products[0].flop / 1e12
        traffic = self.traffic()
        if traffic is not None and traffic.bus_factor > 0:
            work[_BUS_TRAFFIC] = traffic.bus_factor * traffic.array_bytes / 1e9
        return work or {"collectives": float(len(self.exchanges) * parameters.num_coll)}

    def traffic(self) -> Traffic | None:
        """Return what one rank exchanges in an iteration; None if nothing."""
        if not self.exchanges:
            return None
        parameters = self.parameters
        return Traffic(
            array_bytes=self._array_bytes * parameters.num_coll * len(self.exchanges),
            bus_factor=bus_factor(parameters.collective, self._members),
            reference=None if self.overlap is None else self.overlap[1],
        )

    def check(self, run_once: Callable[[], None]) -> None:
        """Compare products with float64, and collectives with all ranks' inputs."""
        poison(*(product.out for product in self.products))
        for exchange in self.exchanges:
            exchange.reset()
        run_once()
        for index, product in enumerate(self.products):
            product.check(f"product of stream {index}")
        for exchange in self.exchanges:
            exchange.check()

    def _communicate(self, streams: Sequence[Stream]) -> None:
        for stream, exchange in zip(streams[len(self.products) :], self.exchanges, strict=True):
            stream.launch(exchange.run, tag="comm")

    def _compute(self, streams: Sequence[Stream]) -> None:
        for _ in range(self.parameters.num_compute):
            for index, product in enumerate(self.products):
                streams[index].launch(product.run, tag="compute")

    def _computing(self, streams: int) -> int:
        """Return how many streams compute; NotApplicable if some would have no work."""
        mode, given = self.parameters.mode, self.parameters.compute_streams
        by_default = streams - max(1, min(_COMMUNICATING, streams // 2))
        computing = {"compute_only": streams, "comms_only": 0}.get(mode, by_default)
        if given is None or given == computing:
            return computing
        both = mode == "comms_compute"
        if both and given < streams:
            return given
        raise NotApplicable(
            f"{self.name}.compute_streams={given} of {streams} streams leaves some without work in "
            f"mode {mode}; {f'take at most {streams - 1}' if both else 'leave it out'}"
        )

    def _part(self, members: int) -> int:
        """Return how many elements of a collective's array are each rank's part."""
        itemsize = TORCH_TYPES[self.parameters.comm_dtype].itemsize
        return self.parameters.comm_bytes // itemsize // members


def _own_group(groups: Sequence[Sequence[int]], setup: Setup) -> dist.ProcessGroup:
    """Create a communicator for each group, in the same order on all ranks; return ours."""
    collectives = setup.device.capabilities.collectives
    # The fake backend is only the default group's.
    backend = None if collectives == "fake" else collectives
    made = {tuple(group): dist.new_group(list(group), backend=backend) for group in groups}
    own: dist.ProcessGroup
    (own,) = (of_group for group, of_group in made.items() if setup.ranks.rank in group)
    return own
