"""A stand-in for cuda.bindings.driver, as that of an H200: what it gives, and what streams use.

Names, arguments and results are those of cuda-bindings 13.5 (`test_green_contexts.py` compares the
names where that is installed). It splits off multiples of 8 multiprocessors, as CUDA's
documentation says of compute capability 9.0; kernels mark where they ran in the host's memory.
"""

from __future__ import annotations

import ctypes
from enum import Enum
from types import SimpleNamespace
from typing import Any

TOTAL, STEP = 132, 8


class CUresult(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915


class Driver:
    """One process's driver.

    Attributes:
        confined: whether kernels stay on the multiprocessors of their stream's context.
        replays_confined: the same of replayed graphs.

    """

    CUresult = CUresult
    CUdevResourceType = SimpleNamespace(
        CU_DEV_RESOURCE_TYPE_SM="SM", CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG="WORKQUEUE_CONFIG"
    )
    CUdevWorkqueueConfigScope = SimpleNamespace(
        CU_WORKQUEUE_SCOPE_DEVICE_CTX=0, CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED=1
    )
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=SimpleNamespace(value=1))
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self, version: int = 13000, gpus: int = 1) -> None:
        self.version = version
        self.gpus = gpus
        self.confined = self.replays_confined = True
        self.contexts: list[set[int]] = []
        self.queues: list[Any] = []
        self.streams: dict[int, tuple[int, int]] = {}
        self._capturing: list[Any] | None = None

    CUstream = CUfunction = staticmethod(int)

    def cuInit(self, *_: Any) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS,)

    cuLibraryUnload = cuStreamSynchronize = cuGraphDestroy = cuGraphExecDestroy = cuInit

    def cuDeviceGet(self, given: Any, *_: Any) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, given

    cuLibraryGetKernel = cuGraphInstantiate = cuDeviceGet

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.version

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.gpus

    def cuDeviceGetDevResource(self, device: int, kind: str) -> tuple[Any, ...]:
        if kind == "WORKQUEUE_CONFIG":
            return CUresult.CUDA_SUCCESS, queues(scope=0, limit=8)
        return CUresult.CUDA_SUCCESS, resource(set(range(TOTAL)), splits=True)

    def cuDevSmResourceSplitByCount(
        self, groups: int, whole: Any, flags: int, count: int
    ) -> tuple[Any, ...]:
        # What a split leaves cannot be split again before it is a context's.
        given = max(STEP, -(-count // STEP) * STEP)
        if not whole.splits or groups * given > whole.sm.smCount:
            return CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, None, 0, None
        numbers = sorted(whole.numbers)
        first, rest = set(numbers[:given]), set(numbers[given:])
        return CUresult.CUDA_SUCCESS, [resource(first)], 1, resource(rest)

    def cuDevResourceGenerateDesc(self, resources: list[Any], count: int) -> tuple[Any, ...]:
        assert len(resources) == count <= 2
        assert all(hasattr(each, "wqConfig") for each in resources[1:])
        return CUresult.CUDA_SUCCESS, resources

    def cuGreenCtxCreate(self, described: Any, device: int, flags: int) -> tuple[Any, ...]:
        multiprocessors, *own_queues = described
        self.contexts.append(multiprocessors.numbers)
        self.queues.append(own_queues[0] if own_queues else queues(scope=0, limit=8))
        return CUresult.CUDA_SUCCESS, len(self.contexts)

    def cuGreenCtxGetDevResource(self, context: int, kind: str) -> tuple[Any, ...]:
        if kind == "WORKQUEUE_CONFIG":
            return CUresult.CUDA_SUCCESS, self.queues[context - 1]
        return CUresult.CUDA_SUCCESS, resource(self.contexts[context - 1], splits=True)

    def cuGreenCtxStreamCreate(self, context: int, flags: int, priority: int) -> tuple[Any, ...]:
        handle = 1000 + len(self.streams)
        self.streams[handle] = context, priority
        return CUresult.CUDA_SUCCESS, handle

    def cuStreamGetGreenCtx(self, stream: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.streams.get(stream, (0, 0))[0]

    def cuLibraryLoadData(self, code: bytes, *options: Any) -> tuple[Any, ...]:
        assert code.endswith(b"\x00")
        return CUresult.CUDA_SUCCESS, 1

    def cuLaunchKernel(self, kernel: int, *arguments: Any) -> tuple[Any, ...]:
        blocks, stream, ((marks, _), _) = arguments[0], arguments[7], arguments[8]
        if self._capturing is not None:
            self._capturing.append((stream, marks, blocks))
        else:
            self._run(stream, marks, blocks, self.confined)
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> tuple[Any, ...]:
        self._capturing = []
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamEndCapture(self, stream: int) -> tuple[Any, ...]:
        captured, self._capturing = self._capturing, None
        return CUresult.CUDA_SUCCESS, captured

    def cuGraphLaunch(self, graph: list[tuple[int, int, int]], stream: int) -> tuple[Any, ...]:
        for launched, marks, blocks in graph:
            self._run(launched, marks, blocks, self.replays_confined)
        return (CUresult.CUDA_SUCCESS,)

    def _run(self, stream: int, marks: int, blocks: int, confined: bool) -> None:
        context = self.streams.get(stream, (0, 0))[0]
        where = self.contexts[context - 1] if confined and context else set(range(TOTAL))
        # Each block goes where there is room.
        for number in sorted(where)[:blocks]:
            ctypes.c_uint32.from_address(marks + 4 * number).value = 1


def resource(numbers: set[int], *, splits: bool = False) -> Any:
    """Multiprocessors as the driver describes them."""
    sm = SimpleNamespace(smCount=len(numbers), minSmPartitionSize=STEP, smCoscheduledAlignment=STEP)
    return SimpleNamespace(sm=sm, numbers=numbers, splits=splits)


def queues(scope: int, limit: int) -> Any:
    """How work queues are configured, as the driver describes it."""
    return SimpleNamespace(wqConfig=SimpleNamespace(sharingScope=scope, wqConcurrencyLimit=limit))
