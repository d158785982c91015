"""The latency-sensitive workloads: who gets work, and that a wrong result is noticed."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Event, Stream
from pytest_hwqueue.errors import BadParameter, CheckFailed, UnknownWorkload
from pytest_hwqueue.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.workloads.workload import Setup, Workload, parameters_for

ROOT = Path(__file__).parents[2]
SMALL: dict[str, dict[str, Any]] = {
    "hetero_kernels": {"mm_dim": 24, "elements": 16, "chain_length": 3},
    "tiny_kernel_stress": {"rounds": 3, "elements": 16},
    "large_gemm_only": {"mm_dim": 24},
}
# The buffers that a workload's streams write.
OUTPUTS: dict[str, Callable[[Any], list[torch.Tensor]]] = {
    "hetero_kernels": lambda w: [*(product.out for product in w._products), *w._chains],
    "tiny_kernel_stress": lambda w: list(w._outputs),
    "large_gemm_only": lambda w: [product.out for product in w._products],
}
NAMES = tuple(SMALL)
HELD = 800


def stream_counts(name: str) -> list[int]:
    found = workload_class(name).stream_range
    wanted = {found.least, found.least + 1, 5, found.recommended, found.most}
    return sorted(count for count in wanted if found.least <= count <= found.most)


CASES = [(name, count) for name in NAMES for count in stream_counts(name)]


class LogStream:
    """Runs what is launched at once, unless told to leave it out, and writes it down."""

    priority = 0
    handle = 0

    def __init__(
        self, index: int, log: list[tuple[int, str | None]], left_out: int | None = None
    ) -> None:
        self.index = index
        self._log = log
        self._left_out = left_out

    def launch(
        self, function: Callable[..., object], *arguments: object, tag: str | None = None
    ) -> None:
        number = len(self._log)
        self._log.append((self.index, tag))
        if number != self._left_out:
            function(*arguments)

    def record(self, event: Event | None = None) -> Event:
        raise AssertionError("independent streams record no events")

    def wait(self, event: Event) -> None:
        raise AssertionError("independent streams wait for nobody")

    def synchronize(self) -> None:
        raise AssertionError("an iteration only enqueues")


class Logged:
    """A workload set up for some streams, and the log of its launches."""

    def __init__(
        self,
        name: str,
        streams: int,
        seed: int = 3,
        left_out: int | None = None,
        **given: Any,
    ) -> None:
        self.workload = make(name, **given)
        self.workload.setup(Setup(HostDevice(), streams, seed))
        self.log: list[tuple[int, str | None]] = []
        self.streams: Sequence[Stream] = [
            LogStream(index, self.log, left_out) for index in range(streams)
        ]

    def iterate(self) -> None:
        self.workload.iterate(self.streams)

    @property
    def outputs(self) -> list[torch.Tensor]:
        return OUTPUTS[self.workload.name](self.workload)


def make(name: str, **given: Any) -> Workload:
    found = workload_class(name)
    return found(parameters_for(found, "tiny", {**SMALL[name], **given}))  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "streams"), CASES)
def test_every_stream_gets_work(name: str, streams: int) -> None:
    logged = Logged(name, streams)
    logged.iterate()
    assert {index for index, _ in logged.log} == set(range(streams))
    assert len(logged.log) == streams, "the same work each time: one launch per stream"


@pytest.mark.parametrize(("name", "streams"), CASES)
def test_only_declared_tags_are_used(name: str, streams: int) -> None:
    logged = Logged(name, streams)
    logged.iterate()
    assert {tag for _, tag in logged.log if tag is not None} == set(logged.workload.tags)


@pytest.mark.parametrize(
    ("name", "streams"), [(name, count) for name, count in CASES if count <= 16]
)
def test_result_is_right_on_the_host_device(name: str, streams: int) -> None:
    device = HostDevice()
    workload = make(name)
    with device.open_streams(streams) as pool:
        workload.setup(Setup(device, streams, 3))

        def run_once() -> None:
            workload.iterate(pool.streams)
            pool.synchronize()

        workload.check(run_once)
        workload.check(run_once)


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["hetero_kernels", "large_gemm_only"])
def test_result_is_right_in_every_numeric_format(name: str, dtype: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        logged = Logged(name, 2, dtype=dtype)
        logged.workload.check(logged.iterate)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["hetero_kernels", "large_gemm_only"])
def test_tf32_is_allowed_only_where_asked_for(name: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        for dtype, precision in (("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")):
            Logged(name, 2, dtype=dtype)
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_launch_left_out_is_noticed_also_behind_a_right_result(name: str, left_out: int) -> None:
    logged = Logged(name, 3, left_out=3 + left_out)
    logged.iterate()
    with pytest.raises(CheckFailed, match="relative error"):
        logged.workload.check(logged.iterate)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [0, 1, 2])
@pytest.mark.parametrize("value", [1e3, float("nan"), float("inf")])
def test_one_wrong_value_is_noticed(name: str, wrong: int, value: float) -> None:
    logged = Logged(name, 3)

    def run_once() -> None:
        logged.iterate()
        logged.outputs[wrong].view(-1)[5] = value

    with pytest.raises(CheckFailed, match="relative error"):
        logged.workload.check(run_once)


@pytest.mark.parametrize(
    ("name", "length"), [("hetero_kernels", "chain_length"), ("tiny_kernel_stress", "rounds")]
)
@pytest.mark.parametrize("other", [2, 4])
def test_chain_of_another_length_is_noticed(name: str, length: str, other: int) -> None:
    logged = Logged(name, 2)
    changed = logged.workload.parameters.model_copy(update={length: other})  # type: ignore[attr-defined]

    def run_once() -> None:
        right = logged.workload.parameters  # type: ignore[attr-defined]
        logged.workload.parameters = changed  # type: ignore[attr-defined]
        logged.iterate()
        logged.workload.parameters = right  # type: ignore[attr-defined]

    with pytest.raises(CheckFailed):
        logged.workload.check(run_once)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_gives_the_same_results_and_another_one_others(name: str) -> None:
    first, again, other = (Logged(name, 3, seed=seed) for seed in (5, 5, 6))
    for logged in (first, again, other):
        logged.iterate()
    assert all(map(torch.equal, first.outputs, again.outputs))
    assert not any(map(torch.equal, first.outputs, other.outputs))


@pytest.mark.parametrize("name", NAMES)
def test_iterations_repeat_the_same_work(name: str) -> None:
    logged = Logged(name, 3)
    logged.iterate()
    before, log = [output.clone() for output in logged.outputs], list(logged.log)
    logged.iterate()
    assert all(map(torch.equal, before, logged.outputs))
    assert logged.log == log * 2


@pytest.mark.parametrize("name", NAMES)
def test_global_random_state_is_not_used(name: str) -> None:
    torch.manual_seed(1)
    state, python_state = torch.get_rng_state(), random.getstate()
    logged = Logged(name, 2)
    logged.iterate()
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state


@pytest.mark.parametrize(("name", "streams"), CASES)
def test_urgency_is_one_level_per_stream(name: str, streams: int) -> None:
    urgency = workload_class(name).urgency(streams)
    assert len(urgency) == streams
    assert set(urgency) <= {0, 1}
    if name != "hetero_kernels":
        assert set(urgency) == {0}


@pytest.mark.parametrize("streams", stream_counts("hetero_kernels"))
def test_small_chains_are_the_urgent_ones(streams: int) -> None:
    logged = Logged("hetero_kernels", streams)
    logged.iterate()
    urgency = logged.workload.urgency(streams)
    assert {(tag, urgency[index]) for index, tag in logged.log} == {("small", 1), ("large", 0)}
    assert sum(tag == "large" for _, tag in logged.log) == streams // 2


@pytest.mark.parametrize("streams", [2, 3, 8, 9])
def test_patterns_are_orders_of_the_same_launches(streams: int) -> None:
    orders: dict[str, list[tuple[int, str | None]]] = {}
    for pattern in ("alternating", "batched", "random"):
        logged = Logged("hetero_kernels", streams, pattern=pattern)
        logged.workload.check(logged.iterate)
        orders[pattern] = logged.log
    large, small = streams // 2, streams - streams // 2
    assert [tag for _, tag in orders["batched"]] == ["large"] * large + ["small"] * small
    assert [tag for _, tag in orders["alternating"]] == (
        ["large", "small"] * large + ["small"] * (small - large)
    )
    assert len({tuple(sorted(order, key=str)) for order in orders.values()}) == 1


def test_random_pattern_is_the_seeds() -> None:
    logs = []
    for seed in (1, 1, 2):
        logged = Logged("hetero_kernels", 16, seed=seed, pattern="random")
        logged.iterate()
        logs.append(logged.log)
    assert logs[0] == logs[1] != logs[2]


@pytest.mark.parametrize("streams", [2, 5])
def test_reference_is_one_launch_with_nothing_beside_it(streams: int) -> None:
    logged = Logged("hetero_kernels", streams)
    references = logged.workload.references()
    assert {ratio.reference for ratio in logged.workload.ratios} == references.keys()
    for ratio in logged.workload.ratios:
        logged.log.clear()
        references[ratio.reference](logged.streams)
        (launch,) = logged.log
        assert launch[1] == ratio.tag
        alone = list(logged.log)
        logged.log.clear()
        logged.iterate()
        assert alone[0] in logged.log, "the reference is one of the iteration's own launches"


def test_a_wrong_operation_in_every_burst_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def subtracts(output: torch.Tensor) -> None:
        output.sub_(0.005).abs_().clamp_(max=2.0)

    logged = Logged("tiny_kernel_stress", 2)
    monkeypatch.setattr(logged.workload, "_finish_round", subtracts)
    with pytest.raises(CheckFailed, match="stream 0: relative error"):
        logged.workload.check(logged.iterate)


@pytest.mark.parametrize("name", ["tiny_kernel_stress", "large_gemm_only"])
def test_workload_without_ratios_has_no_references(name: str) -> None:
    assert make(name).references() == {}
    assert make(name).ratios == ()


class Operations(TorchDispatchMode):
    """Counts the operations that torch really runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name not in ("select", "detach", "view"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NAMES)
