"""The options: each is read from four places, in this order, and a bad value is refused by name."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadOption
from pytest_hwqueue.options import options
from pytest_hwqueue.options.options import BY_NAME, OPTIONS, TOPICS, Option, Settings
from pytest_hwqueue.parts.schedulers.declaration import BUILT_IN
from pytest_hwqueue.parts.workloads import MAXIMUM_STREAMS
from pytest_hwqueue.plugin.reading import add_options, read_settings


def registered() -> tuple[pytest.Parser, dict[str, str]]:
    """pytest's parser with our options, and the help of each ini key."""
    parser = pytest.Parser(_ispytest=True)
    helps: dict[str, str] = {}

    def addini(name: str, help: str, **more: Any) -> None:
        assert more == {"default": None}
        helps[name] = help

    parser.addini = addini  # type: ignore[method-assign, assignment]
    add_options(parser)
    return parser, helps


PARSER, INI_HELP = registered()


class Config:
    """A pytest config made of a command line and an ini file."""

    def __init__(self, arguments: Sequence[str] = (), ini: Mapping[str, str] | None = None) -> None:
        self._options = PARSER.parse([*arguments])
        self._ini = dict(ini or {})

    def getoption(self, name: str) -> Any:
        return getattr(self._options, name)

    def getini(self, name: str) -> str | None:
        assert name in INI_HELP
        return self._ini.get(name)


def read(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    ini: Mapping[str, str] | None = None,
) -> Settings:
    return read_settings(cast(pytest.Config, Config(arguments, ini)), environment or {})


