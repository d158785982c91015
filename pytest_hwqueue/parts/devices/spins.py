"""Kernels that keep an accelerator busy for a given time and read nothing but the clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from pytest_hwqueue.parts.devices.held import compiled, no_kernel, ns_per_tick

# The value of each element is for how many ticks its thread spins.
_FILL = """template <typename T> T hwq_fill(T ticks) {
  unsigned long long now, begin;
  NOW
  begin = now;
  do { NOW } while (now - begin < (unsigned long long)ticks);
  return ticks;
}"""
# ATen/native/cuda, CUDALoops.cuh and thread_constants.h: a block has so many threads, each of which
# does at least so many elements, one after the other, and at most four times as many.
_THREADS, _ELEMENTS_OF_A_THREAD, _MOST_OF_LEAST = 128, 4, 4
# Between once and twice.
_LONGER = 1.5
_TRIAL_CYCLES = 2_000_000
_TRIAL_NS = 1_000_000
_TRIALS = 5


class OneBlockSpin:
    """A kernel of one block, which leaves room for other streams' kernels."""

    def __init__(self, device: torch.device) -> None:
        """Find out how long a cycle is."""
        took_ns = _took_ns(device, lambda: torch.cuda._sleep(_TRIAL_CYCLES))
        self._cycles_per_ns = _TRIAL_CYCLES / took_ns

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return a kernel that lasts about ``duration_ns``."""
        cycles = max(1, round(duration_ns * self._cycles_per_ns))

        def kernel() -> None:
            torch.cuda._sleep(cycles)

        return kernel


class FillingSpin:
    """A kernel of one or more waves of blocks: others wait for it as for a large product.

    A wave is as many blocks as the device holds at once, which is found by trying: how many threads
    torch gives to the elements, and how many registers to a thread, it does not tell. The kernel
    is compiled by torch's jiterator; the time of its last block counts.
    """

    def __init__(self, device: torch.device, waves: int) -> None:
        """Compile the kernel, and find out how many of its blocks fit, and what they take.

        Raises:
            DeviceError: if torch cannot compile for this device.

        """
        self._device = device
        self._fill = compiled(_FILL, device)
        ticks = _TRIAL_NS / ns_per_tick(device) / _ELEMENTS_OF_A_THREAD
        try:
            self._elements = waves * self._fitting(ticks)
            self._ticks_per_ns = ticks / _took_ns(device, self._kernel(ticks, self._elements))
        except RuntimeError as error:
            raise no_kernel(device, error) from error

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return a kernel that lasts about ``duration_ns``."""
        return self._kernel(duration_ns * self._ticks_per_ns, self._elements)

    def _fitting(self, ticks: float) -> int:
        """Return the most elements whose blocks all begin at once."""
        found = torch.cuda.get_device_properties(self._device)
        # A block for each multiprocessor, if threads do the fewest elements.
        step = found.multi_processor_count * _THREADS * _ELEMENTS_OF_A_THREAD
        most = _MOST_OF_LEAST * found.max_threads_per_multi_processor // _THREADS

        def took_ns(steps: int) -> float:
            return _took_ns(self._device, self._kernel(ticks, steps * step))

        return step * steps_at_once(took_ns, most)

    def _kernel(self, ticks: float, elements: int) -> Callable[[], None]:
        values = torch.full(
            (elements,), max(1, round(ticks)), dtype=torch.int64, device=self._device
        )
        # Other streams read them.
        torch.cuda.synchronize(self._device)

        def kernel() -> None:
            self._fill(values)

        return kernel


def steps_at_once(took_ns: Callable[[int], float], most: int) -> int:
    """Return the most steps, up to ``most``, with which a kernel takes as long as with one.

    Args:
        took_ns: how long a kernel of so many steps takes; blocks that do not fit begin when others
            end, so that it takes twice as long.
        most: that can fit.

    """
    one_wave_ns = took_ns(1)
    more = range(2, most + 1)
    # As many of these fit as come before the first that does not.
    return 1 + bisect_left(more, True, key=lambda steps: took_ns(steps) > _LONGER * one_wave_ns)


def _took_ns(device: torch.device, launch: Callable[[], None]) -> float:
    """Return how long a kernel takes, in ns: the shortest, since others may use the device, too."""
    times_ms: list[float] = []
    with torch.cuda.device(device):
        # The first launch of a kernel loads it.
        launch()
        for _ in range(_TRIALS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            launch()
            end.record()
            end.synchronize()
            times_ms.append(start.elapsed_time(end))
    return min(times_ms) * 1e6
