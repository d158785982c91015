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
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pytest_hwqueue.data.errors import BadInput, RecordError
from pytest_hwqueue.data.records.cell import BackToBack, RunRecord, read_record
from pytest_hwqueue.data.records.declared import PACE
from pytest_hwqueue.data.records.files import cell_file_name
from pytest_hwqueue.data.records.fingerprint import Value
from pytest_hwqueue.judge.baselines.cell_file import line_of, read_cell, write_cell, write_lines
from pytest_hwqueue.judge.baselines.folders import packaged_folder
from pytest_hwqueue.judge.baselines.runs import CellBaseline, cell_of_record, soft_fields
from pytest_hwqueue.judge.baselines.store import Store, keep_record
from tests.conftest import make_record
from tests.judge.baselines.run_with import with_samples

H200 = "nvidia-h200"
Said = tuple[str, ...]
SIMULATED: dict[str, Value] = {"device_kind": "sim", "profile": "sim:h200"}


def files(root: Path) -> dict[str, bytes]:
    """All files below a folder that a commit would hold."""
    found = (path for path in root.rglob("*") if path.is_file() and path.name[0] != ".")
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


class Checked(Store):
    """A store that is looked into; what it refuses must change no file."""

    def refuses(self, call: Callable[..., object], *arguments: object, said: str | Said) -> None:
        before = files(self.root)
        with pytest.raises(RecordError) as refused:
            call(*arguments)
        wanted = (said,) if isinstance(said, str) else said
        assert [each for each in wanted if each not in str(refused.value)] == []
        assert files(self.root) == before

    def put(self, *records: RunRecord, session: str = "s") -> Path:
        return self.add_many("main", records, session)[0]

    def main(self) -> dict[str, CellBaseline]:
        return self.read("main", H200)

    def cell(self) -> CellBaseline:
        (cell,) = self.main().values()
        return cell


@pytest.fixture
def store(tmp_path: Path) -> Checked:
    return Checked(tmp_path / "baselines")


@pytest.fixture
def path(store: Checked) -> Path:
    """The file of a cell with one run of three samples."""
    return store.put(make_record(n=3))


def cells_of(*records: RunRecord) -> dict[str, CellBaseline]:
    return {record.cell.id: cell_of_record(record, "new") for record in records}


def sessions(cell: CellBaseline) -> list[str]:
    return [run.session for run in cell.runs]


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def test_run_is_read_as_it_was_measured(store: Checked) -> None:
    record = make_record(n=1000)
    path = store.put(record, session="s1")
    name = cell_file_name("hetero_kernels[cuda-s8-native-eager]")
    assert path == store.root / H200 / "main" / name
    cell = store.cell()
    assert record.fingerprint is not None
    assert record.samples is not None
    assert (cell.header.cell, cell.device) == (record.cell, H200)
    fingerprint = (cell.header.hard, cell.header.soft)
    assert fingerprint == (record.fingerprint.hard, record.fingerprint.soft)
    assert (cell.header.sample.latency, cell.header.sample.tags) == ("host_ns", "events")
    (run,) = cell.runs
    assert (run.session, run.when, run.commit) == ("s1", record.started, "0" * 40)
    assert (run.n, run.failed, run.soft) == (1000, 0, {})
    host_ns, small_ns = record.samples.host_ns, record.samples.tags_ns["small"]
    shares = [0.5, 0.9, 0.95, 0.99, 0.999]
    quantiles = [round(value) for value in np.quantile(host_ns, shares)]
    assert [run.p50_ns, run.p90_ns, run.p95_ns, run.p99_ns, run.p999_ns] == quantiles
    assert (run.max_ns, run.iteration_ns) == (max(host_ns), round(np.mean(host_ns), 1))
    assert np.abs(run.samples_ns() / np.asarray(host_ns) - 1).max() < 5.1e-4
    (tag,) = run.tags.values()
    quantiles = [round(value) for value in np.quantile(small_ns, shares[:4])]
    assert [tag.n, tag.p50_ns, tag.p90_ns, tag.p95_ns, tag.p99_ns] == [1000, *quantiles]
    ratio = record.metrics.ratios["convoy_ratio"]
    assert ratio.p99.value is not None
    (stored,) = run.ratios.values()
    assert (stored.p50, stored.p99) == (ratio.p50.value, ratio.p99.value)
    rate = record.metrics.throughput[0].value
    assert run.throughput == {"products/s": rate}
    # That of iterations which follow each other at once is another figure.
    (at_once,) = cell_of_record(
        with_samples(record, back_to_back=BackToBack(blocks_ns=[1], iterations=1, launching_ns=1)),
        "s1",
    ).runs
    assert at_once.throughput == {"products/s, back to back": rate}


