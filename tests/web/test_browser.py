"""A person at a real browser: Chromium, and the server as a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 30_000
RUN = "/p/shop/login-timeout"
PAGES = ("/", "/runs", RUN, "/p/shop/-", f"{RUN}/step/tests", f"{RUN}/step/decide")
OVER_ALL = ("/costs", "/health")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.fail("no chromium") if os.environ.get("CI") else pytest.skip("no chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as driver:
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()
        found = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *root])
        yield found
        found.close()


@pytest.fixture
def shop(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the sample, in the folder of its two projects."""
    for name in ("shop", "docs"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "shop"


@pytest.fixture
def link(shop: Path) -> Iterator[str]:
    """Return the link that a server over the sample has printed as its first line."""
    command = [sys.executable, "-m", "sequencer", "web", "shop", "docs", "--port", "0"]
    environment = {**os.environ, "SEQUENCER_TRUST": "all"}
    environment.pop("SEQUENCER_TOKEN", None)
    with subprocess.Popen(
        [*command, "--no-browser"],
        cwd=shop.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


Opens = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, link: str) -> Iterator[Opens]:
    """Return what opens the pages in a fresh browser; no page may break its own policy."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_pages(*, width: int = 1280, scripts: bool = True, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 844},
            java_script_enabled=scripts,
            color_scheme="dark" if dark else "light",
            base_url=link.split("/login", maxsplit=1)[0],
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(link)
        page.wait_for_url("**/")
        return page

    yield open_pages
    for context in contexts:
        context.close()
    assert [text for text in errors if "ERR_FAILED" not in text] == []


def works(shop: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the command line in *shop*; its agents take their time."""
    (shop / "pace").write_text("0.5")
    return subprocess.Popen(
        [sys.executable, "-m", "sequencer", *arguments],
        cwd=shop,
        env={**os.environ, "SEQUENCER_TRUST": "all"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_run_of_another_terminal_is_followed_live(opened: Opens, shop: Path) -> None:
    page = opened()
    page.goto("/p/shop/-")
    with works(shop, "run", "--max-steps", "2") as worker:
        expect(page.locator(".title .pill")).to_have_text("● running")
        page.locator("svg a:has(.node.running)").click()
        log = page.locator("pre.log")
        expect(log).to_contain_text("part 2 of 6")
        expect(log).to_contain_text("part 5 of 6")
        expect(page.locator(".title .pill")).to_have_text("✓ done")
        expect(page.locator("#answer")).to_contain_text("main is done.")
        assert worker.wait() == 0
    page.goto("/p/shop/-")
    expect(page.locator(".steps tbody tr")).to_have_count(12)


def test_questions_are_answered(opened: Opens) -> None:
    page = opened()
    expect(page.locator(".top .badge")).to_have_text("3")
    gate = page.locator("article", has_text="Approve publish?")
    gate.get_by_text("Send back…").click()
    gate.get_by_role("textbox").fill("Say more about <b>auth</b>.")
    gate.get_by_role("button", name="Send back").click()
    expect(page.locator(".top .badge")).to_have_text("2")
    question = page.locator("article", has_text="Is the report right?")
    question.get_by_role("button", name="send back").click()
    free = page.locator("article", has_text="What should change?")
    free.get_by_role("textbox").fill("Shorter, please.")
    free.get_by_role("button", name="Answer").click()
    page.locator("article", has_text="deploy failed").get_by_role("button", name="Retry").click()
    expect(page.locator("main")).to_contain_text("Nothing waits for you.")


def test_what_somebody_writes_is_not_swept_away_by_a_change(opened: Opens, shop: Path) -> None:
    page = opened()
    gate = page.locator("article", has_text="Approve publish?")
    gate.get_by_text("Send back…").click()
    gate.get_by_role("textbox").fill("half a sent")
    with works(shop.parent / "docs", "--run", "nightly", "retry") as worker:
        assert worker.wait() == 0
    expect(page.locator(".top .badge")).to_have_text("2")
    expect(gate.get_by_role("textbox")).to_have_value("half a sent")


def test_a_run_is_paused_resumed_and_stopped(opened: Opens) -> None:
    page = opened()
    page.goto("/p/shop/-")
    state = page.locator(".title .pill")
    page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text("‖ paused")
    page.get_by_role("button", name="Resume").click()
    expect(state).to_have_text("○ ready")
    page.get_by_text("Stop…").click()
    page.get_by_label("Why?").fill("enough for today")
    page.get_by_role("button", name="Stop after this step").click()
    expect(state).to_have_text("■ stopped")
    expect(page.locator(".way")).to_contain_text("enough for today")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits(opened: Opens, width: int, dark: bool) -> None:
    page = opened(width=width, dark=dark)
    for path in (*PAGES, *OVER_ALL):
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_everything_can_be_read_and_answered_without_scripts(opened: Opens) -> None:
    page = opened(scripts=False)
    for path in (*PAGES, *OVER_ALL):
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
    page.goto(RUN)
    page.get_by_role("button", name="approve", exact=True).click()
    expect(page.locator(".title .pill")).to_have_text("○ ready")


def test_keys_alone_lead_everywhere_and_decide_nothing(opened: Opens) -> None:
    page = opened()
    for key, path in (("r", "/runs"), ("c", "/costs"), ("h", "/health"), ("n", "/")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"**{path}")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{RUN}")
    page.keyboard.press("u")
    page.wait_for_url("**/runs")
    page.keyboard.press("/")
    page.keyboard.type("nightly")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?q=nightly")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".runs tbody tr")).to_have_count(1)


def test_a_server_that_is_gone_is_said(opened: Opens, shop: Path) -> None:
    del shop
    page = opened()
    page.route("**/live*", lambda route: route.abort())
    page.reload()
    expect(page.locator("#lost")).to_be_visible()


def test_the_cookie_stays_with_its_own_server(opened: Opens, link: str) -> None:
    page = opened()
    cookies = page.context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    assert cookies[0]["domain"] == "sequencer.localhost"
    other = page.context.new_page()
    answer = other.goto(
        link.split("/login", maxsplit=1)[0].replace("sequencer.localhost", "127.0.0.1")
    )
    assert answer is not None
    assert answer.status == 401
