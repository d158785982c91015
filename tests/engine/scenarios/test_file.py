"""Scenario files: those of the suite, everything that can be wrong, and any text at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import pytest_hwqueue
from pytest_hwqueue.data.errors import BadScenario, printable
from pytest_hwqueue.engine.scenarios.file import (
    Scenario,
    json_schema,
    parse_scenario,
    read_scenario,
)
from pytest_hwqueue.engine.scenarios.planned_runs import (
    SessionPlan,
    cases,
    colocation,
    late_start,
    native_run,
    own_run,
    peak_runs,
    planned_windows,
    solo_run,
)
from pytest_hwqueue.engine.tenants.arrivals import at_peak, is_closed, parse_arrival, share_of_peak

ROOT = Path(__file__).parents[3]
BUILT_IN = sorted((ROOT / "benchmarks" / "scenarios").glob("*.hwq.yaml"))
OWN_SERVERS = sorted((ROOT / "examples" / "servers").glob("*.hwq.yaml"))
SCHEMA = Path(pytest_hwqueue.__file__).parent / "schemas" / "scenario.schema.json"
PUBLISHED: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
MINIMAL = """\
name: mine
duration: 3m
tenants:
  - {name: high, model: resnet18, arrival: "constant: 20/s", priority: 1}
  - name: low
    workload: hetero_kernels
"""
SERVER = "name: mine\nduration: 3s\ntenants:\n  - {name: other, model: resnet18}\n"
ABOVE = {"whole": "", "minimal": MINIMAL, "server": SERVER}
BOTH = "schedulers: {processes: [native], threads: [native]}\n"
_, *REFUSED = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8").split("\n=== ")


def read(text: str, folder: Path = Path()) -> Scenario:
    return parse_scenario(text, folder / "mine.hwq.yaml")


def problems(text: str) -> list[str]:
    """What is said of a text, without the file's name; nothing if it is read."""
    refused = None
    try:
        read(text)
    except BadScenario as error:
        refused = error
    if refused is None:
        return []
    assert all(each.line >= 1 and each.reason for each in refused.problems)
    lines = str(refused).splitlines()
    assert lines
    assert all(line == printable(line) and line.startswith("mine.hwq.yaml:") for line in lines)
    return [line.removeprefix("mine.hwq.yaml:") for line in lines]


@pytest.mark.parametrize("block", REFUSED, ids=range(len(REFUSED)))
def test_all_that_is_wrong_is_said_in_the_order_of_its_lines(block: str) -> None:
    above, *lines = block.rstrip("\n").split("\n")
    said = [line.removeprefix("! ") for line in lines if line.startswith("! ")]
    found = problems(ABOVE[above] + "\n".join(lines[: -len(said)]) + "\n")
    begun = [
        line[: len(start) - 1] + "…" if start.endswith("…") else line
        for start, line in zip(said, found, strict=False)
    ]
    assert begun + found[len(said) :] == said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: \x00", "1: not YAML: unacceptable character #x0000"),
        ("[" * 10_000, "1: nested too deeply"),
        (MINIMAL + '"a\\e[31mb": 1\n', r"7: a\x1b[31mb: unknown field"),
        (MINIMAL + "".join(f"extra{n}: 1\n" for n in range(60)), " 10 more problems"),
        # What names itself many times costs no memory.
        ("a0: &a0 [x, x]\n" + "\n".join(
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)),
         "a1[0]: aliases (*name) are not supported"),
        *((f"{MINIMAL}{added}\n", "more characters)") for long in ["x" * 3000] for added in (
            f"schedulers: [{long}]", f"a: !{long} 1", f"goals: ['{long}']",
            f"goals: ['{long}.p99 < 8 ms']", f"warmup: {'9' * 3000}", f"noise: [{long}]",
            f"ci_duration: {'9' * 5000}s", f"variants: [{{name: a, only: [{long}]}}]")),
    ],
)  # fmt: skip
def test_whatever_is_wrong_the_message_is_short_and_plain(text: str, says: str) -> None:
    found = problems(text)
    assert any(says in line for line in found), found
    assert len(found) <= 51
    assert all(len(line) < 1000 for line in found)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    latin = tmp_path / "latin.hwq.yaml"
    latin.write_bytes(b"name: \xff")
    for path, says in (
        (tmp_path / "none.hwq.yaml", r"none\.hwq\.yaml:1: cannot be read: No such file"),
        (latin, "is not UTF-8 text"), (Path("a\x1b[2J.hwq.yaml"), r"^a\\x1b\[2J\.hwq\.yaml:1: "),
    ):  # fmt: skip
        with pytest.raises(BadScenario, match=says):
            read_scenario(path)


