"""One test in a worker: what is made of its messages, and of a worker that does not end it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_hwqueue.data.errors import BadInput, BoundUndecided, NotProven
from pytest_hwqueue.data.records.cell import RunRecord
from pytest_hwqueue.data.records.provenance import Provenance
from pytest_hwqueue.options.options import Settings
from pytest_hwqueue.plugin.session import REPORT_ATTRIBUTE
from pytest_hwqueue.plugin.worker.test_run import ItemRun, packed, unpacked
from tests.conftest import make_record
from tests.plugin.conftest import Collect

HASHABLE = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=2),
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE | st.binary(max_size=5) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_what_json_has_no_type_for_arrives_as_it_was(value: Any) -> None:
    found = unpacked(json.loads(json.dumps(packed(value))))
    assert found == value
    assert repr(type(found)) == repr(type(value))


def test_what_is_of_no_built_in_type_travels_as_its_text_where_it_is_hashed() -> None:
    path = Path("a")
    assert unpacked(packed({path: [path]})) == {"a": [path]}
    assert unpacked(packed({(path,)})) == {("a",)}
    assert unpacked(packed((path, {path}))) == (path, {"a"})
    # A key of JSON's that looks like one of ours is none.
    assert unpacked(packed({"\0hwq tuple": [1]})) == {"\0hwq tuple": [1]}


class Worker:
    """Has the messages that a worker sends; then it hangs."""

    pid = 1
    pids = (1,)

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = [*messages]
        self.sent: list[tuple[str, dict[str, object]]] = []
        self.killed: list[str] = []
        self.deadlines: list[float | None] = []

    def receive(self, deadline: float | None) -> dict[str, Any] | None:
        self.deadlines.append(deadline)
        if self._messages:
            return self._messages.pop(0)
        assert deadline is not None
        time.sleep(max(0.0, deadline - time.monotonic()))
        return None

    def send(self, kind: str, **content: object) -> None:
        self.sent.append((kind, content))

    def kill(self, why: str) -> None:
        self.killed.append(why)

    def dump_stacks(self) -> str:
        return "the stacks"


class Services:
    """Services of a mode, which end after so many looks."""

    def __init__(self, text: str | None = None, looks: float = float("inf")) -> None:
        self.text = text
        self._looks = looks

    def check(self) -> None:
        self._looks -= 1
        if self._looks < 0:
            raise NotProven("the server ended")

    def problem(self, pid: int) -> str:
        return "the server ended" if self._looks < 1 else ""


class Followed:
    """A test's run, with all that is told of it."""

    def __init__(self, item: pytest.Item, folder: Path, timeout: float = 30.0) -> None:
        self.claimed: list[tuple[str, str]] = []
        self.emitted: list[Any] = []
        self.collected: list[Any] = []
        self.failed: list[tuple[str, str]] = []
        self.shown: list[tuple[Any, ...]] = []
        self.item = item
        self.session = SimpleNamespace(
            settings=Settings(timeout=timeout, seed=7), folder=folder, command="pytest",
            provenance=Provenance(), collect=self.collected.append,
            claim=lambda *claim: self.claimed.append(claim),
        )  # fmt: skip
        progress: Any = SimpleNamespace(
            update=lambda *shown: self.shown.append(shown),
            show=lambda text: self.shown.append((text,)),
        )
        session: Any = self.session
        failed: Any = lambda *said: self.failed.append(said)  # noqa: E731
        self.run = ItemRun(item, session, progress, 3, self.emitted.append, failed)

    def follow(self, *messages: dict[str, Any], services: Services | None = None) -> bool:
        self.worker = Worker(*messages)
        return self.run.follow(cast("Any", self.worker), cast("Any", services or Services()))


def call(method: str, waits: bool = False, **arguments: object) -> dict[str, Any]:
    return {"kind": "call", "method": method, "arguments": arguments, "waits": waits}


CELL = make_record("mine").cell
BEGINS = call("cell_begins", waits=True, cell=CELL.model_dump(mode="json"), nodeid="elsewhere")


@pytest.fixture
def followed(collect: Collect, tmp_path: Path) -> Followed:
    (item,) = collect("def test_it(hwq): pass\n", "--hwq-device=sim:h200", "--hwq-streams=1")
    return Followed(item, tmp_path)


