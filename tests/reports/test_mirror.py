"""The mirror: pytest-benchmark stores our samples to the bit, and nothing breaks without it."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.reports import mirror as mirror_module
from tests.reports.conftest import make

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
from pytest_hwqueue.records.cell import read_record
from pytest_hwqueue.reports.mirror import claims_benchmark, mirror


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


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def seconds(record: RunRecord) -> list[float]:
    assert record.samples is not None
    return [ns / 1e9 for ns in record.samples.host_ns]


def mirrored(pytester: pytest.Pytester, *options: str) -> list[dict[str, Any]]:
    """Run the inner session; return the benchmarks of its JSON file."""
    path = pytester.path / "bench.json"
    result = run(pytester, f"--benchmark-json={path}", *options)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*was not used at all*")
    found: list[dict[str, Any]] = json.loads(path.read_text())["benchmarks"]
    return found


def test_data_are_our_samples_to_the_bit(pytester: pytest.Pytester, put: Put) -> None:
    record = make(n=2000, cell={"device": "cpu"})
    assert record.metrics.latency is not None
    put("test_it", record)
    pytester.makepyfile(ONE_TEST)
    [found] = mirrored(pytester)
    assert found["stats"]["data"] == seconds(record)
    assert found["stats"]["rounds"] == 2000
    assert found["stats"]["iterations"] == 1
    assert found["name"] == "test_it"
    assert found["fullname"].endswith("::test_it")
    assert found["group"] == "latency_sensitive"
    assert found["param"] == "cpu-s8-native-graph"
    assert found["params"]["streams"] == 8
    info = found["extra_info"]
    assert info["cell"] == "tiny_kernel_stress[cpu-s8-native-graph]"
    assert (info["streams"], info["scheduler"], info["dispatch"]) == (8, "native", "graph")
    assert (info["status"], info["clock"]) == ("ok", "host")
    assert record.metrics.latency.p50 is not None
    assert info["p50_s"] == record.metrics.latency.p50 / 1e3
    assert {"p95_s", "p99_s"} < set(info)
    assert "p999_s" not in info
    assert info["throughput (kernels/s)"] == record.metrics.throughput[0].value
    assert "UNSERIALIZABLE" not in json.dumps(found)


def test_device_time_stands_in_where_the_host_saw_no_latency(
    pytester: pytest.Pytester, put: Put
) -> None:
    record = make(n=60)
    assert record.samples is not None
    samples = record.samples.model_copy(update={"host_ns": []})
    put("test_it", record.model_copy(update={"samples": samples}))
    pytester.makepyfile(ONE_TEST)
    [found] = mirrored(pytester)
    assert found["stats"]["data"] == [ns / 1e9 for ns in samples.device_ns]
    assert found["extra_info"]["clock"] == "device events"


def test_names_are_distinct_and_do_not_move_when_a_cell_fails(
    pytester: pytest.Pytester, put: Put
) -> None:
    cells = [make(streams=streams, n=60) for streams in (1, 2, 2)]
    failed = make(streams=1, status="failed", reason="x")
    put("test_whole", *cells)
    put("test_part", failed, *cells[1:])
    pytester.makepyfile("def test_whole(): pass\ndef test_part(): pass")
    found = mirrored(pytester)
    two = "tiny_kernel_stress[cuda-s2-native-graph]"
    assert [bench["name"] for bench in found] == ["test_whole", two, f"{two}#2", two, f"{two}#2"]
    names = [bench["fullname"].partition("::")[2] for bench in found]
    assert names[1] == f"test_whole::{two}"
    assert len(set(names)) == len(names)


def test_what_is_not_ok_is_not_mirrored(pytester: pytest.Pytester, put: Put) -> None:
    statuses = ("failed", "timeout", "invalid", "skipped")
    changed = ({"status": status, "reason": "x"} for status in statuses)
    put("test_it", *(make(n=60).model_copy(update=each) for each in changed))
    pytester.makepyfile(ONE_TEST)
    path = pytester.path / "bench.json"
    result = run(pytester, f"--benchmark-json={path}")
    assert result.ret == 0
    # Before 5.3 the file was made when the option was read, and stays empty.
    assert not path.exists() or not path.read_bytes()


def test_all_benchmark_marks_count_and_the_closest_wins(
    pytester: pytest.Pytester, put: Put
) -> None:
    put("test_it", make(n=60))
    pytester.makepyfile(
        """
        import time
        import pytest

        pytestmark = pytest.mark.benchmark(group="module", disable_gc=True, timer=time.time)

        @pytest.mark.benchmark(group="closest")
        def test_it(): pass
        """
    )
    [found] = mirrored(pytester)
    assert found["group"] == "closest"
    assert found["options"]["disable_gc"] is True
    assert found["options"]["timer"] == "replayed_samples"


def test_an_unknown_option_of_the_mark_is_refused_by_name(
    pytester: pytest.Pytester, put: Put
) -> None:
    put("test_it", make(n=60))
    pytester.makepyfile("import pytest\n@pytest.mark.benchmark(min_round=3)\ndef test_it(): pass")
    result = run(pytester)
    result.stdout.fnmatch_lines(["*ValueError: *::test_it: the benchmark mark is not valid*"])
    assert "min_round" in result.stdout.str()


def test_parameters_of_the_test_are_kept_as_plain_values(
    pytester: pytest.Pytester, put: Put
) -> None:
    put("test_it", make(n=60))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("dtype", [complex, float("nan"), "bf16"], ids=["c", "n", "b"])
        def test_it(dtype): pass
        """
    )
    found = mirrored(pytester)
    assert [bench["param"] for bench in found] == ["c", "n", "b"]
    assert [bench["params"]["dtype"] for bench in found] == ["<class 'complex'>", "nan", "bf16"]
    assert [bench["name"] for bench in found] == ["test_it[c]", "test_it[n]", "test_it[b]"]