# For each option three values that differ from each other and from the default, as text and read.
VALUES: dict[str, list[tuple[str, object]]] = {
    "device": [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("all", "all")],
    "streams": [("4", (4,)), ("1,2,4", (1, 2, 4)), (" 8 , 8 ,1", (8, 1))],
    "scheduler": [
        ("stream-priority", ("stream-priority",)),
        ("native,xsched:threshold=1|2", ("native", "xsched:threshold=1", "xsched:threshold=2")),
        (
            "mps, xsched:threshold=04,level=1, preload:x",
            ("mps", "xsched:level=1,threshold=4", "preload:x"),
        ),
    ],
    "xsched-root": [("a", Path("a")), ("/b/c", Path("/b/c")), ("d e", Path("d e"))],
    "preloads": [
        ("a", (Path("a"),)),
        ("a,/b/c", (Path("a"), Path("/b/c"))),
        ("d e , f", (Path("d e"), Path("f"))),
    ],
    "weights": [("a", Path("a")), ("/b/c", Path("/b/c")), ("d e", Path("d e"))],
    "noise": [
        ("cpu", ("none", "cpu")),
        ("none,cpu,disk", ("none", "cpu", "disk")),
        ("own.yaml,cpu", ("none", "own.yaml", "cpu")),
    ],
    "noise-dir": [("a", Path("a")), ("/b/c", Path("/b/c")), ("d e", Path("d e"))],
    "dispatch": [
        ("graph", ("graph",)),
        ("eager,graph", ("eager", "graph")),
        ("graph,eager", ("graph", "eager")),
    ],
    "cache": [("cold", "cold")] * 3,
    "sync-mode": [("end_only", "end_only"), ("none", "none"), ("end_only", "end_only")],
    "size": [("tiny", "tiny"), ("small", "small"), ("full", "full")],
    "param": [
        ("mm_dim=64", (("mm_dim", "64"),)),
        ("large_gemm_only.dtype = bf16", (("large_gemm_only.dtype", "bf16"),)),
        ("name=a=b", (("name", "a=b"),)),
    ],
    "samples": [("1", 1), ("400", 400), ("99999", 99999)],
    "budget": [("90s", 90.0), ("10min", 600.0), ("1.5h", 5400.0)],
    "iterations": [("1", 1), ("400", 400), ("99999", 99999)],
    "warmup": [("0", 0), ("3", 3), ("100", 100)],
    "max-time": [("0.5", 0.5), ("2s", 2.0), ("1e3", 1000.0)],
    "priority": [("P0", ("P0",)), ("P1,P2", ("P1", "P2")), ("P3,P0", ("P3", "P0"))],
    "workload": [("a", ("a",)), ("a,b", ("a", "b")), ("b,a,b", ("b", "a"))],
    "seed": [("1", 1), ("7", 7), ("123456789", 123456789)],
    "timeout": [("1", 1.0), ("10s", 10.0), ("0.25", 0.25)],
    "lease-timeout": [("1", 1.0), ("10s", 10.0), ("0.25", 0.25)],
    "isolation": [("none", "none"), ("none", "none"), ("none", "none")],
    "dir": [("a", Path("a")), ("/b/c", Path("/b/c")), ("d e", Path("d e"))],
    "commit": [(f"{'0' * 40}{end}", f"{'0' * 40}{end}") for end in ("", "-dirty", "0" * 24)],
    "json": [("a.json", Path("a.json")), ("/b", Path("/b")), ("c", Path("c"))],
    "profile": [("yes", True), ("1", True), ("on", True)],
    "scaling": [("yes", True), ("1", True), ("on", True)],
    "profile-dir": [("a", Path("a")), ("/b/c", Path("/b/c")), ("d e", Path("d e"))],
    "causes": [("always", "always"), ("never", "never"), ("always", "always")],
    "runs": [("1", 1), ("2", 2), ("10", 10)],
    "ranks": [("1", 1), ("2", 2), ("8", 8)],
    "save-records": [("yes", True), ("1", True), ("on", True)],
    "save": [("main", "main"), ("a-b", "a-b"), ("v1.0", "v1.0")],
    "compare": [("main", "main"), ("nvidia-h200/main", "nvidia-h200/main"), ("a.json", "a.json")],
    "baselines": [("a", Path("a")), ("/b/c", Path("/b/c")), ("d e", Path("d e"))],
    "against": [("main", "main"), ("HEAD~1", "HEAD~1"), ("v1.0", "v1.0")],
    "setup": [("pip install .", "pip install ."), ("true", "true"), ("make -C x", "make -C x")],
    "pairs": [("3", 3), ("5", 5), ("20", 20)],
    "fail-on": [("p95", ("p95",)), ("p99,p95", ("p99", "p95")), ("small.p99", ("small.p99",))],
    "rate": [("2%", 0.02), ("0.05", 0.05), ("0.1 %", 0.001)],
    "min-effect": [("2%", 0.02), ("auto", None), ("150%", 1.5)],
    "detect": [("5%", 0.05), ("0.3", 0.3), ("100%", 1.0)],
    "tau": [("0", 0.0), ("1%", 0.01), ("0.02", 0.02)],
    "sentinel": [("a[cpu]", "a[cpu]"), ("b", "b"), ("c", "c")],
    "allow-env": [("yes", True), ("1", True), ("on", True)],
    "until": [("decided", "decided"), ("end", "end"), ("decided", "decided")],
    "lean": [("yes", True), ("1", True), ("on", True)],
    "on": [
        (
            "missing:fail,inconclusive:pass",
            {"incomparable": "fail", "missing": "fail", "inconclusive": "pass"},
        ),
        (
            "missing : pass,inconclusive:fail,",
            {"incomparable": "fail", "missing": "pass", "inconclusive": "fail"},
        ),
        ("missing:fail,missing:warn", {"incomparable": "fail", "missing": "warn"}),
    ],
    "markdown": [("a.md", Path("a.md")), ("/b", Path("/b")), ("c", Path("c"))],
    "report": [("a.html", Path("a.html")), ("/b", Path("/b")), ("c", Path("c"))],
    "sim-noise": [(value, value) for value in ("run=0.1", "jitter=0.2,seed=3", "session=0.1")],
    "fault": [
        ("slower:10", ("slower:10",)),
        ("slower:0.5 slower:1e5", ("slower:0.5", "slower:100000")),
        (" slower:20.0 ", ("slower:20",)),
    ],
}
BAD: dict[str, list[tuple[str, str]]] = {
    "device": [
        (value, "choose from auto, cpu, cuda, cuda:N, cuda:MIG-UUID, hip, hip:N, all")
        for value in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CUDA", "xpu:0")
    ],
    "streams": [
        (value, f"from 1 to {MAXIMUM_STREAMS}")
        for value in ("0", "-1", "1025", "1.5", "many", ",", "1;2", "1,0", "²")
    ],
    "scheduler": [(value, "native, stream-priority") for value in ("fifo", "native,fifo", ",")]
    + [
        ("xsched:level=4", "a whole number from 1 to 3"),
        ("native,xsched:treshold=1", "no parameter 'treshold'"),
        ("native,level=1", "without its mode"),
        ("preload:", "the name of a description"),
    ],
    "xsched-root": [],
    "preloads": [],
    "weights": [],
    "noise": [(",", "give one or more")],
    "noise-dir": [],
    "dispatch": [(value, "eager, graph") for value in ("Eager", "graph,lazy", ",")],
    "cache": [(value, "hot, cold") for value in ("Cold", "warm", "x,y")],
    "sync-mode": [(value, "per_iteration, end_only, none") for value in ("None", "end", "x,y")],
    "size": [(value, "auto, tiny, small, full") for value in ("huge", "Tiny", "tiny,full")],
    "param": [(value, "NAME=VALUE") for value in ("mm_dim", "=5", " = 5")],
    "samples": [(value, "at least 1") for value in ("0", "-5", "1.5", "ten")],
    "budget": [
        (value, "such as 90s, 10min or 1h")
        for value in ("10", "0s", "-1s", "1d", "min", "1e3s", "nan s", "1h30min", "٣s")
    ],
    "iterations": [(value, "at least 1") for value in ("0", "-5", "1.5", "ten", "1e3")],
    "warmup": [(value, "at least 0") for value in ("-1", "x", "0.5")],
    "max-time": [
        (value, "greater than 0")
        for value in ("0", "-1", "inf", "nan", "1e999", "20ms", "s", "1 2", "-0")
    ],
    "priority": [(value, "P0, P1, P2, P3") for value in ("P4", "p0", "P0,P9", ",")],
    "workload": [],
    "seed": [(value, "at least 0") for value in ("-1", "x", "1.0")],
    "timeout": [(value, "greater than 0") for value in ("0", "nan", "soon")],
    "lease-timeout": [
        (value, "greater than 0") for value in ("0", "inf", "later", "1_0", str(2**64))
    ],
    "isolation": [(value, "process, none") for value in ("thread", "Process")],
    "dir": [],
    "json": [],
    "commit": [(value, "give the full hash") for value in ("abc", "HEAD", "F" * 40, "0" * 41)],
    "runs": [(value, "at least 1") for value in ("0", "-1", "many", "1.5")],
    "ranks": [(value, "at least 1") for value in ("0", "-1", "many", "1.5")],
    "save-records": [(value, "yes or no") for value in ("maybe", "2")],
    "save": [(value, "name") for value in ("../x", "a/b", ".hidden", "x" * 65, "a b")],
    "compare": [],
    "baselines": [],
    "against": [],
    "setup": [],
    "pairs": [(value, "at least 3") for value in ("2", "0", "many")],
    "fail-on": [(",", "one or more")],
    "rate": [(value, "below 50%") for value in ("0", "-1%", "50%", "nan", "much")],
    "min-effect": [(value, "above 0") for value in ("0", "-1%", "1000%", "x%")],
    "detect": [(value, "above 0") for value in ("0", "-1%", "1000%", "x%")],
    "tau": [(value, "above 0") for value in ("-1%", "100%", "x%")],
    "sentinel": [],
    "allow-env": [(value, "yes or no") for value in ("maybe", "2")],
    "until": [("never", "decided, figures, end")],
    "lean": [(value, "yes or no") for value in ("maybe", "2")],
    "on": [
        ("missing:cry", "give VERDICT:REACTION"),
        ("missing:warm", "did you mean warn? give VERDICT:REACTION"),
        (
            "mising:fail",
            "did you mean missing? give VERDICT:REACTION, a verdict of inconclusive, no-baseline, "
            "incomparable, missing, and pass, warn or fail",
        ),
        *((value, "give VERDICT:REACTION") for value in ("fail", "missing", ":fail", "pass:fail")),
    ],
    "markdown": [],
    "report": [],
    "sim-noise": [
        ("run", "give a number"),
        ("rum=1", "session, run, jitter or seed"),
        ("run=1", "below 1"),
        ("run=nan", "give a number"),
        ("run=0.1,run=0.2", "run is given twice"),
        ("drift=0.1", "there is no noise 'drift'; give session, run, jitter or seed"),
        ("run=0.1_0", "give a number"),
        ("seed=-1", "whole number of at least 0"),
        ("seed=x", "give a number"),
    ],
    "fault": [
        ("slower-tail:50", "there is one fault, slower:PERCENT"),
        ("crash:3 slower:1", "there is one fault, slower:PERCENT"),
        *(
            (f"slower{value}", "a number from 0.1 to 100000")
            for value in ("", ":", ":x", ":nan", ":-1", ":1_0", ":1:2")
        ),
    ],
    "profile": [(value, "yes or no") for value in ("maybe", "2", "yes please")],
    "scaling": [(value, "yes or no") for value in ("maybe", "2", "yes please")],
    "profile-dir": [],
    "causes": [(value, "failing, always, never") for value in ("Always", "yes", "p99")],
}


