"""What a workload declares: its place, its parameters and sizes, and what it refuses of them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.parts.workloads.registry import OF_CLASS, WORKLOADS, ahead, workload_class
from pytest_hwqueue.parts.workloads.workload import Where, Workload, as_given, parameters_for

from .everyone import EVERYONE

everyone = pytest.mark.parametrize("name", EVERYONE)
SIZES = ("tiny", "small", "full")
PRIORITIES = {"P0", "P1", "P2", "P3"}


@everyone
def test_workload_is_declared_in_full_and_as_its_class_says(name: str) -> None:
    declared, found = WORKLOADS[name], workload_class(name)
    assert issubclass(found, Workload)
    for field in OF_CLASS:
        assert getattr(declared, field) == getattr(found, field)
    assert found.name == name
    assert found.mark in PRIORITIES
    assert found.description
    bounds = found.stream_range
    assert 1 <= bounds.least <= bounds.recommended <= bounds.most
    assert {ratio.tag for ratio in found.ratios} <= set(found.tags)
    # A sample of the primary latency is timed by a tag of its name, or of its requests' launches.
    assert found.primary.per != "launch" or found.primary.name in found.tags
    assert all(each.description for each in found.parameter_model.model_fields.values())


def test_registry_lists_its_names_when_asked_for_another() -> None:
    said = r"'hetero_kernel'; did you mean hetero_kernels\? there are "
    with pytest.raises(BadInput, match=said + ", ".join(WORKLOADS)):
        workload_class("hetero_kernel")


@pytest.mark.parametrize(
    ("device", "imported"),
    [
        ("cuda:1", set()),
        ("auto", set()),
        ("sim:h200", {"pytest_hwqueue.parts.devices.simulated.device:prepare"}),
        ("cpu", set()),
        ("", set()),
    ],
)
def test_a_fork_server_prepares_fake_tensors_where_each_process_would(
    device: str, imported: set[str]
) -> None:
    places = {place for place, _ in ahead(marks=("P0",), device=device)}
    assert places == {"pytest_hwqueue.parts.workloads.registry:workload_class", *imported}


@everyone
def test_sizes_are_valid_and_the_full_one_is_the_default(name: str) -> None:
    found = EVERYONE[name]
    assert tuple(sorted(found.sizes, key=SIZES.index)) == SIZES
    for size, given in found.sizes.items():
        values = parameters_for(found, size, {}).model_dump()
        assert name == "comms_compute_overlap" or values.items() >= given.items()
    if found.family != "distributed":
        assert parameters_for(found, "full", {}) == found.parameter_model()
    if found.mark == "P0":
        for parameter in found.sizes["full"]:
            grown = [found.sizes[size][parameter] for size in SIZES]
            assert grown == sorted(set(grown)), "sizes grow"


@everyone
def test_parameters_are_read_by_their_type_and_do_not_change(name: str) -> None:
    found = EVERYONE[name]
    for parameter, field in found.parameter_model.model_fields.items():
        if field.default is not None and not isinstance(field.default, tuple):
            typed = parameters_for(found, "full", {parameter: str(field.default)})
            assert getattr(typed, parameter) == field.default
            with pytest.raises(ValueError, match="frozen"):
                setattr(typed, parameter, field.default)
    with pytest.raises(BadInput) as refused:
        parameters_for(found, "tiny", {"layerz": 5})
    text = str(refused.value)
    assert text.startswith(f"{name} has no parameter 'layerz'; it has ")
    assert all(parameter in text for parameter in found.parameter_model.model_fields)


@everyone
def test_full_size_fits_any_streams_and_a_timeline_holds_no_more_than_asked(
    name: str,
) -> None:
    found = EVERYONE[name]
    values = parameters_for(found, "full", {})
    bounds = found.stream_range
    for streams in range(bounds.least, bounds.most + 1):
        found(values).require_applicable(Where("cuda", streams))
    for streams in (bounds.least, bounds.recommended, bounds.most):
        changed = found(values).timeline_parameters(streams)
        assert all(getattr(values, key) >= value for key, value in changed.items())
        parameters_for(found, "full", changed)
        assert found.family != "inference" or changed["layers"] < values.layers  # type: ignore[attr-defined]


# What some parameters take, of values that none should take.
TAKEN = {
    0: {"speculative_decode.divergence", "comms_compute_overlap.async_op", "copy_engines.peer",
        "occupy.depth", "occupy.waves"},
    2.5: {"speculative_decode.divergence", "fsdp_tp.learning_rate", "moe.capacity_factor",
          "zero_offload.learning_rate", "occupy.kernel_us"},
    None: {"comms_compute_overlap.compute_streams", "comms_compute_overlap.process_groups",
           "fsdp_tp.tensor_ranks", "stress.mebibytes"},
}  # fmt: skip


@pytest.mark.parametrize("value", ["no such value", "", 0, -1, 2.5, None])
def test_values_without_sense_are_refused_by_every_parameter(value: Any) -> None:
    taken, said = set(), dict[str, str]()
    for name, found in EVERYONE.items():
        for parameter in found.parameter_model.model_fields:
            try:
                parameters_for(found, "tiny", {parameter: value})
            except BadInput as refused:
                said[f"{name}.{parameter}"] = str(refused)
            else:
                taken.add(f"{name}.{parameter}")
    assert taken == TAKEN.get(value, set())
    assert all(text.startswith(f"{name}=") for name, text in said.items())


# Other values that are refused, and what is said.
REFUSED: list[tuple[str, Any, str]] = [
    ("llm_decode.kv_heads", 3, "must divide the 4 heads"),
    ("llm_decode.context", 1, "greater than or equal to 2"),
    ("llm_decode.tokens", 1, "greater than or equal to 2"),
    ("llm_decode.head_dim", 5, "multiple of 2"),
    ("llm_decode.dtype", "fp8", "'fp32', 'tf32', 'bf16' or 'fp16'"),
    ("speculative_decode.draft_layers", 2, "must be fewer than the 2 layers"),
    ("speculative_decode.divergence", -1, "greater than or equal to 0"),
    ("continuous_batch.output", 1, "greater than or equal to 3"),
    ("continuous_batch.output", 6, "must be at most 5, one more than the 4"),
    ("rag_pipeline.encoder_heads", 5, "must divide the 32 elements"),
    ("rag_pipeline.documents", 9, "greater than or equal to 10"),
    *[("comms_compute_overlap.process_groups", groups, "") for groups in (
        "0,1", "[]", "[0,1],[1,2]", "[0,1],[2]", "[0,,1]", [0, 1], [[-1]])],
    *[(f"comms_compute_overlap.{parameter}", value, "") for parameter, value in (
        ("mm_dim", "4,4"), ("mm_dim", "-1"), ("comm_size", "1T"), ("comm_size", "1.5M"),
        ("comm_dtype", "tf32"))],
    *[(name, value, "") for name, value in (
        ("activation_ckpt.heads", 3), ("activation_ckpt.dtype", "fp16"), ("fsdp_tp.heads", 3),
        ("fsdp_tp.layers", 1), ("moe.experts", 7), ("moe.top_k", 33), ("grad_accum.heads", 3),
        ("grad_accum.microbatches", 3), ("async_dataload.batches", 3), ("async_dataload.side", 16),
        ("zero_offload.layers", 1), ("zero_offload.dtype", "fp16"), ("torch_compile.stages", 1),
        ("torch_compile.mode", "max-autotune"))],
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "reason"), REFUSED)
def test_bad_value_is_refused_by_name(name: str, value: Any, reason: str) -> None:
    workload, _, parameter = name.partition(".")
    with pytest.raises(BadInput) as refused:
        parameters_for(EVERYONE[workload], "tiny", {parameter: value})
    assert str(refused.value).startswith(f"{name}=")
    assert workload == "comms_compute_overlap" or f"={value!r}: " in str(refused.value)
    assert reason in str(refused.value)


def marks_of(expressions: list[ast.expr]) -> dict[str, list[Any]]:
    """The marks among decorators or in a pytestmark, with their constant arguments."""
    calls = [each if isinstance(each, ast.Call) else ast.Call(each, [], []) for each in expressions]
    return {
        call.func.attr: [ast.literal_eval(each) for each in call.args]
        for call in calls
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "pytest.mark"
    }


def test_every_workload_has_a_benchmark_with_its_mark_and_family() -> None:
    measured = set()
    for path in (Path(__file__).parents[3] / "benchmarks").glob("test_*.py"):
        of_module: dict[str, list[Any]] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                value = node.value
                of_module = marks_of(value.elts if isinstance(value, ast.List) else [value])
            elif isinstance(node, ast.FunctionDef):
                marks = {**of_module, **marks_of(node.decorator_list)}
                for name in marks.get("hwq_workload", []):
                    measured.add(name)
                    assert marks.keys() & PRIORITIES == {EVERYONE[name].mark}, name
                    assert EVERYONE[name].family in marks, name
    assert measured == set(WORKLOADS)


# Of each workload, the parameters that are numeric formats.
FORMATS = {
    name: [parameter for parameter in workload_class(name).parameter_model.model_fields
           if parameter.endswith("dtype")]
    for name in WORKLOADS
}  # fmt: skip


def spelt(name: str, **given: str) -> dict[str, str]:
    """What was given of a workload's parameters, as its cells' names have it."""
    return as_given(parameters_for(workload_class(name), "tiny", given), given)


@pytest.mark.parametrize("name", [name for name, formats in FORMATS.items() if formats])
def test_formats_are_also_called_as_torch_calls_them(name: str) -> None:
    formats = FORMATS[name]
    assert spelt(name, **dict.fromkeys(formats, "bfloat16")) == dict.fromkeys(formats, "bf16")
    with pytest.raises(BadInput, match="Input should be"):
        spelt(name, **dict.fromkeys(formats, "float64"))


def test_what_was_given_is_spelt_in_one_way() -> None:
    name = "comms_compute_overlap"
    given = {"mm_dim": "512,512, 512", "comm_size": "1024k", "async_op": "TRUE"}
    expected = {"mm_dim": "512", "comm_size": "1M", "async_op": "true"}
    assert spelt(name, **given) == expected
    # What has one value only is taken, and told by nothing.
    assert spelt(name, **given, real_collectives="true") == expected
    with pytest.raises(BadInput, match="always carried out"):
        spelt(name, real_collectives="false")
