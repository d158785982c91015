"""What calls of torch enqueue on a simulated device, and what it costs.

A function runs once under a dispatch mode that sees every aten operation; what it enqueued is kept
for its cell and the next, by the function and its arguments' shapes: launched again, it costs
nothing. A function whose work depends on state that it changes itself would be costed by its first
call: it must take what its work depends on as arguments.

Times on a simulated device depend on neither the machine nor the driver, and on torch only through
the kernels that it makes of an operation. Two versions that make the same kernels give the same
times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from hashlib import sha256
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.protocol import Event
from pytest_hwqueue.parts.devices.simulated.profile import Profile, load_profile
from pytest_hwqueue.parts.devices.torch_settings import float32_precision_kept, tf32_allowed

if TYPE_CHECKING:
    from pytest_hwqueue.parts.devices.simulated.pool import SimulatedPool


@dataclass(frozen=True)
class KernelWork:
    """One kernel.

    Attributes:
        duration_ns: how long it runs with the whole device to itself.
        blocks: number of its blocks.
        slots_per_block: how many of a multiprocessor's slots one block occupies.
        waves_at_most: upper bound on the number of waves its blocks run in; a kernel whose blocks
            stay and fetch their work themselves (a persistent one) has 1.
        name: for timelines.
        within: whether a library launches it within the operation of the kernel before it, at no
            cost of its own to the host.
        memory_bound: whether the memory's bandwidth sets its duration, so that fewer
            multiprocessors run it as fast.

    """

    duration_ns: int
    blocks: int = 1
    slots_per_block: int = 1
    waves_at_most: int | None = None
    name: str = "kernel"
    within: bool = False
    # Follows from the others: no part of what tells kernels apart (`costs`).
    memory_bound: bool = field(default=False, repr=False)

    def slowed(self, factor: float) -> KernelWork:
        """Return what takes ``factor`` times as long."""
        if factor == 1:
            return self
        return replace(self, duration_ns=max(1, round(self.duration_ns * factor)))


@dataclass(frozen=True)
class CopyWork:
    """One copy by a copy engine, which serves one copy at a time."""

    size_bytes: int
    engine: int = 0
    name: str = "copy"

    def slowed(self, factor: float) -> CopyWork:
        """Return itself: noise is that of kernels."""
        return self


class Point:
    """One recording of an event: passed once, at a time; who waits for it is notified."""

    __slots__ = ("place", "waiters", "when_ns")

    def __init__(self) -> None:
        self.when_ns: int | None = None
        # Among the points of the iteration that made it (see `repeats`); -1 in no iteration.
        self.place = -1
        self.waiters: list[Callable[[], None]] = []

    def pass_at(self, when_ns: int) -> None:
        """Mark the point as passed and wake who waits."""
        self.when_ns = when_ns
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()


class GraphNode(NamedTuple):
    """A node of a graph: a kernel, a copy, or None for an event's recording.

    Attributes:
        work: what it does.
        after: indices of the nodes that must have ended before it starts.

    """

    work: KernelWork | CopyWork | None
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class GraphWork:
    """Work captured once and launched as one command; nodes stand behind those they wait for."""

    nodes: tuple[GraphNode, ...]

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that wait for it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for index, node in enumerate(self.nodes):
            for before in node.after:
                found[before].append(index)
        return tuple(tuple(indices) for indices in found)

    def slowed(self, factor: float) -> GraphWork:
        """Return the graph with its kernels slowed."""
        if factor == 1:
            return self
        return GraphWork(
            tuple(GraphNode(work and work.slowed(factor), after) for work, after in self.nodes)
        )


Work = KernelWork | CopyWork | GraphWork


class HostClock:
    """Virtual time of the one host thread, in ns since the device was opened."""

    def __init__(self) -> None:
        self.now_ns = 0

    def advance(self, duration_ns: int) -> None:
        """Have the host work for a time."""
        self.now_ns += duration_ns

    def reach(self, when_ns: int) -> None:
        """Have the host wait until a time, unless it has passed."""
        self.now_ns = max(self.now_ns, when_ns)


class SimulatedEvent:
    """An event in the device's virtual time; it may follow several streams."""

    def __init__(self, *, in_graphs: bool = False) -> None:
        self.in_graphs = in_graphs
        # Of the last recording.
        self.points: Sequence[Point] = ()
        self._pool: SimulatedPool | None = None

    @property
    def when_ns(self) -> int:
        """When the last recording was passed.

        Raises:
            DeviceError: if there is none, or it has not been passed.

        """
        if self._pool is None:
            raise DeviceError("a time was asked of an event that was never recorded")
        if any(point.when_ns is None for point in self.points):
            # The model may be behind the host: it tells what has happened by now.
            self._pool.repeats.leave()
        times = [point.when_ns for point in self.points if point.when_ns is not None]
        if len(times) < len(self.points):
            raise DeviceError("a time was asked of an event that the device has not passed")
        return max(times)

    def begin(self, pool: SimulatedPool, count: int = 1) -> Sequence[Point]:
        """Start a new recording of ``count`` points and return them."""
        self._pool = pool
        self.points = [Point() for _ in range(count)]
        return self.points

    def query(self) -> bool:
        """Whether the streams have passed the point; true if never recorded.

        A poll that finds it not passed advances the host's clock to the next event on the device:
        until then further polls would find the same.
        """
        if self._pool is None:
            return True
        return self._pool.poll(self.points)

    def synchronize(self) -> None:
        """Have the host wait until the streams have passed the point."""
        if self._pool is not None:
            self._pool.wait_for(self.points)