def on_command_line(option: Option[Any], text: str) -> list[str]:
    return [option.command_line] if option.flag else [f"{option.command_line}={text}"]


def test_every_option_is_tested() -> None:
    assert VALUES.keys() == BAD.keys() == BY_NAME.keys()
    assert len(BY_NAME) == len(OPTIONS)


@pytest.mark.parametrize("name", BY_NAME)
def test_names_derive_from_one_another(name: str) -> None:
    option = BY_NAME[name]
    assert option.command_line == f"--hwq-{name}"
    assert option.key == f"hwq_{option.field}"
    assert option.variable == f"HWQ_{option.field.upper()}"
    assert "-" not in option.field


@pytest.mark.parametrize("name", BY_NAME)
def test_each_place_is_read_in_its_order(name: str) -> None:
    option = BY_NAME[name]
    (first, read_first), (second, read_second), (third, read_third) = VALUES[name]
    arguments = on_command_line(option, first)
    environment, ini = {option.variable: second}, {option.key: third}

    def value(found: Settings) -> object:
        return getattr(found, option.field)

    assert value(read(*arguments, environment=environment, ini=ini)) == read_first
    assert value(read(environment=environment, ini=ini)) == read_second
    assert value(read(ini=ini)) == read_third
    default = value(read())
    assert default == option.parse("", option.default)
    assert default not in (read_first, read_second, read_third)


