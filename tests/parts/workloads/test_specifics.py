"""What differs between workloads: streams' roles, what a check says, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_hwqueue.data.errors import CheckFailed, NotApplicable
from pytest_hwqueue.parts.devices.host import HostDevice
from pytest_hwqueue.parts.devices.kinds import open_device
from pytest_hwqueue.parts.workloads.workload import Ranks, Setup, Where
from tests.parts.devices.gpus import Gpus

from .cells import Counts, Run
from .everyone import CASES, EVERYONE, small

Given = dict[Any, Any]
# A workload, parameters, streams by tag, and launches by tag where those are not as usual.
Roles = tuple[str, Given, dict[Any, set[int]], Given]
BUSY = {"layers": 2, "requests": 3, "output": 6, "steps": 6}
ROLES: list[Roles] = [
    # Of the blocks a segment is cut at every checkpoint.
    *[("activation_ckpt", {"blocks": blocks, "every": every},
       {"forward": {0, 1}, "backward": {0, 1}, "recompute": {*range(min(2, segments - 1))}},
       {"forward": segments, "backward": segments, "recompute": segments - 1})
      for blocks, every, segments in ((2, 1, 2), (5, 2, 3), (3, 2, 2), (8, 2, 4))],
    *[("comms_compute_overlap", {"compute_streams": cut},
       {"compute": {*range(int(cut))}, "comm": {*range(int(cut), streams)}}, {})
      for cut, streams in (("1", 4), (3, 4), (1, 2), (2, 9))],
    # Untagged are moves, and on the decoding streams what hands the tokens on.
    ("continuous_batch", BUSY,
     {"decode": {0, 1, 2, 3}, "prefill": {4, 5}, None: {0, 1, 2, 3, 6, 7}}, {"prefill": 12}),
    # What frees a block has no tag either.
    *[("fsdp_tp", {"layers": 2}, {"all_gather": gathering, "compute": computing,
                                  "reduce": reducing, None: gathering | updating}, {})
      for gathering, computing, reducing, updating in (
          ({0}, {1}, {2}, {2}), ({0}, {1}, {2}, {3}), ({0}, {1}, {2, 4}, {3}),
          ({0, 5}, {1, 6}, {2, 4, 7}, {3, 7}))],
    *[("grad_accum", {"blocks": blocks, "bucket_blocks": of_bucket},
       {"reduce": {3}, "forward": {0, 1, 2}, "backward": {0, 1, 2}}, {"reduce": 4 * buckets})
      for blocks, of_bucket, buckets in ((1, 1, 1), (3, 2, 2), (4, 2, 2), (2, 5, 1))],
    *[("rag_pipeline", {}, dict(zip(EVERYONE["rag_pipeline"].tags, stages, strict=True)),
       dict.fromkeys(EVERYONE["rag_pipeline"].tags, 2 * len(stages[-1])))
      for stages in ([{0}, {1}, {2}, {3}], [{0, 1}, {2, 3}, {4, 5}, {6, 7}],
                     [{0}, {1, 2}, {3, 4}, {5, 6}])],
    ("speculative_decode", {}, {"draft": {0, 1}, "verify": {2, 3, 4}}, {}),
]  # fmt: skip
# Whose tags are urgent.
URGENT = {"continuous_batch": {"decode"}, "fsdp_tp": {"all_gather", "reduce"}}


@pytest.mark.parametrize(("name", "given", "roles", "launches"), ROLES)
def test_each_stream_has_its_role(
    name: str, given: Given, roles: dict[str | None, set[int]], launches: dict[str, int]
) -> None:
    counts, streams = Counts(), 1 + max(set.union(*roles.values()))
    with Run(small(name, **given), streams, counts.around) as run:
        run.once()
        assert {tag: counts.streams_of(tag) for tag in roles} == roles
        assert {tag: counts.of_tag(tag) for tag in launches} == launches
        run.workload.check(run.once)
    if name in URGENT:
        urgent = set().union(*(roles[tag] for tag in URGENT[name]))
        assert [*map(bool, run.workload.urgency(streams))] == [
            stream in urgent for stream in range(streams)
        ]


Spoil = Callable[[Any], object]


def parameter(**changed: Any) -> Spoil:
    """What runs an iteration with other parameters than those it was set up with."""
    return lambda w: setattr(w, "parameters", w.parameters.model_copy(update=changed))


def another_sample(w: Any) -> None:
    for lane in w.lanes:
        lane.samples += 1


def best_document_missing(w: Any) -> None:
    query = w.queries[1]
    query.found[9] = (w.index @ query.vector).argsort(descending=True)[10]


SPECULATING = {"draft_tokens": 3, "rounds": 5, "divergence": 0.1}
# A workload, streams, parameters, what is spoiled behind an iteration, and what is said.
BEHIND: list[tuple[str, int, Given, Spoil, str]] = [
    *[("async_dataload", 3, {},
       lambda w, batch=batch: w.outputs.__setitem__(batch, w.outputs[batch - 1].clone()),
       f"batch {batch}: relative error") for batch in range(5)],
    ("fsdp_tp", 6, {}, lambda w: w.lanes[0].sharded[1].gradients[5].add_(1.0),
     "gradient of block 1 of model 0"),
    ("fsdp_tp", 6, {}, lambda w: next(w.lanes[1].blocks[1].parameters()).to_local()[5].add_(1e-3),
     "change of block 1 of model 1"),
    ("graph_subgraphs", 4, {}, lambda w: w.weight[1, 2].add_(1), "merge"),
    ("moe", 4, {"dtype": "bf16"}, lambda w: w.output[5, 3].add_(0.5),
     "result of token 5: relative error 0"),
    ("moe", 4, {}, lambda w: w.router.chosen[:, 7].copy_(w.router.chosen[:, 7].flip(0)),
     "gate: an expert was chosen whose logit is off by"),
    ("moe", 4, {}, lambda w: w.router.dropped.mul_(2),
     r"\d+ choices find no room, \d+ were counted"),
    *[("rag_pipeline", 4, {}, spoil, f"query 1: {says}") for spoil, says in (
        (lambda w: w.queries[1].vector[3].add_(0.01), "its vector"),
        (best_document_missing, "scores of its documents"),
        (lambda w: w.queries[1].found[9].copy_(w.queries[1].found[8]), "scores of its documents"),
        (lambda w: w.queries[1].scores[4].add_(0.01), "reranked scores"),
        (lambda w: w.queries[1].text[0, 2].add_(1), "its prompt is not"),
        (lambda w: w.queries[1].text[0, -1].add_(1).remainder_(512), "its answer: decoded token"),
    )],
    *[("speculative_decode", 2, SPECULATING, spoil, "sequence 1") for spoil in (
        lambda w: w.sequences[1].accepted.add_(1),
        lambda w: w.sequences[1].length.sub_(1),
        lambda w: w.sequences[1].drafts[2, 1].add_(1).remainder_(512),
    )],
    *[("torch_compile", 2, {}, lambda w, stage=stage: w.joined[stage + 1][1, 2].add_(0.01),
       f"stage {stage}: relative error") for stage in range(3)],
    *[("zero_offload", 3, {"dtype": "bf16"},
       lambda w, where=where, layer=layer: getattr(w, where)[layer][7].add_(0.5),
       f"layer {layer}: {says}")
      for where, says in (("host_gradients", "relative error"), ("masters", "relative error"),
                          ("host_parameters", "what will be fetched"))
      for layer in (0, 2, 4)],
]  # fmt: skip
# The same of what is spoiled before an iteration, which does not make it right again.
BEFORE: list[tuple[str, int, Given, Spoil, str]] = [
    ("activation_ckpt", 4, {}, another_sample, "gradient of block 0: relative error"),
    ("graph_subgraphs", 4, {}, lambda w: w.subgraphs.reverse(), "merge"),
    *[(name, 2, {}, parameter(**{length: other}), "relative error") for name, length in (
        ("hetero_kernels", "chain_length"), ("tiny_kernel_stress", "rounds"),
    ) for other in (2, 4)],
    # The first stream's context is computed in each iteration, the second's in setting up.
    *[("llm_decode", 2, {"layers": 2, "tokens": 4}, spoil, "stream 1: decoded token") for spoil in (
        lambda w: w.caches[1][:, :, :, :, :8].zero_(), lambda w: w.caches[1][:, 1].neg_(),
        lambda w: w.decoder._positions.sub_(5),
    )],
    *[("speculative_decode", 2, SPECULATING, spoil, "sequence 1") for spoil in (
        lambda w: w.sequences[1].small[:, 1, :, :, :7].neg_(),
        lambda w: w.sequences[1].large[:, 1, :, :, :7].neg_(),
    )],
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "name", "streams", "given", "spoil", "says"),
    [(before, *each) for before, table in ((True, BEFORE), (False, BEHIND)) for each in table],
)
def test_what_is_wrong_is_noticed_and_named(
    before: bool, name: str, streams: int, given: Given, spoil: Spoil, says: str
) -> None:
    with Run(small(name, **given), streams) as run:
        right: Any = run.workload.parameters
        run.workload.check(run.once)

        def spoiled() -> None:
            for begins in (True, False):
                if begins == before:
                    with torch.no_grad():
                        spoil(run.workload)
                if begins:
                    run.once()
            run.workload.parameters = right
            if name == "graph_subgraphs" and before:
                spoil(run.workload)

        with pytest.raises(CheckFailed, match=says):
            run.workload.check(spoiled)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("activation_ckpt", (2, 3)), ("grad_accum", (2, 3, 4)), ("moe", (4, 9))],
)
def test_results_do_not_depend_on_the_number_of_streams(
    name: str, numbers: tuple[int, ...]
) -> None:
    results = []
    for streams in numbers:
        with Run(small(name), streams) as run:
            run.once()
            results.append([each.clone() for each in CASES[name].outputs(run.workload)])
    for result in results[1:]:
        assert all(map(torch.equal, results[0], result))


# What is not applicable where, and what is said of it.
REFUSED: list[tuple[str, Given, Where, str]] = [
    *[("activation_ckpt", {"blocks": blocks, "every": 2}, Where("cpu", streams),
       rf"activation_ckpt\.every=2 .* at least {needed}")
      for streams, blocks, needed in ((2, 2, 2), (3, 4, 3), (5, 3, 3))],
    *[("comms_compute_overlap", given, where, rf"^comms_compute_overlap\..*{says}")
      for given, where, says in (
        ({"compute_streams": 4}, Where("cpu", 4), "compute_streams=4 of 4 streams leaves some w"),
        ({"compute_streams": 9}, Where("cpu", 4), "without work in mode comms_compute; take at"),
        ({"mode": "comms_only", "compute_streams": 2}, Where("cpu", 4),
         "compute_streams=2 of 4 streams leaves some without work in mode comms_only"),
        ({"mode": "compute_only", "compute_streams": 2}, Where("cpu", 4),
         "compute_streams=2 of 4 streams leaves some without work in mode compute_only"),
        ({"backend": "nccl"}, Where("cpu", 4), "backend=nccl: gloo carries collectives on cpu"),
        ({"backend": "gloo"}, Where("cuda", 4), "backend=gloo: nccl carries collectives on cuda"),
        ({"backend": "gloo"}, Where("hip", 4), "nccl carries collectives on hip; leave it out"),
        ({"backend": "gloo"}, Where("sim", 4), "nccl carries collectives on sim; leave it out"),
        ({"process_groups": "[0,1]"}, Where("cpu", 4), "process_groups=.0,1. must name each rank"),
        ({"process_groups": "[0],[1]"}, Where("cpu", 4, 3), "each rank from 0 to 2 once"),
        ({"comm_size": 3}, Where("cpu", 4), "comm_size=3 leaves some of 1 ranks no element"),
        ({"comm_size": 5, "comm_dtype": "fp16"}, Where("cuda", 4, 3),
         "comm_size=5 leaves some of 3 ranks no element of fp16; take a greater one"),
    )],
    ("continuous_batch", {"requests": 4, "output": 5}, Where("cpu", 8),
     r"steps=4: on 8 streams 2 prefill.*16 requests.*8"),
    ("copy_engines", {"peer": "true"}, Where("sim", 2), "peer=true needs a second visible acc"),
    ("fsdp_tp", {"heads": 2, "tensor_ranks": 2}, Where("cpu", 3, 3), "tensor_ranks=2 .* the 3 ran"),
    ("fsdp_tp", {"heads": 1, "tensor_ranks": 2}, Where("cpu", 3, 2), "tensor_ranks=2 .* the 1 hea"),
    ("fsdp_tp", {}, Where("cuda", 3, dispatch="graph"), "use --hwq-dispatch=eager"),
    ("moe", {"experts": 8}, Where("cpu", 10),
     r"moe\.experts=8 leaves 8 to each of 1 ranks, .* experts=9 .* most 9 streams"),
    ("moe", {"experts": 32}, Where("cpu", 16, 4),
     r"moe\.experts=32 leaves 8 to each .* set experts=60 .* most 9 streams"),
    ("moe", {"experts": 32}, Where("cpu", 4, 3),
     r"moe\.experts=32 cannot be spread evenly over 3 ranks.* multiple of 3"),
    ("torch_compile", {"mode": "default"}, Where("sim", 2), "mode=default.*mode=eager"),
    ("torch_compile", {"mode": "reduce-overhead"}, Where("sim", 2), "reduce-overhead.*mode=eager"),
    ("torch_compile", {"mode": "reduce-overhead"}, Where("cpu", 2), "CPU has none; use mode=defa"),
    ("torch_compile", {"mode": "reduce-overhead"}, Where("cuda", 2, dispatch="graph"),
     "which a graph cannot hold; use mode=default"),
    ("zero_offload", {"layers": 2, "batch": 6}, Where("cpu", 12),
     "batch=6 leaves some of 7 compute streams"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "where", "says"), REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    name: str, given: Given, where: Where, says: str
) -> None:
    with pytest.raises(NotApplicable, match=says):
        small(name, **given).require_applicable(where)
    if where.device_kind == "cpu":
        with pytest.raises(NotApplicable, match=says):
            small(name, **given).setup(Setup(HostDevice(), where.streams, 3, Ranks(0, where.ranks)))


@pytest.mark.parametrize(
    ("name", "given", "where"),
    [
        *[("comms_compute_overlap", fits, Where(kind, 2, 2, "graph"))
          for kind, backend in (("cpu", "gloo"), ("cuda", "nccl"), ("hip", "nccl"), ("sim", "nccl"))
          for fits in ({"backend": backend}, {"process_groups": "[1],[0]"}, {"comm_size": 8})],
        ("continuous_batch", {"requests": 4, "output": 5}, Where("cpu", 3)),
        ("torch_compile", {"mode": "default"}, Where("cuda", 2, dispatch="graph")),
        ("zero_offload", {"layers": 2, "batch": 6}, Where("cpu", 11)),
    ],
)  # fmt: skip
def test_what_fits_is_not_refused(name: str, given: Given, where: Where) -> None:
    small(name, **given).require_applicable(where)


def test_copies_to_a_peer_are_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpus(2, {}, set())
    gpus.install(monkeypatch)
    copies = small("copy_engines", peer="true")
    assert copies.tags == ("to_device", "within", "to_host", "to_peer")
    copies.require_applicable(Where("cuda", 2))
    with pytest.raises(NotApplicable, match="use --hwq-dispatch=eager"):
        copies.require_applicable(Where("cuda", 2, dispatch="graph"))
    gpus.count = 1
    with pytest.raises(NotApplicable, match="needs a second visible accelerator"):
        copies.require_applicable(Where("cuda", 2))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_what_is_copied_to_a_peer_arrives_there() -> None:
    device = open_device("cuda")
    copies = small("copy_engines", peer="true", mebibytes=1)
    copies.setup(Setup(device, 4, 3))
    with device.open_streams(4) as pool:

        def run_once() -> None:
            copies.iterate(pool.streams)
            pool.synchronize()

        def lose_one() -> None:
            run_once()
            copies._beside[2].zero_()  # type: ignore[attr-defined]

        copies.check(run_once)
        with pytest.raises(CheckFailed, match=r"stream 2: .* wrong at the other device"):
            copies.check(lose_one)
