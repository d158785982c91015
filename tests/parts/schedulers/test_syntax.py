"""The texts of scheduler modes: read, written again, separated, and refused with the reason."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.parts.schedulers.declaration import (
    BUILT_IN,
    POLICIES,
    declaration,
    describe_modes,
    in_flight,
)
from pytest_hwqueue.parts.schedulers.syntax import (
    needs_environment,
    parse_scheduler,
    parse_schedulers,
)

_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_-0123456789", min_size=1, max_size=8)
_XSCHED = st.tuples(
    st.sampled_from(["", "level=1", "level=2", "level=3"]),
    st.sampled_from(["", "threshold=1", "threshold=64", "threshold=8,batch=8", "batch=16"]),
    st.sampled_from(["", *(f"policy={policy}" for policy in POLICIES)]),
    st.sampled_from(["", "auto=on", "auto=off"]),
).map(lambda given: ",".join(filter(None, given)))


def _named(value: str) -> st.SearchStrategy[str]:
    shares = st.dictionaries(_NAMES, st.integers(1, 100), max_size=3)
    return shares.map(lambda given: ",".join(f"{n}={value % given[n]}" for n in sorted(given)))


_AFTER_COLON = {
    "xsched": _XSCHED, "mps-partition": _named("%d%%"), "mps-static": _named("%d"),
    "green-context": st.tuples(
        st.sampled_from(["", "queues=apart", "queues=shared", "queues=8"]), _named("%d")
    ).map(lambda given: ",".join(filter(None, given))),
    "preload": _NAMES,
    "env": st.dictionaries(
        st.from_regex("[A-Z_][A-Z0-9_]{2,6}", fullmatch=True),
        st.sampled_from(["1", "0.25x", "a=b"]), max_size=3,
    ).map(lambda given: ",".join(f"{name}={given[name]}" for name in sorted(given))),
}  # fmt: skip
_TEXTS = st.sampled_from([each.name for each in BUILT_IN]).flatmap(
    lambda name: _AFTER_COLON.get(name, st.just("")).map(lambda rest: f"{name}:{rest}".rstrip(":"))
)


@given(st.lists(_TEXTS, min_size=1, max_size=6))
def test_modes_are_read_as_they_are_written_and_separated_by_commas(wanted: list[str]) -> None:
    assert [str(parse_scheduler(each)) for each in wanted] == wanted
    read = parse_schedulers(" ,".join(wanted))
    assert [str(each) for each in read] == list(dict.fromkeys(wanted))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("native, xsched:level=1,threshold=1 ,mps",
         ["native", "xsched:level=1,threshold=1", "mps"]),
        # Alternatives stand for their product, in order.
        ("native,xsched:threshold=9 | 8,batch=2|1,policy=UP| HPF |CFS,mps",
         ["native", *(f"xsched:threshold={threshold},batch={batch},policy={policy}"
                      for threshold, batch, policy in product("98", "21", ("UP", "HPF", "CFS"))),
          "mps"]),
        ("mps-partition:a=80%|0.5,b=10%",
         ["mps-partition:a=80%,b=10%", "mps-partition:a=50%,b=10%"]),
        ("preload:./a|b.yaml", ["preload:./a|b.yaml"]),
        ("xsched:threshold=04,level=1,policy=hpf,auto=OFF",
         ["xsched:level=1,threshold=4,policy=HPF,auto=off"]),
        ("mps-partition:low=0.8", ["mps-partition:low=80%"]),
        ("env:CUDA_MODULE_LOADING=EAGER|LAZY,A=1",
         ["env:A=1,CUDA_MODULE_LOADING=EAGER", "env:A=1,CUDA_MODULE_LOADING=LAZY"]),
        # Switches and sizes are none of a secret's values, whatever the name.
        ("env:VLLM_USE_TOKEN=1,MAX_TOKENS=4096,KEY_CACHE=off,AUTH=none",
         ["env:AUTH=none,KEY_CACHE=off,MAX_TOKENS=4096,VLLM_USE_TOKEN=1"]),
        # One mode, however it is written.
        ("env:B=1,A=2,env:A=2,B=1", ["env:A=2,B=1"]),
        ("mps-partition:b=10%,a=80%,mps-partition:a=80%,b=10%", ["mps-partition:a=80%,b=10%"]),
        # Who is first gets the first of the device's multiprocessors.
        ("green-context:b=16,a=32", ["green-context:b=16,a=32"]),
    ],
)  # fmt: skip
def test_modes_have_one_form(text: str, read: list[str]) -> None:
    assert list(map(str, parse_schedulers(text))) == read


_MANY = "mps-partition:" + ",".join(f"{name}=1%|2%" for name in "abcdefghi")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round-robin", "there is no scheduler mode 'round-robin'; there are native, "),
        ("native:level=1", "native has no parameter 'level'; it has none"),
        ("mps:", "ends after the colon"),
        ("preload", "preload needs the name"),
        ("xsched:levle=1", "xsched has no parameter 'levle'; it has level, threshold"),
        ("xsched:level", "'level' is not NAME=VALUE"),
        ("xsched:level=1,level=2", "level is given twice"),
        ("xsched:level=4", "level: '4' is not valid; give a whole number from 1 to 3"),
        ("xsched:threshold=" + 5000 * "9", "give a whole number from 1"),
        ("xsched:policy=SPUP", "policy: 'SPUP' is not valid; choose from HPF"),
        ("xsched:batch=17", "batch=17 is more than threshold=16"),
        ("mps-partition:low=0%", "mps-partition: low: '0%' is not valid; give a share"),
        ("mps-partition:low=120%", "give a share above 0"),
        ("mps-partition:low=nan", "give a share above 0"),
        ("green-context:high=0", "give a whole number from 1 to 1024"),
        *(
            (f"green-context:queues={value},high=8", "at once, 1 to 32")
            for value in ("own", "0", "33", 5000 * "9")
        ),
        ("xsched:level=1,threshold=1||2", "threshold=1||2' has an empty alternative"),
        ("xsched:level=|1,threshold=1", "threshold=1' has an empty alternative"),
        ("xsched:threshold=1|2|01", "threshold=1|2|01' stands for xsched:threshold=1 twice"),
        ("xsched:threshold=1|16,batch=1|8", "|8': xsched: batch=8 is more than threshold=1"),
        ("xsched:threshold=1|2,threshold=4", "threshold is given twice"),
        ("env:2=1", "'2' is no name of an environment variable"),
        ("env:A", "'A' is not NAME=VALUE"),
        ("env:A=\x07", "give text of one line"),
        ("env:API_KEY=abcdefgh", "API_KEY may be a secret"),
        ("env:OPENAI_KEY=abcdefgh", "OPENAI_KEY may be a secret"),
        ("env:DB_PASS=hunter2hunter2", "DB_PASS may be a secret"),
        *(
            (f"env:{name}", f"{name.partition('=')[0]} may be a secret")
            for name in (
                "MY_PW=hunter2hunter2",
                "DB_PASSWORD=1234",
                "PIN_TOKEN=493021",
                "PGPASS=summer",
                "licenseKey=4821",
                "CARD_PIN=4821",
            )
        ),
        ("env:LD_AUDIT=x.so", "LD_AUDIT is set by the mode preload:NAME: use that"),
        ("env:GPU_DEVICE_ORDINAL=1", "GPU_DEVICE_ORDINAL is set by --hwq-device: use that"),
        ("env:NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES is set by --hwq-device: use that"),
        ("env:PYTHONHOME=/x", "PYTHONHOME is set by the Python that runs pytest: use that"),
        ("env:LD_PRELOAD=x.so", "LD_PRELOAD is set by the mode preload:NAME: use that"),
        ("env:CUDA_MPS_PIPE_DIRECTORY=/tmp", "is set by the modes mps, mps-priority"),
        (_MANY, " for more than 256 "),
        (" , ", "give one or more of native"),
        ("level=1", "'level=1' is a parameter without its mode"),
        ("native,xsched,level=1", "behind a colon, such as xsched:level=1"),
    ],
)
def test_refusals_name_the_part_and_what_is_valid(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_schedulers(text)
    assert said in str(refused.value)


def test_threshold_alone_brings_its_batch() -> None:
    # XSched ends a process whose threshold is below its batch size of 8.
    given: list[dict[str, str]] = [{"threshold": "1"}, {"threshold": "4"}, {"batch": "3"}, {}]
    assert [in_flight(each) for each in given] == [(1, 1), (4, 2), (16, 3), (16, 8)]


def test_every_mode_is_declared_whole_and_described() -> None:
    assert {each.usage: each.help for each in BUILT_IN}.items() <= describe_modes().items()
    assert {each.usage for each in BUILT_IN} >= {
        "xsched[:level=1,threshold=16,batch=8,policy=HPF,auto=on]",
        "mps-partition[:TENANT=80%,...]", "mps-static[:TENANT=4,...]",
        "green-context[:queues=shared,TENANT=32,...]", "preload:NAME",
    }  # fmt: skip
    for each in BUILT_IN:
        assert declaration(each.name) is each
        for parameter in each.parameters:
            # A default that its own reader refuses could not be written out.
            assert parameter.read(parameter.default) == parameter.default
    # Without its name, preload cannot be read; whoever opens it is told.
    alone = {each.name for each in BUILT_IN if not needs_environment(each.name)}
    assert alone == {"native", "stream-priority", "green-context"}
    assert needs_environment("round-robin")


def test_reading_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pytest_hwqueue.parts.schedulers.syntax import parse_schedulers;"
        "parse_schedulers('native,xsched:level=1,mps');"
        "print({'torch', 'numpy', 'pydantic', 'yaml', 'psutil', 'http.client'} & {*sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
