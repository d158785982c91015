"""The one comment on a pull request, and the few calls of GitHub's interfaces that it needs.

The standard library's client is enough for them. It follows no redirect, which would hand the token
to whoever is at the other end, and every answer has a deadline and a greatest size.
"""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from pytest_hwqueue import __version__
from pytest_hwqueue.errors import BadOption, GitHubError, shortened
from pytest_hwqueue.reports.document import plain

_ANSWER_S = 30.0
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 64 << 20
_MOST_PAGES = 100
_PAGE = 100
_RATE_LIMIT_S = 60.0
_SERVER_ERROR_S = 2.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# What to do, by status; an explanation of GitHub's own words, which stand before it.
_CURES = {
    401: "the token is not valid, or has expired",
    403: "the token may not do this: a job needs `permissions: {pull-requests: write}`",
    404: "there is no such pull request, or the token may not see the repository",
    410: "it has been deleted",
    422: "GitHub does not take this text",
    **dict.fromkeys((301, 302, 307, 308), "the repository has moved: give its new name"),
}


class GitHub:
    """Sends requests with a token.

    Args:
        url: of the REST interface, such as ``https://api.github.com``.
        token: of the job, an app or a person.
        graphql_url: of the GraphQL interface; by default at ``url``'s host.

    Raises:
        BadOption: if a URL is not https, or the token is empty.

    """

    def __init__(self, url: str, token: str, graphql_url: str = "") -> None:
        if not token:
            raise BadOption(
                "GITHUB_TOKEN", "", "give the job's token: env: {GITHUB_TOKEN: ${{ github.token }}}"
            )
        self._url = _checked("GITHUB_API_URL", url.rstrip("/"))
        # GitHub Enterprise has /api/v3 and /api/graphql.
        default = f"{self._url.removesuffix('/v3')}/graphql"
        self._graphql_url = _checked("GITHUB_GRAPHQL_URL", graphql_url or default)
        self._token = token
        self._opener = urllib.request.build_opener(_NoRedirect)

    def viewer(self) -> str:
        """Return the login that the token acts as, such as ``github-actions[bot]``."""
        answer = self._send("POST", self._graphql_url, {"query": "{ viewer { login } }"})[0]
        try:
            return str(answer["data"]["viewer"]["login"])
        except (KeyError, TypeError):
            raise GitHubError(f"GitHub does not say whose token it is: {answer}") from None

    def pages(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list, page by page."""
        for page in range(1, _MOST_PAGES + 1):
            url = f"{self._url}{path}?per_page={_PAGE}&page={page}"
            answer, headers = self._send("GET", url)
            if not isinstance(answer, list):
                raise GitHubError(f"{url} is no list: {shortened(str(answer))}")
            yield from answer
            # The number of the next page is known; a URL from the answer would get the token.
            if 'rel="next"' not in headers.get("Link", ""):
                return
        raise GitHubError(f"{path} has more than {_MOST_PAGES} pages")

    def change(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Any:
        """Create (POST), change (PATCH) or delete (DELETE) an object; return what it is then."""
        return self._send(method, f"{self._url}{path}", content)[0]

    def _send(
        self, method: str, url: str, content: Mapping[str, Any] | None = None
    ) -> tuple[Any, Message]:
        request = urllib.request.Request(
            url,
            method=method,
            data=None if content is None else json.dumps(content).encode(),
            headers={
                "Accept": "application/vnd.github+json",
                "Authorization": f"Bearer {self._token}",
                "Content-Type": "application/json",
                "User-Agent": f"pytest-hwqueue/{__version__}",
                "X-GitHub-Api-Version": "2022-11-28",
            },
        )
        deadline = time.monotonic() + _ANSWER_S
        try:
            with self._opener.open(request, timeout=_ANSWER_S) as answer:
                return _decoded(_read(answer, deadline)), answer.headers
        except HTTPError as error:
            with error:
                raise self._refused(f"{method} {url}", error, deadline) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise GitHubError(
                f"{method} {url}: no answer: {reason}", retry_s=_SERVER_ERROR_S
            ) from error
        except ValueError as error:
            raise GitHubError(f"{method} {url}: not an answer of GitHub's: {error}") from None

    def _refused(self, what: str, error: HTTPError, deadline: float) -> GitHubError:
        try:
            message = str(_decoded(_read(error, deadline)).get("message", ""))
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            # A proxy's page, or none: the status alone has to do.
            message = ""
        status = error.code
        text = f"{what}: HTTP {status}, {shortened(message) or error.reason}"
        wait_s = _wait_s(error.headers, message) if status in (403, 429) else None
        if wait_s is not None:
            until = datetime.fromtimestamp(time.time() + wait_s, timezone.utc)
            return GitHubError(
                f"{text}; the token's rate limit is used up until {until:%H:%M:%S} UTC",
                status=status, retry_s=wait_s,
            )  # fmt: skip

        retry_s = _SERVER_ERROR_S if status >= 500 else None
        cure = _CURES.get(status, "")
        return GitHubError(f"{text}; {cure}" if cure else text, status=status, retry_s=retry_s)


def _wait_s(headers: Message, message: str) -> float | None:
    """Return how long to wait, as GitHub's page on rate limits says; None if it is no limit."""
    after, reset = headers.get("Retry-After", ""), headers.get("X-RateLimit-Reset", "")
    used_up = headers.get("X-RateLimit-Remaining") == "0"
    if after.isdecimal():
        return float(after)
    if used_up and reset.isdecimal():
        return max(1.0, float(reset) - time.time())
    return _RATE_LIMIT_S if used_up or after or "rate limit" in message.lower() else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to the caller, as errors."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _checked(variable: str, url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not parts.hostname or (parts.scheme != "https" and not local):
        raise BadOption(variable, url, "the token goes there, so it has to be an https:// URL")
    return url


def _read(answer: Any, deadline: float) -> bytes:
    """Read an answer to its end. A server that sends a byte now and then meets the deadline, too.

    Raises:
        TimeoutError: after the deadline.
        ValueError: if it is too large.

    """
    parts = []
    left = _MOST_BYTES
    while part := answer.read1(min(left + 1, _CHUNK_BYTES)):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer took too long")
    return b"".join(parts)


def _decoded(content: bytes) -> Any:
    return json.loads(content) if content else {}


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
    given = [environment.get(name) for name in names]
    return "{}/{}/actions/runs/{}".format(*given) if all(given) else ""


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
        posted = github.change("POST", f"{path}/{pull.number}/comments", {"body": text})
        # Another job may have posted one at the same time: the oldest stays.
        others = [each for each in _ours(github, pull, name, author) if each["id"] != posted["id"]]
        ours = sorted([posted, *others], key=lambda each: each["id"])
    kept, *others = ours
    if kept["body"] != text:
        kept = github.change("PATCH", f"{path}/comments/{kept['id']}", {"body": text})
    for other in others:
        try:
            github.change("DELETE", f"{path}/comments/{other['id']}")
        except GitHubError as error:
            # The other job was quicker.
            if error.status not in (404, 410):
                raise
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
    return sorted(found, key=lambda each: each["id"])


def _login(name: str) -> str:
    """Return a login as one interface and the other call it."""
    return name.removesuffix("[bot]").lower()


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
