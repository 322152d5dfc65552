"""A browser for tests of the page: Debian's Chromium, driven by Playwright."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ui_toys import Live

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SOON = 6000
"""Milliseconds in which something new must be shown, several times what it takes."""


def chromium() -> Iterator[Any]:
    """Start a browser; without one, a machine of continuous integration fails and any other skips."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if sync_playwright is None or not CHROMIUM.exists():
        missing = f"needs the package playwright and {CHROMIUM}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, *errors: str, **options: Any) -> Iterator[Any]:
    """Open a page in which nothing may go wrong, but for errors that are named."""
    context = browser.new_context(**options)
    page, said = context.new_page(), []
    page.set_default_timeout(SOON)
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
    try:
        yield page
        assert not [text for text in said if not any(known in text for known in errors)]
        assert page.evaluate("window.hacked") is None
    finally:
        context.close()


def visit(page: Any, server: Live, address: str = "#/") -> None:
    """Go to a view and wait until it says its sentence."""
    url = f"http://127.0.0.1:{server.port}/{address}"
    if page.url == url:
        page.reload()
    else:
        page.goto(url)
    page.locator(".lead").filter(has_text=".").wait_for()
