"""Kernels that keep an accelerator busy for a given time and read nothing but the clock."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

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
# ATen/native/cuda/thread_constants.h, `thread_work_size`: so many, one after the other.
_ELEMENTS_OF_A_THREAD = 4
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
    """A kernel with as many threads as the device holds: others wait for it as for a large product.

    Compiled by torch's jiterator; the time of its last block counts.
    """

    def __init__(self, device: torch.device) -> None:
        """Compile the kernel, and find out what it takes besides spinning.

        Raises:
            DeviceError: if torch cannot compile for this device.

        """
        found = torch.cuda.get_device_properties(device)
        threads = found.multi_processor_count * found.max_threads_per_multi_processor
        self._elements = threads * _ELEMENTS_OF_A_THREAD
        self._device = device
        self._ticks_per_ns = 1 / ns_per_tick(device) / _ELEMENTS_OF_A_THREAD
        self._fill = compiled(_FILL, device)
        trial = self._kernel(_TRIAL_NS * self._ticks_per_ns)
        try:
            # Its threads may do another number of elements each, or not fit at once.
            self._ticks_per_ns *= _TRIAL_NS / _took_ns(device, trial)
        except RuntimeError as error:
            raise no_kernel(device, error) from error

    def kernel_of(self, duration_ns: int) -> Callable[[], None]:
        """Return a kernel that lasts about ``duration_ns``."""
        return self._kernel(duration_ns * self._ticks_per_ns)

    def _kernel(self, ticks: float) -> Callable[[], None]:
        values = torch.full(
            (self._elements,), max(1, round(ticks)), dtype=torch.int64, device=self._device
        )
        # Other streams read them.
        torch.cuda.synchronize(self._device)

        def kernel() -> None:
            self._fill(values)

        return kernel


def _took_ns(device: torch.device, launch: Callable[[], None]) -> float:
    """Return how long a kernel takes, in ns."""
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
    return median(times_ms) * 1e6
