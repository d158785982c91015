"""CUDA's green contexts: disjoint groups of a GPU's multiprocessors, each with its own streams.

Calls the driver through cuda-bindings; the functions are those of the CUDA driver API's chapter
"Green Contexts". Contexts and streams live as long as the process. Hardware queues of their own
(work queues) are written against that chapter, and not run: they need a driver of CUDA 13.1.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_hwqueue.data.errors import DeviceError, translated

if TYPE_CHECKING:
    import torch

    from pytest_hwqueue.parts.devices.compute_units import GroupEvidence

# CUDA 12.4 brought green contexts, and CUDA 13.1 their work queues.
_LEAST_DRIVER, _LEAST_FOR_QUEUES = 12040, 13010
_THREADS_PER_BLOCK = 1024
_SPIN_NS = 20_000
_MOST_LAUNCHES = 50
# Numbers of multiprocessors are below this on every GPU.
_NUMBERS = 4096

# Each block marks the multiprocessor that it runs on and stays there for a while, so that the
# other blocks must go elsewhere. From PTX, which the driver compiles: no compiler is needed.
_KERNEL_NAME = "hwq_ran_on"
_KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry hwq_ran_on(.param .u64 seen, .param .u64 spin_ns)
{
    .reg .pred %again;
    .reg .b32 %number, %one;
    .reg .b64 %base, %slot, %spin, %began, %now;
    ld.param.u64 %base, [seen];
    ld.param.u64 %spin, [spin_ns];
    cvta.to.global.u64 %base, %base;
    mov.u32 %number, %smid;
    mov.u64 %began, %globaltimer;
spinning:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %began;
    setp.lt.u64 %again, %now, %spin;
    @%again bra spinning;
    mul.wide.u32 %slot, %number, 4;
    add.u64 %slot, %base, %slot;
    mov.u32 %one, 1;
    st.global.u32 [%slot], %one;
    ret;
}
\x00"""


class GreenContexts:
    """A GPU split into groups, with a green context for each and one for what is left."""

    def __init__(self, index: int, split: Sequence[int], queues: int | None = None) -> None:
        """Split the GPU; its primary context must exist.

        Args:
            index: of the GPU among those that CUDA sees.
            split: multiprocessors of each group, in this order.
            queues: as in `Partition`.

        Raises:
            DeviceError: if the driver gives other numbers, saying which.

        """
        self._device = _call("cuDeviceGet", index)
        self._queues = queues
        self._contexts = []
        left = whole = _multiprocessors("cuDeviceGetDevResource", self._device)
        for number, count in enumerate(split):
            if number:
                # What is left of a split can be split again only as the resource of a context.
                left = _multiprocessors("cuGreenCtxGetDevResource", self._create(left))
            group, left = _split_off(left, count, whole)
            self._contexts.append(self._create(group, *self._own_queues()))
        self._left = left

    def create_stream(self, group: int, device_priority: int) -> int:
        """Create a stream in a group, or in what is left; return its handle."""
        if group == len(self._contexts):
            if not self._left.sm.smCount:
                raise DeviceError("the groups leave no multiprocessor for the other streams")
            self._contexts.append(self._create(self._left, *self._own_queues()))
        flags = _driver().CUstream_flags.CU_STREAM_NON_BLOCKING.value
        return int(_call("cuGreenCtxStreamCreate", self._contexts[group], flags, device_priority))

    def _own_queues(self) -> list[Any]:
        """Return the resource that gives a context queues of its own; none if all share them."""
        if self._queues is None:
            return []
        resource = _queues_of("cuDeviceGetDevResource", self._device)
        resource.wqConfig.sharingScope = _apart()
        if self._queues:
            resource.wqConfig.wqConcurrencyLimit = self._queues
        return [resource]

    def _create(self, *resources: Any) -> Any:
        described = _call("cuDevResourceGenerateDesc", list(resources), len(resources))
        flags = _driver().CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM.value
        return _call("cuGreenCtxCreate", described, self._device, flags)


@cache
def why_not(split: tuple[int, ...], *, others: bool, queues: bool = False) -> str | None:
    """Return why no visible GPU can be split so, with what the driver would give; or None.

    Creates no context. A split into several groups is tried group by group: only opening it shows
    whether all of them fit together.

    Args:
        split: multiprocessors of each group.
        others: whether other streams need what is left.
        queues: whether groups need hardware queues of their own.

    """
    try:
        version = _call("cuDriverGetVersion")
        of_driver = f"the driver is of CUDA {version // 1000}.{version % 1000 // 10}"
        if version < _LEAST_DRIVER:
            return f"{of_driver}; green contexts came with CUDA 12.4: update the driver"
        if queues:
            if version < _LEAST_FOR_QUEUES:
                return (
                    f"{of_driver}; work queues of green contexts came with CUDA 13.1: update the "
                    "driver, or leave out queues"
                )
            # Says what cuda-bindings lacks.
            _apart()
        _call("cuInit", 0)
        count = _call("cuDeviceGetCount")
        reasons = [_why_not(ordinal, split, others) for ordinal in range(count)]
    except DeviceError as error:
        return str(error)
    return reasons[0] if reasons and all(reasons) else None