def test_what_is_stored_where_the_host_did_not_wait_is_a_pace(store: Checked) -> None:
    made = make_record(parts={"sync_mode": "end_only"})
    assert made.samples is not None
    record = with_samples(made, host_ns=[], device_ns=[], pace_ns=made.samples.host_ns)
    store.put(record.model_copy(update={"primary": PACE}))
    cell = store.cell()
    assert (cell.header.sample.latency, cell.header.sample.primary) == ("pace_ns", "pace")
    assert cell.header.has_pace
    assert cell.runs[0].max_ns == max(made.samples.host_ns)
    assert cell.runs[0].tags.keys() == made.samples.tags_ns.keys()


def test_a_run_is_one_line_with_the_soft_fields_that_changed_and_is_stored_once(
    store: Checked,
) -> None:
    other = make_record(seed=2, soft={"host_name": "second", "new": 1})
    assert other.fingerprint is not None
    del other.fingerprint.soft["driver_version"]
    path = store.put(make_record(seed=1), session="s1")
    before = path.read_bytes().splitlines()
    store.put(other, other, session="s2")
    *lines, trailer = path.read_bytes().splitlines(keepends=True)
    assert (len(lines), b"".join(lines[:2]).splitlines()) == (3, before[:-1])
    assert json.loads(trailer) == {"lines": 2, "sha256": sha256(b"".join(lines)).hexdigest()}
    # A commit holds no lock and no temporary file.
    assert (path.parent / ".gitignore").read_text(encoding="utf-8") == ".*\n"
    stored = files(store.root)
    assert stored.keys() == {f"{H200}/main/{path.name}"}
    store.put(other, session="s2")
    assert files(store.root) == stored
    cell = store.cell()
    changed = {"host_name": "second", "new": 1, "driver_version": None}
    assert [run.soft for run in cell.runs] == [{}, changed]
    assert soft_fields(cell.header, cell.runs[1]) == other.fingerprint.soft


def test_names_devices_and_cells(store: Checked) -> None:
    assert store.devices() == []
    with pytest.raises(RecordError, match="none was stored yet"):
        store.read("main", H200)
    records = [make_record("b"), make_record("a"), make_record(hard=SIMULATED)]
    store.put(*records)
    store.add("other.1", make_record(), "s")
    for readme in (store.root / "README.md", store.root / H200 / "main" / "README.md"):
        readme.write_text("neither a device nor a cell", encoding="utf-8")
    (store.root / "Notes").mkdir()
    (store.root / H200 / "empty").mkdir()
    assert store.devices() == [H200, "sim-h200"]
    names = [store.names(device) for device in (*store.devices(), "amd")]
    assert names == [["main", "other.1"], ["main"], []]
    assert [cell.split("[")[0] for cell in store.main()] == ["a", "b"]
    for call in (store.read, store.history, store.anchor, partial(store.prune, keep=1)):
        with pytest.raises(RecordError, match=r"there are main, other\.1"):
            call("mian", H200)
    assert not (store.root / H200 / "mian").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "failed", "reason": "Boom"}, "its status is failed: Boom"),
        ({"status": "invalid"}, "its status is invalid; only runs that went well"),
        ({"fingerprint": None}, "has no fingerprint"),
        ({"samples": None}, "has no samples"),
        ({"n": 0}, "no latency samples"),
        ({"faults": ["slow:1.2"]}, "planted faults (slow:1.2)"),
        ({"hard": {"device_name": ""}}, "does not name the device's model"),
        ({"host_ns": [-1]}, "-1"),
        ({"tags_ns": {"small": [-1]}}, "-1"),
    ],
)
def test_record_that_cannot_be_stored(store: Checked, changed: dict[str, Any], said: str) -> None:
    series = {name: changed[name] for name in changed if name.endswith("_ns")}
    record = with_samples(make_record(), **series) if series else make_record(**changed)
    store.refuses(store.put, make_record("another"), record, said=said)
    assert not store.root.exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hard": {"driver_major": 570}}, "driver_major is 580 in one and 570 in the other"),
        ({"hard": {"new": 1}}, "new is not known in one and 1 in the other"),
        ({"parts": {"parameters": {"mm_dim": 1, "shape": [1, 2]}}}, "parameter.mm_dim is 4096 in"),
    ],
)
def test_run_under_other_conditions_is_refused_and_nothing_written(
    store: Checked, path: Path, changed: dict[str, Any], said: str
) -> None:
    other = make_record(seed=2, **changed)
    shared = f"all runs of a cell share their conditions, but {said}"
    store.refuses(store.put, make_record("another"), other, said=shared)
    # A tuple in memory is a list in the file.
    same = make_record(seed=2, parts={"parameters": {"mm_dim": 4096, "shape": (1, 2)}})
    store.put(same)
    assert len(store.cell().runs) == 2