def test_neither_options_nor_their_number_change_the_data(
    pytester: pytest.Pytester, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first samples of very many are mirrored, and this is said."""
    monkeypatch.setattr(mirror_module, "MOST_SAMPLES", 100)
    record = make(n=120)
    put("test_it", record)
    pytester.makepyfile(ONE_TEST)
    options = ["--benchmark-cprofile=tottime", "--benchmark-warmup=on", "--benchmark-disable-gc"]
    [found] = mirrored(pytester, *options)
    assert found["stats"]["data"] == seconds(record)[:100]
    assert found["extra_info"]["samples"].startswith("the first 100 of 120")
    assert "cprofile" not in found


def test_benchmark_only_runs_what_claims_to_be_one(pytester: pytest.Pytester, put: Put) -> None:
    """A claim is not shared between parametrisations."""
    put("test_it", make(n=60))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("name", ["a", "unclaimed"])
        def test_it(name): pass
        def test_unclaimed(): pass
        """
    )
    run(pytester, "--benchmark-only").assert_outcomes(passed=1, skipped=2)
    run(pytester, "--benchmark-skip").assert_outcomes(passed=2, skipped=1)


@pytest.mark.parametrize(
    "options", [("-p", "no:benchmark"), ("--benchmark-disable",), ("--benchmark-skip",), ("-n1",)]
)
def test_without_pytest_benchmark_nothing_happens(
    pytester: pytest.Pytester, put: Put, options: tuple[str, ...]
) -> None:
    if "-n1" in options:
        pytest.importorskip("xdist")
    put("test_it", make(n=60))
    pytester.makepyfile(ONE_TEST)
    result = run(pytester, *options)
    assert result.ret == 0
    result.assert_outcomes(**{"skipped" if "--benchmark-skip" in options else "passed": 1})
    result.stdout.no_fnmatch_line("*Name (time in*")


def test_its_own_table_saved_runs_comparison_and_grouping_work(
    pytester: pytest.Pytester, put: Put
) -> None:
    put("test_it", *[make(streams=streams, n=60) for streams in (1, 2)])
    pytester.makepyfile(ONE_TEST)
    first = run(pytester, "--benchmark-save=base", "--benchmark-group-by=param:streams")
    first.stdout.fnmatch_lines(["*benchmark 'streams=1'*", "*benchmark 'streams=2'*"])
    second = run(pytester, "--benchmark-compare", "--benchmark-compare-fail=median:1%")
    assert second.ret == 0
    second.stdout.fnmatch_lines(["*test_it (NOW)*1.0)*"])
