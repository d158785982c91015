"""Which pull request a job belongs to, from the events that GitHub sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_hwqueue.errors import BadOption
from pytest_hwqueue.pulls.comment import PullRequest, find_pull_request

RUN = {
    "GITHUB_REPOSITORY": "octo/queues",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_RUN_ID": "99",
}


def environment(folder: Path, event: object) -> dict[str, str]:
    path = folder / "event.json"
    path.write_text(json.dumps(event), encoding="utf-8")
    return {**RUN, "GITHUB_EVENT_PATH": str(path)}


def pull_request(source: str | None) -> dict[str, Any]:
    repo = None if source is None else {"full_name": source}
    return {"pull_request": {"number": 7, "head": {"sha": "abc", "repo": repo}}}


@pytest.mark.parametrize(
    ("source", "fork"), [("octo/queues", False), ("somebody/queues", True), (None, True)]
)
def test_the_event_of_a_pull_request(source: str | None, fork: bool, tmp_path: Path) -> None:
    url = "https://github.com/octo/queues/actions/runs/99"
    found = find_pull_request(environment(tmp_path, pull_request(source)))
    assert found == PullRequest("octo/queues", 7, "abc", fork, url)


def test_a_comment_on_a_pull_request_is_its_event(tmp_path: Path) -> None:
    event = {"issue": {"number": 8, "pull_request": {"url": "x"}}}
    assert find_pull_request(environment(tmp_path, event)).number == 8
    with pytest.raises(BadOption, match="not the event of a pull request"):
        find_pull_request(environment(tmp_path, {"issue": {"number": 8}}))


def test_what_is_given_goes_first(tmp_path: Path) -> None:
    given = environment(tmp_path, pull_request("somebody/queues"))
    assert find_pull_request(given, 9).commit == ""
    assert not find_pull_request(given, 9).fork
    assert find_pull_request(given, 7).fork
    assert find_pull_request({}, 9, "a/b") == PullRequest("a/b", 9)


@pytest.mark.parametrize(
    ("event", "number", "repository", "words"),
    [
        ({"ref": "refs/heads/main"}, None, None, "--pull: .*give its number"),
        ([], None, None, "--pull: .*give its number"),
        ({}, 7, "no-slash", "--repository: .*OWNER/NAME"),
        ({}, 7, "a/b/../c", "--repository: .*OWNER/NAME"),
    ],
)
def test_what_is_missing_is_named(
    event: object, number: int | None, repository: str | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadOption, match=words):
        find_pull_request(environment(tmp_path, event), number, repository)


def test_an_event_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text("{", encoding="utf-8")
    for name in ("event.json", "nowhere.json"):
        path = str(tmp_path / name)
        with pytest.raises(BadOption, match=r"GITHUB_EVENT_PATH: .*cannot read the event"):
            find_pull_request({**RUN, "GITHUB_EVENT_PATH": path})
