"""Scenario files: those of the suite, everything that can be wrong, and any text at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import pytest_hwqueue
from pytest_hwqueue.errors import BadScenario, printable
from pytest_hwqueue.scenarios.file import Scenario, json_schema, parse_scenario, read_scenario
from pytest_hwqueue.scenarios.goals import parse_goal
from pytest_hwqueue.scenarios.located_yaml import Problem
from pytest_hwqueue.scenarios.planned_runs import cases, own_run, solo_run
from pytest_hwqueue.tenancy.arrivals import parse_arrival
from pytest_hwqueue.tenancy.spec import TenantPlacement

PACKAGE = Path(pytest_hwqueue.__file__).parent
ROOT = Path(__file__).parents[2]
PLACEMENTS: tuple[TenantPlacement, ...] = get_args(TenantPlacement)
BUILT_IN = sorted((ROOT / "benchmarks" / "scenarios").glob("*.hwq.yaml"))
PUBLISHED: dict[str, Any] = json.loads(
    (PACKAGE / "schemas" / "scenario.schema.json").read_text(encoding="utf-8")
)
UPDATE = """\
scenario.schema.json is not the schema of the code. Where the change is meant, run in the root of
the repository:
python -c 'import json; from pathlib import Path
from pytest_hwqueue.scenarios.file import json_schema
text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\\n"
Path("pytest_hwqueue/schemas/scenario.schema.json").write_text(text, encoding="utf-8")'
"""
MINIMAL = """\
name: mine
duration: 3m
tenants:
  - {name: high, model: resnet18, arrival: "constant: 20/s", priority: 1}
  - name: low
    workload: hetero_kernels
"""


def read(text: str, folder: Path = Path()) -> Scenario:
    return parse_scenario(text, folder / "mine.hwq.yaml")


def read_or_refuse(text: str) -> Scenario | tuple[Problem, ...]:
    try:
        return read(text)
    except BadScenario as error:
        said, found = str(error), error.problems
    assert printable(said) == said
    return found


def problems(text: str) -> list[str]:
    """What is said of a text, without the file's name."""
    with pytest.raises(BadScenario) as refused:
        read(text)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(refused.value.problems)
    assert all(line.startswith("mine.hwq.yaml:") for line in lines)
    return [line.removeprefix("mine.hwq.yaml:") for line in lines]


def problem(text: str) -> str:
    (found,) = problems(text)
    return found


def test_published_schema_is_that_of_the_code() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    if json_schema() != PUBLISHED:
        pytest.fail(UPDATE, pytrace=False)


