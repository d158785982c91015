"""Stages of a pipeline: tasks of the host, layers, hand-over.

On the host device a stream is a thread, which does the work itself. A simulated device has no host
but the enqueuing one, so a kernel of one block takes the assumed time there. On an accelerator the
work has its own thread; the stream meets it through two host functions that the runtime calls in
the stream's order (``cudaLaunchHostFunc``), also from a graph. Those functions are the C library's
``pthread_barrier_wait``, so that on the runtime's thread, where runtime calls are forbidden, no
Python runs and nothing waits for the interpreter lock.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from types import MethodType

import torch

from pytest_hwqueue.data.errors import DeviceError
from pytest_hwqueue.parts.devices.kinds import open_library
from pytest_hwqueue.parts.devices.protocol import Device, Stream
from pytest_hwqueue.parts.workloads.numerics import poison

# No less than any platform's pthread_barrier_t (32 bytes with glibc on 64-bit machines).
_BARRIER_LONGS = 16


class HostTask:
    """A method that the host executes whenever a stream reaches a launch of `run`.

    Args:
        device: its streams launch `run`.
        method: a bound method without arguments; its object is not kept alive.
        assumed_ns: how long it takes, for simulated devices.

    """

    def __init__(self, device: Device, method: Callable[[], None], assumed_ns: int) -> None:
        assert isinstance(method, MethodType)
        self._meeting: Meeting | None = None
        if not device.capabilities.has_values:
            self.run = device.kernel_of(assumed_ns)
        elif device.torch_device.type == "cpu":
            self.run = method
        else:
            self._meeting = Meeting(method)
            prefix = "hip" if device.kind == "hip" else "cuda"
            stem = "libamdhip64" if device.kind == "hip" else "libcudart"
            library = open_library(stem)
            self._call = f"{prefix}LaunchHostFunc"
            self._launch = getattr(library, self._call)
            self.run = self._enqueue

    def raise_error(self) -> None:
        """Raise what the method raised on its own thread, once."""
        if self._meeting is not None:
            self._meeting.raise_error()

    def _enqueue(self) -> None:
        assert self._meeting is not None
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for _ in ("begin", "end"):
            status = self._launch(stream, self._meeting.function, self._meeting.argument)
            if status != 0:
                raise DeviceError(f"{self._call} failed with error {status}")


class Meeting:
    """A thread that runs a method whenever another thread calls ``function(argument)`` twice.

    The first call starts the method, the second returns when it has ended. The other thread need
    not be a Python thread.

    Attributes:
        function: address of a C function of one pointer.
        argument: the pointer to give it.

    """

    def __init__(self, method: MethodType) -> None:
        library = ctypes.CDLL(None)
        self._barrier = (ctypes.c_long * _BARRIER_LONGS)()
        if library.pthread_barrier_init(ctypes.byref(self._barrier), None, ctypes.c_uint(2)) != 0:
            raise OSError("pthread_barrier_init failed: the host has no barriers for threads")
        self.function = ctypes.cast(library.pthread_barrier_wait, ctypes.c_void_p)
        self.argument = ctypes.cast(self._barrier, ctypes.c_void_p)
        self._state = _State(library.pthread_barrier_wait, self._barrier)
        # The thread holds neither this object nor the method's, so that both can go.
        threading.Thread(
            target=_serve,
            args=(self._state, weakref.WeakMethod(method)),
            name="hwq-host-task",
            daemon=True,
        ).start()
        # At the process's end the thread just ends with it.
        weakref.finalize(self, _stop, self._state).atexit = False

    def raise_error(self) -> None:
        """Raise what the method raised, once."""
        error, self._state.error = self._state.error, None
        if error is not None:
            raise error


class _State:
    def __init__(self, wait: Callable[[object], int], barrier: ctypes.Array[ctypes.c_long]) -> None:
        self.error: BaseException | None = None
        self.stopping = False
        self._wait = wait
        self._barrier = barrier

    def meet(self) -> None:
        # A call through ctypes releases the interpreter lock while it waits.
        self._wait(ctypes.byref(self._barrier))


def _serve(state: _State, method: weakref.WeakMethod[MethodType]) -> None:
    # Gradient mode belongs to a thread; inputs made in inference mode change only within it.
    with torch.inference_mode():
        while True:
            state.meet()
            if state.stopping:
                return
            bound = method()
            if bound is not None and state.error is None:
                try:
                    bound()
                except BaseException as error:  # handed over by raise_error
                    state.error = error
            del bound
            state.meet()


def _stop(state: _State) -> None:
    state.stopping = True
    state.meet()


def matrices(flat: torch.Tensor, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a layer's two matrices, hidden × inner and inner × hidden, as views of one vector."""
    widen, narrow = flat.chunk(2)
    return widen.view(hidden, -1), narrow.view(-1, hidden)


class LayerShare:
    """One stream's samples on their way through all layers and back, in their own buffers.

    Args:
        inputs: rows × hidden.
        targets: likewise; compared with the last layer's result.
        layers: how many.
        inner: width within a layer.
        scale: factor on the difference to the targets that makes it the loss's gradient.

    """

    def __init__(
        self, inputs: torch.Tensor, targets: torch.Tensor, layers: int, inner: int, scale: float
    ) -> None:
        within = (inputs.shape[0], inner)
        self.inputs = inputs
        self.targets = targets
        # What each layer is given, and at the end the network's result.
        self._between = [inputs, *(torch.empty_like(inputs) for _ in range(layers))]
        self._within = [inputs.new_empty(within) for _ in range(layers)]
        self._gradient = torch.empty_like(inputs)
        self._gradient_within = inputs.new_empty(within)
        self._scale = scale

    def forward(self, layer: int, widen: torch.Tensor, narrow: torch.Tensor) -> None:
        """Compute one layer's result from the previous layer's."""
        given, within = self._between[layer], self._within[layer]
        torch.mm(given, widen, out=within)
        within.relu_()
        torch.addmm(given, within, narrow, out=self._between[layer + 1])

    def backward(
        self,
        layer: int,
        widen: torch.Tensor,
        narrow: torch.Tensor,
        widen_gradient: torch.Tensor,
        narrow_gradient: torch.Tensor,
    ) -> None:
        """Compute one layer's gradient from the next layer's, or the last one's from the loss."""
        given, within = self._between[layer], self._within[layer]
        gradient, gradient_within = self._gradient, self._gradient_within
        if layer == len(self._within) - 1:
            torch.sub(self._between[-1], self.targets, out=gradient)
            gradient.mul_(self._scale)
        torch.mm(within.t(), gradient, out=narrow_gradient)
        torch.mm(gradient, narrow.t(), out=gradient_within)
        gradient_within.mul_(within > 0)
        torch.mm(given.t(), gradient_within, out=widen_gradient)
        gradient.addmm_(gradient_within, widen.t())

    def poison(self) -> None:
        """Make unwritten results fail the check."""
        poison(*self._between[1:], *self._within, self._gradient, self._gradient_within)


def thirds(streams: int) -> tuple[int, int, int]:
    """Split a number of streams in three, the largest part first; none is 0 from 3 streams on."""
    return (streams + 2) // 3, (streams + 1) // 3, streams // 3


def grouped(
    streams: Sequence[Stream], sizes: tuple[int, int, int]
) -> tuple[Sequence[Stream], Sequence[Stream], Sequence[Stream]]:
    """Cut streams into three groups of these sizes, in order."""
    first, second = sizes[0], sizes[0] + sizes[1]
    return streams[:first], streams[first:second], streams[second:]