def test_published_schema_is_that_of_the_code() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    if json_schema() != PUBLISHED:
        code = (
            "from pytest_hwqueue.engine.scenarios.file import json_schema as s; import json; print("
        )
        pytest.fail(f"if it is meant: python -c '{code}json.dumps(s(), indent=2, "
                    f"ensure_ascii=False))' > {SCHEMA}", pytrace=False)  # fmt: skip


def test_scenarios_of_the_suite_the_examples_and_the_pages_are_valid() -> None:
    assert {path.name.removesuffix(".hwq.yaml") for path in BUILT_IN} >= {
        "solo", "standard_load", "high_load", "batch_sweep", "bert_multi_priority", "bert_study",
        "fixed_priority", "partition",
    }  # fmt: skip
    for path in BUILT_IN:
        scenario = read_scenario(path)
        assert scenario.name == path.name.removesuffix(".hwq.yaml")
        assert scenario.ci_duration is not None
        assert scenario.duration_s("full") == scenario.duration >= 60
        assert scenario.duration_s("tiny") == scenario.duration_s("small") <= 5
        Draft202012Validator(PUBLISHED).validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert OWN_SERVERS
    assert all(read_scenario(path).tenants[0].server is not None for path in OWN_SERVERS)
    for page, name in (("scenarios.md", "high_load"), ("servers.md", "own_server")):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert read(text.split("```yaml\n")[1].split("```")[0]).name == name


def test_what_is_left_out_has_its_default() -> None:
    scenario = read(MINIMAL)
    assert (scenario.duration, scenario.duration_s("tiny")) == (180, 5)
    assert scenario.warmup == 1
    assert read(MINIMAL + "\nwarmup: 2s\n").warmup == 2
    assert read(MINIMAL.replace("3m", "500ms")).duration_s("tiny") == 0.5
    assert (scenario.schedulers, scenario.placement, scenario.noise) == (("native",), None, ())
    assert own_run(cases(scenario)[0]).noise is None
    high, low = scenario.tenants
    assert (high.arrival, high.priority, high.streams) == ("constant: 20/s", 1, 1)
    assert (low.arrival, low.priority, low.batch, low.share) == ("closed", 0, None, None)


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    scenario = read(
        MINIMAL
        + """\
variants:
  - {name: as_it_is}
  - {name: slow, set: {high: {arrival: "poisson: 1/s"}, low: {streams: 4}}}
  - {name: alone, only: [high], set: {high: {batch: 8}}}
"""
    )
    as_it_is, slow, alone = scenario.variants
    assert scenario.tenants_of(None) == scenario.tenants_of(as_it_is)
    high, low = scenario.tenants_of(slow)
    assert (high.arrival, high.priority, low.streams) == ("poisson: 1/s", 1, 4)
    (high,) = scenario.tenants_of(alone)
    assert (high.batch, high.arrival) == (8, "constant: 20/s")


def test_a_tenant_starts_later_than_others_and_alone_with_the_window() -> None:
    low = "workload: hetero_kernels\n    start: 1500ms\n"
    scenario = read(MINIMAL.replace("workload: hetero_kernels\n", low))
    case = cases(scenario)[0]
    high, low_tenant = case.tenants
    assert (high.start_s, low_tenant.start_s) == (0.0, 1.5)
    plans = [
        colocation(run, SessionPlan("cpu", "tiny", Path()), 3.0)
        for run in (own_run(case), solo_run(case, low_tenant))
    ]
    assert [tenant.start_s for plan in plans for tenant in plan.tenants] == [0.0, 1.5, 0.0]
    # Compared runs share it.
    assert native_run(case).key == own_run(case).key
    assert late_start(case, 2.0) is None
    assert plans[0].tenants[1].requests is None
    assert late_start(case, 1.5) == (
        "tenant low starts 1.5 s after the window begins, and the window is 1.5 s long: give a "
        "longer duration, or an earlier start"
    )


VARIED = """\
variants:
  - {name: plain}
  - {name: late, set: {low: {start: 2s}}}
  - {name: compared, goals: [high.p50 <= 2 x late]}
"""