def test_work_is_counted_in_the_units_declared(name: str) -> None:
    work = Logged(name, 2).workload.work_per_iteration()
    assert tuple(work) == workload_class(name).units
    assert all(amount > 0 for amount in work.values())


@pytest.mark.parametrize("streams", [1, 3])
def test_kernels_counted_are_those_run(streams: int) -> None:
    tiny = Logged("tiny_kernel_stress", streams)
    with Operations() as operations:
        tiny.iterate()
    assert tiny.workload.work_per_iteration() == {"kernels": len(operations.names)}
    assert len(operations.names) == streams * 3 * 4
    hetero = Logged("hetero_kernels", streams + 1)
    with Operations() as operations:
        hetero.iterate()
    products = operations.names.count("mm")
    assert products == (streams + 1) // 2
    work = hetero.workload.work_per_iteration()
    assert list(work) == ["small kernels", "TFLOP"]
    assert work["small kernels"] == len(operations.names) - products
    assert work["TFLOP"] == products * 2 * 24**3 / 1e12
    gemm = Logged("large_gemm_only", streams)
    with Operations() as operations:
        gemm.iterate()
    assert operations.names == ["mm"] * streams
    assert gemm.workload.work_per_iteration() == {"TFLOP": streams * 2 * 24**3 / 1e12}