def reported(outcome: str, when: str = "call", longrepr: str | None = None) -> dict[str, Any]:
    return call(
        "report",
        data={
            "nodeid": "elsewhere", "location": ["test_mine.py", 0, "test_it"], "keywords": {},
            "outcome": outcome, "when": when, "longrepr": longrepr, "sections": [],
            "$report_type": "TestReport",
        },
    )  # fmt: skip


@pytest.mark.parametrize("retire", [True, False])
def test_reports_are_passed_on_until_the_worker_has_finished(
    followed: Followed, retire: bool
) -> None:
    ends = {"kind": "finished", "retire": retire}
    assert followed.follow(reported("passed", "setup"), reported("passed"), ends) == retire
    assert [(each.when, each.outcome) for each in followed.emitted] == [
        ("setup", "passed"), ("call", "passed")
    ]  # fmt: skip
    # Node ids of a worker may begin at another folder.
    assert {each.nodeid for each in followed.emitted} == {"test_mine.py::" + followed.item.name}
    assert followed.failed == []
    followed.follow(reported("failed", longrepr="it broke"), ends)
    assert followed.failed == [("it broke", "")]


def test_a_test_that_a_worker_did_not_collect_fails(followed: Followed) -> None:
    assert not followed.follow({"kind": "missing"})
    (report,) = followed.emitted
    assert (report.when, report.outcome) == ("call", "failed")
    assert "did not collect this test" in report.longreprtext


def test_a_cell_is_claimed_for_the_sessions_test_and_a_refusal_is_answered(
    followed: Followed,
) -> None:
    followed.follow(BEGINS, call("progress", stage="measure", done=1, planned=2),
                    {"kind": "finished", "retire": False})  # fmt: skip
    ((cell, nodeid),) = followed.claimed
    assert (cell, nodeid) == (CELL.id, "test_mine.py::test_it[sim:h200-s1-native-eager]")
    assert followed.shown == [(CELL.id, "measure", 1, 2)]
    assert followed.worker.sent == [("answer", {"value": None, "error": ""})]

    def refuse(*_: str) -> None:
        raise BadInput("another measures it")

    followed.session.claim = refuse
    followed.follow(BEGINS, {"kind": "finished", "retire": False})
    assert followed.worker.sent == [
        ("answer", {"error": "bad input", "text": "another measures it"})
    ]


