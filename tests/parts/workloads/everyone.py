"""The workloads that the checks over all of them take, and what those must know of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_hwqueue.parts.workloads.pipeline.stages import thirds
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.parts.workloads.workload import Workload
from tests.conftest import slow

from .cells import make

EVERYONE: dict[str, type[Workload]] = {name: workload_class(name) for name in WORKLOADS}
FORMATS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Case:
    """What is true of one workload.

    Attributes:
        outputs: what an iteration leaves behind.
        small: parameters for many runs; the structure is that of any size.
        launches: by tag, of an iteration on so many streams.
        work: of an iteration on so many streams; empty if only its units are known here.
        samples: of the primary latency, of an iteration on so many streams.
        measured: numbers of streams of the cells measured; without any, the least and recommended.
        formats: in which it computes.
        whole: whether a graph holds all of an iteration; not of streams that never meet.
        unneeded: for some numbers of streams, waits of an iteration that order no memory.
        unnoticed: launches of an iteration on the fewest streams that change no result.
        wrong: added to one number of a result.
        spots: what to make wrong, where outputs are copies.
        trains: whether each iteration gives something else.
        widest: the most streams for the small parameters.

    """

    outputs: Callable[[Any], list[torch.Tensor]]
    small: Mapping[str, Any]
    launches: Callable[[int], dict[str, int]]
    work: Callable[[int], dict[str, float]] = lambda streams: {}
    samples: Callable[[int], int] = lambda streams: 1
    measured: tuple[int, ...] = ()
    formats: tuple[str, ...] = FORMATS
    whole: bool = True
    unneeded: Mapping[int, set[int]] = field(default_factory=dict)
    unnoticed: frozenset[int] = frozenset()
    wrong: float = 1.0
    trains: bool = False
    spots: Callable[[Any], list[torch.Tensor]] | None = None
    widest: int = 128


_LAYERS = {"hidden": 8, "heads": 2, "sequence": 4}
CASES: dict[str, Case] = {
    "hetero_kernels": Case(
        lambda w: [*(product.out for product in w.products), *w.chains],
        {"mm_dim": 24, "elements": 16, "chain_length": 3},
        lambda streams: {"large": streams // 2, "small": streams - streams // 2},
        samples=lambda streams: streams - streams // 2,
        whole=False,
    ),
    "tiny_kernel_stress": Case(
        lambda w: list(w.outputs),
        {"rounds": 3, "elements": 16},
        lambda streams: {"burst": streams},
        lambda streams: {"kernels": 12.0 * streams},
        lambda streams: streams,
        formats=(),
        whole=False,
    ),
    "launch_contention": Case(
        lambda w: list(w.outputs),
        {"elements": 16},
        lambda streams: {},
        lambda streams: {"launches": 1.0 * streams},
        lambda streams: streams,
        formats=(),
        whole=False,
    ),
    "large_gemm_only": Case(
        lambda w: [product.out for product in w.products],
        {"mm_dim": 24},
        lambda streams: {"product": streams},
        lambda streams: {"TFLOP": streams * 2 * 24**3 / 1e12},
        lambda streams: streams,
        whole=False,
    ),
    "llm_decode": Case(
        lambda w: [text[0, w.parameters.context :] for text in w.texts],
        {"layers": 1, "tokens": 2},
        lambda streams: {"first_token": 1, "token": 2 * streams - 1},
        lambda streams: {"tokens": 2.0 * streams},
        lambda streams: 2 * streams - 1,
        (1, 16),
        whole=False,
    ),
    "speculative_decode": Case(
        lambda w: [
            part
            for each in w.sequences
            for part in (each.text[w.parameters.context : int(each.length)], each.drafts[0])
        ],
        {"draft_tokens": 1, "rounds": 2},
        lambda streams: dict.fromkeys(("draft", "verify"), 2 * (streams // 2 + 1)),
        samples=lambda streams: 2 * (streams // 2 + 1),
    ),
    "continuous_batch": Case(
        lambda w: w.outputs(),
        {"output": 3},
        lambda streams: {},
        spots=lambda w: [w.first[1], w.first[-1]],
    ),
    "rag_pipeline": Case(
        lambda w: [part for each in w.queries for part in (each.found, each.text[0])],
        {"generated": 2},
        lambda streams: {},
        lambda streams: {"queries": 2.0 * -(-streams // 4)},
    ),
    "graph_subgraphs": Case(
        lambda w: [w.merged],
        {"batch": 3, "inputs": 8, "hidden": 12, "outputs": 5},
        lambda streams: {"subgraph": streams - 1, "merge": 1},
        lambda streams: {"samples": 3.0 * (streams - 1)},
        measured=(2, 3, 64),
        unneeded={2: set(), 3: set()},
    ),
    "occupy": Case(
        lambda w: list(w.outputs),
        {"kernel_us": 20.0, "depth": 2},
        lambda streams: {"burst": streams},
        lambda streams: {"kernels": 3.0 * streams},
        lambda streams: streams,
        formats=(),
        whole=False,
    ),
    "stress": Case(
        lambda w: list(w.outputs),
        {"mm_dim": 8, "depth": 2},
        lambda streams: {"burst": streams},
        lambda streams: {"operations": 2.0 * streams},
        lambda streams: streams,
        formats=(),
        whole=False,
        widest=32,
    ),
    "comms_compute_overlap": Case(
        lambda w: [
            *(product.out for product in w.products),
            *(output for exchange in w.exchanges for output in exchange.outputs),
        ],
        {"mm_dim": "8,4,6", "num_compute": 2, "comm_size": "1K", "num_coll": 3},
        lambda streams: {
            "comm": min(2, streams // 2),
            "compute": 2 * (streams - min(2, streams // 2)),
        },
        lambda streams: {"TFLOP": (streams - min(2, streams // 2)) * 2 * 2 * 8 * 4 * 6e-12},
        measured=(2, 5, 32),
        formats=(),
        whole=False,
        # Another product gives the same; the tests of this workload leave out all.
        unnoticed=frozenset({1, 2}),
    ),
    "activation_ckpt": Case(
        lambda w: w.sums,
        {**_LAYERS, "blocks": 4},
        lambda streams: {
            tag: count * (streams // 2)
            for tag, count in (("forward", 4), ("recompute", 3), ("backward", 4))
        },
        lambda streams: {"samples": float(streams // 2)},
        lambda streams: streams // 2,
        (2, 3, 16),
        FORMATS[:3],
        # A recomputation's wait bounds what is kept, and orders nothing; the last segment has no
        # slope to wait for, the first no recomputation. One lane's slopes order its ends.
        unneeded={2: {3, 4, 5, 7, 10, 11}},
    ),
    "fsdp_tp": Case(
        lambda w: [each.gradients for lane in w.lanes for each in lane.sharded],
        {**_LAYERS, "layers": 3},
        # The last block is gathered once for both passes.
        lambda streams: {
            tag: count * (streams // 3)
            for tag, count in (("all_gather", 5), ("compute", 6), ("reduce", 3))
        },
        lambda streams: {"samples": float(streams // 3)},
        lambda streams: streams // 3,
        (3, 5, 16),
        FORMATS[:3],
        trains=True,
        # Those before a block is freed, which is no operation on tensors, and ends of the step.
        unneeded={3: {1, 5, 8, 12, 14, 16, 17}, 5: {1, 5, 9, 14, 17, 18, *range(20, 25)}},
        unnoticed=frozenset({3, 6}),
    ),
    "moe": Case(
        lambda w: [w.output],
        {"experts": 8, "hidden": 8, "inner": 16, "tokens": 32},
        lambda streams: {"gate": 1, "expert": 8 if streams <= 9 else 32, "combine": 1},
        lambda streams: {"tokens": 32.0 if streams <= 9 else 128.0},
        measured=(4, 33),
        widest=9,
        unneeded={4: set(), 6: set()},
    ),
    "grad_accum": Case(
        lambda w: w.sums,
        {**_LAYERS, "blocks": 2},
        lambda streams: {
            tag: count * max(4, streams - 1)
            for tag, count in (("forward", 1), ("backward", 2), ("reduce", 2))
        },
        lambda streams: {"samples": float(max(4, streams - 1))},
        lambda streams: max(4, streams - 1),
        (2, 3, 16),
        FORMATS[:3],
        unneeded={2: {15}, 3: {12, 15}},
    ),
    "copy_engines": Case(
        lambda w: list(w.returned),
        {"mebibytes": 1},
        lambda streams: dict.fromkeys(("to_device", "within", "to_host"), streams),
        lambda streams: {"GB": streams * 3 * 2**20 / 1e9},
        lambda streams: streams,
        formats=(),
        whole=False,
    ),
    "async_dataload": Case(
        lambda w: list(w.outputs),
        # Five batches, so that buffers are used again within an iteration.
        {"batches": 5, "batch": 1},
        lambda streams: dict.fromkeys(("copy", "preprocess", "compute"), 5),
        lambda streams: {"images": 5.0},
        lambda streams: 5,
        (3, 12),
        # For the next iteration's sake buffers 0, read last, cover buffers 1.
        unneeded={3: {17, 19}},
    ),
    "zero_offload": Case(
        lambda w: [*w.host_gradients, *w.masters],
        # One layer and one sample more than a group can have streams, to be shared unevenly.
        {"layers": 5, "hidden": 8, "inner": 12, "batch": 5, "sequence": 3},
        lambda streams: {"prefetch": 9, "compute": 10 * thirds(streams)[0], "offload": 5},
        lambda streams: {"samples": 5.0, "optimiser steps": 1.0},
        measured=(3, 12),
        formats=("fp32", "bf16"),
        wrong=0.5,
        trains=True,
        # With two slots the first layer fetched again finds itself still there.
        unnoticed=frozenset({9}),
    ),
    "torch_compile": Case(
        lambda w: w.joined[1:],
        {"stages": 3, "hidden": 8, "inner": 12, "batch": 3},
        lambda streams: {"region": 3 * streams},
        lambda streams: {"samples": 3.0},
        measured=(2, 16),
        wrong=0.01,
        # In two stages of three the first stream waits for itself.
        unneeded={2: {1, 4}, 3: {2, 7}},
    ),
}


def given_for(name: str, streams: int) -> Mapping[str, Any]:
    """Quick parameters for so many streams."""
    case = CASES[name]
    return case.small if streams <= case.widest else {}


def small(name: str, streams: int = 1, **changed: Any) -> Workload:
    """A quick workload, not set up, for so many streams."""
    return make(EVERYONE[name], {**given_for(name, streams), **changed})


def least_and_recommended() -> list[Any]:
    """Each workload with the streams it should have; with the fewest it takes, which is slow."""
    return [
        slow(name, streams) if streams < taken.recommended else (name, streams)
        for name, found in EVERYONE.items()
        for taken in [found.stream_range]
        for streams in sorted({taken.least, taken.recommended})
    ]