def test_a_variant_that_goals_compare_with_is_checked_for_late_starts() -> None:
    plain, _, compared = [
        next(case for case in cases(read(MINIMAL + VARIED)) if case.id.startswith(name))
        for name in ("plain", "late", "compared")
    ]
    assert late_start(plain, 1.0) is None
    assert late_start(compared, 2.5) is None
    assert str(late_start(compared, 2.0)).startswith(
        f"its goals need {compared.scenario.name}.late: tenant low starts 2 s after the window"
    )


def test_in_a_variant_of_some_tenants_the_first_of_them_begins_with_the_window() -> None:
    low = "workload: hetero_kernels\n    start: 1s\n"
    more = "  - {name: third, workload: hetero_kernels, start: 1500ms}\n"
    text = (
        MINIMAL.replace("workload: hetero_kernels\n", low + more)
        + """\
variants:
  - {name: all}
  - {name: alone, only: [low]}
  - {name: both, only: [low, third]}
  - {name: with_high, only: [high, third]}
"""
    )
    starts = {
        case.variant.name: [tenant.start_s for tenant in case.tenants]
        for case in cases(read(text))
        if case.variant
    }
    assert starts == {
        "all": [0.0, 1.0, 1.5], "alone": [0.0], "both": [0.0, 0.5], "with_high": [0.0, 1.5],
    }  # fmt: skip


def test_requests_are_counted_in_every_run_but_that_of_a_peak() -> None:
    text = MINIMAL.replace('"constant: 20/s"', '"constant: 20% of peak", requests: 20')
    text = text.replace("hetero_kernels\n", "hetero_kernels\n    arrival: 'closed: delay=1s'\n")
    case = cases(read(text))[0]
    high, low = case.tenants
    assert (high.requests, low.requests, is_closed(low.arrival)) == (20, None, True)
    (peak,) = peak_runs(own_run(case)).values()
    runs = [own_run(case), solo_run(case, high), peak]
    assert [[tenant.requests for tenant in run.tenants] for run in runs] == [
        [20, None], [20], [None],
    ]  # fmt: skip
    # Nobody knows how long such a window is.
    assert planned_windows([case]) == []


def test_each_test_has_the_goals_of_all_of_its_placement_and_of_its_variant() -> None:
    scenario = read(
        MINIMAL
        + BOTH
        + """\
goals:
  all: [high.p99 < 10 ms]
  threads: [high.p50 < 3 ms]
variants:
  - {name: as_it_is}
  - {name: listed, goals: [low.p50 < 1 s]}
  - {name: placed, goals: {processes: [low.p50 < 2 s], all: [low.p95 < 4 s]}}
"""
    )
    assert {each.id: [str(goal) for goal in own_run(each).goals]
            for each in cases(scenario)} == {
        "as_it_is-native": ["high.p99 < 10 ms"],
        "as_it_is-threads-native": ["high.p99 < 10 ms", "high.p50 < 3 ms"],
        "listed-native": ["high.p99 < 10 ms", "low.p50 < 1 s"],
        "listed-threads-native": ["high.p99 < 10 ms", "high.p50 < 3 ms", "low.p50 < 1 s"],
        "placed-native": ["high.p99 < 10 ms", "low.p50 < 2 s", "low.p95 < 4 s"],
        "placed-threads-native": ["high.p99 < 10 ms", "high.p50 < 3 ms", "low.p95 < 4 s"],
    }  # fmt: skip
    # Without variants, and where a placement lacks what another one gives or asks.
    alone = MINIMAL + BOTH + "goals: {threads: [low.p50 < 1 s]}\nvariants:\n  - {name: both}\n"
    assert read(alone + "  - {name: alone, only: [high], schedulers: {processes: [native]}}\n")
    bound = "goals: {all: [high.attainment >= 99%], threads: [high.p99 < 1 ms]}\n"
    assert read(MINIMAL + BOTH.replace("processes: [native], ", "") + bound).goals


@pytest.mark.parametrize(
    ("text", "at_70", "rest"),
    [
        ("poisson: 20% of peak", "poisson: 14/s", 0.2),
        ("lognormal: 50 %  of peak, sigma=1.5", "lognormal: 35/s, sigma=1.5", 0.5),
        ("constant: 3/s", "constant: 3/s", None),
    ],
)
def test_a_rate_may_be_a_share_of_the_peak(text: str, at_70: str, rest: float | None) -> None:
    arrival = read(MINIMAL.replace("constant: 20/s", text)).tenants[0].arrival
    assert (share_of_peak(arrival), at_peak(arrival, 70)) == (rest, at_70)
    parse_arrival(at_peak(arrival, 1 / 3), Path())