@pytest.mark.parametrize("streams", stream_counts("tiny_kernel_stress"))
@pytest.mark.parametrize("rounds", [1, 3, 100, 100_000])
def test_timeline_holds_no_more_kernels_than_the_launch_queue_takes(
    streams: int, rounds: int
) -> None:
    workload = make("tiny_kernel_stress", rounds=rounds)
    changed = workload.timeline_parameters(streams)
    held = changed["rounds"] * 4 * streams
    assert changed["rounds"] <= rounds
    assert held <= HELD
    assert changed["rounds"] == rounds or held + 4 * streams > HELD
    make("tiny_kernel_stress", **changed)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_parameter_is_refused_by_name_with_those_there_are(name: str) -> None:
    found = workload_class(name)
    with pytest.raises(BadParameter) as refused:
        parameters_for(found, "tiny", {"mm_dimm": 5})
    text = str(refused.value)
    assert text.startswith(f"{name} has no parameter 'mm_dimm'")
    assert all(parameter in text for parameter in found.parameter_model.model_fields)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("hetero_kernels", "mm_dim", 0),
        ("hetero_kernels", "mm_dim", "many"),
        ("hetero_kernels", "mm_dim", 2.5),
        ("hetero_kernels", "pattern", "spiral"),
        ("hetero_kernels", "dtype", "fp8"),
        ("hetero_kernels", "chain_length", -1),
        ("tiny_kernel_stress", "rounds", "0"),
        ("tiny_kernel_stress", "elements", None),
        ("large_gemm_only", "dtype", "float32"),
        ("large_gemm_only", "mm_dim", ""),
    ],
)
def test_bad_value_is_refused_by_name(name: str, parameter: str, value: object) -> None:
    with pytest.raises(BadParameter) as refused:
        parameters_for(workload_class(name), "tiny", {parameter: value})
    assert str(refused.value).startswith(f"{name}.{parameter}={value!r}: ")


