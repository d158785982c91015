"""When requests arrive: a tenant's arrival text, and its schedule, made before the run.

The same text and seed give the same schedule in every process and on every machine. numpy may
change what its distributions draw between releases (NEP 19); a test pins the values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from pytest_hwqueue.data.errors import BadInput, shortened, translated
from pytest_hwqueue.data.safe_files import refuse_special

ArrivalKind = Literal["closed", "constant", "poisson", "lognormal", "trace", "client"]

CLIENT = "client"
"""Of a tenant whose server has a client of another project, which decides."""

_USAGE = (
    "give closed, closed: delay=TIME, constant: RATE/s, poisson: RATE/s, lognormal: RATE/s, "
    "sigma=NUMBER, or trace: FILE"
)
_NS_PER_S = 1_000_000_000
# A request costs the host more than 10 µs, and a schedule must fit into memory.
_MOST_PER_S = 100_000.0
# As for a window.
_LONGEST_S = 365 * 24 * 3600.0
# Beyond it nearly all requests come in a few bursts, and no run is long enough to see the rate.
_MOST_SIGMA = 5.0
_DRAWN_AT_ONCE = 1024
_DELAY = re.compile(r"delay\s*=\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s)")
_SECONDS = {"ms": 1e-3, "s": 1.0}
_OF_PEAK = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%\s+of\s+peak")


@dataclass(frozen=True)
class Arrival:
    """How requests arrive, as `parse_arrival` read it.

    Attributes:
        kind: ``closed`` starts a request when the previous one is done, or a delay after that; the
            others have a schedule.
        rate_per_s: mean requests per second; None for ``closed``, ``trace`` and ``client``.
        sigma: standard deviation of the gaps' logarithm; only for ``lognormal``.
        file: holds the offsets; only for ``trace``.
        delay_s: from a request's end to the next one's start; only for ``closed``.

    """

    kind: ArrivalKind
    rate_per_s: float | None = None
    sigma: float | None = None
    file: Path | None = None
    delay_s: float = 0.0

    def __str__(self) -> str:
        """Return the text as in a scenario file, with one spelling for each arrival."""
        if self.kind == "closed":
            return f"closed: delay={_plain(self.delay_s)}s" if self.delay_s else self.kind
        if self.kind == "trace":
            return f"trace: {self.file}"
        if self.kind == CLIENT:
            return self.kind
        text = f"{self.kind}: {_plain(self.rate_per_s)}/s"
        return text if self.sigma is None else f"{text}, sigma={_plain(self.sigma)}"


def is_closed(text: str) -> bool:
    """Whether a request starts when the one before is done, or a delay after that."""
    return text.startswith("closed")


def share_of_peak(text: str) -> float | None:
    """Return the share of a tenant's peak that is its rate; None if the text has the rate.

    Raises:
        BadInput: if the share is not above 0 and up to 100 %.

    """
    found = _OF_PEAK.search(text)
    if found is None:
        return None
    if not 0 < float(found[1]) <= 100:
        raise BadInput(f"{found[0]!r} is no share of the peak; give one up to 100%")
    return float(found[1]) / 100


def at_peak(text: str, peak_per_s: float) -> str:
    """Return the text for `parse_arrival`, given the requests per second at the peak."""
    share = share_of_peak(text)
    return text if share is None else _OF_PEAK.sub(f"{share * peak_per_s:.6g}/s", text)


def parse_arrival(text: str, folder: Path) -> Arrival:
    """Read an arrival such as ``poisson: 20/s``.

    Args:
        text: as in a scenario file.
        folder: base of a trace's relative file name; the file is read and checked here.

    Raises:
        BadInput: naming the wrong part (in a file, the line) and what is valid.

    """
    word, colon, rest = (part.strip() for part in text.partition(":"))
    kind: ArrivalKind | None = next((kind for kind in get_args(ArrivalKind) if kind == word), None)
    if kind is None:
        raise BadInput(f"there is no arrival {word!r} (in {text!r}); {_USAGE}")
    if kind == "closed":
        return Arrival(kind, delay_s=_delay_s(rest, text) if colon else 0.0)
    if kind == CLIENT:
        return Arrival(kind)
    if kind == "trace":
        if not rest:
            raise BadInput(f"the file is missing in {text!r}; give trace: FILE")
        file = folder / rest
        _read_trace(file)
        return Arrival(kind, file=file)
    rate, comma, parameter = (part.strip() for part in rest.partition(","))
    if kind != "lognormal" and comma:
        raise BadInput(f"{kind} takes a rate alone, and {text!r} has {parameter!r} behind it")
    return Arrival(
        kind, _rate(rate, text), _sigma(parameter, text) if kind == "lognormal" else None
    )


def trace_sha256(text: str, folder: Path) -> str | None:
    """Return the SHA-256 of the file that an arrival is a trace from; None for other arrivals.

    Args:
        text: one that `parse_arrival` has read.
        folder: as there.

    """
    kind, _, name = (part.strip() for part in text.partition(":"))
    return sha256((folder / name).read_bytes()).hexdigest() if kind == "trace" else None


def schedule(arrival: Arrival, seed: int, duration_ns: int) -> list[int] | None:
    """Return when requests are due, in ns from the window's start, ascending, below the duration.

    ``constant`` starts at 0. ``poisson`` and ``lognormal`` are renewal processes whose first gap
    starts at 0: independent gaps with a mean of 1/rate, exponential, or log-normal with location
    ``-ln(rate) - sigma**2 / 2`` (Johnson, Kotz & Balakrishnan, Continuous Univariate Distributions
    1, chapter 14). A longer duration continues the same schedule.

    Args:
        arrival: of the tenant.
        seed: of the tenant; tenants with equal arrivals need different seeds, or all their requests
            arrive at the same moments.
        duration_ns: of the window.

    Returns:
        the times; None for a closed loop, and where a client decides.

    Raises:
        BadInput: if a trace's file can no longer be read.

    """
    if arrival.kind in ("closed", CLIENT):
        return None
    if arrival.kind == "trace":
        assert arrival.file is not None
        return [when_ns for when_ns in _read_trace(arrival.file) if when_ns < duration_ns]
    times: list[int] = []
    for when_ns in _constant(arrival) if arrival.kind == "constant" else _random(arrival, seed):
        if when_ns >= duration_ns:
            break
        times.append(when_ns)
    return times


def _constant(arrival: Arrival) -> Iterator[int]:
    assert arrival.rate_per_s is not None
    for number in count():
        # Not by adding up a gap, whose rounding would drift.
        yield round(number * _NS_PER_S / arrival.rate_per_s)


def _random(arrival: Arrival, seed: int) -> Iterator[int]:
    import numpy as np

    assert arrival.rate_per_s is not None
    digest = sha256(f"{arrival}/{seed}".encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))
    mean_ns = _NS_PER_S / arrival.rate_per_s
    now_ns = 0
    while True:
        if arrival.sigma is None:
            gaps = generator.standard_exponential(_DRAWN_AT_ONCE)
        else:
            gaps = generator.lognormal(-(arrival.sigma**2) / 2, arrival.sigma, _DRAWN_AT_ONCE)
        for gap in gaps.tolist():
            # Whole ns add up exactly, so that a gap's last bit cannot move what comes behind it.
            now_ns += round(gap * mean_ns)
            yield now_ns


def _read_trace(file: Path) -> list[int]:
    """Return the offsets in a file in ns; empty lines are skipped, but count as lines."""
    with translated(BadInput, f"the trace {file} cannot be read", OSError, ValueError):
        refuse_special(file)
        lines = file.read_text(encoding="utf-8").split("\n")
    times: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        offset_s = _timestamp_s(line) if line.lstrip().startswith("{") else _number(line)
        if offset_s is None or not 0 <= offset_s <= _LONGEST_S:
            raise BadInput(
                f"{file}, line {number}: {shortened(line.strip())!r} is no offset; give seconds "
                "from the window's start, of at most a year, one on each line, or tables of JSON "
                "with a timestamp in milliseconds, as Mooncake's trace has"
            )
        when_ns = round(offset_s * _NS_PER_S)
        if times and when_ns < times[-1]:
            raise BadInput(
                f"{file}, line {number}: {line.strip()} comes before the line above it; sort the "
                "offsets"
            )
        times.append(when_ns)
    if not times:
        raise BadInput(f"the trace {file} holds no offset; give one in seconds on each line")
    return times


def _timestamp_s(line: str) -> float | None:
    """Return when a line of JSON says that a request is due; None if it does not."""
    try:
        stamp = json.loads(line)["timestamp"]
    except (ValueError, KeyError, RecursionError):
        return None
    stamp_ms = None if isinstance(stamp, bool) else _number(f"{stamp}")
    return None if stamp_ms is None else stamp_ms / 1000


def _rate(text: str, whole: str) -> float:
    value, slash, unit = (part.strip() for part in text.partition("/"))
    rate = _number(value)
    if slash and unit == "s" and rate is not None and 0 < rate <= _MOST_PER_S:
        return rate
    raise BadInput(
        f"the rate in {whole!r} is {text!r}; give requests per second, such as 20/s, above 0 and "
        f"up to {_MOST_PER_S:,.0f}/s"
    )


def _delay_s(text: str, whole: str) -> float:
    found = _DELAY.fullmatch(text)
    delay_s = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if 0 < delay_s <= _LONGEST_S:
        return delay_s
    raise BadInput(
        f"closed has {text!r} behind it in {whole!r}; give closed: delay=TIME, the time from a "
        "request's end to the next one's start, such as 100ms or 2s"
    )


def _sigma(text: str, whole: str) -> float:
    name, equals, value = (part.strip() for part in text.partition("="))
    sigma = _number(value)
    if name == "sigma" and equals and sigma is not None and 0 < sigma <= _MOST_SIGMA:
        return sigma
    given = f"is {text!r}" if text else "is missing"
    raise BadInput(
        f"sigma {given} in {whole!r}; give lognormal: RATE/s, sigma=NUMBER, above 0 and up to "
        f"{_MOST_SIGMA:g}"
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _plain(value: float | None) -> str:
    """Format a number with all digits, without the ``.0`` of integers."""
    return repr(value).removesuffix(".0")
