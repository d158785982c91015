"""From tests to cells: what a run measures, what a test's id says, and which tests share a cell."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_hwqueue.data.errors import BadInput, BadOption
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.parts.workloads.registry import WORKLOADS, workload_class
from pytest_hwqueue.plugin.cells import (
    auto_dispatch,
    check_parameters,
    given_parameters,
    id_parts,
    lean,
    measures_throughput,
    own_name,
    own_parameters,
    planned_cells,
    sample_plan,
    shared_cells,
)

from .conftest import Collect

GEMM = "large_gemm_only"


@pytest.mark.parametrize(
    ("given", "planned", "asked", "only_run"),
    [
        ({}, None, None, True),
        ({"samples": 400}, None, 400, True),
        # What a baseline's runs have comes first.
        ({"samples": 400, "compare": "main"}, 700, 700, False),
        *(({one: value}, None, None, False) for one, value in (
            ("runs", 1), ("save", "main"), ("compare", "main"), ("against", "HEAD"), ("lean", True),
        )),
    ],
)  # fmt: skip
def test_samples_are_planned_by_what_the_runs_are_for(
    given: dict[str, Any], planned: int | None, asked: int | None, only_run: bool
) -> None:
    plan = sample_plan(Settings(**given), planned)
    assert plan is not None
    assert (plan.asked, plan.only_run) == (asked, only_run)


def test_iterations_that_are_asked_for_leave_nothing_to_plan() -> None:
    assert sample_plan(Settings(iterations=20), 700) is None


def workload(*ratios: str, overlap: object = None) -> Any:
    return SimpleNamespace(ratios=[SimpleNamespace(name=name) for name in ratios], overlap=overlap)


@pytest.mark.parametrize(
    ("given", "measured", "run", "expected"),
    [
        ({}, workload(), 1, False),
        ({"lean": True}, workload("convoy"), 1, True),
        ({"lean": True, "profile": True}, workload(), 1, False),
        # A comparison measures references only of a ratio that it judges.
        ({"compare": "main"}, workload("convoy"), 1, True),
        ({"against": "HEAD"}, workload("convoy"), 1, True),
        ({"compare": "main", "fail_on": ("convoy.p99",)}, workload("convoy"), 1, False),
        ({"compare": "main", "fail_on": ("p99",)}, workload("convoy"), 1, True),
        # What is saved has everything once, and a ratio's references in each run.
        ({"save": "main"}, workload(), 1, False),
        ({"save": "main"}, workload(), 2, True),
        ({"save": "main"}, workload("convoy"), 2, False),
        ({"save": "main"}, workload(overlap="a beside b"), 2, False),
        ({"runs": 3}, workload(), 2, False),
    ],
)
def test_a_lean_run_is_one_that_only_a_verdict_needs(
    given: dict[str, Any], measured: Any, run: int, expected: bool
) -> None:
    assert lean(Settings(**given), measured, run, in_baseline=True) == expected
    # What has no baseline gets no verdict, and so all of its own figures.
    alone = lean(Settings(**given), measured, run, in_baseline=False)
    assert alone == (expected and "compare" not in given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True), ({"save": "main"}, True), ({"compare": "main"}, False),
        ({"against": "HEAD"}, False), ({"compare": "main", "fail_on": ("throughput",)}, True),
        ({"against": "HEAD", "fail_on": ("p99", "throughput")}, True),
    ],
)  # fmt: skip
def test_graphs_are_replayed_back_to_back_where_throughput_counts(
    given: dict[str, Any], expected: bool
) -> None:
    assert measures_throughput(Settings(**given)) == expected


def given_of(*pairs: str) -> Settings:
    return Settings(param=tuple(tuple(pair.split("=")) for pair in pairs))


def test_a_parameter_goes_to_its_owner_or_to_all_that_have_it() -> None:
    gemm, moe = workload_class(GEMM), workload_class("moe")
    given = given_of("mm_dim=64", "moe.experts=4", f"{GEMM}.dtype=bf16", "absent=1")
    assert given_parameters(given, gemm) == {"mm_dim": "64", "dtype": "bf16"}
    assert given_parameters(given, moe) == {"experts": "4"}
    # The last counts.
    assert given_parameters(given_of("mm_dim=64", f"{GEMM}.mm_dim=32"), gemm) == {"mm_dim": "32"}


def test_a_parameter_that_no_selected_workload_has_is_refused_by_name() -> None:
    gemm, hetero = workload_class(GEMM), workload_class("hetero_kernels")
    check_parameters(given_of("mm_dim=64"), [gemm, hetero])
    # A selection that leaves its owner out does not make it wrong.
    check_parameters(given_of("moe.experts=4"), [gemm])
    for pair, said in (
        ("absent=1", f"absent=1.*{GEMM}: .*mm_dim.*; hetero_kernels: "),
        ("moe.absent=1", "moe.absent=1.*the parameters are moe: .*experts"),
        ("nobody.mm_dim=1", f"nobody.mm_dim=1.*{GEMM}: "),
    ):
        with pytest.raises(BadOption, match=said) as caught:
            check_parameters(given_of(pair), [gemm, hetero])
        assert caught.value.option == "--hwq-param"
    with pytest.raises(BadInput, match="mm_dim"):
        check_parameters(given_of("mm_dim=many"), [gemm])


@pytest.mark.parametrize(
    ("given", "name", "device", "expected"),
    [
        ({}, GEMM, "cpu", ""),
        ({}, None, "cuda:1", ""),
        ({"sync_mode": "end_only", "cache": "cold"}, None, "cuda", "-end_only-cold"),
        # Of a device's own size there is nothing to say, and a user's test has none.
        ({"size": "full"}, GEMM, "cuda:1", ""),
        ({"size": "small"}, GEMM, "cuda:1", "-small"),
        ({"size": "full"}, GEMM, "cpu", "-full"),
        ({"size": "small"}, None, "cuda", ""),
        ({"ranks": 2}, "moe", "cpu", "-2ranks"),
        ({"ranks": 2}, GEMM, "cpu", ""),
        ({"param": (("mm_dim", "0064"),), "size": "small"}, GEMM, "cuda", "-small-mm_dim=64"),
        # It is refused elsewhere, by name.
        ({"param": (("mm_dim", "many"),)}, GEMM, "cpu", "-mm_dim=many"),
        ({"param": (("moe.experts", "4"),)}, GEMM, "cpu", ""),
    ],
)
def test_an_id_ends_with_what_is_not_at_its_default(
    given: dict[str, Any], name: str | None, device: str, expected: str
) -> None:
    declared = None if name is None else WORKLOADS[name]
    assert id_parts(Settings(**given), declared, device) == expected


def test_an_id_names_the_ranks_of_a_launcher_though_it_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(variable, "0")
    for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert id_parts(Settings(), WORKLOADS["moe"], "cpu") == "-2ranks"


def test_a_tests_own_name_begins_at_the_top_of_its_repository(
    collect: Collect, pytester: pytest.Pytester
) -> None:
    text = (
        "import pytest\n"
        "class TestOuter:\n"
        "    class TestInner:\n"
        "        @pytest.mark.parametrize('n', [1])\n"
        "        def test_it(self, n): pass\n"
    )
    place = "test_mine.py::TestOuter::TestInner::test_it"

    def named(folder: str, *arguments: str) -> str:
        pytester.mkdir(folder).joinpath("test_mine.py").write_text(text)
        (item,) = collect("", *arguments, folder)
        return own_name(item)

    # Without a repository, from pytest's root folder.
    assert named("outside") == f"outside/{place}"
    pytester.mkdir(".git").joinpath("HEAD").write_text("ref: refs/heads/main\n")
    assert named("inside") == f"inside/{place}"
    assert named("below", "--rootdir=below") == f"below/{place}"
    # A worktree's and a submodule's is a file.
    pytester.mkdir("module").joinpath(".git").write_text("gitdir: elsewhere\n")
    pytester.mkdir("module/tests")
    assert named("module/tests/deep") == f"tests/deep/{place}"


def test_tests_of_one_name_and_parameters_share_a_cell(collect: Collect) -> None:
    text = (
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_it(hwq, n): pass\n"
        "def test_other(hwq): pass\n"
    )
    items = collect(text, "--hwq-streams=1,2", "--hwq-device=sim:h200")
    assert len(items) == 6
    assert shared_cells(items) == []
    # Another object, as a test of the same file in another repository is.
    again = collect(text, "--hwq-streams=2", "--hwq-device=sim:h200")
    pairs = shared_cells([*items, *again])
    assert [one.name for one, _ in pairs] == [other.name for _, other in pairs]
    assert len(pairs) == 3
    # What another noise makes is another cell.
    assert shared_cells(collect(text, "--hwq-device=cpu", "--hwq-noise=cpu")) == []
    # Cells of the suite's workloads are known only once they begin.
    suite = "import pytest\n@pytest.mark.hwq_workload('moe')\ndef test_moe(hwq): pass\n"
    two = [collect(suite)[0], collect(suite)[0]]
    assert shared_cells(two) == []


@pytest.mark.parametrize(
    ("decorators", "given", "expected"),
    [
        ("", "", [""]),
        ("@pytest.mark.parametrize('n', [1, 2])\n", "", ["1", "2"]),
        ("@pytest.mark.parametrize('n', [1])\n", "--hwq-sync-mode=end_only", ["1"]),
        # The part of a cell's id that looks like it stays the test's own.
        ("@pytest.mark.parametrize('n', ['s8'])\n", "", ["s8"]),
        ("@pytest.mark.parametrize('n', [1])\n", "--hwq-noise=cpu", ["1", "1"]),
        ("@pytest.mark.parametrize('hwq_dispatch', ['graph'], indirect=True)\n", "", [""]),
    ],
)
def test_a_tests_other_parameters_are_its_id_without_the_cells(
    collect: Collect, decorators: str, given: str, expected: list[str]
) -> None:
    n = ", n" * ("'n'" in decorators)
    text = f"import pytest\n{decorators}def test_it(hwq{n}): pass\n"
    items = collect(text, "--hwq-device=cpu", *given.split())
    assert [own_parameters(item) for item in items] == expected


def test_tests_are_parametrized_as_options_say_unless_they_do_it_themselves(
    collect: Collect,
) -> None:
    text = (
        "import pytest\n"
        "def test_own(hwq): pass\n"
        "@pytest.mark.hwq_workload('hetero_kernels')\n"
        "def test_suite(hwq): pass\n"
        "@pytest.mark.parametrize('hwq_streams, n', [(3, 4)])\n"
        "def test_itself(hwq_streams, hwq_dispatch, n): pass\n"
        "@pytest.mark.parametrize(argnames=['hwq_dispatch'], argvalues=[('eager',)])\n"
        "def test_named(hwq_dispatch): pass\n"
        "def test_plain(): pass\n"
    )
    items = collect(text, "--hwq-device=sim:h200", "--hwq-dispatch=auto,graph")
    assert [item.name for item in items] == [
        "test_own[sim:h200-s8-native-eager]", "test_own[sim:h200-s8-native-graph]",
        "test_suite[sim:h200-s8-native-graph]",
        "test_itself[eager-3-4]", "test_itself[graph-3-4]",
        "test_named[eager]", "test_plain",
    ]  # fmt: skip
    items = collect(text, "--hwq-device=sim:h200", "--hwq-streams=2,1", "-k", "own or suite",
                    "--hwq-scheduler=native,stream-priority", "--hwq-size=small")  # fmt: skip
    assert [item.name for item in items if "own" in item.name] == [
        f"test_own[sim:h200-s{streams}-{mode}-eager]"
        for streams in (2, 1) for mode in ("native", "stream-priority")
    ]  # fmt: skip
    assert sum("-graph-small]" in item.name for item in items) == 4


def test_noise_parametrizes_tests_that_do_not_run_it_themselves(collect: Collect) -> None:
    text = "def test_it(hwq): pass\ndef test_block(hwq, hwq_noise): pass\n"
    items = collect(text, "--hwq-device=cpu", "--hwq-noise=cpu", "--hwq-streams=1")
    assert sorted(item.name for item in items) == [
        "test_block[cpu-s1-native-eager]",
        "test_it[beside-cpu-cpu-s1-native-eager]",
        "test_it[quiet-cpu-s1-native-eager]",
    ]


def test_own_tests_get_at_most_a_stream_per_core_of_the_host(collect: Collect) -> None:
    cores = os.sched_getaffinity(0)
    try:
        for there in (cores, {min(cores)}):
            os.sched_setaffinity(0, there)
            (item,) = collect("def test_it(hwq): pass\n", "--hwq-device=cpu")
            assert item.name == f"test_it[cpu-s{min(8, len(there))}-native-eager]"
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize(
    ("device", "dispatch"),
    [
        ("cpu", "eager"), ("cuda", "graph"), ("cuda:1", "graph"), ("sim:h200", "graph"),
        ("hip", "eager"), ("hip:1", "eager"), ("auto", "eager"),
    ],
)  # fmt: skip
def test_auto_dispatch_captures_where_graphs_have_been_measured(device: str, dispatch: str) -> None:
    assert auto_dispatch(WORKLOADS["hetero_kernels"], device, None) == dispatch
    # Whether a user's code can be captured is not known.
    assert auto_dispatch(None, device, None) == "eager"


def test_auto_dispatch_captures_no_collectives_of_several_ranks() -> None:
    assert auto_dispatch(WORKLOADS["moe"], "cuda", 1) == "graph"
    assert auto_dispatch(WORKLOADS["moe"], "cuda", 2) == "eager"
    assert auto_dispatch(WORKLOADS["fsdp_tp"], "cuda", 1) == "eager"


def test_cells_are_planned_as_far_as_they_are_known(collect: Collect) -> None:
    text = (
        "import pytest\n"
        "@pytest.mark.hwq_workload('hetero_kernels')\n"
        "def test_suite(hwq): pass\n"
        "def test_own(hwq): pass\n"
        "def test_streams(hwq_streams): pass\n"
        "@pytest.mark.parametrize('hwq_dispatch', ['auto'], indirect=True)\n"
        "def test_open(hwq_dispatch): pass\n"
    )
    items = collect(text, "--hwq-device=sim:h200", "--hwq-streams=4")
    common = {"sync_mode": "per_iteration", "cache": "hot"}
    device = {"device": "sim:h200", "scheduler": "native"}
    assert planned_cells(items, "per_iteration", "hot") == [
        {**common, **device, "dispatch": "graph", "name": "hetero_kernels", "streams": 4},
        {**common, **device, "dispatch": "eager"},
        common,
        common,
    ]
    scenario = collect("import pytest\n@pytest.mark.scenario\ndef test_it(): pass\n")
    assert planned_cells([*items, *scenario], "per_iteration", "hot") is None
