"""The one comment on a pull request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_hwqueue.errors import BadOption, GitHubError
from pytest_hwqueue.pulls.github_api import GitHub
from pytest_hwqueue.reports.markdown import plain

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class PullRequest:
    """A pull request, and the run of a workflow that measured it.

    Attributes:
        repository: as OWNER/NAME.
        number: from 1.
        commit: the pull request's head; empty if unknown.
        fork: whether its branch is in another repository, so that the job's token may only read.
        run_url: page of the run; empty outside GitHub Actions.

    """

    repository: str
    number: int
    commit: str = ""
    fork: bool = False
    run_url: str = ""


def find_pull_request(
    environment: Mapping[str, str], number: int | None = None, repository: str | None = None
) -> PullRequest:
    """Return the pull request to comment on.

    Args:
        environment: GITHUB_REPOSITORY, GITHUB_EVENT_PATH and others, as GitHub Actions sets them.
        number: instead of the event's.
        repository: instead of GITHUB_REPOSITORY.

    Raises:
        BadOption: naming the option or variable that is missing or wrong.

    """
    variable = "--repository" if repository else "GITHUB_REPOSITORY"
    repository = repository or environment.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise BadOption(variable, repository, "name the repository as OWNER/NAME")
    event = _event(environment)
    found = event.get("pull_request") or {}
    if number is None:
        number = _number(event)
    elif found.get("number") != number:
        # Somebody else's event says nothing about this pull request.
        found = {}
    head = found.get("head") or {}
    # Null if the fork has been deleted since.
    source = (head.get("repo") or {}).get("full_name")
    return PullRequest(
        repository,
        number,
        commit=str(head.get("sha", "")),
        fork=bool(found) and source != repository,
        run_url=_run_url(environment),
    )


def _event(environment: Mapping[str, str]) -> dict[str, Any]:
    path = environment.get("GITHUB_EVENT_PATH", "")
    if not path:
        return {}
    try:
        event = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadOption("GITHUB_EVENT_PATH", path, f"cannot read the event: {error}") from None
    return event if isinstance(event, dict) else {}


def _number(event: Mapping[str, Any]) -> int:
    found = event.get("pull_request") or {}
    issue = event.get("issue") or {}
    if not found and issue.get("pull_request"):
        found = issue
    if isinstance(found.get("number"), int):
        return int(found["number"])
    raise BadOption(
        "--pull", "", "this is not the event of a pull request: give its number, --pull 12"
    )


def _run_url(environment: Mapping[str, str]) -> str:
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (environment.get(name, "") for name in names)
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""


MOST_BYTES = 65_536
"""GitHub's limit is as many characters; counted in bytes, no comment can exceed it."""

_NAME = re.compile(r"[\w.-]{1,60}")
_ATTEMPTS = 3
_LONGEST_WAIT_S = 60.0
_OPEN, _CLOSED = "<details>", "</details>"
_UNFINISHED = """\
## Hardware queues

**No verdict.** The session ended before it wrote any figures; the job's log says why."""
_SHORTENED = "*Shortened to what fits into a comment; the job's summary has all of it.*"


def comment_text(markdown: str | None, pull: PullRequest, name: str) -> str:
    """Return a comment: the marker, a session's Markdown, and where it comes from.

    Args:
        markdown: as --hwq-markdown writes it, cut at a line's end if it is too long; None if the
            session wrote none, which the comment then says.
        pull: the pull request.
        name: tells the comments of several jobs apart.

    Raises:
        BadOption: if the name is not a plain word.

    """
    head, tail = f"{marker(name)}\n", f"\n\n{_origin(pull, name)}\n"
    room = MOST_BYTES - len((head + tail).encode())
    return f"{head}{_cut((markdown or _UNFINISHED).strip(), room)}{tail}"


def marker(name: str) -> str:
    """Return the line, invisible on GitHub, with which a comment begins."""
    if not _NAME.fullmatch(name):
        raise BadOption("--name", name, "give a word of letters, digits, `.`, `_` and `-`")
    return f"<!-- pytest-hwqueue comment {name} -->"


def publish(
    github: GitHub,
    pull: PullRequest,
    name: str,
    text: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Post the comment, or update the one that is there; return its URL.

    Whatever failed on the way, another attempt begins with a look at what is there, so that no
    comment is posted twice.

    Raises:
        GitHubError: if GitHub refuses, or does not answer in three attempts.

    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return _publish(github, pull, name, text)
        except GitHubError as error:
            if not left or error.retry_s is None or error.retry_s > _LONGEST_WAIT_S:
                raise
            sleep(error.retry_s)
    raise AssertionError("the last attempt returns or raises")


def _publish(github: GitHub, pull: PullRequest, name: str, text: str) -> str:
    path = f"/repos/{pull.repository}/issues"
    author = github.viewer()
    ours = _ours(github, pull, name, author)
    if not ours:
        posted = github.post(f"{path}/{pull.number}/comments", {"body": text})
        # Another job may have posted one at the same time: the oldest stays.
        others = [each for each in _ours(github, pull, name, author) if each["id"] != posted["id"]]
        ours = sorted([posted, *others], key=_age)
    kept, *others = ours
    if kept["body"] != text:
        kept = github.patch(f"{path}/comments/{kept['id']}", {"body": text})
    for other in others:
        _delete(github, f"{path}/comments/{other['id']}")
    return str(kept.get("html_url", ""))


def _ours(github: GitHub, pull: PullRequest, name: str, author: str) -> list[dict[str, Any]]:
    """Return our comments of that name, oldest first; a quotation by somebody else is not ours."""
    listed = github.pages(f"/repos/{pull.repository}/issues/{pull.number}/comments")
    found = [
        each
        for each in listed
        if str(each.get("body", "")).startswith(marker(name))
        and _login((each.get("user") or {}).get("login", "")) == _login(author)
    ]
    return sorted(found, key=_age)


def _age(comment: dict[str, Any]) -> int:
    return int(comment["id"])


def _login(name: str) -> str:
    """Return a login as one interface and the other call it."""
    return name.removesuffix("[bot]").lower()


def _delete(github: GitHub, path: str) -> None:
    try:
        github.delete(path)
    except GitHubError as error:
        # The other job was quicker.
        if error.status not in (404, 410):
            raise


def _origin(pull: PullRequest, name: str) -> str:
    parts = [f"{plain(name)} (pytest-hwqueue)"]
    if pull.commit:
        parts.append(f"commit {pull.commit[:10]}")
    if pull.run_url:
        parts.append(f"[run]({pull.run_url})")
    return f"<sub>{' · '.join(parts)}</sub>"


def _cut(text: str, room: int) -> str:
    """Return text of at most so many bytes, cut after a line, with nothing left folded open."""
    if len(text.encode()) <= room:
        return text
    end = f"\n\n{_SHORTENED}"
    room -= len(f"\n\n{_CLOSED}{end}".encode())
    kept: list[str] = []
    for line in text.split("\n"):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    shown = "\n".join(kept).rstrip()
    if shown.count(_OPEN) > shown.count(_CLOSED):
        shown = f"{shown}\n\n{_CLOSED}"
    return f"{shown}{end}"
