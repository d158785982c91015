"""What GitHub may answer, over real sockets: refusals are explained, the token stays."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from pytest_hwqueue.errors import BadOption, GitHubError
from pytest_hwqueue.pulls import comment
from pytest_hwqueue.pulls.comment import GitHub
from tests.pulls.conftest import REPOSITORY, TOKEN, FakeGitHub

COMMENTS = f"/repos/{REPOSITORY}/issues/7/comments"


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (403, "Resource not accessible by integration", "permissions: {pull-requests: write}"),
        (403, "Unable to create comment because issue is locked.", "issue is locked"),
        (404, "Not Found", "no such pull request, or the token may not see"),
        (422, "Validation Failed", "GitHub does not take this text"),
        (301, "Moved Permanently", "the repository has moved"),
    ],
)
def test_a_refusal_has_githubs_words_and_a_cure(
    status: int, message: str, words: str, github: GitHub, fake_github: FakeGitHub
) -> None:
    fake_github.refusals = [(status, {"Location": "/elsewhere"}, {"message": message})]
    with pytest.raises(GitHubError) as caught:
        github.change("POST", COMMENTS, {"body": "x"})
    assert f"HTTP {status}, {message}" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.status == status
    assert caught.value.retry_s is None
    assert TOKEN not in str(caught.value)
    # A redirect is not followed: the token stays here.
    assert len(fake_github.requests) == 1


def test_a_wrong_token_is_named(fake_github: FakeGitHub) -> None:
    with pytest.raises(GitHubError, match="HTTP 401, Bad credentials; the token is not valid"):
        GitHub(fake_github.url, "other").viewer()


def test_an_exhausted_rate_limit_names_the_time(
    github: GitHub, fake_github: FakeGitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000)
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1700000100"}
    fake_github.refusals = [(403, headers, {"message": "API rate limit exceeded"})]
    with pytest.raises(GitHubError, match="is used up until 22:15:00 UTC") as caught:
        github.viewer()
    assert caught.value.retry_s == 100


def test_requests_carry_what_github_asks_for(github: GitHub, fake_github: FakeGitHub) -> None:
    assert github.viewer() == "github-actions[bot]"
    (headers,) = fake_github.headers
    assert headers["Accept"] == "application/vnd.github+json"
    assert headers["User-Agent"].startswith("pytest-hwqueue/")
    assert headers["X-Github-Api-Version"] == "2022-11-28"


@pytest.mark.parametrize("answer", ["<html>", "[", '{"data": {"viewer": null}}', "[1]"])
def test_what_is_no_answer_of_githubs_is_refused(
    answer: str, github: GitHub, fake_github: FakeGitHub
) -> None:
    fake_github.refusals = [(200, {}, answer)]
    with pytest.raises(GitHubError, match=r"not an answer of GitHub's|does not say whose token"):
        github.viewer()


def test_a_list_that_is_none_is_refused(github: GitHub, fake_github: FakeGitHub) -> None:
    fake_github.refusals = [(200, {}, {"message": "surprise"})]
    with pytest.raises(GitHubError, match=r"is no list: .*surprise"):
        list(github.pages(COMMENTS))


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [("_MOST_PAGES", 3, "more than 3 pages"), ("_MOST_BYTES", 1 << 20, "more than 1 MiB")],
)
def test_an_endless_list_ends_and_a_huge_answer_is_refused(
    limit: str, value: int, words: str, github: GitHub, fake_github: FakeGitHub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(comment, limit, value)
    fake_github.page = 1
    for _ in range(5):
        fake_github.add("x" * (1 << 20))
    with pytest.raises(GitHubError, match=words):
        list(github.pages(COMMENTS))


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts a connection, and answers a byte now and then, for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not ended.wait(0.02):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        thread.join()


def test_an_answer_that_drips_meets_the_deadline(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(comment, "_ANSWER_S", 0.3)
    with pytest.raises(GitHubError, match="the answer took too long") as caught:
        GitHub(silent, TOKEN).viewer()
    assert caught.value.retry_s is not None


def test_nobody_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(GitHubError, match=r"no answer: .*refused"):
        GitHub(f"http://127.0.0.1:{port}", TOKEN).viewer()


@pytest.mark.parametrize(
    ("url", "token", "words"),
    [
        ("http://api.github.com", TOKEN, "GITHUB_API_URL: .*https://"),
        ("api.github.com", TOKEN, "GITHUB_API_URL: .*https://"),
        ("file:///etc/passwd", TOKEN, "GITHUB_API_URL: .*https://"),
        ("https://api.github.com", "", "GITHUB_TOKEN: .*give the job's token"),
    ],
)
def test_a_url_or_token_that_cannot_be_is_refused(url: str, token: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        GitHub(url, token)
