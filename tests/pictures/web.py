"""The pictures of `sequencer web` in the documents, and on demand one of every page.

``python -m tests.pictures.web`` makes those of the documents and the README's timeline, from
real runs of stand-in agents that take their time. ``python -m tests.pictures.web FOLDER``
puts every page into FOLDER, at the width of a desk and of a phone, light and dark, for a
person to look at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.pictures.small import small
from tests.web.sample import make_all

DOCS = Path(__file__).parents[2] / "docs"
RUN = "/p/shop/login-timeout"
PAGES = {
    "needs": "/",
    "runs": "/runs",
    "flow": RUN,
    "cycle": "/p/shop/-",
    "failed": "/p/docs/nightly",
    "step": f"{RUN}/step/tests",
    "question": f"{RUN}/step/decide",
    "costs": "/costs",
    "health": "/health",
    "nothing": "/p/shop/nothing",
}
PACE_S = 0.25
"""Between two lines of an agent: a timeline shows more than dots."""
WIDE, NARROW = (1180, 760), (390, 760)


def draw_timeline(project: Path, target: Path) -> None:
    """Draw who worked when in the run that waits for a person, as a reader would."""
    command = [sys.executable, "-m", "sequencer", "--run", "login-timeout", "report"]
    subprocess.run([*command, "--gantt", "--svg", str(target)], cwd=project, check=True)


@contextmanager
def served() -> Iterator[str]:
    """Serve projects that were just made, and return the link."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SEQUENCER_TRUST"] = "all"
        shop, _ = make_all(folder, pace_s=PACE_S)
        # Before the browser is started: the question's bar grows while it waits.
        if len(sys.argv) == 1:
            draw_timeline(shop, DOCS / "timeline.svg")
        command = [sys.executable, "-m", "sequencer", "web", "shop", "docs", "--port", "0"]
        with subprocess.Popen(
            [*command, "--no-browser"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
            server.terminate()


def opened(browser: Browser, link: str, size: tuple[int, int], scheme: str, scale: float) -> Page:
    """Return a page of a browser that the *link* has let in."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=scale,
        base_url=link.partition("/login")[0],
    )
    page = context.new_page()
    page.goto(link)
    page.wait_for_url("**/")
    return page


def of_documents(browser: Browser, link: str) -> None:
    """Make the pictures that the README and the documents show."""
    for name, path, size, scheme, is_whole in (
        ("web-run", RUN, WIDE, "light", True),
        ("web-needs", "/", (1180, 640), "light", False),
        ("web-phone", RUN, NARROW, "dark", False),
    ):
        page = opened(browser, link, size, scheme, 2 if size == NARROW else 1)
        page.goto(path)
        (DOCS / f"{name}.png").write_bytes(small(page.screenshot(full_page=is_whole)))


def of_every_page(browser: Browser, link: str, folder: Path) -> None:
    """Make pictures of every page in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in (WIDE, NARROW):
        for scheme in ("light", "dark"):
            page = opened(browser, link, size, scheme, 1)
            for name, path in PAGES.items():
                page.goto(path)
                target = folder / f"{name}-{size[0]}-{scheme}.png"
                page.screenshot(path=target, full_page=True)


if __name__ == "__main__":
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with served() as found, sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=root)
        if len(sys.argv) > 1:
            of_every_page(launched, found, Path(sys.argv[1]))
        else:
            of_documents(launched, found)
