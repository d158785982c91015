"""Arrival texts, and schedules that are the same everywhere and have the rate they promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest, norm

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.engine.tenants.arrivals import (
    Arrival,
    parse_arrival,
    schedule,
    trace_sha256,
)

SECOND = 1_000_000_000
NOWHERE = Path("nowhere")

rates = st.floats(0.1, 100_000)
seeds = st.integers(0, 2**64)
random_arrivals = st.builds(Arrival, st.just("poisson"), rates) | st.builds(
    Arrival, st.just("lognormal"), rates, st.floats(0.01, 5)
)


def times(text: str, seed: int = 0, duration_s: float = 1) -> list[int]:
    made = schedule(parse_arrival(text, NOWHERE), seed, round(duration_s * SECOND))
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no arrival ''"),
        ("uniform: 20/s", "no arrival 'uniform' .*; give closed, closed: delay=TIME, const"),
        ("closed: 20/s", "closed has '20/s' behind it in .*; give closed: delay=TIME, the time"),
        ("closed:", "closed has '' behind it"),
        ("closed: delay=0ms", "closed has 'delay=0ms' behind it"),
        ("closed: delay=5", "such as 100ms or 2s"),
        ("constant", "the rate in 'constant' is ''; give requests per second, such as 20/s"),
        ("constant: 20", "the rate in 'constant: 20' is '20'"),
        ("constant: 0/s", "is '0/s'.*above 0"),
        ("poisson: nan/s", "is 'nan/s'"),
        ("poisson: 100001/s", "up to 100,000/s"),
        ("poisson: 20/s, sigma=1", "poisson takes a rate alone, and .* has 'sigma=1' behind it"),
        ("lognormal: 20/s", "sigma is missing in 'lognormal: 20/s'; give lognormal: RATE/s, sigma"),
        ("lognormal: 20/s, sigma=0", "sigma is 'sigma=0'.*above 0 and up to 5"),
        ("lognormal: 20/s, sigma=5.1", "sigma is 'sigma=5.1'"),
        ("lognormal: 20/s, sigma=nan", "sigma is 'sigma=nan'"),
        ("lognormal: 20/s, sigma=1, seed=2", "sigma is 'sigma=1, seed=2'"),
        ("lognormal: x/s, sigma=1", "the rate in .* is 'x/s'"),
        ("trace:", "the file is missing in 'trace:'"),
        ("trace: none.txt", "the trace nowhere/none.txt cannot be read: .*No such file"),
    ],
)
def test_bad_parts_are_named(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_arrival(text, NOWHERE)


@given(random_arrivals | st.builds(Arrival, st.just("constant"), rates))
@example(Arrival("closed"))
@example(Arrival("closed", delay_s=0.1))
def test_an_arrival_is_read_back_from_its_text(arrival: Arrival) -> None:
    spaced = str(arrival).replace(":", " : ").replace("/s", " / s ").replace("=", " = ")
    assert parse_arrival(str(arrival), NOWHERE) == parse_arrival(spaced, NOWHERE) == arrival


@given(st.text() | st.text().map("trace: {}".format) | st.text().map("lognormal: {}".format))
@example("trace: \0")
def test_any_other_text_is_refused_as_a_bad_arrival(text: str) -> None:
    try:
        arrival = parse_arrival(text, NOWHERE)
    except BadInput:
        return
    assert arrival.kind in text


def test_constant_arrivals_start_at_once_and_do_not_drift() -> None:
    assert times("constant: 4/s") == [0, SECOND // 4, SECOND // 2, 3 * SECOND // 4]
    # A third of a second has no end in nanoseconds: added up, the gaps would be 333 ns short.
    assert times("constant: 3/s", duration_s=1000)[-1] == round(2999 * SECOND / 3)
    assert len(times("constant: 1000/s", duration_s=10)) == 10_000
    assert schedule(Arrival("closed"), 0, SECOND) is None


@given(random_arrivals, seeds, st.integers(1, 2000), st.integers(1, 2000))
def test_random_schedules_ascend_and_a_longer_one_continues(
    arrival: Arrival, seed: int, gaps: int, more: int
) -> None:
    assert arrival.rate_per_s is not None
    short_ns = round(gaps * SECOND / arrival.rate_per_s)
    long_ns = round((gaps + more) * SECOND / arrival.rate_per_s)
    short, long = schedule(arrival, seed, short_ns), schedule(arrival, seed, long_ns)
    assert short is not None
    assert long is not None
    assert long == sorted(long)
    assert all(0 <= when_ns < long_ns for when_ns in long)
    assert short == [when_ns for when_ns in long if when_ns < short_ns]


def test_seed_and_text_make_the_schedule() -> None:
    kept = times("poisson: 20/s", seed=1, duration_s=10)
    assert kept == times("poisson:  20.0/s", seed=1, duration_s=10)
    assert kept != times("poisson: 20/s", seed=2, duration_s=10)
    # Another rate is another draw, not the same one on another scale.
    assert [2 * when_ns for when_ns in times("poisson: 40/s", seed=1, duration_s=5)] != kept
    assert times("lognormal: 20/s, sigma=1", 1, 10) != times("lognormal: 20/s, sigma=2", 1, 10)


# If these fail under a new numpy, its distributions draw other numbers than before.
FIRST_NS = {
    "poisson: 20/s": [18974214, 302516706, 311304166, 333844346, 377849654, 413776482],
    "lognormal: 5/s, sigma=1.5": [148946917, 191389455, 213908243, 398109212, 426279271, 452978718],
}


def test_schedules_are_equal_in_every_process_and_on_every_machine() -> None:
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from pytest_hwqueue.engine.tenants.arrivals import parse_arrival, schedule\n"
        "arrivals = {text: parse_arrival(text, Path()) for text in sys.argv[1:]}\n"
        "print(json.dumps({t: schedule(a, 7, 500_000_000) for t, a in arrivals.items()}))\n"
    )
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, *FIRST_NS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        )
        assert json.loads(done.stdout) == FIRST_NS


def gaps_of(text: str, seed: int, duration_s: float) -> NDArray[np.float64]:
    """The gaps in seconds."""
    return np.diff(np.array([0, *times(text, seed, duration_s)], dtype=np.float64)) / 1e9


# The seeds are fixed, so these are no gambles: they hold, or the distribution is wrong.
@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_are_exponential_with_the_mean_asked_for(seed: int) -> None:
    gaps_s = gaps_of("poisson: 500/s", seed, 200)
    assert len(gaps_s) == pytest.approx(100_000, rel=0.01)  # sd of a Poisson number: 0.3 %
    assert gaps_s.mean() == pytest.approx(1 / 500, rel=0.01)
    assert kstest(gaps_s, "expon", args=(0, 1 / 500)).pvalue > 0.01
    # Independent of the gap before: the correlation's standard error is 0.003.
    assert abs(np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]) < 0.01


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sigma", [0.25, 1.0, 1.5])
def test_lognormal_gaps_have_the_mean_and_sigma_asked_for(seed: int, sigma: float) -> None:
    gaps_s = gaps_of(f"lognormal: 500/s, sigma={sigma}", seed, 200)
    # The mean of 100,000 gaps has a standard error of 0.1, 0.4 and 0.9 %.
    assert gaps_s.mean() == pytest.approx(1 / 500, rel=0.03)
    logarithms = np.log(gaps_s)
    assert logarithms.std() == pytest.approx(sigma, rel=0.01)
    location = -np.log(500) - sigma**2 / 2
    assert kstest(logarithms, norm(location, sigma).cdf).pvalue > 0.01


def test_a_trace_gives_the_offsets_within_the_window(tmp_path: Path) -> None:
    (tmp_path / "peak.txt").write_text("0\n0.25\n0.25\n\n  1e0\n1.999999999\n2\n3.5\n\n")
    arrival = parse_arrival("trace: peak.txt", tmp_path)
    digest = sha256((tmp_path / "peak.txt").read_bytes()).hexdigest()
    assert arrival == Arrival("trace", file=tmp_path / "peak.txt")
    assert trace_sha256("trace: peak.txt", tmp_path) == digest
    assert trace_sha256("constant: 20/s", tmp_path) is None
    expected = [0, SECOND // 4, SECOND // 4, SECOND, 2 * SECOND - 1]
    assert schedule(arrival, 0, 2 * SECOND) == expected
    assert schedule(arrival, 1, 1) == [0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("0.1\nsoon\n0.3\n", "line 2: 'soon' is no offset; give seconds"),
        ("0.1\n\n-0.2\n", "line 3: '-0.2' is no offset"),
        ("nan\n", "line 1: 'nan' is no offset"),
        ("0\n1e299\n", "line 2: '1e299' is no offset"),
        ("0\n1\n2\ninf\n", "line 4: 'inf' is no offset"),
        ("0.1, 0.2\n", "line 1: '0.1, 0.2' is no offset"),
        ("0.1\n0.3\n0.2\n", "line 3: 0.2 comes before the line above it; sort the offsets"),
        ("", "holds no offset"),
        ("\n\n", "holds no offset"),
    ],
)
def test_bad_lines_of_a_trace_are_named_by_number(tmp_path: Path, lines: str, says: str) -> None:
    (tmp_path / "bad.txt").write_text(lines)
    with pytest.raises(BadInput, match=f"bad.txt.*{says}"):
        parse_arrival("trace: bad.txt", tmp_path)


def test_a_trace_that_has_gone_since_is_an_error_and_no_empty_schedule(tmp_path: Path) -> None:
    (tmp_path / "gone.txt").write_text("0\n")
    arrival = parse_arrival("trace: gone.txt", tmp_path)
    (tmp_path / "gone.txt").unlink()
    with pytest.raises(BadInput, match=r"gone\.txt cannot be read"):
        schedule(arrival, 0, SECOND)
