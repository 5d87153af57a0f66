"""Dagster's UI in a headless Chromium, by what a person sees and clicks.

What belongs here: pages, buttons, and the pictures that are taken of them. What does not: what a scene
expects to see.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, ViewportSize

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    f"none of {', '.join(BROWSERS)} is on the PATH, and the scenes need one of them; install it "
    "(Debian and Ubuntu: apt-get install chromium; Fedora: dnf install chromium)"
)
# No GPU and no sandbox in a container, and nothing that asks the network by itself.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
_SECONDS = 1000
_SIZE: "ViewportSize" = {"width": 1500, "height": 950}


def browser() -> str | None:
    """Return the path of a Chromium of the machine."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


@contextlib.contextmanager
def opened(base: str, pictures: Path, home: Path) -> Iterator["Screen"]:
    """Open a window on a Dagster webserver, and close it afterwards; Chromium's own files go to `home`."""
    from playwright.sync_api import sync_playwright

    places = {"HOME": home, "XDG_CONFIG_HOME": home / "config", "XDG_CACHE_HOME": home / "cache"}
    environment = {**os.environ, **{name: str(path) for name, path in places.items()}}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser(), args=[*_FLAGS], env=environment)
        try:
            page = chromium.new_page(viewport=_SIZE, base_url=base)
            page.set_default_timeout(60 * _SECONDS)
            yield Screen(page, pictures)
        finally:
            chromium.close()


class Screen:
    """One browser window."""

    def __init__(self, page: "Page", pictures: Path) -> None:
        self.page = page
        self._pictures = pictures

    def shot(self, name: str, *, full: bool = False) -> Path:
        """Keep a picture of what is seen now, once nothing is being loaded or moves."""
        file = self._pictures / f"{name}.png"
        self.settle()
        self.page.screenshot(path=file, full_page=full, animations="disabled")
        return file

    def settle(self) -> None:
        """Wait until the page's text has stayed the same for half a second."""
        self.page.wait_for_function(
            """() => {
                const now = document.body.innerText, last = window.__seen;
                if (last && last.text === now) return Date.now() - last.since > 500;
                window.__seen = {text: now, since: Date.now()};
                return false;
            }""",
            polling=100,
            timeout=10 * _SECONDS,
        )

    def text(self) -> str:
        """Return the text of the page."""
        return self.page.inner_text("body")

    def open(self, path: str, sight: str) -> None:
        """Go to a page and wait until a text is seen there."""
        self.page.goto(path)
        self.see(sight)

    def see(self, text: str, seconds: float = 60) -> "Locator":
        """Wait until a text is visible."""
        found = self.page.get_by_text(text).locator("visible=true").first
        found.wait_for(timeout=seconds * _SECONDS)
        return found

    def click(self, name: str) -> None:
        """Click the button with that text and no other; the names of icons count as part of a button's own name."""
        buttons = self.page.get_by_role("button").filter(has_text=re.compile(rf"^\s*{re.escape(name)}\s*$"))
        buttons.locator("visible=true").last.click()

    def launchpad(self, job: str) -> str:
        """Open a job's launchpad and return the YAML that it shows."""
        self.page.goto(f"/locations/embeddings_pipeline/jobs/{job}/playground")
        self.page.wait_for_selector(".CodeMirror")
        # The editor is there before its content, and empty for a job without any config.
        self.see("No errors")
        return self.page.evaluate("document.querySelector('.CodeMirror').CodeMirror.getValue()")

    def write_config(self, yaml: str) -> None:
        """Replace the launchpad's YAML."""
        self.page.evaluate("text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)", yaml)
        self.see("No errors")

    def place_cursor(self, line: str) -> None:
        """Put the cursor at the end of a line of the launchpad's YAML, which shows that field's help."""
        self.page.evaluate(
            """word => {
                const editor = document.querySelector('.CodeMirror').CodeMirror;
                const lines = editor.getValue().split('\\n');
                const at = lines.findIndex(line => line.includes(word));
                editor.focus();
                editor.setCursor({line: at, ch: lines[at].length});
            }""",
            line,
        )

    def launch(self) -> str:
        """Click "Launch Run" and return the id of the run whose page opens."""
        self.click("Launch Run")
        self.page.wait_for_url("**/runs/**")
        return self._run_of_page()

    def _run_of_page(self) -> str:
        run = urlsplit(self.page.url).path.rstrip("/").rsplit("/", 1)[1]
        # The address changes before the page does.
        self.see(run[:8])
        return run

    def new_run(self, old: str) -> str:
        """Wait until the page of another run opens, and return its id."""
        self.page.wait_for_url(lambda url: "/runs/" in url and old not in url)
        return self._run_of_page()

    @contextlib.contextmanager
    def tall(self) -> Iterator[None]:
        """Make the window as tall as a page of metadata: Dagster scrolls inside of its pages."""
        self.page.set_viewport_size({**_SIZE, "height": 3200})
        try:
            yield
        finally:
            self.page.set_viewport_size(_SIZE)

    def wait_for_run(self, status: str, seconds: float = 120) -> None:
        """Wait until the head of a run's page says how it ended: Success, Failure or Canceled.

        Further down the page says the same of the runs that it is a re-execution of.
        """
        tag = self.page.wait_for_function(
            """() => [...document.querySelectorAll('span, div')]
                .filter(element => element.getBoundingClientRect().top < 100 && !element.children.length)
                .map(element => element.innerText.trim())
                .find(text => ['Success', 'Failure', 'Canceled'].includes(text))""",
            polling=200,
            timeout=seconds * _SECONDS,
        ).json_value()
        assert tag == status, f"the run ended as {tag}:\n{self.text()[-3000:]}"

    def pictures(self) -> list[dict[str, object]]:
        """Return size and label of the inline pictures on the page that Chromium has decoded."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll('img')]
                .filter(image => image.src.startsWith('data:image/') && image.alt)
                .map(image => ({alt: image.alt, width: image.naturalWidth, height: image.naturalHeight,
                                bytes: image.src.length, shown: image.getBoundingClientRect().width}))"""
        )
