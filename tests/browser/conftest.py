"""Pages in a real browser, headless: any error, warning or request for something else fails a test.

Skipped where Chromium or Playwright is missing, unless NEURAL_ATTENTION_REQUIRE_BROWSER is set.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOCAL = ("file:", "data:", "blob:", "about:")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}

Open = Callable[..., Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
    if not any(map(shutil.which, NAMES)):
        missing.append("chromium")
    if missing and not os.environ.get("NEURAL_ATTENTION_REQUIRE_BROWSER"):
        for item in items:
            if Path(__file__).parent in item.path.parents:
                reason = f"a browser test needs {', '.join(missing)}"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, NAMES)), None)
    assert executable, f"none of {', '.join(NAMES)} is installed"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """``open_page(path, size="phone", color_scheme="dark")``: a page that has drawn itself."""
    contexts, faults = [], []

    def opened(path: Path, size: str = "desktop", **options: Any) -> Any:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append("a dialog"), dialog.dismiss()))
        page.on(
            "request",
            lambda request: request.url.startswith(LOCAL) or faults.append(request.url[:200]),
        )
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults, faults


@pytest.fixture
def check_accessibility() -> Callable[[Any], None]:
    """Whether axe-core finds fault with a page as it stands."""
    from axe_playwright_python.sync_playwright import Axe

    def check(page: Any) -> None:
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()

    return check