def of(entries: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return status, reason and stage of the records that a report carries."""
    found = [RunRecord.model_validate_json(Path(each["path"]).read_bytes()) for each in entries]
    return [(each.status, each.reason, each.stage or "") for each in found]


@pytest.mark.parametrize(
    ("before", "statuses", "said"),
    [
        ([], [], "in stage set-up"),
        ([BEGINS], ["timeout"], "in stage set-up"),
        ([BEGINS, call("progress", stage="measure", done=1, planned=2)], ["timeout"],
         "in stage measure"),
        # What was measured before stays as it is.
        ([BEGINS, call("measured", entry={"path": "x"})], ["kept"], "in stage the test's own code"),
        ([reported("passed")], [], "in stage teardown"),
        # A report has brought what was measured before it.
        ([BEGINS, call("measured", entry={"path": "x"}), reported("passed")], [],
         "in stage teardown"),
    ],
)  # fmt: skip
def test_a_worker_that_hangs_is_ended_and_its_cell_is_a_timeout(
    collect: Collect, tmp_path: Path, before: list[Any], statuses: list[str], said: str
) -> None:
    (item,) = collect("def test_it(hwq): pass\n", "--hwq-device=sim:h200")
    followed = Followed(item, tmp_path, timeout=0.05)
    assert followed.follow(*before)
    assert followed.worker.killed == ["timed out"]
    reason = f"not finished within 0.05 s (--hwq-timeout), {said}"
    assert followed.failed == [(reason, "the stacks")]
    report = followed.emitted[-1]
    name = CELL.id if statuses == ["timeout"] else item.name
    assert report.longreprtext == f"{reason}: {name}"
    assert report.sections == [("worker", "the stacks")]
    # Once a test's own outcome is known, what follows is an error.
    assert report.when == ("teardown" if "teardown" in said else "call")
    entries = getattr(report, REPORT_ATTRIBUTE, [])
    if statuses == ["kept"]:
        assert entries == [{"path": "x"}]
    else:
        assert [status for status, *_ in of(entries)] == statuses
        assert all(each == reason for _, each, _ in of(entries))


def test_waiting_for_another_session_stops_the_clock(collect: Collect, tmp_path: Path) -> None:
    (item,) = collect("def test_it(hwq): pass\n", "--hwq-device=sim:h200")
    followed = Followed(item, tmp_path, timeout=0.05)
    followed.follow(call("waits_for_device", text="held by 7"),
                    call("waits_for_device", text=""))  # fmt: skip
    assert [each is None for each in followed.worker.deadlines] == [False, True, False]
    assert ("held by 7",) in followed.shown


def test_a_worker_that_died_leaves_a_record_with_its_place(followed: Followed) -> None:
    ends = {"kind": "finished", "retire": False}
    followed.follow(BEGINS, call("progress", stage="measure", done=1, planned=2), ends)
    followed.run.ended("failed", "killed by SIGKILL", "its last words", failed_test=True)
    (report,) = followed.emitted
    assert of(getattr(report, REPORT_ATTRIBUTE)) == [("failed", "killed by SIGKILL", "measure")]
    assert report.longreprtext == f"killed by SIGKILL: {CELL.id}"
    (path,) = (Path(each["path"]) for each in getattr(report, REPORT_ATTRIBUTE))
    record = RunRecord.model_validate_json(path.read_bytes())
    assert (record.run, record.seed, record.nodeid) == (3, 7, followed.item.nodeid)
    # Interrupted, its record counts, and the test has no outcome.
    followed.run.ended("failed", "interrupted", "", failed_test=False)
    assert len(followed.emitted) == len(followed.collected) == 1


def test_where_a_worker_died_is_said_once(followed: Followed) -> None:
    ends = {"kind": "finished", "retire": False}
    followed.follow(BEGINS, call("measured", entry={"path": "x"}), ends)
    followed.run.ended("failed", "the worker process died", "", failed_test=True)
    assert "died in the test's own code: test_it" in followed.emitted[-1].longreprtext


@pytest.mark.parametrize("cut", ["exit", "rank"])
def test_what_ends_a_test_early_ends_it_at_once(followed: Followed, cut: str) -> None:
    never = reported("passed")
    if cut == "exit":
        with pytest.raises(pytest.exit.Exception, match="enough") as caught:
            followed.follow(call("exits", reason="enough", returncode=7), never)
        assert caught.value.returncode == 7
        assert followed.emitted == []
    else:
        assert followed.follow(call("rank_failed", reason="rank 1", detail="why"), never)
        assert followed.worker.killed == ["another rank has failed"]
        (report,) = followed.emitted
        assert report.longreprtext.startswith("rank 1")


def test_services_are_looked_at_while_a_test_runs_and_when_its_cell_ends(
    followed: Followed,
) -> None:
    ends = {"kind": "finished", "retire": False}
    with pytest.raises(NotProven, match="the server ended"):
        followed.follow(ends, services=Services("mps", looks=0))
    # Without a mode that needs any there is nothing to look at.
    assert not followed.follow(ends, services=Services(None, looks=0))
    followed.follow(call("confirm_scheduler", waits=True), ends, services=Services("mps", looks=1))
    assert followed.worker.sent == [("answer", {"error": "not proven", "text": "the server ended"})]
    assert followed.run.scheduler_ended
    followed.follow(call("confirm_scheduler", waits=True), ends, services=Services("mps"))
    assert not followed.run.scheduler_ended


class Hears:
    """Notes the warnings that pytest records."""

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: Any
    ) -> None:
        self.heard = [warning_message, when, nodeid, location]


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("DeprecationWarning", DeprecationWarning), ("BoundUndecided", BoundUndecided),
        ("Other", UserWarning), ("ValueError", UserWarning),
    ],
)  # fmt: skip
def test_a_warning_is_pytests_own(
    followed: Followed, category: str, expected: type[Warning]
) -> None:
    hears = Hears()
    followed.item.config.pluginmanager.register(hears)
    followed.run.warning("old", category, "f.py", 3, "node", ("f.py", 3, "f"))
    recorded, *told = hears.heard
    assert told == ["runtest", "node", ("f.py", 3, "f")]
    assert (str(recorded.message), recorded.lineno) == ("old", 3)
    assert recorded.category is expected


def test_noise_does_not_run_in_a_process_of_xdist(followed: Followed) -> None:
    config: Any = followed.item.config
    config.workerinput = {}
    with pytest.raises(NotProven, match="leave out xdist's -n"):
        followed.run.begin_noise("cpu", 3)
    # For a rank other than the first none was begun.
    assert followed.run.end_noise() is None