# Damage


def test_file_cut_off_or_changed_at_any_byte_is_damaged(path: Path) -> None:
    whole = path.read_bytes()

    def is_damaged() -> None:
        with pytest.raises(RecordError, match="store its runs again") as raised:
            read_cell(path)
        assert type(raised.value) is RecordError
        assert str(raised.value).startswith(f"{path} is ")

    with path.open("r+b") as file:
        for place in range(len(whole)):
            os.pwrite(file.fileno(), bytes([whole[place] ^ (1 << place % 8)]), place)
            is_damaged()
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    assert read_cell(path).runs
    for length in reversed(range(len(whole))):
        os.truncate(path, length)
        is_damaged()
    for data, said in ((whole[:-5], "it is cut off"), (whole + b"\n", "is damaged")):
        path.write_bytes(data)
        with pytest.raises(RecordError, match=said):
            read_cell(path)
    path.write_bytes(whole.replace(b'"n": 3', b'"n": 4', 1))
    with pytest.raises(RecordError, match="damaged: its contents are not those"):
        read_cell(path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: POINTER, "is git-lfs's pointer in place of the file: run `git lfs pull`"),
        (lambda data: data.replace(b"\n", b"\r\n"), "has line ends that git converted"),
        (
            lambda data: data.replace(b"\n", b"\n<<<<<<< HEAD\n", 1) + b">>>>>>> other\n",
            "has git's conflict markers: take one side whole",
        ),
        (lambda data: b"<<<<<<< HEAD\n" + data, "has git's conflict markers"),
    ],
)
def test_what_git_has_changed_is_told_by_what_it_did(
    path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RecordError) as refused:
        read_cell(path)
    assert f"{path} {said}" in str(refused.value)
    assert "damaged" not in str(refused.value)


@pytest.mark.parametrize("lines", [[1], [0, 1], [0, 2, 1, 3], [0, 1, 1, 2, 3], [0, 3], []])
def test_lines_that_went_or_moved_are_damage_and_not_written_over(
    store: Checked, path: Path, lines: list[int]
) -> None:
    store.put(make_record(seed=2))
    old = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(old[line] for line in lines))
    store.refuses(store.main, said="damaged")
    store.refuses(store.put, make_record("another"), make_record(seed=3), said="damaged")


_TAG = {"n": 9, "p50_ns": 5, "p90_ns": 5, "p95_ns": 5, "p99_ns": 4}


@pytest.mark.parametrize(
    ("line", "field", "value", "said"),
    [
        (1, "schema", "pytest-hwqueue/baseline/2", "is of schema 'pytest-hwqueue/baseline/2', and"),
        (1, "schema", 1, ": schema"),
        (1, "sample", None, ": sample"),
        (1, "surprise", 1, ": surprise"),
        (2, "n", "3", ": n"),
        (2, "n", 0, ": n"),
        (2, "n", 4, ": the samples are damaged: they are 3, not 4"),
        (2, "p99_ns", -1, ": p99_ns"),
        (2, "p99_ns", 10**30, ": p99_ns: Input should be less than or equal to"),
        (2, "surprise", 1, ": surprise"),
        (2, "throughput", {"x": -1.0}, ": throughput.x"),
        (2, "iteration_ns", -1.0, ": iteration_ns"),
        (2, "ratios", {"x": {"p50": -1.0, "p99": None}}, ": ratios.x.p50"),
        (2, "p50_ns", 0, ": p50_ns is 0, and the run's own samples have "),
        (2, "p99_ns", 1000, ": p99_ns is 1000, and the run's own samples have "),
        (2, "max_ns", 10**12, ": max_ns is 1000000000000, and the run's own"),
        (2, "tags", {"x": _TAG}, ": tags.x.p99_ns is 4, below p95_ns of 5"),
        (2, "tags", {"x": _TAG | {"p50_ns": 6}}, ": tags.x.p90_ns is 5, below p50_ns of 6"),
        (2, "samples", "AAAA", ": the samples are damaged"),
        (2, "samples", "no base64", ": the samples are damaged"),
        (2, "samples", packed(b"\x80\x80\x80"), ": the samples are damaged: they are 0, not 3"),
        (2, "samples", packed(b"\x00" * 10**6), ": the samples are damaged"),
        (2, "samples", packed(b"\x01\x01\x01"), ": the samples are damaged: one is below 0"),
    ],
)
def test_a_damaged_file_that_is_sealed_again_is_named(
    store: Checked, path: Path, line: int, field: str, value: object, said: str
) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()[:-1]
    write_lines(path, lines)
    assert store.main()
    lines[line - 1] = line_of({**json.loads(lines[line - 1]), field: value})
    write_lines(path, lines)
    where = "" if "is of schema" in said else f"is damaged: line {line}"
    store.refuses(store.main, said=(f"{path} {where}{said}", "store its runs again"))