def group_of(
    handle: int, device: torch.device, *, replayed: bool, queues: bool = False
) -> GroupEvidence:
    """Find out on which multiprocessors a stream's kernels run.

    Args:
        handle: of the stream.
        device: of the stream; nothing else is known of it.
        replayed: launch the kernel by replaying a graph captured on the stream.
        queues: whether to read how the queues of its context are configured, too.

    Raises:
        DeviceError: if the driver refuses.

    """
    from pytest_hwqueue.parts.devices.compute_units import GroupEvidence

    driver = _driver()
    context = _call("cuStreamGetGreenCtx", driver.CUstream(handle))
    size, own_queues = 0, None
    if int(context):
        size = int(_multiprocessors("cuGreenCtxGetDevResource", context).sm.smCount)
        if queues:
            found = _queues_of("cuGreenCtxGetDevResource", context).wqConfig
            if found.sharingScope == _apart():
                own_queues = int(found.wqConcurrencyLimit)
    return GroupEvidence(size, _ran_on(handle, device, size, replayed), own_queues)


def _ran_on(handle: int, device: torch.device, size: int, replayed: bool) -> list[int]:
    """Launch until as many multiprocessors as the stream has were seen, or often enough.

    Each launch has blocks for all multiprocessors of the GPU: more would be seen if it had more.
    """
    import torch

    # Copying waits until it is there, whichever stream does it.
    marks = torch.zeros(_NUMBERS, dtype=torch.int32).to(device)
    driver = _driver()
    stream = driver.CUstream(handle)
    library = _call("cuLibraryLoadData", _KERNEL, [], [], 0, [], [], 0)
    # Launched as torch launches its own: a kernel of no context, which runs in its stream's.
    kernel = driver.CUfunction(int(_call("cuLibraryGetKernel", library, _KERNEL_NAME.encode())))
    whole = _multiprocessors("cuDeviceGetDevResource", _call("cuDeviceGet", device.index or 0))
    blocks = 2 * whole.sm.smCount

    def launch() -> None:
        _call(
            "cuLaunchKernel", kernel, blocks, 1, 1, _THREADS_PER_BLOCK, 1, 1, 0, stream,
            ((marks.data_ptr(), _SPIN_NS), (ctypes.c_void_p, ctypes.c_uint64)), 0,
        )  # fmt: skip

    seen: list[int] = []
    graph = _captured(stream, launch) if replayed else None
    for _ in range(_MOST_LAUNCHES):
        if graph is None:
            launch()
        else:
            _call("cuGraphLaunch", graph, stream)
        _call("cuStreamSynchronize", stream)
        seen = torch.nonzero(marks.cpu()).flatten().tolist()
        if size and len(seen) >= size:
            break
    if graph is not None:
        _call("cuGraphExecDestroy", graph)
    _call("cuLibraryUnload", library)
    return seen


def _captured(stream: Any, launch: Callable[[], None]) -> Any:
    driver = _driver()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    _call("cuStreamBeginCapture", stream, mode)
    try:
        launch()
    finally:
        graph = _call("cuStreamEndCapture", stream)
    replay = _call("cuGraphInstantiate", graph, 0)
    _call("cuGraphDestroy", graph)
    return replay


def _why_not(ordinal: int, split: Sequence[int], others: bool) -> str | None:
    whole = _multiprocessors("cuDeviceGetDevResource", _call("cuDeviceGet", ordinal))
    total, wanted = whole.sm.smCount, sum(split)
    if wanted + others > total:
        left = ", which leaves none for the others" if wanted == total else ""
        return f"{wanted} multiprocessors asked for, and the GPU has {total}{left}"
    try:
        for count in split:
            _split_off(whole, count, whole)
    except DeviceError as error:
        return str(error)
    return None


def _split_off(resource: Any, count: int, whole: Any) -> tuple[Any, Any]:
    """Split exactly ``count`` multiprocessors off a resource; return them and what is left."""
    left = resource.sm.smCount
    if count > left:
        raise DeviceError(f"{count} multiprocessors asked for, and {left} are left")
    groups, number, remaining = _call("cuDevSmResourceSplitByCount", 1, resource, 0, count)
    given = groups[0].sm.smCount if number else 0
    if given != count:
        steps = ""
        # Fields of CUDA 13 and later.
        least = getattr(whole.sm, "minSmPartitionSize", 0)
        step = getattr(whole.sm, "smCoscheduledAlignment", 0)
        if least and step:
            steps = f" (at least {least}, in multiples of {step})"
        raise DeviceError(
            f"{count} multiprocessors asked for, {given} given: of the {left} there are, the "
            f"driver does not split off other numbers{steps}; ask for {given or 'fewer'}"
        )
    return groups[0], remaining


def _multiprocessors(function: str, owner: Any) -> Any:
    """Return the multiprocessors of a device or green context, as the driver's resource."""
    return _call(function, owner, _driver().CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)


def _queues_of(function: str, owner: Any) -> Any:
    """Return how a device's or green context's work queues are configured, as a resource."""
    _apart()
    kinds = _driver().CUdevResourceType
    return _call(function, owner, kinds.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG)


def _apart() -> Any:
    """Return the scope in which contexts have work queues of their own where possible."""
    said = "this version of cuda-bindings does not know work queues of green contexts"
    remedy = "install cuda-bindings 13.1 or later, of the driver's major version of CUDA"
    with translated(DeviceError, said, AttributeError, remedy=remedy):
        return _driver().CUdevWorkqueueConfigScope.CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED


def _driver() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise DeviceError(
            f"green contexts need the Python package cuda-bindings, which cannot be imported "
            f"({error}); install pytest-hwqueue[green-context]"
        ) from error


def _call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver; return its result, or a tuple of several.

    Raises:
        DeviceError: if it fails, or the driver or cuda-bindings does not have it.

    """
    driver = _driver()
    with translated(DeviceError, f"{name} cannot be called", AttributeError, RuntimeError):
        status, *results = getattr(driver, name)(*arguments)
    if status.value:
        raise DeviceError(f"{name} failed with error {status.value}: {status.name}")
    return results[0] if len(results) == 1 else tuple(results)
