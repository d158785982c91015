"""The texts of scheduler modes: read, written again, separated, and refused with the reason."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.errors import BadScheduler
from pytest_hwqueue.schedulers.declaration import (
    BUILT_IN,
    POLICIES,
    SchedulerSpec,
    declaration,
    describe_modes,
    in_flight,
)
from pytest_hwqueue.schedulers.syntax import parse_entry, parse_scheduler, parse_schedulers

_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_-0123456789", min_size=1, max_size=8)


@st.composite
def _xsched(draw: st.DrawFn) -> SchedulerSpec:
    threshold = draw(st.integers(1, 64))
    values = {
        "level": str(draw(st.integers(1, 3))),
        "threshold": str(threshold),
        "batch": str(draw(st.integers(1, threshold))),
        "policy": draw(st.sampled_from(sorted(POLICIES))),
        "auto": draw(st.sampled_from(["on", "off"])),
    }
    # A batch alone would be held against the default threshold.
    names = draw(st.sets(st.sampled_from([name for name in values if name != "batch"])))
    if "threshold" in names and draw(st.booleans()):
        names.add("batch")
    return SchedulerSpec(
        declaration("xsched"), {name: values[name] for name in values if name in names}
    )


_PARTITION = st.dictionaries(_NAMES, st.integers(1, 100), max_size=3).map(
    lambda shares: SchedulerSpec(
        declaration("mps-partition"), {name: f"{n}%" for name, n in shares.items()}
    )
)
_TEXTS = st.one_of(
    st.sampled_from([each for each in BUILT_IN if each.usage == each.name]).map(SchedulerSpec),
    _xsched(),
    _PARTITION,
    _NAMES.map(lambda name: SchedulerSpec(declaration("preload"), argument=name)),
)


@given(_TEXTS)
def test_a_mode_is_read_as_it_is_written(wanted: SchedulerSpec) -> None:
    assert parse_scheduler(str(wanted)) == wanted


@given(st.lists(_TEXTS, min_size=1, max_size=6))
def test_commas_separate_modes_and_their_parameters(wanted: list[SchedulerSpec]) -> None:
    read = parse_schedulers(",".join(map(str, wanted)))
    assert [str(each) for each in read] == list(dict.fromkeys(map(str, wanted)))


def test_the_example_of_the_help() -> None:
    read = parse_schedulers("native, xsched:level=1,threshold=1 ,mps")
    assert list(map(str, read)) == ["native", "xsched:level=1,threshold=1", "mps"]


@given(
    st.lists(st.integers(8, 64), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from(["HPF", "UP", "CFS"]), min_size=1, max_size=3, unique=True),
)
def test_alternatives_stand_for_their_product_in_order(
    thresholds: list[int], batches: list[int], policies: list[str]
) -> None:
    entry = "xsched:level=1," + ",".join(
        f"{name}={' | '.join(map(str, values))}"
        for name, values in (("threshold", thresholds), ("batch", batches), ("policy", policies))
    )
    wanted = [
        f"xsched:level=1,threshold={threshold},batch={batch},policy={policy}"
        for threshold, batch, policy in product(thresholds, batches, policies)
    ]
    assert [str(mode) for mode in parse_entry(entry)] == wanted
    read = [str(mode) for mode in parse_schedulers(f"native,{entry},mps")]
    assert read == ["native", *wanted, "mps"]


def test_a_tenant_has_alternatives_and_a_name_behind_the_colon_has_none() -> None:
    shares = parse_schedulers("mps-partition:a=80%|0.5,b=10%")
    assert list(map(str, shares)) == ["mps-partition:a=80%,b=10%", "mps-partition:a=50%,b=10%"]
    assert list(map(str, parse_schedulers("preload:./a|b.yaml"))) == ["preload:./a|b.yaml"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("xsched:level=1,threshold=1||2", " has an empty alternative"),
        ("xsched:threshold=|", " has an empty alternative"),
        ("xsched:threshold=1|2|01", " stands for xsched:threshold=1 twice"),
        ("xsched:threshold=1|16,batch=1|8", ": xsched: batch=8 is more than threshold=1"),
        ("xsched:threshold=1|x", ": xsched: threshold=x is not valid; give a whole number"),
        ("xsched:threshold=1|2,threshold=4", "threshold is given twice"),
        (
            "mps-partition:" + ",".join(f"{name}=1%|2%" for name in "abcdefghi"),
            " for more than 256 ",
        ),
    ],
)
def test_alternatives_are_refused_with_their_entry(entry: str, said: str) -> None:
    with pytest.raises(BadScheduler) as refused:
        parse_schedulers(f"native,{entry}")
    assert str(refused.value).startswith(repr(entry))
    assert said in str(refused.value)


def test_parameters_have_one_order_and_one_form() -> None:
    assert str(parse_scheduler("xsched:threshold=04,level=1,policy=hpf,auto=OFF")) == (
        "xsched:level=1,threshold=4,policy=HPF,auto=off"
    )
    assert str(parse_scheduler("mps-partition:low=0.8")) == "mps-partition:low=80%"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round-robin", "there is no scheduler mode 'round-robin'; there are native, "),
        ("", "there is no scheduler mode ''"),
        ("native:level=1", "native has no parameter 'level'; it has none"),
        ("mps:", "ends after the colon"),
        ("preload", "preload needs the name"),
        ("xsched:levle=1", "xsched has no parameter 'levle'; it has level, threshold"),
        ("xsched:level", "'level' is not NAME=VALUE"),
        ("xsched:level=", "'level=' is not NAME=VALUE"),
        ("xsched:level=1,level=2", "level is given twice"),
        ("xsched:level=4", "xsched: level=4 is not valid; give a whole number from 1 to 3"),
        ("xsched:threshold=0", "give a whole number from 1"),
        ("xsched:threshold=" + 5000 * "9", "give a whole number from 1"),
        ("xsched:policy=SPUP", "policy=SPUP is not valid; choose from HPF"),
        ("xsched:auto=yes", "choose from on, off"),
        ("xsched:threshold=1,batch=2", "batch=2 is more than threshold=1"),
        ("xsched:batch=17", "batch=17 is more than threshold=16"),
        ("mps-partition:low=0%", "mps-partition: low=0% is not valid; give a share"),
        ("mps-partition:low=120%", "give a share above 0"),
        ("mps-partition:low=nan", "give a share above 0"),
    ],
)
def test_refusals_name_the_part_and_what_is_valid(text: str, said: str) -> None:
    with pytest.raises(BadScheduler) as refused:
        parse_scheduler(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give one or more of native"),
        (" , ", "give one or more of native"),
        ("level=1", "'level=1' is a parameter without its mode"),
        ("native,xsched,level=1", "behind a colon, such as xsched:level=1"),
        ("native,level=1", "behind a colon, such as native:level=1"),
        ("native,nothing", "there is no scheduler mode 'nothing'"),
    ],
)
def test_lists_are_refused_too(text: str, said: str) -> None:
    with pytest.raises(BadScheduler) as refused:
        parse_schedulers(text)
    assert said in str(refused.value)


def test_threshold_alone_brings_its_batch() -> None:
    # XSched ends a process whose threshold is below its batch size of 8.
    assert in_flight({"threshold": "1"}) == (1, 1)
    assert in_flight({"threshold": "4"}) == (4, 2)
    assert in_flight({"batch": "3"}) == (16, 3)
    assert in_flight({}) == (16, 8)


def test_every_mode_is_described() -> None:
    assert all(describe_modes()[each.usage] == each.help for each in BUILT_IN)
    usages = [each.usage for each in BUILT_IN]
    assert "xsched[:level=1,threshold=16,batch=8,policy=HPF,auto=on]" in usages
    assert "mps-partition[:TENANT=80%,...]" in usages
    assert "green-context[:TENANT=32,...]" in usages
    assert "preload:NAME" in usages


def test_reading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_hwqueue.schedulers.syntax import parse_schedulers;"
        "parse_schedulers('native,xsched:level=1,mps');"
        "print([name for name in ('torch', 'numpy', 'pydantic', 'yaml', 'psutil',"
        "              'http.client')"
        " if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