@pytest.mark.parametrize("name", NAMES)
def test_values_of_the_command_line_are_read_by_their_type(name: str) -> None:
    found = workload_class(name)
    for parameter, field in found.parameter_model.model_fields.items():
        typed = parameters_for(found, "tiny", {parameter: str(field.default)})
        assert getattr(typed, parameter) == field.default


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", ["tiny", "small", "full"])
def test_every_size_is_valid_and_the_full_one_is_the_default(name: str, size: str) -> None:
    found = workload_class(name)
    assert found.sizes.keys() == {"tiny", "small", "full"}
    values = parameters_for(found, size, {})
    assert values.model_dump().items() >= found.sizes[size].items()
    if size == "full":
        assert values == found.parameter_model()


def test_sizes_grow() -> None:
    for name in NAMES:
        sizes = workload_class(name).sizes
        for parameter in sizes["full"]:
            values = [sizes[size][parameter] for size in ("tiny", "small", "full")]
            assert values == sorted(values)
            assert len(set(values)) == 3


def test_parameters_do_not_change() -> None:
    values = parameters_for(workload_class("large_gemm_only"), "tiny", {})
    with pytest.raises(ValueError, match="frozen"):
        values.mm_dim = 5  # type: ignore[attr-defined]


def test_registry_lists_its_names_when_asked_for_another() -> None:
    with pytest.raises(UnknownWorkload) as refused:
        workload_class("hetero_kernel")
    assert "'hetero_kernel'" in str(refused.value)
    assert all(name in str(refused.value) for name in WORKLOADS)


@pytest.mark.parametrize("name", WORKLOADS)
def test_registered_workload_is_declared_in_full(name: str) -> None:
    found = workload_class(name)
    assert issubclass(found, Workload)
    assert found.name == name
    assert found.mark in ("P0", "P1", "P2", "P3")
    assert found.description
    assert 1 <= found.stream_range.least <= found.stream_range.recommended
    assert found.stream_range.recommended <= found.stream_range.most
    assert {ratio.tag for ratio in found.ratios} <= set(found.tags)
    for parameter, field in found.parameter_model.model_fields.items():
        assert field.description, f"{name}.{parameter} is not documented"


def marks(expressions: list[ast.expr]) -> dict[str, list[Any]]:
    """The marks among decorators or in a pytestmark, with their constant arguments."""
    found: dict[str, list[Any]] = {}
    for expression in expressions:
        call = expression if isinstance(expression, ast.Call) else None
        mark = call.func if call is not None else expression
        if isinstance(mark, ast.Attribute) and ast.unparse(mark.value) == "pytest.mark":
            arguments = call.args if call is not None else []
            found[mark.attr] = [ast.literal_eval(each) for each in arguments]
    return found


def benchmarked() -> dict[str, list[set[str]]]:
    """The marks of each benchmark, by the workload it measures."""
    found: dict[str, list[set[str]]] = {}
    for path in sorted((ROOT / "benchmarks").glob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        of_module: dict[str, list[Any]] = {}
        for node in module.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                value = node.value
                of_module = marks(value.elts if isinstance(value, ast.List) else [value])
            elif isinstance(node, ast.FunctionDef):
                of_test = {**of_module, **marks(node.decorator_list)}
                for name in of_test.get("hwq_workload", []):
                    found.setdefault(name, []).append(set(of_test))
    return found


def test_every_workload_has_a_benchmark_with_its_mark_and_family() -> None:
    tests = benchmarked()
    assert tests.keys() == WORKLOADS.keys()
    priorities = {"P0", "P1", "P2", "P3"}
    for name, of_tests in tests.items():
        found = workload_class(name)
        for test_marks in of_tests:
            assert test_marks & priorities == {found.mark}, name
            assert found.family in test_marks, name