@given(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 10**15)), min_size=1, max_size=50))
def test_figures_fit_their_samples_whatever_these_are(samples_ns: list[int]) -> None:
    record = with_samples(make_record(), host_ns=samples_ns, tags_ns={"a": samples_ns, "none": []})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / cell_file_name(record.cell.id)
        write_cell(path, cell_of_record(record, "s"))
        (run,) = read_cell(path).runs
        assert (run.n, [*run.tags], run.tags["a"].n) == (len(samples_ns), ["a"], run.n)


def test_what_is_not_this_cells_file_is_refused(store: Checked, path: Path) -> None:
    header, run, _ = path.read_text(encoding="utf-8").splitlines()
    write_lines(path, [header])
    store.refuses(store.main, said="holds no run")
    write_lines(path, [header, run.replace('"throughput": {', '"throughput": {"x": NaN, ')])
    store.refuses(store.main, said="damaged: line 2: ")
    two = store.put(make_record("two"))
    shutil.copy(two, path)
    store.refuses(store.main, said=f"{path} holds the cell two[")
    (path.parent / "mine.jsonl").write_text("{}", encoding="utf-8")
    store.refuses(store.main, said="mine.jsonl is not the file of a cell")


# Places


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".x", "a" * 65])
def test_names_that_lead_elsewhere_are_refused_everywhere(store: Checked, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.add(name, make_record(), "s"),
        lambda: store.read(name, H200),
        lambda: store.history(name, H200),
        lambda: store.prune(name, H200, 1),
        lambda: store.accept(name, H200, cells_of(make_record()), "why"),
        lambda: store.read("main", name + "X"),
    ]
    for call in calls:
        with pytest.raises(BadInput, match=r"cannot name a baseline|not the folder"):
            call()
    assert not store.root.exists()


def test_names_apart_by_capital_letters_only_are_refused(store: Checked, path: Path) -> None:
    store.refuses(store.add, "Main", make_record(), "s", said="'Main' and 'main'")
    store.refuses(store.read, "MAIN", H200, said="'MAIN' and 'main'")


