"""The mirror: pytest-benchmark stores our samples to the bit, and nothing breaks without it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.plugin import mirror as mirror_module
from tests.answers.conftest import changed, make, paced

# Inner sessions run in this process and take over its filters: what pytest-benchmark says on its
# own (nothing to save; off under xdist), and the JSON file that it left open before 5.3, is no
# failure of ours.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest_benchmark.logger.PytestBenchmarkWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

Put = Callable[..., None]

# What the plugin does in the process that collects: tests run elsewhere, records come back.
CONFTEST = """
from pathlib import Path

import pytest
from pytest_hwqueue.data.records.cell import read_record
from pytest_hwqueue.plugin.mirror import claims_benchmark, mirror


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if "unclaimed" not in item.name:
            claims_benchmark(item)


def pytest_runtest_protocol(item, nextitem):
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    skip = item.get_closest_marker("skip")
    if skip is None:
        for path in sorted((Path(__file__).parent / item.originalname).glob("*.json")):
            mirror(item, read_record(path))
    report = pytest.TestReport(
        item.nodeid, item.location, {}, "passed" if skip is None else "skipped",
        None if skip is None else ("file", 1, skip.kwargs["reason"]), "call",
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
ONE_TEST = "def test_it(): raise AssertionError('tests do not run in this process')"
TESTS = """
import time
import pytest

def test_it(): raise AssertionError('tests do not run in this process')
def test_device(): pass
def test_whole(): pass
def test_part(): pass
def test_bad(): pass

@pytest.mark.parametrize("dtype", [complex, float("nan"), "bf16"], ids=["c", "n", "b"])
def test_of(dtype): pass

@pytest.mark.benchmark(group="class", disable_gc=True, timer=time.time)
class TestMarked:
    @pytest.mark.benchmark(group="closest")
    def test_marked(self): pass
"""


@pytest.fixture
def put(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Give a function that leaves records for a test, to be mirrored in this order."""
    # This session's own workers must not make the inner one believe that it is one.
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(CONFTEST)

    def write(test: str, *records: RunRecord) -> None:
        folder = pytester.path / test
        folder.mkdir()
        for index, record in enumerate(records):
            (folder / f"{index:03}.json").write_text(record.model_dump_json())

    yield write
    # So that a file left open is found here, where it is ignored, and not in another test.
    gc.collect()


def run(pytester: pytest.Pytester, *options: str, tests: str = ONE_TEST) -> pytest.RunResult:
    pytester.makepyfile(tests)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def seconds(ns: list[int]) -> list[float]:
    return [each / 1e9 for each in ns]


def mirrored(
    pytester: pytest.Pytester, *options: str, tests: str = ONE_TEST
) -> dict[str, dict[str, Any]]:
    """Run the inner session; return the benchmarks of its JSON file by name."""
    path = pytester.path / "bench.json"
    result = run(pytester, f"--benchmark-json={path}", *options, tests=tests)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*was not used at all*")
    # Before 5.3 the file was made when the option was read, and stays empty.
    found = json.loads(path.read_bytes() or '{"benchmarks": []}')["benchmarks"]
    by_name = {bench["fullname"].partition("::")[2]: bench for bench in found}
    assert len(by_name) == len(found)
    return by_name


def test_data_are_our_samples_to_the_bit_under_names_that_stay(
    pytester: pytest.Pytester, put: Put
) -> None:
    record = make(n=2000, cell={"device": "cpu"})
    plain = make(n=60)
    assert record.samples is not None
    assert record.metrics.latency is not None
    assert plain.samples is not None
    cells = [make(streams=streams, n=60) for streams in (1, 2, 2)]
    put("test_it", record)
    put("test_device", paced(plain))
    put("test_whole", *cells)
    put("test_part", make(streams=1, status="failed", reason="x"), *cells[1:])
    statuses = ("failed", "timeout", "invalid", "skipped")
    put("test_bad", *(changed(plain, "", status=each, reason="x") for each in statuses))
    put("test_of", plain)
    put("test_marked", plain)
    found = mirrored(pytester, tests=TESTS)
    two = "tiny_kernel_stress[cuda-s2-native-graph]"
    # Names do not move when a cell fails; what is not ok is not mirrored.
    assert [each.removeprefix("TestMarked::") for each in found] == [
        "test_it", "test_device", "test_whole", f"test_whole::{two}", f"test_whole::{two}#2",
        f"test_part::{two}", f"test_part::{two}#2", "test_of[c]", "test_of[n]", "test_of[b]",
        "test_marked",
    ]  # fmt: skip
    assert [bench["name"] for bench in found.values()][3:7] == [two, f"{two}#2"] * 2
    first = found["test_it"]
    assert first["stats"]["data"] == seconds(record.samples.host_ns)
    assert (first["stats"]["rounds"], first["stats"]["iterations"]) == (2000, 1)
    assert (first["name"], first["group"]) == ("test_it", "latency_sensitive")
    assert (first["param"], first["params"]["streams"]) == ("cpu-s8-native-graph", 8)
    info = first["extra_info"]
    expected = {
        "cell": "tiny_kernel_stress[cpu-s8-native-graph]", "streams": 8, "scheduler": "native",
        "dispatch": "graph", "status": "ok", "clock": "host",
        "p50_s": record.metrics.latency.p50 / 1e3,
        "throughput (kernels/s)": record.metrics.throughput[0].value,
    }  # fmt: skip
    assert info == info | expected
    assert {"p95_s", "p99_s"} < set(info)
    assert "p999_s" not in info
    # Where iterations were not waited for, its name says pace.
    assert found["test_device"]["stats"]["data"] == seconds(plain.samples.host_ns)
    paces = found["test_device"]["extra_info"]
    assert (paces["clock"], paces["pace"]) == ("device events", "time per iteration")
    assert "latency" not in paces
    assert plain.metrics.latency is not None
    assert paces["p50_s"] == plain.metrics.latency.p50 / 1e3
    # Parameters of the test are kept as plain values.
    of = [found[f"test_of[{each}]"] for each in "cnb"]
    assert [bench["param"] for bench in of] == ["c", "n", "b"]
    assert [bench["params"]["dtype"] for bench in of] == ["<class 'complex'>", "nan", "bf16"]
    assert "UNSERIALIZABLE" not in json.dumps([first, *of])
    # All marks count and the closest wins.
    marked = found["TestMarked::test_marked"]
    assert (marked["group"], marked["options"]["disable_gc"]) == ("closest", True)
    assert marked["options"]["timer"] == "replayed_samples"


def test_an_unknown_option_of_the_mark_is_refused_by_name(
    pytester: pytest.Pytester, put: Put
) -> None:
    put("test_it", make(n=60))
    mark = "import pytest\n@pytest.mark.benchmark(min_round=3)\ndef test_it(): pass"
    result = run(pytester, tests=mark)
    result.stdout.fnmatch_lines(["*BadInput: *::test_it: the benchmark mark is not valid*"])
    assert "min_round" in result.stdout.str()


def test_neither_options_nor_their_number_change_the_data(
    pytester: pytest.Pytester, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first samples of very many are mirrored, and this is said."""
    monkeypatch.setattr(mirror_module, "MOST_SAMPLES", 100)
    record = make(n=120)
    assert record.samples is not None
    put("test_it", record)
    options = ["--benchmark-cprofile=tottime", "--benchmark-warmup=on", "--benchmark-disable-gc"]
    found = mirrored(pytester, *options)["test_it"]
    assert found["stats"]["data"] == seconds(record.samples.host_ns)[:100]
    assert found["extra_info"]["samples"].startswith("the first 100 of 120")
    assert "cprofile" not in found


def test_benchmark_only_runs_what_claims_to_be_one(pytester: pytest.Pytester, put: Put) -> None:
    """A claim is not shared between parametrisations."""
    put("test_it", make(n=60))
    name = "import pytest\n@pytest.mark.parametrize('name', ['a', 'unclaimed'])\n"
    tests = f"{name}def test_it(name): pass\ndef test_unclaimed(): pass"
    run(pytester, "--benchmark-only", tests=tests).assert_outcomes(passed=1, skipped=2)
    run(pytester, "--benchmark-skip", tests=tests).assert_outcomes(passed=2, skipped=1)


@pytest.mark.parametrize(
    "options", [("-p", "no:benchmark"), ("--benchmark-disable",), ("--benchmark-skip",), ("-n1",)]
)
def test_without_pytest_benchmark_nothing_happens(
    pytester: pytest.Pytester, put: Put, options: tuple[str, ...]
) -> None:
    if "-n1" in options:
        pytest.importorskip("xdist")
    put("test_it", make(n=60))
    result = run(pytester, *options)
    assert result.ret == 0
    result.assert_outcomes(**{"skipped" if "--benchmark-skip" in options else "passed": 1})
    result.stdout.no_fnmatch_line("*Name (time in*")


def test_its_own_table_saved_runs_comparison_and_grouping_work(
    pytester: pytest.Pytester, put: Put
) -> None:
    put("test_it", *[make(streams=streams, n=60) for streams in (1, 2)])
    first = run(pytester, "--benchmark-save=base", "--benchmark-group-by=param:streams")
    first.stdout.fnmatch_lines(["*benchmark 'streams=1'*", "*benchmark 'streams=2'*"])
    second = run(pytester, "--benchmark-compare", "--benchmark-compare-fail=median:1%")
    assert second.ret == 0
    second.stdout.fnmatch_lines(["*test_it (NOW)*1.0)*"])
