"""Options that cannot be followed together, and which need something that measures.

How each is read, and from where, tests/options/test_options.py says.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput
from pytest_hwqueue.options.suite import plugin_name
from pytest_hwqueue.plugin.reading import (
    check_combinations,
    check_ranked,
    is_distributed,
    is_given,
    needs_measuring,
    read_settings,
    refuse_unknown,
    wrong_usage,
)


def refused(pytester: pytest.Pytester, given: str) -> str:
    """Return why these arguments cannot be followed together; empty if they can."""
    config = pytester.parseconfig("-p", plugin_name(), *given.split())
    try:
        check_combinations(config, read_settings(config))
    except BadInput as error:
        return str(error)
    return ""


NO_XDIST = "leave out xdist's -n"
NO_DEBUGGER = "leave out --hwq-isolation=none, --pdb, --trace"


@pytest.mark.parametrize(
    ("given", "clash", "remedy"),
    [
        ("--dist=load --hwq-budget=90s", "--hwq-budget=90s", NO_XDIST),
        ("--hwq-against=HEAD --hwq-budget=90s", "--hwq-budget=90s", "leave one out"),
        ("--hwq-cache=cold --hwq-sync-mode=none", "--hwq-cache=cold", "leave out --hwq-sync-mode"),
        ("--hwq-setup=make", "--hwq-setup=make", "it sets up the sides of --hwq-against"),
        ("--hwq-save-records", "--hwq-save-records=yes", "give --hwq-save"),
        ("--dist=load --hwq-scheduler=native,mps", "--hwq-scheduler=mps", NO_XDIST),
        ("--dist=load --hwq-noise=cpu,disk", "--hwq-noise=none,cpu,disk", NO_XDIST),
        ("--dist=load --hwq-save=main", "--hwq-save=main", NO_XDIST),
        ("--dist=load --hwq-compare=main", "--hwq-compare=main", NO_XDIST),
        ("--dist=load --hwq-against=HEAD", "--hwq-against=HEAD", NO_XDIST),
        ("--dist=load --hwq-runs=2", "--hwq-runs=2", NO_XDIST),
        ("--hwq-isolation=none --hwq-scheduler=mps", "--hwq-scheduler=mps", NO_DEBUGGER),
        ("--pdb --hwq-noise=cpu", "--hwq-noise=none,cpu", NO_DEBUGGER),
        ("--pdb --hwq-save=main", "--hwq-save=main", NO_DEBUGGER),
        ("--trace --hwq-compare=main", "--hwq-compare=main", NO_DEBUGGER),
        ("--hwq-isolation=none --hwq-runs=2", "--hwq-runs=2", NO_DEBUGGER),
        ("--hwq-isolation=none --hwq-timeout=9", "--hwq-timeout=9", "leave out --hwq-isolation"),
    ],
)
def test_options_that_clash_are_refused_with_what_to_leave_out(
    pytester: pytest.Pytester, given: str, clash: str, remedy: str
) -> None:
    said = refused(pytester, given)
    assert said.startswith(f"{clash} cannot be followed here: ")
    assert remedy in said
    # Either is fine by itself.
    *_, one = given.split()
    alone = "" if one in ("--hwq-setup=make", "--hwq-save-records") else refused(pytester, one)
    assert alone == ""


@pytest.mark.parametrize(
    "given",
    [
        "--hwq-cache=cold", "--hwq-sync-mode=none", "--hwq-save=main --hwq-save-records",
        "--hwq-against=HEAD --hwq-setup=make", "--hwq-isolation=none --hwq-runs=1",
        "--dist=load --hwq-scheduler=native", "--dist=load --hwq-runs=1", "--hwq-isolation=none",
    ],
)  # fmt: skip
def test_others_are_followed_together(pytester: pytest.Pytester, given: str) -> None:
    assert refused(pytester, given) == ""


def test_a_long_value_is_shortened(pytester: pytest.Pytester) -> None:
    said = refused(pytester, f"--hwq-setup={'make;' * 500}")
    assert len(said) < 500


@pytest.mark.parametrize(
    ("given", "workers", "clash"),
    [
        ("--hwq-compare=main", {}, "--hwq-compare=main"),
        ("--hwq-against=HEAD", {}, "--hwq-against=HEAD"),
        ("--hwq-budget=90s", {}, "--hwq-budget=90s"),
        ("", {"workercount": 2}, "-n=2"),
        ("--hwq-save=main --hwq-runs=2", {}, ""),
    ],
)
def test_ranks_of_a_launcher_cannot_follow_what_one_session_decides(
    pytester: pytest.Pytester, given: str, workers: dict[str, int], clash: str
) -> None:
    config: Any = pytester.parseconfig("-p", plugin_name(), *given.split())
    config.workerinput = workers
    if not clash:
        return check_ranked(config, read_settings(config))
    with pytest.raises(BadInput, match=f"^{clash} cannot be followed here: .*torchrun"):
        check_ranked(config, read_settings(config))


def test_wrong_usage_is_pytests_without_a_traceback() -> None:
    said = r"^--hwq-x: 3 is bad$"
    with pytest.raises(pytest.UsageError, match=said) as caught, wrong_usage("--hwq-x"):
        raise BadInput("3 is bad")
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
    with pytest.raises(pytest.UsageError, match=r"^3 is bad$"), wrong_usage():
        raise BadInput("3 is bad")
    with pytest.raises(pytest.UsageError, match=r"^place: other$"), wrong_usage("place", OSError):
        raise OSError("other")
    # A fault of ours stays one.
    with pytest.raises(OSError, match="other"), wrong_usage("place"):
        raise OSError("other")


def test_what_is_given_counts_from_each_source_and_can_be_switched_off(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(*arguments: str) -> tuple[bool, list[tuple[str, str]]]:
        config = pytester.parseconfig("-p", plugin_name(), *arguments)
        return is_given(config, "save"), needs_measuring(config, read_settings(config))

    assert given() == (False, [])
    assert given("--hwq-save=main") == (True, [("save", "--hwq-save=main")])
    pytester.makeini("[pytest]\nhwq_save = main\n")
    assert given() == (True, [("save", "ini key hwq_save=main")])
    monkeypatch.setenv("HWQ_SAVE", "other")
    assert given() == (True, [("save", "environment variable HWQ_SAVE=other")])
    assert given("--hwq-save=") == (False, [])


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("--hwq-device=cpu --hwq-streams=3 --hwq-iterations=9 --hwq-json=s.json", []),
        ("--hwq-scheduler=native --hwq-noise= --hwq-cache=hot", []),
        ("--hwq-scheduler=native,mps --hwq-workload=moe", ["scheduler", "workload"]),
        (
            "--hwq-priority=P0 --hwq-fault=slower:10 --hwq-cache=cold",
            ["priority", "fault", "cache"],
        ),
        ("--hwq-compare=a --hwq-against=HEAD --hwq-noise=cpu", ["compare", "against", "noise"]),
    ],
)
def test_what_judges_stores_or_names_needs_a_test_that_measures(
    pytester: pytest.Pytester, given: str, names: list[str]
) -> None:
    config = pytester.parseconfig("-p", plugin_name(), *given.split())
    assert [name for name, _ in needs_measuring(config, read_settings(config))] == names


def test_distribution_is_asked_of_xdist_where_that_is_installed(pytester: pytest.Pytester) -> None:
    assert not is_distributed(pytester.parseconfig())
    assert is_distributed(pytester.parseconfig("--dist=load"))
    assert not is_distributed(pytester.parseconfig("-p", "no:xdist"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("--hwq-device=sim:h2000", "--hwq-device: 'h2000': no such profile; did you mean h200?"),
        ("--hwq-compare=mian", "--hwq-compare: 'mian' is neither a baseline nor a file nor"),
    ],
)
def test_a_name_that_nothing_has_is_refused_before_tests_are_collected(
    pytester: pytest.Pytester, given: str, says: str
) -> None:
    pytester.makepyfile("raise SystemExit('imported')")
    done = pytester.runpytest_inprocess("-p", plugin_name(), given)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert says in done.stderr.str()
    assert "imported" not in done.stdout.str() + done.stderr.str()


@pytest.mark.parametrize("given", ["--hwq-compare=new --hwq-save=new", "--hwq-compare=reference"])
def test_what_is_stored_or_about_to_be_is_no_unknown_name(
    pytester: pytest.Pytester, given: str
) -> None:
    config = pytester.parseconfig("-p", plugin_name(), *given.split())
    settings = read_settings(config)
    refuse_unknown(config, settings)
