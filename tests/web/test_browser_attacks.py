"""A foreign page at a real browser whose person has opened the link, and a name that leads here."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from sequencer import open_project
from tests.web.test_browser import CHROMIUM, FLAGS, RUN, browser, link, shop

__all__ = ["browser", "link", "shop"]
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
FOREIGN = """<!doctype html><title>waits</title>
<iframe name=hidden></iframe><iframe src="{there}{run}"></iframe><img src="{there}/static/icon.svg">
<form id=f method=post target=hidden action="{there}{run}/do/pause"><input name=back value="/">
<input name=form_token value=""></form>
<script type="module">
const seen = [];
const told = (name) => [() => seen.push(name + "got"), () => seen.push(name + "x")];
document.getElementById("f").submit();
const form = new URLSearchParams({{back: "/", form_token: "x"}});
const post = {{method: "POST", body: form, credentials: "include"}};
const kinds = [{{...post, mode: "no-cors"}}, {{...post, headers: {{"x-sequencer": "1"}}}}];
for (const kind of kinds) await fetch("{there}{run}/do/pause", kind).then(...told("post:"));
await fetch("{there}{run}", {{mode: "cors", credentials: "include"}}).then(...told("read:"));
await import("{there}/static/page.js").then(...told("script:"));
const stream = new EventSource("{there}/live?at=/", {{withCredentials: true}});
const [got, failed] = told("stream:");
await new Promise((done) => {{ stream.onopen = () => done(got());
  stream.onerror = () => done(failed()); }});
setTimeout(() => {{ document.title = seen.join(" "); }}, 500);
</script>"""


@pytest.fixture
def foreign(link: str) -> Iterator[tuple[str, list[str]]]:
    """Return the address of a page of somebody else, and what its server is sent."""
    there = link.partition("/login")[0].replace("sequencer.localhost", "127.0.0.1")
    sent: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(f"{self.path} {self.headers}")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(FOREIGN.format(there=there, run=RUN).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", sent
        server.shutdown()
        thread.join()


def test_a_foreign_page_on_this_host_can_neither_change_nor_read(
    browser: Browser, link: str, shop: Path, foreign: tuple[str, list[str]]
) -> None:
    """It is of the same site, as ports do not separate sites: the browser sends our cookie."""
    run = open_project(shop, trust=True).run("login-timeout")
    before = run.head
    context = browser.new_context()
    page = context.new_page()
    page.goto(link.replace("sequencer.localhost", "127.0.0.1"))
    page.wait_for_url("**/")
    page.goto(foreign[0])
    page.wait_for_function("document.title !== 'waits'")
    # Even the opaque answer to a form that was sent is withheld.
    assert page.title() == "post:x post:x read:x script:x stream:x"
    assert "Cookie: sequencer_" in foreign[1][0], "the cookie alone is no proof"
    assert run.head == before
    context.close()


def test_the_token_of_the_link_is_not_leaked(browser: Browser, link: str) -> None:
    token, context = link.partition("token=")[2], browser.new_context()
    page, told = context.new_page(), list[str]()
    page.on("request", lambda request: told.append(str(request.all_headers()) + request.url))
    page.goto(link)
    page.wait_for_url("**/")
    page.goto(link.partition("/login")[0] + RUN)
    assert [one for one in told if token in one] == [one for one in told if one.endswith(token)]
    assert sum(token in one for one in told) == 1
    assert token not in page.evaluate("document.referrer")
    assert token not in str(page.evaluate("document.cookie"))
    context.close()


def test_requests_under_a_foreign_name_are_refused(browser: Browser, link: str) -> None:
    port = link.partition("/login")[0].rpartition(":")[2]
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    rules = f"--host-resolver-rules=MAP evil.example 127.0.0.1:{port}"
    misled = browser.browser_type.launch(executable_path=CHROMIUM, args=[*FLAGS, *root, rules])
    page = misled.new_page()
    for where in ("/", "/runs", RUN, "/live?at=/", "/static/page.js", "/hooks/github", "/login"):
        answer = page.goto(f"http://evil.example:{port}{where}")
        assert answer is not None
        assert answer.status == 421
    misled.close()
