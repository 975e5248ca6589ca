"""A person at a real browser: Chromium, and the server as a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.forked import Forked
from tests.web.sample import make_project, work

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]
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
LOG = "/p/shop/-/log/iter-00002_main.log"
PAGES = (
    "/",
    "/runs",
    "/runs?q=token&journal=1",
    "/runs?q=no+such+run",
    RUN,
    "/p/shop/-",
    "/p/docs/nightly",
    "/p/docs/polish",
    f"{RUN}/step/tests?try=1",
    f"{RUN}/step/decide",
    f"{RUN}/step/publish",
    LOG,
    f"{LOG}?q=part",
    "/costs?of=tokens&by=step",
    "/health",
    "/p/shop/no-such-run",
)
FAINT = """() => {
  const numbers = (color) => (color.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || node.closest("svg, script, dialog, .key") || !node.checkVisibility()) continue;
    const [a, b] = [numbers(getComputedStyle(node).color), ground(node)].map(light);
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) faint.push(text);
  }
  return faint;
}"""
"""Texts whose contrast is below that of WCAG AA."""
SMALL = """() => [...document.querySelectorAll(
    "button, summary, .button, .chips a, .top a, .tries a, .pager a, input:not([type=hidden])")]
  .filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 40)
  .map((one) => one.outerHTML)"""
"""What a finger would miss."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        message = "no chromium, so the pages are not looked at in a browser"
        if os.environ.get("CI_REQUIRE_CHROMIUM"):
            pytest.fail(message)
        pytest.skip(message)
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