@pytest.mark.parametrize("place", ["command line", "environment", "ini"])
def test_one_option_does_not_touch_another(place: str) -> None:
    plain = read().as_dict()
    for option in OPTIONS:
        text = VALUES[option.name][0][0]
        if place == "command line":
            found = read(*on_command_line(option, text))
        elif place == "environment":
            found = read(environment={option.variable: text})
        else:
            found = read(ini={option.key: text})
        changed = {key for key, value in found.as_dict().items() if value != plain[key]}
        assert changed == {option.field}


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [(name, value, valid) for name, rows in BAD.items() for value, valid in rows],
)
def test_bad_value_is_refused_with_its_place_and_the_choices(
    name: str, value: str, valid: str
) -> None:
    option = BY_NAME[name]
    places: list[tuple[str, dict[str, Any]]] = [
        (f"environment variable {option.variable}", {"environment": {option.variable: value}}),
        (f"ini key {option.key}", {"ini": {option.key: value}}),
    ]
    for source, given_there in places:
        with pytest.raises(BadOption) as refused:
            read(**given_there)
        assert refused.value.option == source
        assert refused.value.value in value
        text = str(refused.value)
        assert text.startswith(f"{source}: {refused.value.value!r} is not valid; ")
        assert valid in text
    if not option.flag:
        with pytest.raises(BadOption) as refused:
            read(f"{option.command_line}={value}")
        assert refused.value.option == option.command_line
        assert valid in refused.value.valid


@pytest.mark.parametrize("option", [each for each in OPTIONS if not each.flag])
@pytest.mark.parametrize("digits", [5_000, 15_000])
def test_a_number_of_any_length_is_taken_or_refused_in_few_words(
    option: Option[Any], digits: int
) -> None:
    said = ""
    try:
        read(f"{option.command_line}={'1' * digits}")
    except BadOption as refused:
        said = str(refused)
    assert len(said) < 2_000
    assert not said or f"({digits - 120} more characters)" in said


def test_bad_value_that_is_overridden_is_not_read() -> None:
    found = read("--hwq-seed=3", environment={"HWQ_SEED": "x"}, ini={"hwq_seed": "y"})
    assert found.seed == 3


