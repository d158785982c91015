"""Compact latency samples: in order, on a grid of 0.1 %, as text for a line of JSON.

A sample becomes the number of its nearest point on a logarithmic grid; a series becomes the
differences of these numbers as variable-length integers, compressed. 1000 latencies take about 2
kB.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


GRID = 1.001
"""Ratio of neighbouring points. The worst relative error is half a step: sqrt(1.001) - 1."""


# The last point that a float can hold; the greatest floats lie up to 0.6 of a step above it.
_LAST = 1 + math.floor(math.log(sys.float_info.max) / math.log(GRID))

# 7 bits in each byte of a variable-length integer, as in Protocol Buffers; three bytes hold the
# difference of any two points.
_BITS = 7
_MORE = 1 << _BITS
_LONGEST = 3
# Bytes after which their integer goes on.
_CONTINUED = bytes(range(_MORE, 256))


def encode_samples(samples_ns: Sequence[float] | NDArray[np.float64]) -> str:
    """Return samples as text; see `decode_samples`.

    Args:
        samples_ns: shape (n,), whole nanoseconds, in the order measured; 0 is legal.

    Raises:
        ValueError: if a sample is not a whole, finite number of at least 0.

    """
    import numpy as np

    try:
        values = np.asarray(samples_ns, dtype=np.float64)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"samples must be numbers: {error}") from error
    if values.ndim != 1:
        raise ValueError(f"samples must have one dimension, have {values.ndim}")
    wrong = np.flatnonzero(~np.isfinite(values) | (values < 0) | (values != np.floor(values)))
    if wrong.size:
        first = int(wrong[0])
        raise ValueError(
            f"sample {first} of {values.size} is {values[first]} ns; samples are whole nanoseconds "
            "of at least 0"
        )
    # Point 0 is the sample 0, which has no logarithm; point 1 is 1 ns.
    points = np.zeros(values.size, dtype=np.int64)
    above = values > 0
    nearest = 1 + np.rint(np.log(values[above]) / math.log(GRID)).astype(np.int64)
    points[above] = np.minimum(nearest, _LAST)
    steps = np.diff(points, prepend=0)
    return base64.b64encode(zlib.compress(_pack(steps), 9)).decode("ascii")


def decode_samples(text: str, n: int) -> NDArray[np.float64]:
    """Return the samples in ns, shape (n,), in their order, off by less than 5.1e-4 of each.

    Args:
        text: from `encode_samples`.
        n: how many samples there are.

    Raises:
        ValueError: if the text holds anything but n samples.

    """
    import numpy as np

    points = np.cumsum(_unpack(_decompressed(text, n), n))
    if n and points.min() < 0:
        raise ValueError("the samples are damaged: one is below 0")
    if n and points.max() > _LAST:
        raise ValueError("the samples are damaged: one is greater than any number")
    values: NDArray[np.float64] = np.exp((points - 1) * math.log(GRID))
    values[points == 0] = 0.0
    return values


def check_samples(text: str, n: int) -> None:
    """Check that a text holds n samples, in a tenth of the time that decoding them takes.

    Raises:
        ValueError: if it does not.

    """
    packed = _decompressed(text, n)
    there = len(packed.translate(None, _CONTINUED))
    if there != n or packed[-1:] >= b"\x80":
        raise ValueError(f"the samples are damaged: they are {there}, not {n}")


def _decompressed(text: str, n: int) -> bytes:
    try:
        compressed = base64.b64decode(text, validate=True)
        # No more than n samples can fill: a small text must not become a large array.
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(compressed, _LONGEST * n + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"the samples are damaged: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"the samples are damaged: they are not {n} and nothing else")
    return packed


def _pack(steps: NDArray[np.int64]) -> bytes:
    """Return integers as bytes: sign folded into the lowest bit, 7 bits a byte, lowest first."""
    import numpy as np

    folded = np.where(steps < 0, -2 * steps - 1, 2 * steps)
    places = _BITS * np.arange(_LONGEST)
    rest = folded[:, np.newaxis] >> places
    used = rest > 0
    used[:, 0] = True
    follows = np.zeros_like(used)
    follows[:, :-1] = used[:, 1:]
    groups = (rest % _MORE) + _MORE * follows
    return groups[used].astype(np.uint8).tobytes()


def _unpack(packed: bytes, n: int) -> NDArray[np.int64]:
    import numpy as np

    groups = np.frombuffer(packed, dtype=np.uint8).astype(np.int64)
    ends = np.flatnonzero(groups < _MORE)
    if ends.size != n or (n and ends[-1] != groups.size - 1) or (not n and groups.size):
        raise ValueError(f"the samples are damaged: they are {ends.size}, not {n}")
    if not n:
        return np.zeros(0, dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST:
        raise ValueError("the samples are damaged: a difference is too large")
    places = np.arange(groups.size) - np.repeat(starts, lengths)
    folded = np.add.reduceat((groups % _MORE) << (_BITS * places), starts)
    unfolded: NDArray[np.int64] = np.where(folded % 2, -(folded + 1) // 2, folded // 2)
    return unfolded