def simulated_event(event: Event) -> SimulatedEvent:
    """Return the event as this device's.

    Raises:
        TypeError: if it belongs to another device.

    """
    if not isinstance(event, SimulatedEvent):
        raise TypeError(f"the simulated device got an event of another device: {event!r}")
    return event


# More functions than a workload has; beyond it those of the cell are aged, too.
_MOST_KEPT = 4096
# From tiles of 128 x 128 to 64 x 64: below, libraries share the sum and not the result.
_MOST_HALVINGS = 2
# Beyond this, and in what contains itself, an object is only equal to itself.
_DEEPEST_KEY = 12

_aten = torch.ops.aten
# Products whose blocks a library keeps running to the end, on tensor cores; without these, and
# convolutions and attention always, they run in waves.
_PRODUCTS = frozenset({_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm})
# These only allocate or describe; nothing is enqueued.
_NO_KERNEL = frozenset(
    {
        _aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty,
        _aten.new_empty_strided, _aten.resize_, _aten._unsafe_view, _aten.detach, _aten.lift_fresh,
        _aten.is_pinned, _aten.set_, _aten.sym_size, torch.ops.prim.device,
    }
)  # fmt: skip


# Operations on tensors, and collectives.
_WITH_KERNELS = ("aten", "c10d")