def test_part_of_a_list_is_refused_by_itself() -> None:
    with pytest.raises(BadOption) as refused:
        read("--hwq-streams=1,2,zwei")
    assert refused.value.value == "zwei"


def test_empty_value_means_the_default_wherever_it_stands() -> None:
    for option in OPTIONS:
        if option.repeatable or option.flag:
            continue
        other = VALUES[option.name][0][0]
        default = getattr(read(), option.field)
        assert getattr(read(f"{option.command_line}="), option.field) == default
        emptied = read(environment={option.variable: ""}, ini={option.key: other})
        assert getattr(emptied, option.field) == default
        assert getattr(read(ini={option.key: ""}), option.field) == default


def test_parameters_add_up_in_their_order() -> None:
    given_twice = read("--hwq-param=a=1", "--hwq-param", "b = 2", "--hwq-param=a=3")
    assert given_twice.param == (("a", "1"), ("b", "2"), ("a", "3"))
    assert read(environment={"HWQ_PARAM": "a=1\n\nb=2\n"}).param == (("a", "1"), ("b", "2"))
    assert read(ini={"hwq_param": "\na=1\n  b=2"}).param == (("a", "1"), ("b", "2"))


def test_flag_needs_no_value_and_can_be_switched_off_elsewhere() -> None:
    assert read("--hwq-profile").profile is True
    for text in ("0", "No", "false", "OFF", ""):
        assert read(environment={"HWQ_PROFILE": text}, ini={"hwq_profile": "yes"}).profile is False


def test_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWQ_SEED", "5")
    assert read_settings(cast(pytest.Config, Config())).seed == 5


def test_defaults_are_valid_and_settings_do_not_change() -> None:
    found = read()
    assert found.streams is None
    assert (found.scheduler, found.dispatch, found.iterations) == (("native",), ("auto",), None)
    with pytest.raises(AttributeError, match="'seed' was read and stays"):
        found.seed = 1  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        found.sed = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BY_NAME)
def test_help_documents_the_option_and_its_default(name: str) -> None:
    option = BY_NAME[name]
    assert len(option.help) > 20
    assert option.help_with_default.endswith(f"(default: {option.default or 'none'})")
    assert INI_HELP[option.key] == option.line
    assert option.metavar or option.flag
    assert option.topic in TOPICS
    # argparse begins texts in column 24 of 80.
    assert 15 < len(option.line) <= len(f"{option.line} [{option.default}]") <= 56


def test_help_of_pytest_grows_by_little(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pytester.makeini("[pytest]\naddopts = --strict-config\nhwq_seed = 5\n")
    ours = pytester.runpytest_subprocess("--help")
    assert ours.ret == 0
    ours.stdout.fnmatch_lines(["hardware queues*`hwq help`*", "  --hwq-device=DEVICE *"])
    for rare in ("*--hwq-fault*", "*--hwq-sim-noise*"):
        ours.stdout.no_fnmatch_line(rare)
    ours.stdout.fnmatch_lines(["  hwq_seed (string): *"])
    without = pytester.runpytest_subprocess("--help", "-p", "no:hwqueue")
    # A key has one line, or two where its name is long.
    assert 10 < len(ours.outlines) - len(without.outlines) <= 60 + 2 * len(OPTIONS)


def test_help_names_every_choice() -> None:
    choices = {
        "scheduler": [each.name for each in BUILT_IN],
        "dispatch": (*options.DISPATCHES, "auto"),
        "sync-mode": options.SYNC_MODES,
        "size": options.SIZES,
        "isolation": options.ISOLATIONS,
    }
    for name, named in choices.items():
        assert all(choice in BY_NAME[name].help for choice in named), name


def test_help_can_be_printed() -> None:
    """argparse expands % in help texts, and fails on one that is not doubled."""
    parser = argparse.ArgumentParser()
    for option in OPTIONS:
        parser.add_argument(option.command_line, help=option.help_with_default.replace("%", "%%"))
    text = " ".join(parser.format_help().split())
    assert "1000 suffice" in text
    # Those of the lines that `pytest --help` prints.
    assert "[20%]" in PARSER.optparser.format_help()


NUMERIC_TEXT = st.one_of(
    st.integers(-(10**6), 10**6).map(str), st.floats().map(str), st.text(max_size=6)
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(OPTIONS), NUMERIC_TEXT)
def test_any_text_is_read_or_refused_by_name(option: Option[Any], text: str) -> None:
    refused: BadOption | None = None
    try:
        option.parse(option.command_line, text)
    except BadOption as error:
        refused = error
    if refused is not None:
        assert refused.option == option.command_line
        assert refused.value in text
        assert refused.valid in str(refused)


@settings(deadline=None)
@given(st.lists(st.integers(1, MAXIMUM_STREAMS), min_size=1, max_size=8))
def test_counts_of_streams_are_read_once_each_in_order(counts: list[int]) -> None:
    text = ", ".join(map(str, counts))
    assert BY_NAME["streams"].parse("", text) == tuple(dict.fromkeys(counts))


@settings(deadline=None)
@given(st.floats(min_value=1e-9, max_value=3e7))
def test_seconds_are_read_exactly_with_and_without_their_unit(seconds: float) -> None:
    for name in ("max-time", "timeout", "lease-timeout"):
        assert BY_NAME[name].parse("", repr(seconds)) == seconds
        assert BY_NAME[name].parse("", f"{seconds!r}s") == seconds


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(categories=["Ll", "Nd"], include_characters="._"), min_size=1),
            st.text(st.characters(categories=["L", "N", "P", "S"])),
        ),
        max_size=4,
    )
)
def test_parameters_keep_their_values(pairs: list[tuple[str, str]]) -> None:
    text = "\n".join(f"{name}={value}" for name, value in pairs)
    assert BY_NAME["param"].parse("", text) == tuple(pairs)


