"""A GitHub on 127.0.0.1: real sockets, made-up comments, and planted refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pytest_hwqueue.pulls.comment import GitHub

TOKEN = "ghs_not_a_secret"
REPOSITORY = "octo/queues"
Answer = tuple[int, dict[str, str], object]


class FakeGitHub:
    """Answers as GitHub does, for one repository.

    Attributes:
        comments: those of pull request 7, in the order posted.
        requests: method and path of each request.
        refusals: answers to give first, before looking at the request.
        login: whom the token acts as, in REST's spelling.
        before_answer: called with method and path before a request is answered.

    """

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.refusals: list[Answer] = []
        self.login = "github-actions[bot]"
        self.page = 100
        self.before_answer: Callable[[str, str], None] = lambda method, path: None
        self._number = 100
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.server = server

    def add(self, body: str, login: str | None = None) -> dict[str, Any]:
        self._number += 1
        comment = {
            "id": self._number,
            "body": body,
            "user": {"login": login or self.login, "type": "Bot"},
            "html_url": f"https://github.example/{REPOSITORY}/pull/7#issuecomment-{self._number}",
        }
        self.comments.append(comment)
        return comment

    def bodies(self) -> list[str]:
        return [each["body"] for each in self.comments]

    def answer(self, method: str, target: str, content: dict[str, Any]) -> Answer:
        parts = urlsplit(target)
        self.requests.append((method, parts.path))
        self.before_answer(method, parts.path)
        if self.refusals:
            return self.refusals.pop(0)
        base = f"/repos/{REPOSITORY}/issues"
        if (method, parts.path) == ("POST", "/graphql"):
            assert "viewer" in content["query"]
            return 200, {}, {"data": {"viewer": {"login": self.login}}}
        if (method, parts.path) == ("GET", f"{base}/7/comments"):
            return self._listed(parse_qs(parts.query))
        if (method, parts.path) == ("POST", f"{base}/7/comments"):
            if len(content["body"]) > 65_536:
                return 422, {}, {"message": "Body is too long (maximum is 65536 characters)"}
            return 201, {}, self.add(content["body"])
        for comment in self.comments:
            if parts.path != f"{base}/comments/{comment['id']}":
                continue
            if method == "DELETE":
                self.comments.remove(comment)
                return 204, {}, None
            comment["body"] = content["body"]
            return 200, {}, comment
        return 404, {}, {"message": "Not Found"}

    def _listed(self, query: dict[str, list[str]]) -> Answer:
        number, size = int(query["page"][0]), min(self.page, int(query["per_page"][0]))
        shown = self.comments[(number - 1) * size : number * size]
        more = len(self.comments) > number * size
        # GitHub gives an address to follow. Nobody follows this one.
        link = '<https://elsewhere.invalid/?page=2>; rel="next", <x>; rel="last"'
        return 200, {"Link": link} if more else {}, shown


def _handler(fake: FakeGitHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = json.loads(self.rfile.read(length)) if length else {}
            fake.headers.append(dict(self.headers))
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                given: Answer = (401, {}, {"message": "Bad credentials"})
            else:
                given = fake.answer(self.command, self.path, content)
            status, headers, answer = given
            text = answer if isinstance(answer, str) else json.dumps(answer)
            data = b"" if answer is None else text.encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Handler


@pytest.fixture
def fake_github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """Return a GitHub of this test's own."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fake = FakeGitHub()
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    fake.server.shutdown()
    thread.join()
    fake.server.server_close()


@pytest.fixture
def github(fake_github: FakeGitHub) -> GitHub:
    """Return a client of it."""
    return GitHub(fake_github.url, TOKEN)
