"""Parameters of comms_compute_overlap, as text in the form familiar to its users."""

from __future__ import annotations

import ast
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pytest_hwqueue.workloads.distributed.collectives import Collective
from pytest_hwqueue.workloads.matmul import MatmulType
from pytest_hwqueue.workloads.workload import Parameters

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
    comm_dtype: Literal["fp32", "bf16", "fp16"] = Field(
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