class Costs(TorchDispatchMode):
    """Costs of launches on one modelled device."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._profile = profile
        self._kept: dict[Hashable, tuple[Work, ...]] = {}
        self._older: dict[Hashable, tuple[Work, ...]] = {}
        # Of the function being costed.
        self._works: list[Work] = []

    def age(self) -> None:
        """Forget what was not asked for since the last call, and what torch keeps of operations.

        As each cell begins: collections of garbage would look through what all of them asked for.
        """
        self._older, self._kept = self._kept, {}
        FakeTensorMode.cache_clear()

    def of(
        self, function: Callable[..., object], arguments: tuple[object, ...]
    ) -> tuple[Work, ...]:
        """Return what ``function(*arguments)`` enqueues; run it only the first time.

        Raises:
            Exception: what the function itself raises.

        """
        key = (
            _key(function, 0),
            *(_key(argument, 0) for argument in arguments),
            tf32_allowed(),
        )
        found = self._kept.get(key)
        if found is None:
            found = self._older.get(key)
            if found is None:
                self._works = []
                with self:
                    function(*arguments)
                found = tuple(self._works)
            if len(self._kept) >= _MOST_KEPT:
                self.age()
            self._kept[key] = found
        return found

    def add(self, work: Work) -> None:
        """Note work that is no aten operation, for the function being costed."""
        self._works.append(work)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        packet = func._overloadpacket
        # In inference mode a view such as `to` or `reshape` may copy: its parts say so.
        if packet not in flop_registry and packet not in _NO_KERNEL:
            # What libraries do not do in one kernel (linear, conv2d …) is seen in its parts.
            with self:
                parts = func.decompose(*args, **options)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **options)
        if packet not in _NO_KERNEL and not func.is_view and func.namespace in _WITH_KERNELS:
            work = self._work_of(func, args, options, result)
            if work is not None:
                self._works += self._with_layouts(work, packet, args, result)
        return result

    def _with_layouts(self, work: Work, packet: Any, args: Any, result: Any) -> Sequence[Work]:
        """Put kernels around a convolution that turn its images into the library's layout."""
        least = self._profile.arithmetic.layout_least_elements
        if packet is not _aten.convolution or not isinstance(work, KernelWork) or least is None:
            return (work,)
        image = args[0]
        if (
            max(image.numel(), result.numel()) < least.value
            or image.dim() != 4
            or image.dtype is not torch.float32
            or not _on_tensor_cores(image.dtype)
            or image.is_contiguous(memory_format=torch.channels_last)
        ):
            return (work,)
        before, after = self._turned(image), self._turned(result)
        return before, replace(work, within=True), replace(after, within=True)

    def _turned(self, images: torch.Tensor) -> KernelWork:
        seconds = 2 * images.numel() * images.element_size() / self._bytes_per_s
        blocks = self._blocks(images.numel())
        name = "layout of aten.convolution"
        return KernelWork(self._duration_ns(seconds), blocks, name=name, memory_bound=True)

    def _duration_ns(self, seconds: float) -> int:
        return max(self._profile.multiprocessing.kernel_floor_ns.value, round(seconds * 1e9))

    def _blocks(self, elements: int) -> int:
        return max(1, -(-elements // self._profile.multiprocessing.elements_per_block.value))

    @property
    def _bytes_per_s(self) -> float:
        memory = self._profile.memory
        return memory.bandwidth_bytes_per_s.value * memory.bandwidth_efficiency.value

    def _work_of(self, func: Any, args: Any, options: dict[str, Any], result: Any) -> Work | None:
        written = _tensors(result)
        into = {id(tensor) for tensor in _tensors(options.get("out"))}
        read = [tensor for tensor in _tensors((args, options)) if id(tensor) not in into]
        if func.namespace == "c10d":
            # Collectives of one rank, which is all that is modelled: they copy, or do nothing. What
            # they write stands among their arguments.
            written = []
        size = sum(tensor.numel() * tensor.element_size() for tensor in (*read, *written))
        if not size:
            return None
        packet = func._overloadpacket
        if packet is _aten.copy_ and (options.get("non_blocking") or args[2:] == (True,)):
            target = written[0]
            return CopyWork(target.numel() * target.element_size())
        seconds = least_seconds = size / self._bytes_per_s
        blocks = self._blocks(max(tensor.numel() for tensor in (*read, *written)))
        slots, waves = 1, None
        if packet in flop_registry:
            cut = self._profile.multiprocessing
            elements = max((tensor.numel() for tensor in written), default=1)
            slots = cut.matrix_block_slots.value
            if packet in _PRODUCTS and _on_tensor_cores((read or written)[0].dtype):
                waves = cut.matrix_waves_at_most.value
            flop = flop_registry[packet](*args, **options, out_val=result)
            blocks, used = self._tiles(max(1, -(-elements // cut.matrix_tile.value**2)))
            seconds = max(seconds, flop / (self._flop_per_s(read or written) * used))
        return KernelWork(
            self._duration_ns(seconds), blocks, slots, waves, str(packet),
            memory_bound=seconds == least_seconds,
        )  # fmt: skip

    def _tiles(self, blocks: int) -> tuple[int, float]:
        """Return into how many blocks a library cuts a product, and the share of its rate then.

        Fewer blocks than multiprocessors leave some of them without work. Tiles of half the size
        reach more of them, and are less efficient each.
        """
        cut = self._profile.multiprocessing
        used, efficiency = blocks / cut.multiprocessors.value, 1.0
        for _ in range(_MOST_HALVINGS):
            halved = min(1.0, 2 * used) * cut.halved_tile_efficiency.value
            if halved <= min(1.0, used):
                break
            blocks, used = 2 * blocks, 2 * used
            efficiency *= cut.halved_tile_efficiency.value
        return blocks, min(1.0, used) * efficiency

    def _flop_per_s(self, tensors: list[torch.Tensor]) -> float:
        arithmetic = self._profile.arithmetic
        half = {
            torch.bfloat16: arithmetic.bf16_flop_per_s, torch.float16: arithmetic.fp16_flop_per_s
        }  # fmt: skip
        full = arithmetic.fp32_flop_per_s
        if _on_tensor_cores(tensors[0].dtype):
            full = arithmetic.tf32_flop_per_s
        return half.get(tensors[0].dtype, full).value * arithmetic.matrix_efficiency.value


def _on_tensor_cores(dtype: torch.dtype) -> bool:
    """Whether products of this type use tensor cores: fp32 only as TF32, where it is allowed."""
    return dtype is not torch.float32 or tf32_allowed()


class EnqueuedWork:
    """Enqueues one kernel, or a captured graph, when launched.

    Attributes:
        events: of a graph, those that each replay records, by node.

    """

    def __init__(
        self, costs: Costs, work: KernelWork | GraphWork, events: Mapping[int, SimulatedEvent]
    ) -> None:
        self.work = work
        self.events = events
        self._costs = costs

    def __call__(self) -> None:
        """Enqueue it."""
        self._costs.add(self.work)


class _Same:
    """Stands for an object in a key: equal only to itself, and keeps it alive."""

    __slots__ = ("_object",)

    def __init__(self, of: object) -> None:
        self._object = of

    def __hash__(self) -> int:
        return id(self._object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._object is other._object


def _key(value: object, depth: int) -> Hashable:
    """Return what makes two launches the same: shapes of tensors, values of plain data.

    A function is its code and what it closes over, so that one made anew in every iteration is
    costed once.
    """
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype, value.stride())
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return (type(value), value)
    if depth < _DEEPEST_KEY:
        if isinstance(value, MethodType):
            return (_Same(value.__self__), value.__func__)
        if isinstance(value, (tuple, list)):
            return (type(value), *(_key(part, depth + 1) for part in value))
        if isinstance(value, partial):
            named = sorted(value.keywords.items())
            return _key((value.func, value.args, named), depth + 1)
        if isinstance(value, FunctionType):
            try:
                closed = tuple(cell.cell_contents for cell in value.__closure__ or ())
            except ValueError:  # closes over a name that has no value yet
                return _Same(value)
            named = sorted((value.__kwdefaults__ or {}).items())
            return (value.__code__, _key((value.__defaults__, named, closed), depth + 1))
    return _Same(value)


def _tensors(values: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def torch_kernels() -> str:
    """Return a digest of the kernels that this torch makes of the suite's operations."""
    digest = sha256()
    for function in (_inference, _image, _training):
        digest.update(_kernels_of(function).encode())
    return digest.hexdigest()[:16]


def prepare_kernels() -> None:
    """Find those kernels that need no autograd: its threads are not in forked processes."""
    for function in (_inference, _image):
        _kernels_of(function)


@cache
def _kernels_of(function: Callable[[], None]) -> str:
    # Any profile would do: what is of interest are names, sizes and their order.
    costs = Costs(load_profile("h200"))
    with float32_precision_kept():
        # Whatever a model of this process has set: it is no property of torch.
        torch.set_float32_matmul_precision("highest")
        with FakeTensorMode(), torch.inference_mode(function is not _training):
            return repr(costs.of(function, ()))


def _inference() -> None:
    """Run the operations of a decoder layer, and of choosing a token."""
    for dtype in (torch.float32, torch.bfloat16):
        states = torch.empty(2, 16, 64, dtype=dtype)
        weight = torch.empty(64, 64, dtype=dtype)
        scale = torch.empty(64, dtype=dtype)
        normal = functional.layer_norm(states, (64,), scale, scale)
        normal = normal * torch.rsqrt(normal.pow(2).mean(-1, keepdim=True) + 1e-6)
        heads = functional.linear(normal, weight, scale).view(2, 16, 4, 16).transpose(1, 2)
        for causal in (True, False):
            functional.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)
        mixed = torch.cat((functional.silu(normal), functional.gelu(normal)), dim=-1)
        logits = functional.softmax((mixed[..., :64] @ weight).float(), dim=-1)
        logits.argmax(-1)
        logits.topk(4)
        functional.embedding(torch.zeros(2, 4, dtype=torch.long), weight)
        states.copy_(normal).add_(normal)
        torch.bmm(states, states.transpose(1, 2))


def _image() -> None:
    """Run the operations of a convolutional network."""
    image = torch.empty(2, 3, 32, 32)
    features = functional.conv2d(image, torch.empty(8, 3, 3, 3), padding=1)
    scale = torch.empty(8)
    features = functional.batch_norm(features, scale, scale, scale, scale)
    features = functional.max_pool2d(functional.relu(features), 2)
    functional.adaptive_avg_pool2d(features, 1).flatten(1)


def _training() -> None:
    """Run a step of training, forward and backward."""
    weight = torch.empty(64, 64, requires_grad=True)
    scale = torch.empty(64, requires_grad=True)
    states = torch.empty(2, 16, 64)
    heads = functional.layer_norm(functional.linear(states, weight), (64,), scale, scale)
    heads = heads.view(2, 16, 4, 16).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(heads, heads, heads)
    functional.gelu(attended).pow(2).mean().backward()