def test_the_suite_has_the_scenarios_it_promises() -> None:
    assert {path.name.removesuffix(".hwq.yaml") for path in BUILT_IN} >= {
        "solo", "standard_load", "high_load", "batch_sweep", "bert_multi_priority",
        "fixed_priority", "partition",
    }  # fmt: skip


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda path: path.name)
def test_scenarios_of_the_suite_are_valid(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.name == path.name.removesuffix(".hwq.yaml")
    assert scenario.ci_duration is not None
    assert scenario.duration_s("full") == scenario.duration >= 60
    assert scenario.duration_s("tiny") == scenario.duration_s("small") <= 5
    Draft202012Validator(PUBLISHED).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_example_of_the_documentation_is_valid() -> None:
    text = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    first = text.split("```yaml\n")[1].split("```")[0]
    assert read(first).name == "high_load"


def test_what_is_left_out_has_its_default() -> None:
    scenario = read(MINIMAL)
    assert (scenario.duration, scenario.duration_s("tiny")) == (180, 5)
    assert (scenario.warmup_s("cuda"), scenario.warmup_s("sim"), scenario.warmup_s("cpu")) == (
        3, 3, 1,
    )  # fmt: skip
    assert read(MINIMAL + "\nwarmup: 2s\n").warmup_s("cpu") == 2
    assert read(MINIMAL.replace("3m", "500ms")).duration_s("tiny") == 0.5
    assert (scenario.schedulers, scenario.placement) == (("native",), None)
    high, low = scenario.tenants
    assert (high.arrival.text, high.priority, high.streams) == ("constant: 20/s", 1, 1)
    assert (low.arrival.text, low.priority, low.batch, low.share) == ("closed", 0, None, None)


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    scenario = read(
        MINIMAL
        + """\
goals: [high.p99 < 10 ms]
variants:
  - {name: as_it_is}
  - {name: slow, set: {high: {arrival: "poisson: 1/s"}, low: {streams: 4}}}
  - {name: alone, only: [high], set: {high: {batch: 8}}, goals: [high.variation < 2%]}
"""
    )
    as_it_is, slow, alone = scenario.variants
    assert scenario.tenants_of(None) == scenario.tenants_of(as_it_is) == scenario.tenants
    high, low = scenario.tenants_of(slow)
    assert (high.arrival.text, high.priority, low.streams) == ("poisson: 1/s", 1, 4)
    (high,) = scenario.tenants_of(alone)
    assert (high.batch, high.arrival.text) == (8, "constant: 20/s")
    shared = (parse_goal("high.p99 < 10 ms"),)
    for placement in PLACEMENTS:
        assert scenario.goals_of(None, placement) == scenario.goals_of(slow, placement) == shared
        of_alone = scenario.goals_of(alone, placement)
        assert of_alone == (*shared, parse_goal("high.variation < 2%"))


@pytest.mark.parametrize(
    ("text", "at_70", "rest"),
    [
        ("poisson: 20% of peak", "poisson: 14/s", 0.2),
        ("lognormal: 50 %  of peak, sigma=1.5", "lognormal: 35/s, sigma=1.5", 0.5),
        ("constant: 3/s", "constant: 3/s", None),
    ],
)
def test_a_rate_may_be_a_share_of_the_peak(text: str, at_70: str, rest: float | None) -> None:
    scenario = read(MINIMAL.replace("constant: 20/s", text))
    arrival = scenario.tenants[0].arrival
    assert arrival.of_peak == rest
    assert arrival.at(70) == at_70
    parse_arrival(arrival.at(1 / 3), Path())


def test_a_trace_lies_beside_its_scenario(tmp_path: Path) -> None:
    text = MINIMAL.replace("constant: 20/s", "trace: times.txt")
    with pytest.raises(BadScenario, match=r"mine\.hwq\.yaml:4: tenants\[0\]\.arrival: the trace"):
        read(text, tmp_path)
    (tmp_path / "times.txt").write_text("0.5\n1\n")
    assert read(text, tmp_path).tenants[0].arrival.text == "trace: times.txt"


def test_noises_are_the_quiet_and_those_named(tmp_path: Path) -> None:
    assert read(MINIMAL).noise == ()
    (tmp_path / "own.yaml").write_text("command: [sleep, '{seconds}']", encoding="utf-8")
    found = read(MINIMAL + "noise: [cpu, own.yaml]\nschedulers: [native, mps]\n", tmp_path)
    assert found.noise == ("none", "cpu", "own.yaml")
    assert [case.id for case in cases(found)] == [
        "native", "native-beside-cpu", "native-beside-own",
        "mps", "mps-beside-cpu", "mps-beside-own",
    ]  # fmt: skip
    quiet, beside, *_ = cases(found)
    (high, _) = found.tenants
    runs = [own_run(found, quiet), own_run(found, beside), solo_run(found, beside, high)]
    assert [run.noise for run in runs] == ["none", "cpu", "cpu"]
    assert len({run.key for run in runs}) == 3
    # Without noises nothing is said of any.
    plain = read(MINIMAL)
    assert own_run(plain, cases(plain)[0]).noise is None


def test_schedulers_are_a_list_or_a_list_for_each_placement() -> None:
    listed = read(MINIMAL + 'schedulers: [native, "xsched: threshold=1|4, level=1"]\n')
    assert listed.schedulers == (
        "native", "xsched:level=1,threshold=1", "xsched:level=1,threshold=4",
    )  # fmt: skip
    table = read(MINIMAL + "schedulers: {threads: [native, stream-priority]}\n")
    assert table.schedulers == {"threads": ("native", "stream-priority")}


def test_goals_are_a_list_or_a_list_for_each_placement_and_for_all() -> None:
    scenario = read(
        MINIMAL
        + """\
schedulers: {processes: [native], threads: [native]}
goals:
  all: [high.p99 < 10 ms]
  threads: [high.p50 < 3 ms]
variants:
  - {name: as_it_is}
  - {name: listed, goals: [low.p50 < 1 s]}
  - {name: placed, goals: {processes: [low.p50 < 2 s], all: [low.p95 < 4 s]}}
"""
    )
    assert {
        (variant.name, placement): [str(goal) for goal in scenario.goals_of(variant, placement)]
        for variant in scenario.variants
        for placement in PLACEMENTS
    } == {
        ("as_it_is", "processes"): ["high.p99 < 10 ms"],
        ("as_it_is", "threads"): ["high.p99 < 10 ms", "high.p50 < 3 ms"],
        ("listed", "processes"): ["high.p99 < 10 ms", "low.p50 < 1 s"],
        ("listed", "threads"): ["high.p99 < 10 ms", "high.p50 < 3 ms", "low.p50 < 1 s"],
        ("placed", "processes"): ["high.p99 < 10 ms", "low.p50 < 2 s", "low.p95 < 4 s"],
        ("placed", "threads"): ["high.p99 < 10 ms", "high.p50 < 3 ms", "low.p95 < 4 s"],
    }
    for case in cases(scenario):
        assert own_run(scenario, case).goals == scenario.goals_of(case.variant, case.placement)


def test_a_latency_bound_of_one_placement_says_nothing_of_the_other() -> None:
    both = MINIMAL + "schedulers: {processes: [native], threads: [native]}\n"
    text = both + "goals: {all: [high.attainment >= 99%], threads: [high.p99 < 1 ms]}\n"
    start = "8: goals.all[0]: attained within which latency in processes? give tenant high"
    assert problem(text).startswith(start)
    assert read(text.replace("processes: [native], ", "")).goals
    assert problem(both + "goals: {threads: [high.attainment >= 99%]}\n").startswith(
        "8: goals.threads[0]: attained within which latency? give tenant high"
    )


def test_goals_for_all_placements_hold_for_the_tenants_of_each_variant() -> None:
    text = (
        MINIMAL
        + """\
schedulers: {processes: [native], threads: [native]}
goals: {threads: [low.p50 < 1 s]}
variants:
  - {name: both}
  - {name: alone, only: [high], schedulers: {SCHEDULERS}}
"""
    )
    assert read(text.replace("SCHEDULERS", "processes: [native]"))
    found = problem(text.replace("SCHEDULERS", "threads: [native]"))
    assert found == "8: goals.threads[0]: there is no tenant 'low'; there are high in variant alone"


@pytest.mark.parametrize("duration", [f"{2**64}s", "9" * 5_000 + "s", f"{366 * 24 + 1}h"])
def test_a_window_of_more_than_a_year_is_refused(duration: str) -> None:
    found = problem(MINIMAL.replace("name: ", f"ci_duration: {duration}\nname: ", 1))
    assert "ci_duration: " in found
    assert "is no duration" in found
    assert found.endswith("of at most a year")
    assert len(found) < 400


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = """\
name: 1x
duration: 180
durations: 3
ci_duration: 5 sec
schedulers: [native, xsched:level=1,threshold=1, nativ, native]
placement: thread
tenants:
  - {name: high, model: resnet19, batch: 1.5, arrival: "constant: 20", priority: true, shar: 3}
  - {name: high, workload: hetero_kernels, batch: 3, share: 0%}
  - name: native
    arrival: "poisson: 200% of peak"
goals: [high.p98 < 3 ms, lo.p99 < 3 ms, high.attainment >= 99%]
goals: []
variants:
  - {name: a, only: [hig], set: {low: {bach: 3}, high: {batch: 0}}, schedulers: {process: []}}
  - {name: a, goals: 3}
  - 7
"""
    found = problems(text)
    starts = [
        "1: name: '1x' is no name; give letters",
        "2: duration: 180 is not text; give a duration above 0 with its unit, such as 180s",
        "3: durations: unknown field; did you mean duration? there are name, description",
        "4: ci_duration: '5 sec' is no duration",
        "5: schedulers[2]: there is no scheduler mode 'threshold=1'",
        "5: schedulers[3]: there is no scheduler mode 'nativ'",
        "5: schedulers[4]: native stands here twice",
        "6: placement: input should be 'processes' or 'threads', not 'thread'",
        "8: tenants[0].model: there is no model 'resnet19'; did you mean resnet18?",
        "8: tenants[0].batch: input should be a valid integer, not 1.5",
        "8: tenants[0].arrival: the rate in 'constant: 20' is '20'",
        "8: tenants[0].priority: input should be a valid integer, not True",
        "8: tenants[0].shar: unknown field; did you mean share?",
        "9: tenants[1].name: 'high' stands there twice",
        "9: tenants[1].batch: is a model's; a workload has parameters",
        "9: tenants[1].share: '0%' is no share",
        "10: tenants[2].name: 'native' means something else in goals",
        "10: tenants[2]: give one of model, workload, function, server",
        "11: tenants[2].arrival: '200% of peak' is no share of the peak",
        "12: goals[0]: there is no figure 'p98'; did you mean p99?",
        "12: goals[1]: there is no tenant 'lo'",
        "12: goals[2]: attained within which latency? give tenant high a deadline_ms",
        "13: goals: stands here twice; the first is on line 12",
        "15: variants[0].only[0]: there is no tenant 'hig'; did you mean high?",
        "15: variants[0].set.low.bach: unknown field; did you mean batch?",
        "15: variants[0].set.low: there is no tenant 'low'",
        "15: variants[0].set.high.batch: input should be greater than or equal to 1, not 0",
        "15: variants[0].schedulers.process: input should be 'processes' or 'threads'",
        "16: variants[1].goals: give a list, not 3",
        "16: variants[1].name: 'a' stands there twice",
        "17: variants[2]: give a table of fields, not 7",
    ]
    for start in starts:
        assert any(line.startswith(start) for line in found), (start, found)
    lines = [int(line.partition(":")[0]) for line in found]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ("placement: threads\nschedulers: {threads: [native]}", "7: placement: the placements are"),
        ("schedulers: []", "7: schedulers: give at least one"),
        (
            "schedulers: ['xsched:threshold=1|2', mps, 'xsched:threshold=2']",
            "7: schedulers[2]: xsched:threshold=2 stands here twice",
        ),
        (
            "schedulers: ['xsched:threshold=1|2', 'xsched:threshold=4|']",
            "7: schedulers[1]: 'xsched:threshold=4|' has an empty alternative",
        ),
        ("schedulers: {}", "7: schedulers: "),
        ("schedulers: native", "7: schedulers: give a list, not 'native'"),
        ("goals: [high.p99 < 1 ms, low.p50 < 2 x hig]", "7: goals[1]: there is no tenant 'hig'"),
        ("goals: [native.p99 < 1 ms]", "7: goals[0]: there is no tenant 'native'"),
        ("goals:\n  - high.p99 < 1 ms\n  - 3", "9: goals[1]: 3 is not text"),
        ("goals: {}", "7: goals: give at least one"),
        ("goals: {all: high.p99 < 1 ms}", "7: goals.all: give a list, not 'high.p99 < 1 ms'"),
        (
            "goals: {thread: [high.p99 < 1 ms]}",
            "7: goals.thread: input should be 'all', 'processes' or 'threads', not 'thread'",
        ),
        (
            "goals:\n  all: [high.p99 < 1 ms]\n  processes: [high.p98 < 1 ms, hig.p99 < 1 ms]",
            "9: goals.processes[0]: there is no figure 'p98'; did you mean p99?",
        ),
        (
            "goals:\n  processes:\n    - high.p99 < 1 ms\n    - hig.p99 < 1 ms",
            "10: goals.processes[1]: there is no tenant 'hig'; did you mean high?",
        ),
        (
            "goals: {threads: [high.p99 < 1 ms]}",
            "7: goals.threads: no test runs in threads: name schedulers for threads, or leave",
        ),
        (
            "placement: threads\ngoals: {processes: [high.p99 < 1 ms]}",
            "8: goals.processes: no test runs in processes",
        ),
        (
            "schedulers: {processes: [native], threads: [native]}\n"
            "variants:\n- name: a\n  schedulers: [native]\n  goals: {threads: [low.p50 < 1 s]}",
            "11: variants[0].goals.threads: no test runs in threads",
        ),
        ("warmup: 0s", "7: warmup: '0s' is no duration"),
        (
            "variants:\n- name: a\n  only: [low]\n  goals: [high.p50 < 1 ms]",
            "10: variants[0].goals[0]: there is no tenant 'high'; there are low in variant a",
        ),
        (
            "variants:\n- {name: a, only: [low]}\n- {name: b}\ngoals: [high.p50 < 1 ms]",
            "10: goals[0]: there is no tenant 'high'; there are low in variant a",
        ),
        (
            "variants:\n- {name: a, only: [low], set: {high: {batch: 3}}}",
            "8: variants[0].set.high: there is no tenant 'high'; there are low",
        ),
        (
            "variants:\n- {name: a, set: {low: {batch: 3}}}",
            "8: variants[0].set.low.batch: is a model's",
        ),
        (
            "variants:\n- {name: a, set: {high: {parameters: {x: 1}}}}",
            "8: variants[0].set.high.parameters.x: tenant high: resnet18 has no parameter 'x'; it "
            "has dtype (numeric format of weights, inputs and arithmetic), image_size (pixels on",
        ),
        (
            "variants:\n- {name: a, set: {low: {concurrency: 65}}}",
            "8: variants[0].set.low.concurrency: 65 requests at once are more than 64",
        ),
        ("noise: cpu", "7: noise: give a list, not 'cpu'"),
        ("noise: [cpu, cpy]", "7: noise[1]: there is no noise 'cpy'; did you mean cpu? there are"),
        ("noise: [cpu, cpu]", "7: noise[1]: cpu stands here twice"),
        ("noise: [a/x.yaml, b/x.yaml]", "7: noise[1]: its tests would be called as those of"),
        ("noise: [absent.yaml]", "7: noise[0]: absent.yaml cannot be read"),
        ("<<: {name: x}", "7: a key must be text, not '<<'"),
        ("? [x]\n: 1", "7: a key must be text, not a list or a table"),
        ("description: !!python/object:os.system x", "7: description: the tag"),
        ("description: 2001-99-99", "7: description: '2001-99-99' is not valid"),
        ("description: &a [*a]", "7: description[0]: aliases"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_it_stands(added: str, says: str) -> None:
    assert any(line.startswith(says) for line in problems(MINIMAL + added + "\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1: a scenario is a table of fields; this file is empty"),
        ("[]", "1: a scenario is a table of fields; this file is list"),
        ("a: b: c", '1: not YAML: mapping values are not allowed here; quote text that holds a'),
        ("a: 'b", "1: not YAML: while scanning a quoted scalar"),
        ("a: 1\n---\nb: 1", "2: not YAML: expected a single document"),
        ("a: \x00", "1: not YAML: unacceptable character #x0000"),
        ("[" * 10_000, "1: nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(text: str, says: str) -> None:
    assert problem(text).startswith(says)


LONG = "x" * 3000


@pytest.mark.parametrize(
    "added",
    [
        f"schedulers: *{LONG}", f"schedulers: [{LONG}]", f"a: !{LONG} 1", f"goals: ['{LONG}']",
        f"goals: ['{LONG}.p99 < 8 ms']", f"warmup: {'9' * 3000}", f"noise: [{LONG}]",
        f"variants: [{{name: a, only: [{LONG}]}}]",
    ],
)  # fmt: skip
def test_of_what_is_long_a_message_has_the_beginning(added: str) -> None:
    found = problems(f"{MINIMAL}{added}\n")
    assert all(len(line) < 1000 for line in found)
    assert any("more characters)" in line for line in found)


def test_of_many_problems_fifty_are_said() -> None:
    with pytest.raises(BadScenario) as refused:
        read(MINIMAL + "".join(f"extra{number}: 1\n" for number in range(60)))
    said = str(refused.value).splitlines()
    assert len(said) == 51
    assert said[-1] == "mine.hwq.yaml: 10 more problems"


def test_nothing_in_a_message_is_obeyed_by_a_terminal() -> None:
    assert r"a\x1b[31mb: unknown field" in problem(MINIMAL + '"a\\e[31mb": 1\n')
    with pytest.raises(BadScenario, match=r"^a\\x1b\[2J\.hwq\.yaml:1: "):
        read_scenario(Path("a\x1b[2J.hwq.yaml"))


def test_missing_fields_are_said_of_the_table_that_misses_them() -> None:
    text = (
        "name: x\nduration: 1s\ntenants:\n  - name: a\n    model: resnet18\n  - model: resnet18\n"
    )
    assert problem(text) == "6: tenants[1].name: is missing"
    assert problems("name: x") == ["1: duration: is missing", "1: tenants: is missing"]


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match=r"none\.hwq\.yaml:1: cannot be read: No such file"):
        read_scenario(tmp_path / "none.hwq.yaml")
    path = tmp_path / "latin.hwq.yaml"
    path.write_bytes(b"name: \xff")
    with pytest.raises(BadScenario, match="is not UTF-8 text"):
        read_scenario(path)


def test_what_names_itself_many_times_costs_no_memory() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    refused = read_or_refuse("\n".join(lines))
    assert isinstance(refused, tuple)
    assert any("aliases (*name) are not supported" in each.reason for each in refused)


@given(st.text() | st.text(alphabet="ab:-[]{}&*!'\"#|> \n0.%"))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert read_or_refuse(text) != ()


names = st.sampled_from(["high", "low", "native", "x y", 3])
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | names
    | st.sampled_from(["3s", "50%", "closed", "constant: 2/s", "resnet18", "high.p99 < 3 ms",
                       "low.attainment > 1%", "xsched:level=1", "tiny_kernel_stress", "threads",
                       "json:loads", "json:x", "no_such:f", "bf16"])
)  # fmt: skip
tenant_fields = st.sampled_from(
    ["name", "model", "workload", "batch", "parameters", "arrival", "priority", "share",
     "streams", "deadline_ms", "shar", "function", "concurrency", "image_size", "dtype"]
)  # fmt: skip
fields = st.sampled_from(
    ["name", "duration", "ci_duration", "warmup", "placement", "schedulers", "tenants", "goals",
     "variants", "only", "set", "processes", "threads", "all"]
)  # fmt: skip
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(fields | tenant_fields | st.sampled_from(["high", "low"]), inner,
                          max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(fields, anything), st.booleans())
def test_any_table_is_read_or_refused_and_the_schema_agrees(
    changes: dict[str, Any], start_from_good: bool
) -> None:
    data = {**(yaml.safe_load(MINIMAL) if start_from_good else {}), **changes}
    found = read_or_refuse(yaml.safe_dump(data, sort_keys=False))
    if isinstance(found, tuple):
        assert all(problem.line >= 1 and problem.reason for problem in found)
    else:
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