@settings(deadline=None)
@given(st.lists(st.sampled_from(options.PRIORITIES), min_size=1, max_size=6))
def test_lists_are_read_once_each_in_order(parts: list[str]) -> None:
    assert BY_NAME["priority"].parse("", ",".join(parts)) == tuple(dict.fromkeys(parts))


def test_count_of_absurd_length_is_refused_as_any_other() -> None:
    with pytest.raises(BadOption) as refused:
        read("--hwq-streams=" + "9" * 5000)
    assert refused.value.option == "--hwq-streams"


TYPED = """
[{table}]
hwq_max_time = 5.5
hwq_streams = [1, 2]
hwq_device = "cpu"
hwq_param = ["dim=8", "depth=2"]
hwq_lean = true
hwq_profile = false
hwq_scheduler = false
"""


@pytest.mark.parametrize(
    ("file", "table"), [("pyproject.toml", "tool.pytest"), ("pytest.toml", "pytest")]
)
def test_typed_configuration_is_read_as_the_ini_file_is(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, file: str, table: str
) -> None:
    if pytest.version_tuple < (9,):
        pytest.skip("pytest before 9 has no typed configuration")
    for variable in [name for name in os.environ if name.startswith("HWQ_")]:
        monkeypatch.delenv(variable)
    path = pytester.path / file
    path.write_text(TYPED.format(table=table))
    found = read_settings(pytester.parseconfig(), {})
    assert (found.max_time, found.streams, found.device) == (5.5, (1, 2), "cpu")
    assert (found.param, found.lean, found.profile) == ((("dim", "8"), ("depth", "2")), True, False)
    assert found.scheduler == ("native",)
    overridden = read_settings(pytester.parseconfig("-o", "hwq_streams=4"), {})
    assert overridden.streams == (4,)
    for value, told in (
        ("true", "'True' is not valid; give text, a number, or a list"),
        ("[[1]]", "'[[1]]' is not valid; give text"),
        ("0", "ini key hwq_streams: '0' is not valid; give"),
    ):
        path.write_text(f"[{table}]\nhwq_streams = {value}\n")
        with pytest.raises((BadOption, pytest.UsageError), match=re.escape(told)):
            read_settings(pytester.parseconfig(), {})


def test_texts_name_options_that_there_are() -> None:
    """`hwq` spells them its own way wherever it shows a text: a wrong name would be wrong twice."""
    named = re.compile(r"--hwq-([a-z]+(?:-[a-z]+)*)")
    found = set()
    for path in sorted(Path(options.__file__).parents[1].rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            found |= {(path.name, each) for each in named.findall(line)}
    assert len(found) > 100
    # An example's name, and the common beginning of what says how verdicts end.
    assert {each for each in found if each[1] not in {*BY_NAME, "x", "on"}} == set()
