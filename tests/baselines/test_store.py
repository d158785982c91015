"""The store: every run stored is read again, and nothing else passes for a stored run."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pytest_hwqueue.baselines.cell_file import line_of, read_cell, write_cell, write_lines
from pytest_hwqueue.baselines.runs import CellBaseline, cell_of_record, soft_fields
from pytest_hwqueue.baselines.store import Store
from pytest_hwqueue.errors import BaselineError, NoBaseline
from pytest_hwqueue.records.cell import RunRecord
from pytest_hwqueue.records.files import cell_file_name
from tests.baselines.test_schema import full_record

MakeRecord = Callable[..., RunRecord]
H200 = "nvidia-h200"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "baselines")


def files(root: Path) -> dict[str, bytes]:
    """All files below a folder that a commit would hold."""
    found = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def test_run_is_read_as_it_was_measured(store: Store, make_record: MakeRecord) -> None:
    record = make_record(n=1000)
    path = store.add("main", record, "s1")
    assert path.parent == store.root / H200 / "main"
    cell = store.read("main", H200).cells[record.cell.id]
    assert cell.header.cell == record.cell
    assert record.fingerprint is not None
    assert cell.header.hard == record.fingerprint.hard
    assert cell.header.soft == record.fingerprint.soft
    assert (cell.header.sample.latency, cell.header.sample.tags) == ("host_ns", "events")
    (run,) = cell.runs
    assert (run.session, run.when, run.commit) == ("s1", record.started, "0" * 40)
    assert (run.n, run.failed, run.soft) == (1000, 0, {})
    assert record.samples is not None
    host_ns = record.samples.host_ns
    exact = np.quantile(host_ns, [0.5, 0.9, 0.95, 0.99, 0.999], method="linear")
    stored = [run.p50_ns, run.p90_ns, run.p95_ns, run.p99_ns, run.p999_ns]
    assert stored == [round(value) for value in exact]
    assert run.max_ns == max(host_ns)
    assert np.abs(run.samples_ns() / np.asarray(host_ns) - 1).max() < 5.1e-4
    small_ns = record.samples.tags_ns["small"]
    assert run.tags.keys() == {"small"}
    assert run.tags["small"].n == 1000
    assert run.tags["small"].p99_ns == round(float(np.quantile(small_ns, 0.99)))
    ratio = record.metrics.ratios["convoy_ratio"]
    assert ratio.p99 is not None
    assert (run.ratios["convoy_ratio"].p50, run.ratios["convoy_ratio"].p99) == (
        ratio.p50,
        ratio.p99,
    )
    assert run.throughput == {"products/s": record.metrics.throughput[0].value}


def test_device_time_is_the_latency_where_the_host_did_not_wait(
    store: Store, make_record: MakeRecord
) -> None:
    record = make_record(parts={"sync_mode": "end_only"})
    assert record.samples is not None
    samples = record.samples.model_copy(update={"host_ns": []})
    store.add("main", record.model_copy(update={"samples": samples}), "s")
    (cell,) = store.read("main", H200).cells.values()
    assert cell.header.sample.latency == "device_ns"
    assert cell.runs[0].max_ns == max(samples.device_ns)


def test_run_added_is_one_line_added(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(seed=1), "s1")
    before = path.read_text(encoding="utf-8").splitlines()
    store.add("main", make_record(seed=2), "s2")
    after = path.read_text(encoding="utf-8").splitlines()
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) == len(before) + 1
    assert [json.loads(lines[-1])["lines"] for lines in (before, after)] == [1, 2]
    assert files(store.root).keys() == {f"{H200}/main/{path.name}"}


def test_same_run_again_changes_nothing(store: Store, make_record: MakeRecord) -> None:
    records = [make_record(seed=seed) for seed in (1, 2, 2)]
    store.add_many("main", records, "s")
    before = files(store.root)
    store.add_many("main", records, "s")
    assert files(store.root) == before
    assert len(next(iter(store.read("main", H200).cells.values())).runs) == 2


def test_only_soft_fields_that_changed_stand_in_a_run(
    store: Store, make_record: MakeRecord
) -> None:
    other = make_record(seed=2, soft={"host_name": "second", "new": 1})
    assert other.fingerprint is not None
    del other.fingerprint.soft["driver_version"]
    store.add("main", make_record(seed=1), "s1")
    store.add("main", other, "s2")
    (cell,) = store.read("main", H200).cells.values()
    assert cell.runs[0].soft == {}
    assert cell.runs[1].soft == {"host_name": "second", "new": 1, "driver_version": None}
    assert soft_fields(cell.header, cell.runs[1]) == other.fingerprint.soft


def test_names_devices_and_cells(store: Store, make_record: MakeRecord) -> None:
    assert store.devices() == []
    simulated = {"device_kind": "sim", "profile": "sim:h200"}
    store.add_many("main", [make_record("b"), make_record("a"), make_record(hard=simulated)], "s")
    store.add("other.1", make_record(), "s")
    (store.root / "README.md").write_text("not a device", encoding="utf-8")
    (store.root / "Notes").mkdir()
    (store.root / H200 / "empty").mkdir()
    assert store.devices() == [H200, "sim-h200"]
    assert store.names(H200) == ["main", "other.1"]
    assert store.names("sim-h200") == ["main"]
    assert store.names("amd") == []
    assert [cell.split("[")[0] for cell in store.read("main", H200).cells] == ["a", "b"]


def test_no_baseline_is_told_from_a_damaged_one(store: Store, make_record: MakeRecord) -> None:
    with pytest.raises(NoBaseline, match="none was stored yet"):
        store.read("main", H200)
    store.add("main", make_record(), "s")
    with pytest.raises(NoBaseline, match="there are main"):
        store.read("mian", H200)
    for remove in (
        lambda: store.prune("x", H200, 1),
        lambda: store.history("x", H200),
        lambda: store.anchor("x", H200),
    ):
        with pytest.raises(NoBaseline):
            remove()
    assert not (store.root / H200 / "x").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "failed", "reason": "Boom"}, "its status is failed: Boom"),
        ({"status": "invalid"}, "its status is invalid; only runs that went well"),
        ({"fingerprint": None}, "has no fingerprint"),
        ({"samples": None}, "has no samples"),
        ({"n": 0}, "no latency samples"),
        ({"faults": ["slow:1.2"]}, r"planted faults \(slow:1.2\)"),
        ({"hard": {"device_name": ""}}, "does not name the device's model"),
    ],
)
def test_record_that_cannot_be_stored(
    store: Store, make_record: MakeRecord, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(BaselineError, match=said):
        store.add_many("main", [make_record(), make_record(**changed)], "s")
    assert not store.root.exists()


@pytest.mark.parametrize("series", ["host_ns", "tags_ns"])
def test_latency_below_zero_is_refused(store: Store, make_record: MakeRecord, series: str) -> None:
    record = make_record()
    assert record.samples is not None
    wrong = [-1] if series == "host_ns" else {"small": [-1]}
    samples = record.samples.model_copy(update={series: wrong})
    with pytest.raises(BaselineError, match="-1"):
        store.add("main", record.model_copy(update={"samples": samples}), "s")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hard": {"driver_major": 570}}, "driver_major is 580 in one and 570 in the other"),
        ({"hard": {"mig_slice": "1g"}}, "mig_slice is none in one and 1g in the other"),
        ({"hard": {"new": 1}}, "new is not known in one and 1 in the other"),
        ({"soft": {"torch_version": "2.14"}}, "torch_version is 2.13.0 in one and 2.14"),
        ({"soft": {"power_limit_w": 500.0}}, "power_limit_w is 700.0 in one and 500.0"),
        ({"parts": {"parameters": {"mm_dim": 1, "shape": [1, 2]}}}, "parameter.mm_dim is 4096 in"),
        ({"parts": {"size": "tiny"}}, "cell.size is full in one and tiny in the other"),
    ],
)
def test_run_under_other_conditions_is_refused_and_nothing_written(
    store: Store, make_record: MakeRecord, changed: dict[str, Any], said: str
) -> None:
    store.add("main", make_record(seed=1), "s")
    before = files(store.root)
    with pytest.raises(BaselineError, match="all runs of a cell share their conditions, but") as no:
        store.add_many("main", [make_record("another"), make_record(seed=2, **changed)], "s")
    assert said in str(no.value)
    assert files(store.root) == before


def test_parameters_of_a_record_in_memory_are_those_of_its_file(
    store: Store, make_record: MakeRecord
) -> None:
    in_memory = make_record(parts={"parameters": {"mm_dim": 4096, "shape": (1, 2)}})
    store.add("main", in_memory, "s")
    store.add("main", make_record(seed=2), "s")
    assert len(next(iter(store.read("main", H200).cells.values())).runs) == 2


# Damage


def test_file_cut_off_at_any_byte_is_damaged(store: Store, make_record: MakeRecord) -> None:
    store.add("main", make_record(seed=1, n=3), "s")
    path = store.add("main", make_record(seed=2, n=3), "s")
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(BaselineError) as refused:
            read_cell(path)
        assert not isinstance(refused.value, NoBaseline)
        assert str(path) in str(refused.value)
        assert "store its runs again" in str(refused.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("n", 10**30, "n: Input should be less than or equal to"),
        ("n", 4, "the samples are damaged: they are 3, not 4"),
        ("p99_ns", 10**30, "p99_ns: Input should be less than or equal to"),
        ("samples", "AAAA", "the samples are damaged"),
        ("samples", "no base64", "the samples are damaged"),
        ("samples", base64.b64encode(zlib.compress(b"\x80\x80\x80")).decode(), "they are 0, not 3"),
        ("samples", base64.b64encode(zlib.compress(b"\x00" * 10**6)).decode(), "are damaged"),
    ],
)
def test_a_damaged_file_that_is_sealed_again_is_named(
    store: Store, make_record: MakeRecord, field: str, value: object, said: str
) -> None:
    path = store.add("main", make_record(n=3), "s")
    header, run, _ = path.read_text(encoding="utf-8").splitlines()
    write_lines(path, [header, line_of({**json.loads(run), field: value})])
    with pytest.raises(BaselineError, match="line 2") as refused:
        store.read("main", path.parent.parent.name)
    assert str(refused.value).startswith(f"{path} is damaged: line 2")
    assert said in str(refused.value)


def test_samples_that_are_no_latencies_are_refused(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(n=3), "s")
    header, run, _ = path.read_text(encoding="utf-8").splitlines()
    below_zero = base64.b64encode(zlib.compress(b"\x01\x01\x01")).decode()
    write_lines(path, [header, line_of({**json.loads(run), "samples": below_zero})])
    with pytest.raises(BaselineError, match="line 2: the samples are damaged: one is below 0"):
        read_cell(path)


def test_any_byte_changed_is_damage(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(n=3), "s")
    whole = path.read_bytes()
    for place in range(len(whole)):
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), bytes([whole[place] ^ (1 << place % 8)]), place)
            with pytest.raises(BaselineError, match=r"damaged|schema"):
                read_cell(path)
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    assert read_cell(path).runs
    path.write_bytes(whole.replace(b'"n": 3', b'"n": 4', 1))
    with pytest.raises(BaselineError, match="damaged: its contents are not those"):
        store.read("main", H200)


@pytest.mark.parametrize("lines", [[1], [0, 1], [0, 2, 1, 3], [0, 1, 1, 2, 3], [0, 3], []])
def test_lines_that_went_or_moved_are_damage(
    store: Store, make_record: MakeRecord, lines: list[int]
) -> None:
    store.add("main", make_record(seed=1), "s")
    path = store.add("main", make_record(seed=2), "s")
    old = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(old[line] for line in lines))
    with pytest.raises(BaselineError, match="damaged"):
        store.read("main", H200)


def sealed(lines: list[dict[str, Any]]) -> bytes:
    """Lines with a trailer that is right, as another program might write them."""
    from hashlib import sha256

    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    trailer = {"lines": len(lines) - 1, "sha256": sha256(body).hexdigest()}
    return body + json.dumps(trailer).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "field", "value", "said"),
    [
        (0, "schema", "pytest-hwqueue/baseline/2", "is of schema 'pytest-hwqueue/baseline/2'"),
        (0, "schema", "other", "is of schema 'other', and this version"),
        (0, "schema", 1, "line 1 is not a header: schema"),
        (0, "sample", None, "line 1 is not a header: sample"),
        (0, "surprise", 1, "line 1 is not a header: surprise"),
        (1, "n", "3", "line 2 is not a run: n"),
        (1, "n", 0, "line 2 is not a run: n"),
        (1, "p99_ns", -1, "line 2 is not a run: p99_ns"),
        (1, "p99_ns", 1.5, "line 2 is not a run: p99_ns"),
        (1, "surprise", 1, "line 2 is not a run: surprise"),
        (1, "throughput", {"x": "y"}, "line 2 is not a run: throughput.x"),
        (1, "throughput", {"x": -1.0}, "line 2 is not a run: throughput.x"),
        (1, "iteration_ns", -1.0, "line 2 is not a run: iteration_ns"),
        (1, "ratios", {"x": {"p50": -1.0, "p99": None}}, "line 2 is not a run: ratios.x.p50"),
        (1, "p50_ns", 0, "line 2: p50_ns is 0, and the run's own samples have "),
        (1, "p99_ns", 1000, "line 2: p99_ns is 1000, and the run's own samples have "),
        (1, "max_ns", 10**12, "line 2: max_ns is 1000000000000, and the run's own"),
        (
            1,
            "tags",
            {"x": {"n": 9, "p50_ns": 5, "p90_ns": 5, "p95_ns": 5, "p99_ns": 4}},
            "line 2: tags.x.p99_ns is 4, below p95_ns of 5",
        ),
    ],
)
def test_foreign_content_is_refused_with_line_and_field(
    store: Store, make_record: MakeRecord, line: int, field: str, value: object, said: str
) -> None:
    path = store.add("main", make_record(), "s")
    lines = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()[:-1]]
    path.write_bytes(sealed(lines))
    assert store.read("main", H200).cells
    lines[line][field] = value
    path.write_bytes(sealed(lines))
    with pytest.raises(BaselineError, match="store its runs again") as refused:
        store.read("main", H200)
    assert said in str(refused.value)


@given(
    samples_ns=st.lists(
        st.one_of(st.integers(0, 40), st.integers(0, 10**15)), min_size=1, max_size=50
    )
)
def test_figures_fit_their_samples_whatever_these_are(samples_ns: list[int]) -> None:
    record = full_record()
    assert record.samples is not None
    samples = record.samples.model_copy(update={"host_ns": samples_ns, "tags_ns": {}})
    primary = record.primary.model_copy(update={"name": "iteration", "per": "iteration"})
    whole = record.model_copy(update={"samples": samples, "primary": primary, "faults": []})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / cell_file_name(whole.cell.id)
        write_cell(path, cell_of_record(whole, "s"))
        assert read_cell(path).runs[0].n == len(samples_ns)


def test_not_a_number_and_no_run_are_refused(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(), "s")
    lines = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()[:-1]]
    path.write_bytes(sealed(lines[:1]))
    with pytest.raises(BaselineError, match="holds no run"):
        store.read("main", H200)
    lines[1]["throughput"] = {"x": float("nan")}
    path.write_bytes(sealed(lines))
    with pytest.raises(BaselineError, match="line 2 is not a run"):
        store.read("main", H200)


def test_cell_under_another_cells_name_is_refused(store: Store, make_record: MakeRecord) -> None:
    one = store.add("main", make_record("one"), "s")
    two = store.add("main", make_record("two"), "s")
    shutil.copy(one, two)
    with pytest.raises(BaselineError, match=r"holds the cell one\[") as refused:
        store.read("main", H200)
    assert str(two) in str(refused.value)


def test_damaged_file_is_not_written_over(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(seed=1), "s")
    path.write_bytes(path.read_bytes()[:-5])
    before = files(store.root)
    with pytest.raises(BaselineError, match="damaged"):
        store.add_many("main", [make_record("another"), make_record(seed=2)], "s")
    assert files(store.root) == before


def test_what_is_no_cell_is_told_by_name(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(), "s")
    (path.parent / "README.md").write_text("allowed", encoding="utf-8")
    assert store.read("main", H200).cells
    (path.parent / "mine.jsonl").write_text("{}", encoding="utf-8")
    with pytest.raises(BaselineError, match=r"mine\.jsonl is not the file of a cell"):
        store.read("main", H200)


# Places


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".x", "a" * 65])
def test_names_that_lead_elsewhere_are_refused_everywhere(
    store: Store, make_record: MakeRecord, name: str
) -> None:
    cell = cell_of_record(make_record(), "s")
    for call in (
        lambda: store.add(name, make_record(), "s"),
        lambda: store.read(name, H200),
        lambda: store.history(name, H200),
        lambda: store.prune(name, H200, 1),
        lambda: store.accept(name, H200, {cell.header.cell.id: cell}, "why"),
        lambda: store.read("main", name + "X"),
    ):
        with pytest.raises(BaselineError, match=r"cannot name a baseline|not the folder"):
            call()
    assert not store.root.exists()


def test_names_apart_by_capital_letters_only_are_refused(
    store: Store, make_record: MakeRecord
) -> None:
    store.add("main", make_record(), "s")
    with pytest.raises(BaselineError, match="'Main' and 'main'"):
        store.add("Main", make_record(), "s")
    with pytest.raises(BaselineError, match="'MAIN' and 'main'"):
        store.read("MAIN", H200)


@pytest.mark.parametrize("place", [H200, f"{H200}/main", f"{H200}/main/anchor"])
def test_link_out_of_the_root_is_refused(
    store: Store, make_record: MakeRecord, tmp_path: Path, place: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = store.root / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    cell = cell_of_record(make_record(), "s")
    with pytest.raises(BaselineError, match="is a link that leads out of"):
        store.accept("main", H200, {cell.header.cell.id: cell}, "why")
    assert list(elsewhere.iterdir()) == []


def test_root_may_be_a_link(tmp_path: Path, make_record: MakeRecord) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    Store(tmp_path / "link").add("main", make_record(), "s")
    assert Store(tmp_path / "real").names(H200) == ["main"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_cell_that_is_no_plain_file_is_refused(
    store: Store, make_record: MakeRecord, make: Callable[[Path], None]
) -> None:
    path = store.add("main", make_record(), "s")
    path.unlink()
    make(path)
    for call in (
        lambda: store.read("main", H200),
        lambda: store.add("main", make_record(seed=2), "s"),
    ):
        with pytest.raises(BaselineError, match="is not a plain file"):
            call()


def test_lock_that_is_a_link_is_refused(
    store: Store, make_record: MakeRecord, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    folder = store.root / H200 / "main"
    folder.mkdir(parents=True)
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(BaselineError, match="is a link"):
        store.add("main", make_record(), "s")
    assert victim.read_text(encoding="utf-8") == "precious"


# Full disks


def test_full_disk_leaves_the_old_file_whole(
    store: Store,
    make_record: MakeRecord,
    smaller_files: Callable[[int], AbstractContextManager[None]],
) -> None:
    path = store.add("main", make_record(seed=1), "s")
    before = files(store.root)
    with (
        smaller_files(path.stat().st_size + 100),
        pytest.raises(BaselineError, match="what was stored before is still there") as refused,
    ):
        store.add("main", make_record(seed=2), "s")
    assert str(path) in str(refused.value)
    assert os.strerror(errno.EFBIG) in str(refused.value)
    assert files(store.root) == before
    assert not list(store.root.rglob("*.tmp"))
    store.add("main", make_record(seed=2), "s")
    assert len(next(iter(store.read("main", H200).cells.values())).runs) == 2


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failing_system_call_leaves_the_old_file_whole(
    store: Store, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.add("main", make_record(seed=1), "s")
    before = files(store.root)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(BaselineError, match=os.strerror(errno.ENOSPC)):
            store.add("main", make_record(seed=2), "s")
    assert files(store.root) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into every folder")
def test_folder_without_the_right_to_write_is_named(store: Store, make_record: MakeRecord) -> None:
    store.root.mkdir()
    store.root.chmod(0o500)
    try:
        with pytest.raises(BaselineError, match="cannot make"):
            store.add("main", make_record(), "s")
    finally:
        store.root.chmod(0o700)


def test_file_in_the_way_is_named(store: Store, make_record: MakeRecord) -> None:
    store.root.mkdir()
    (store.root / H200).write_text("in the way", encoding="utf-8")
    with pytest.raises(BaselineError, match=f"{H200}"):
        store.add("main", make_record(), "s")


# Moving


def cells_of(*records: RunRecord, session: str = "new") -> dict[str, CellBaseline]:
    return {record.cell.id: cell_of_record(record, session) for record in records}


def test_steps_add_up_against_the_anchor(store: Store, make_record: MakeRecord) -> None:
    store.add_many("main", [make_record("a", seed=1), make_record("b", seed=1)], "s")
    first = store.read("main", H200)
    moves = [
        store.accept(
            "main",
            H200,
            cells_of(*(make_record(cell, seed=1, scale=1.04**step) for cell in "ab")),
            f"step {step}",
            commit=f"{step}" * 40,
        )
        for step in (1, 2, 3)
    ]
    assert [move.median_p99_ratio for move in moves] == pytest.approx([1.04] * 3, rel=1e-6)
    assert [move.median_p99_ratio_to_anchor for move in moves] == pytest.approx(
        [1.04, 1.04**2, 1.04**3], rel=1e-6
    )
    assert store.history("main", H200) == moves
    assert [move.reason for move in moves] == ["step 1", "step 2", "step 3"]
    assert moves[2].commit == "3" * 40
    assert moves[0].cells.keys() == first.cells.keys()
    assert store.anchor("main", H200) == first
    assert store.read("main", H200).cells["a[cuda-s8-native-eager]"].runs[0].session == "new"


def test_moving_to_another_baseline_leaves_other_cells(
    store: Store, make_record: MakeRecord
) -> None:
    store.add_many("main", [make_record("a"), make_record("b")], "s")
    store.add_many("candidate", [make_record("a", seed=9), make_record("c", seed=9)], "t")
    candidate = store.read("candidate", H200).cells
    old = store.read("main", H200).cells
    move = store.accept("main", H200, candidate, "because")
    a, b, c = (f"{name}[cuda-s8-native-eager]" for name in "abc")
    assert store.read("main", H200).cells == {a: candidate[a], b: old[b], c: candidate[c]}
    assert store.anchor("main", H200).cells == {a: old[a], b: old[b], c: candidate[c]}
    assert move.cells[c].p99_ratio is None
    assert move.cells[c].p99_ratio_to_anchor == pytest.approx(1)
    assert store.read("candidate", H200).cells == candidate


def test_move_over_another_driver_says_so(store: Store, make_record: MakeRecord) -> None:
    store.add("main", make_record(), "s")
    newer = make_record(seed=2, hard={"driver_major": 590}, soft={"torch_version": "3"})
    move = store.accept("main", H200, cells_of(newer), "new driver")
    assert move.changed == ["driver_major", "torch_version"]
    assert store.history("main", H200) == [move]


def test_move_to_another_measurement_is_refused(store: Store, make_record: MakeRecord) -> None:
    store.add("main", make_record(), "s")
    before = files(store.root)
    other = make_record(parts={"parameters": {"mm_dim": 1, "shape": [1, 2]}})
    faulty = make_record(faults=["slow:2"])
    for cells, device, reason, said in (
        (cells_of(other), H200, "why", "parameter.mm_dim is 4096 in one and 1 in the other"),
        (cells_of(faulty), H200, "why", "planted faults"),
        (cells_of(make_record()), "amd", "why", "cannot be accepted for amd"),
        (cells_of(make_record()), H200, "  ", "needs a reason"),
        ({}, H200, "why", "there is no cell"),
    ):
        with pytest.raises(BaselineError, match=said):
            store.accept("main", device, cells, reason)
    assert files(store.root) == before


def test_p99_of_zero_has_no_ratio(store: Store, make_record: MakeRecord) -> None:
    store.add("main", make_record(), "s")
    record = make_record(seed=2)
    assert record.samples is not None
    samples = record.samples.model_copy(update={"host_ns": [0, 0, 0]})
    zero = record.model_copy(update={"samples": samples})
    move = store.accept("main", H200, cells_of(zero), "too coarse a clock")
    assert (move.median_p99_ratio, move.median_p99_ratio_to_anchor) == (None, None)
    assert store.read("main", H200).cells[record.cell.id].runs[0].samples_ns().tolist() == [0] * 3


def test_damaged_history_is_named(store: Store, make_record: MakeRecord) -> None:
    store.accept("main", H200, cells_of(make_record()), "first")
    path = store.root / H200 / "main" / "history.jsonl"
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(BaselineError, match=r"history\.jsonl"):
            store.history("main", H200)
    before = files(store.root)
    with pytest.raises(BaselineError, match=r"history\.jsonl"):
        store.accept("main", H200, cells_of(make_record(seed=2)), "second")
    assert files(store.root) == before


def test_pruning_keeps_the_first_runs_as_the_anchor(store: Store, make_record: MakeRecord) -> None:
    for seed in range(5):
        store.add("main", make_record(seed=seed), f"s{seed}")
    assert store.prune("main", H200, 5) == 0
    assert not (store.root / H200 / "main" / "anchor").exists()
    assert store.prune("main", H200, 2) == 3
    (cell,) = store.read("main", H200).cells.values()
    assert [run.session for run in cell.runs] == ["s3", "s4"]
    (anchor,) = store.anchor("main", H200).cells.values()
    assert [run.session for run in anchor.runs] == ["s0", "s1"]
    with pytest.raises(BaselineError, match="at least 1"):
        store.prune("main", H200, 0)


class StoreAgainstModel(RuleBasedStateMachine):
    """Any order of operations leaves what a dictionary would hold."""

    make_record: MakeRecord

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name) / "root")
        self.model: dict[str, dict[str, list[tuple[str, str]]]] = {}
        self.anchors: dict[str, dict[str, list[tuple[str, str]]]] = {}
        self.moves: dict[str, int] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    names = st.sampled_from(["main", "other"])
    runs = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), min_size=1, max_size=4)

    @rule(name=names, runs=runs, session=st.sampled_from(["s", "t"]))
    def add(self, name: str, runs: list[tuple[str, int]], session: str) -> None:
        records = [self.make_record(cell, seed=seed, n=2) for cell, seed in runs]
        self.store.add_many(name, records, session)
        for record in records:
            stored = self.model.setdefault(name, {}).setdefault(record.cell.id, [])
            if (session, record.started) not in stored:
                stored.append((session, record.started))

    @rule(name=names, keep=st.integers(1, 4))
    def prune(self, name: str, keep: int) -> None:
        if not self.model.get(name):
            return
        self.store.prune(name, H200, keep)
        for cell, runs in self.model[name].items():
            if len(runs) > keep:
                self.anchors.setdefault(name, {}).setdefault(cell, runs[:keep])
                self.model[name][cell] = runs[-keep:]

    @rule(name=names)
    def accept(self, name: str) -> None:
        other = {"main": "other", "other": "main"}[name]
        if not self.model.get(other):
            return
        self.store.accept(name, H200, self.store.read(other, H200).cells, "why")
        self.moves[name] = self.moves.get(name, 0) + 1
        for cell, runs in self.model[other].items():
            old = self.model.setdefault(name, {}).get(cell, runs)
            self.anchors.setdefault(name, {}).setdefault(cell, list(old))
            self.model[name][cell] = list(runs)

    @invariant()
    def store_is_the_model(self) -> None:
        wanted = {name: cells for name, cells in self.model.items() if cells}
        assert self.store.names(H200) == sorted(wanted)
        for name, cells in wanted.items():
            assert self.summary(self.store.read(name, H200).cells) == cells
            anchors = {**cells, **self.anchors.get(name, {})}
            assert self.summary(self.store.anchor(name, H200).cells) == anchors
            assert len(self.store.history(name, H200)) == self.moves.get(name, 0)

    @staticmethod
    def summary(cells: dict[str, CellBaseline]) -> dict[str, list[tuple[str, str]]]:
        assert list(cells) == sorted(cells)
        return {
            cell_id: [(run.session, run.when) for run in cell.runs]
            for cell_id, cell in cells.items()
        }


def test_store_is_a_model(make_record: MakeRecord) -> None:
    machine = type("Machine", (StoreAgainstModel,), {"make_record": staticmethod(make_record)})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
    case("runTest").runTest()


def test_name_of_a_cells_file_is_readable(store: Store, make_record: MakeRecord) -> None:
    path = store.add("main", make_record(), "s")
    assert path.name == cell_file_name("hetero_kernels[cuda-s8-native-eager]")
