"""A headless Chromium of the system's, and reports of each kind to open in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@dataclass
class Opened:
    """A report in a browser.

    Attributes:
        page: the browser's.
        problems: what the console reported, and requests that left the page.

    """

    page: Page
    problems: list[str] = field(default_factory=list)

    def drawn(self, selector: str, key: str = "") -> list[dict[str, Any]]:
        """Wait for a chart, and return the data of its marks that have a key, each once."""
        self.page.wait_for_selector(f"{selector} svg.marks")
        found: list[dict[str, Any]] = self.page.evaluate(
            """selector => {
                const found = [];
                (function look(items) {
                    for (const item of items ?? []) {
                        if (item.datum && item.mark?.role === "mark") found.push({...item.datum});
                        look(item.items);
                    }
                })([drawn.get(document.querySelector(selector)).view.scenegraph().root]);
                return [...new Map(found.map(each => [JSON.stringify(each), each])).values()];
            }""",
            selector,
        )
        return [each for each in found if not key or key in each]


Open = Callable[..., AbstractContextManager[Opened]]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Start Chromium, or skip with the reason."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(f"there is no browser: none of {', '.join(_NAMES)} is in PATH")
    with api.sync_playwright() as playwright:
        # Chromium refuses to run its sandbox as root, as containers do.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_report(chromium: Browser) -> Open:
    """Return a function that opens a report; nothing in it may fail or leave the page."""

    @contextmanager
    def opened(
        file: Path, fragment: str = "", width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> Iterator[Opened]:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        report = Opened(context.new_page())
        page, problems = report.page, report.problems
        page.on(
            "console",
            lambda message: (
                problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: (
                problems.append(request.url)
                if not request.url.startswith((file.as_uri(), "blob:", "data:"))
                else None
            ),
        )
        page.goto(file.as_uri() + fragment)
        yield report
        assert problems == []
        context.close()

    return opened