@pytest.mark.parametrize("place", [H200, f"{H200}/main", f"{H200}/main/anchor"])
def test_only_the_root_may_be_a_link(store: Checked, tmp_path: Path, place: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    link = store.root / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(RecordError, match="is a link that leads out of"):
        store.accept("main", H200, cells_of(make_record()), "why")
    assert list(elsewhere.iterdir()) == []
    Store(tmp_path / "link").add("main", make_record(), "s")
    assert Store(elsewhere).names(H200) == ["main"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_cell_that_is_no_plain_file_and_lock_that_is_a_link_are_refused(
    store: Checked, path: Path, make: Callable[[Path], None]
) -> None:
    path.unlink()
    make(path)
    store.refuses(store.main, said="is not a plain file")
    store.refuses(store.put, make_record(seed=2), said="is not a plain file")
    lock = path.parent / ".lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(store.root / "victim")
    store.refuses(store.put, make_record(), said="is a link")


# Full disks


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_full_disk_or_failing_system_call_leaves_the_old_file_whole(
    store: Checked,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    smaller_files: Callable[[int], AbstractContextManager[None]],
    call: str,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = call == "write"
    said = os.strerror(errno.EFBIG if full else errno.ENOSPC)
    limited = smaller_files(path.stat().st_size + 100) if full else nullcontext()
    kept = (str(path), "what was stored before is still there")
    with monkeypatch.context() as patch, limited:
        if not full:
            patch.setattr(os, call, fail)
        store.refuses(store.put, make_record(seed=2), said=(said, *kept))
    assert not list(store.root.rglob("*.tmp"))
    store.put(make_record(seed=2))
    assert len(store.cell().runs) == 2


@pytest.mark.parametrize("in_the_way", ["file", "right"])
def test_folder_that_cannot_be_made_is_named(store: Checked, in_the_way: str) -> None:
    store.root.mkdir()
    if in_the_way == "file":
        (store.root / H200).write_text("in the way", encoding="utf-8")
    elif os.geteuid() == 0:
        pytest.skip("root may write into every folder")
    else:
        store.root.chmod(0o500)
    store.refuses(store.put, make_record(), said=(H200, "cannot"))
    store.root.chmod(0o700)


# Baselines that come with the plugin


def test_a_packaged_baseline_is_found_behind_the_projects_own_and_only_read(
    tmp_path: Path, store: Checked
) -> None:
    packaged = Checked(tmp_path / "packaged")
    packaged.put(make_record("a"), session="shipped")
    with pytest.raises(RecordError):
        store.read("main", H200)
    both = Checked(store.root, packaged.root)
    assert (both.devices(), both.names(H200), both.history("main", H200)) == ([H200], ["main"], [])
    assert both.read("main", H200) == both.anchor("main", H200) == packaged.read("main", H200)
    said = "comes with the plugin and is only read"
    packaged.refuses(both.prune, "main", H200, 1, said=said)
    both.put(make_record("b"), session="mine")
    assert [sessions(each.cell()) for each in (both, packaged)] == [["mine"], ["shipped"]]


def test_packaged_baselines_lie_in_the_installation_or_beside_the_clone(tmp_path: Path) -> None:
    package, beside = tmp_path / "pytest_hwqueue", tmp_path / "baselines"
    package.mkdir()
    assert packaged_folder(package) is None
    beside.mkdir()
    # Some other project's, beside an installed package.
    assert packaged_folder(package) is None
    (tmp_path / "pyproject.toml").touch()
    assert packaged_folder(package) == beside
    (package / "stored_baselines").mkdir()
    assert packaged_folder(package) == package / "stored_baselines"


# Moving


def test_steps_add_up_against_the_anchor(store: Checked) -> None:
    store.put(make_record("a", seed=1), make_record("b", seed=1))
    first = store.read("main", H200)
    moves = []
    for step in (1, 2, 3):
        cells = cells_of(*(make_record(cell, seed=1, scale=1.04**step) for cell in "ab"))
        moves.append(store.accept("main", H200, cells, f"step {step}", commit=f"{step}" * 40))
    steps, sums = [1.04] * 3, [1.04, 1.04**2, 1.04**3]
    assert [move.median_p99_ratio for move in moves] == pytest.approx(steps, rel=1e-6)
    assert [move.median_p99_ratio_to_anchor for move in moves] == pytest.approx(sums, rel=1e-6)
    assert store.history("main", H200) == moves
    told = [(move.reason, move.commit, move.changed) for move in moves]
    assert told == [(f"step {step}", step * 40, []) for step in "123"]
    assert moves[0].cells.keys() == first.keys()
    assert store.anchor("main", H200) == first
    assert sessions(store.main()["a[cuda-s8-native-eager]"]) == ["new"]


def test_a_move_tells_what_changed_and_has_no_ratio_to_a_p99_of_zero(
    store: Checked, path: Path
) -> None:
    newer = make_record(seed=2, hard={"driver_major": 590}, soft={"torch_version": "3"})
    moves = [store.accept("main", H200, cells_of(newer), "new driver")]
    assert moves[0].changed == ["driver_major", "torch_version"]
    zero = with_samples(make_record(seed=2), host_ns=[0, 0, 0])
    moves.append(store.accept("main", H200, cells_of(zero), "too coarse a clock"))
    assert (moves[1].median_p99_ratio, moves[1].median_p99_ratio_to_anchor) == (None, None)
    assert store.cell().runs[0].samples_ns().tolist() == [0] * 3
    moves.append(store.accept("main", H200, cells_of(make_record("new")), "one more"))
    (new,) = moves[2].cells.values()
    assert new.p99_ratio is None
    assert new.p99_ratio_to_anchor == pytest.approx(1)
    assert store.history("main", H200) == moves


def test_move_to_another_measurement_is_refused(store: Checked, path: Path) -> None:
    other = make_record(parts={"parameters": {"mm_dim": 1, "shape": [1, 2]}})
    for cells, device, reason, said in (
        (cells_of(other), H200, "why", "parameter.mm_dim is 4096 in one and 1 in the other"),
        (cells_of(make_record(faults=["slow:2"])), H200, "why", "planted faults"),
        (cells_of(make_record()), "amd", "why", "cannot be accepted for amd"),
        (cells_of(make_record()), H200, "  ", "needs a reason"),
        ({}, H200, "why", "there is no cell"),
    ):
        store.refuses(store.accept, "main", device, cells, reason, said=said)
    store.refuses(store.prune, "main", H200, 0, said="at least 1")
    kept = keep_record(path.parent, other, path.parent / "session")
    assert kept.parent == path.parent / "records" / "session"
    assert read_record(kept) == other


def test_damaged_history_is_named(store: Checked) -> None:
    store.accept("main", H200, cells_of(make_record()), "first")
    path = store.root / H200 / "main" / "history.jsonl"
    header, move, _ = path.read_text(encoding="utf-8").splitlines()
    write_lines(path, [header, move, move.replace('"reason"', '"why"')])
    store.refuses(store.history, "main", H200, said=f"{path} is damaged: line 3: ")
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(RecordError, match=r"history\.jsonl"):
            store.history("main", H200)
    second = cells_of(make_record(seed=2))
    store.refuses(store.accept, "main", H200, second, "why", said="history.jsonl")


Runs = dict[str, list[tuple[str, str]]]


class StoreAgainstModel(RuleBasedStateMachine):
    """Any order of operations leaves what a dictionary would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name) / "root")
        self.model: dict[str, Runs] = {}
        self.anchors: dict[str, Runs] = {"main": {}, "other": {}}
        self.moves = {"main": 0, "other": 0}

    def teardown(self) -> None:
        self.folder.cleanup()

    names = st.sampled_from(["main", "other"])
    runs = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), min_size=1, max_size=4)

    @rule(name=names, runs=runs, session=st.sampled_from(["s", "t"]))
    def add(self, name: str, runs: list[tuple[str, int]], session: str) -> None:
        records = [make_record(cell, seed=seed, n=2) for cell, seed in runs]
        self.store.add_many(name, records, session)
        for record in records:
            stored = self.model.setdefault(name, {}).setdefault(record.cell.id, [])
            if (session, record.started) not in stored:
                stored.append((session, record.started))

    @rule(name=names, keep=st.integers(1, 4))
    def prune(self, name: str, keep: int) -> None:
        longer = {cell: runs for cell, runs in self.model.get(name, {}).items() if runs[keep:]}
        for cell, runs in longer.items():
            self.anchors[name].setdefault(cell, runs[:keep])
            self.model[name][cell] = runs[-keep:]
        if name in self.model:
            removed = self.store.prune(name, H200, keep)
            assert removed == sum(len(runs) - keep for runs in longer.values())

    @rule(name=names)
    def accept(self, name: str) -> None:
        other = {"main": "other", "other": "main"}[name]
        if other in self.model:
            self.store.accept(name, H200, self.store.read(other, H200), "why")
            self.moves[name] += 1
        for cell, runs in self.model.get(other, {}).items():
            mine = self.model.setdefault(name, {})
            self.anchors[name].setdefault(cell, [*mine.get(cell, runs)])
            mine[cell] = [*runs]

    @invariant()
    def store_is_the_model(self) -> None:
        assert self.store.names(H200) == sorted(self.model)
        for name, cells in self.model.items():
            assert self.summary(self.store.read(name, H200)) == cells
            anchors = {**cells, **self.anchors[name]}
            assert self.summary(self.store.anchor(name, H200)) == anchors
            assert len(self.store.history(name, H200)) == self.moves[name]

    @staticmethod
    def summary(cells: dict[str, CellBaseline]) -> Runs:
        assert list(cells) == sorted(cells)
        return {key: [(run.session, run.when) for run in cells[key].runs] for key in cells}


TestStoreIsAModel = StoreAgainstModel.TestCase
TestStoreIsAModel.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