@contextmanager
def served(folder: Path, *projects: str, trust: str = "all") -> Iterator[str]:
    """Serve *projects* of *folder*, and return the link that is printed first."""
    command = [sys.executable, "-m", "sequencer", "web", *projects, "--port", "0"]
    environment = {**os.environ, "SEQUENCER_TRUST": trust}
    environment.pop("SEQUENCER_TOKEN", None)
    with Forked(
        [*command, "--no-browser"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


@pytest.fixture
def link(shop: Path) -> Iterator[str]:
    with served(shop.parent, "shop", "docs") as found:
        yield found


Opens = Callable[..., Page]


@pytest.fixture
def visits(browser: Browser) -> Iterator[Opens]:
    """Return what opens the page of a link in a fresh browser; none may break its own policy."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open_pages(
        link: str, *, width: int = 1280, scripts: bool = True, dark: bool = False
    ) -> Page:
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
    expected = ("ERR_FAILED", "status of 404")
    assert [text for text in errors if not any(each in text for each in expected)] == []


@pytest.fixture
def opened(link: str, visits: Opens) -> Opens:
    """Return what opens the pages over the sample; browsers go before their server does."""
    return partial(visits, link)


def works(shop: Path, *arguments: str) -> Forked:
    """Start the command line in *shop*; its agents take their time."""
    (shop / "pace").write_text("0.5")
    return Forked(
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


def test_a_text_being_typed_survives_a_change(opened: Opens, shop: Path) -> None:
    page = opened()
    gate = page.locator("article", has_text="Approve publish?")
    gate.get_by_text("Send back…").click()
    gate.get_by_role("textbox").fill("half a sent")
    with works(shop.parent / "docs", "--run", "nightly", "retry") as worker:
        assert worker.wait() == 0
    expect(page.locator(".top .badge")).to_have_text("2")
    expect(gate.get_by_role("textbox")).to_have_value("half a sent")


def test_a_change_preserves_the_focus_only_on_an_equivalent_element(
    opened: Opens, shop: Path
) -> None:
    page = opened()
    gate = page.locator("article", has_text="Approve publish?")
    approve = gate.get_by_role("button", name="Approve")

    def elsewhere(*arguments: str, project: Path, left: int) -> None:
        with works(project, "--run", *arguments) as worker:
            assert worker.wait() == 0
        expect(page.locator("article.need")).to_have_count(left)

    approve.focus()
    elsewhere("nightly", "retry", project=shop.parent / "docs", left=2)
    expect(approve).to_be_focused()
    gate.get_by_text("Send back…").focus()
    elsewhere("login-timeout", "answer", "decide", "drop", project=shop, left=1)
    expect(gate.get_by_text("Send back…")).to_be_focused()
    approve.focus()
    elsewhere("release-1.4", "answer", "reject", project=shop, left=0)
    expect(page.locator(":focus")).to_have_count(0)


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


def fits(page: Page, paths: Iterable[str], width: int) -> None:
    """Check that nothing sticks out, is too faint to read, or too small for a finger."""
    for path in paths:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate(FAINT) == [], path
        if width < 600:
            assert page.evaluate(SMALL) == [], path


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_and_can_be_read(opened: Opens, width: int, dark: bool) -> None:
    fits(opened(width=width, dark=dark), PAGES, width)


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_new_broken_large_or_untrusted_projects_fit(
    visits: Opens, tmp_path: Path, width: int
) -> None:
    for name in ("new", "broken", "large"):
        make_project(tmp_path / name)
    work(tmp_path / "broken", "hurt", "ship", 2)
    hurt = tmp_path / "broken" / "sync" / "runs" / "hurt"
    for file in (hurt / "state.json", *hurt.glob("journal*")):
        file.write_text("{nothing")
    edges = "\n".join(f"n{place}[Part {place}] --> n{place + 6}" for place in range(60))
    nodes = "".join(f"\n### n{place}\nDo {place}.\n" for place in range(66))
    chart = f"---\nid: large\nname: Large\n---\n\n```mermaid\nflowchart TD\n{edges}\n```\n{nodes}"
    (tmp_path / "large" / "large.md").write_text(chart)
    settings = tmp_path / "large" / "orchestration.yaml"
    settings.write_text(settings.read_text() + "  large: large.md\n")
    name = "a-run-with-a-name-that-has-no-end-and-no-place-to-break_" + "x" * 40
    work(tmp_path / "large", name, "large", 8)
    work(tmp_path / "large", "release", "ship", 10)
    with served(tmp_path, "new", "broken", "large", trust="") as link:
        page = visits(link, width=width)
        run = f"/p/large/{name}"
        fits(page, ("/", "/runs", "/p/new/-", "/p/broken/hurt", run, "/costs", "/health"), width)
        report = tmp_path / "report.html"
        with works(tmp_path / "large", "--run", name, "report", "--html", str(report)) as writer:
            assert writer.wait() == 0
        fits(page, (report.as_uri(),), width)
        page.goto("/p/large/release")
        expect(page.locator("main")).to_contain_text("not trusted on this machine")
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        page.context.close()


def test_every_page_works_without_scripts(opened: Opens) -> None:
    page = opened(scripts=False)
    for path in PAGES:
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
    page.goto(RUN)
    page.get_by_role("button", name="approve", exact=True).click()
    expect(page.locator(".title .pill")).to_have_text("○ ready")


def test_keyboard_shortcuts_reach_every_page_and_decide_nothing(opened: Opens) -> None:
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
    page.goto(RUN)
    page.get_by_role("button", name="approve", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".title .pill")).to_have_text("○ ready")


def test_a_gate_is_approved_and_a_journal_searched(opened: Opens) -> None:
    page = opened()
    gate = page.locator("article", has_text="Approve publish?")
    gate.get_by_role("button", name="Approve").click()
    expect(page.locator(".top .badge")).to_have_text("2")
    page.goto("/runs")
    page.get_by_label("Search").first.fill("a token is logged")
    page.get_by_role("button", name="Search journals").click()
    expect(page.locator(".found tbody tr")).to_have_count(2)
    page.locator(".found tr", has_text="security").get_by_role("link").click()
    expect(page.locator("#answer")).to_contain_text("auth.py:41: a token is logged.")


def test_a_diff_is_read(visits: Opens, moved: Path) -> None:
    with served(moved.parent, "moved") as link:
        page = visits(link)
        page.goto("/p/moved/-")
        page.locator(".steps").get_by_role("link", name="main").first.click()
        page.locator(".jump").get_by_role("link", name="Diff").click()
        expect(page.locator(".diff .add").last).to_have_text("+<b>+ main</b>\n")
        page.context.close()


def test_a_log_grows_in_place_and_never_moves_its_reader(opened: Opens, shop: Path) -> None:
    log = next((shop / "logs").rglob("iter-00002_main.log"))
    log.write_text("".join(f"line {number}\n" for number in range(1, 101)) + "half")
    page = opened()
    page.goto(LOG)
    lines = page.locator("ol.log li")
    expect(lines).to_have_count(101)

    def append(text: str, count: int) -> None:
        with log.open("a") as file:
            file.write(text)
        expect(lines).to_have_count(count)

    append(" a line\nanother\n", 102)
    expect(lines.nth(100)).to_have_text("half a line")
    assert page.evaluate("scrollY") == 0
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    append("x\n" * 50, 152)
    is_end = "scrollY + innerHeight >= document.documentElement.scrollHeight - 4"
    assert page.evaluate(is_end)
    append("y\n" * 3000, 2000)
    assert page.evaluate("document.querySelector('ol.log').start") == 1 + 3152 - 2000
    page.get_by_label("Search this log").fill("LINE 77")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="77", exact=True).click()
    expect(lines.first).to_have_text("line 77")


def test_a_dead_server_is_reported(opened: Opens, shop: Path) -> None:
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