def test_traces_and_noises_lie_beside_their_scenario(tmp_path: Path) -> None:
    text = MINIMAL.replace("constant: 20/s", "trace: times.txt")
    with pytest.raises(BadScenario, match=r"mine\.hwq\.yaml:4: tenants\[0\]\.arrival: the trace"):
        read(text, tmp_path)
    (tmp_path / "times.txt").write_text("0.5\n1\n")
    assert read(text, tmp_path).tenants[0].arrival == "trace: times.txt"
    (tmp_path / "own.yaml").write_text("command: [sleep, '{seconds}']", encoding="utf-8")
    found = read(MINIMAL + "noise: [cpu, own.yaml]\nschedulers: [native, mps]\n", tmp_path)
    assert found.noise == (None, "cpu", "own.yaml")
    assert [case.id for case in cases(found)] == [
        "native", "native-beside-cpu", "native-beside-own",
        "mps", "mps-beside-cpu", "mps-beside-own",
    ]  # fmt: skip
    quiet, beside, *_ = cases(found)
    runs = [
        own_run(quiet),
        own_run(beside),
        solo_run(beside, beside.tenants[0]),
    ]
    assert [(run.noise, run.compares_noise) for run in runs] == [
        (None, True), ("cpu", True), ("cpu", True),
    ]  # fmt: skip
    assert not any(run.compares_noise for run in map(own_run, cases(read(MINIMAL))))
    assert len({run.key for run in runs}) == 3


def test_schedulers_are_a_list_or_a_list_for_each_placement() -> None:
    listed = read(MINIMAL + 'schedulers: [native, "xsched: threshold=1|4, level=1"]\n')
    assert listed.schedulers == (
        "native", "xsched:level=1,threshold=1", "xsched:level=1,threshold=4",
    )  # fmt: skip
    table = read(MINIMAL + "schedulers: {threads: [native, stream-priority]}\n")
    assert table.schedulers == {"threads": ("native", "stream-priority")}


@given(st.text() | st.text(alphabet="ab:-[]{}&*!'\"#|> \n0.%"))
def test_any_text_is_read_or_refused(text: str) -> None:
    problems(text)


scalars = [
    "high", "low", "native", "x y", "3s", "50%", "closed", "constant: 2/s", "resnet18",
    "high.p99 < 3 ms", "low.attainment > 1%", "xsched:level=1", "tiny_kernel_stress", "threads",
    "json:loads", "json:x", "no_such:f", "bf16",
]  # fmt: skip
fields = [
    "name", "duration", "ci_duration", "warmup", "placement", "schedulers", "tenants", "goals",
    "variants", "only", "set", "processes", "threads", "all",
]  # fmt: skip
tenant_fields = [
    "name", "model", "workload", "batch", "parameters", "arrival", "priority", "share", "streams",
    "deadline_ms", "shar", "function", "concurrency", "image_size", "dtype",
]  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(scalars),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*fields, *tenant_fields, "high", "low"]), inner,
                          max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(fields), anything), st.booleans())
def test_any_table_is_read_or_refused_and_the_schema_agrees(
    changes: dict[str, Any], start_from_good: bool
) -> None:
    data = {**(yaml.safe_load(MINIMAL) if start_from_good else {}), **changes}
    if not problems(yaml.safe_dump(data, sort_keys=False)):
        # Editors must not mark what is valid.
        assert list(Draft202012Validator(PUBLISHED).iter_errors(data)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"durations": "3s"}, {"duration": 180}, {"duration": "180"}, {"placement": "thread"},
        {"tenants": []}, {"goals": ["p99 < 3"]}, {"schedulers": {"process": ["native"]}},
        {"goals": {"thread": []}}, {"goals": {"all": ["p99 < 3"]}}, {"goals": {}},
        {"tenants": [{"name": "a", "model": "m", "batch": 0}]},
        {"variants": [{"name": "a", "set": {"high": {"bach": 1}}}]},
    ],
)  # fmt: skip
def test_editors_mark_what_is_wrong(change: dict[str, Any]) -> None:
    data = {**yaml.safe_load(MINIMAL), **change}
    assert not Draft202012Validator(PUBLISHED).is_valid(data)
