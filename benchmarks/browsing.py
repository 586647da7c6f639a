"""Open a page from a disk in headless Chromium, and note what it says and what it asks for."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(slots=True)
class Visit:
    """A page that is open."""

    page: Any
    """Of playwright."""
    said: list[str] = field(default_factory=list)
    """Errors, warnings and whatever else the console was told."""
    asked: list[str] = field(default_factory=list)
    """URLs of all requests."""
    failed: list[str] = field(default_factory=list)
    """URLs of those that failed."""


def why_not() -> str:
    """Why no browser can be driven here; empty where one can be."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "the Python package playwright is not installed"
    return "" if _find() else f"none of {', '.join(BROWSERS)} is installed"


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """A headless browser, of playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_find(), args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()


def visit(
    browser: Any, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Visit:
    """Open a file; when it returns, its scripts have run."""
    scheme = "dark" if dark else "light"
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = Visit(page=page)
    page.on("console", lambda message: opened.said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: opened.said.append(f"error: {error}"))
    page.on("request", lambda request: opened.asked.append(request.url))
    page.on("requestfailed", lambda request: opened.failed.append(request.url))
    page.goto(path.resolve().as_uri())
    return opened


def _find() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)
