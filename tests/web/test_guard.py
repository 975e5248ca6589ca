"""Everything that a foreign page, a foreign name or a stranger may try, on every route."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests import forked
from tests.web.conftest import LINK, Answer, Client, Serve
from tests.web.deliveries import wait_for

RUN = "/p/shop/login-timeout"
ASK = f"{RUN}/do/answer"
MAX_BODY_BYTES = 64 * 1024
"""The limit of the server; `tests/unit/web/test_page_guard.py` checks the number."""


ROUTES = {
    "/static": "GET",
    "/": "GET",
    "/runs": "GET",
    "/costs": "GET",
    "/health": "GET",
    "/more/{name}": "GET",
    "/p/{project}/{run}": "GET",
    "/p/{project}/{run}/step/{key}": "GET",
    "/p/{project}/{run}/log/{name}": "GET",
    "/p/{project}/{run}/log/{name}/raw": "GET",
    "/p/{project}/{run}/log/{name}/follow": "GET",
    "/live": "GET",
    "/p/{project}/{run}/do/{verb}": "POST",
}
"""Of the server; `tests/unit/web/test_page_guard.py` checks that there is no other."""


def routes() -> list[tuple[str, str]]:
    """Return an address of each route, and its method."""
    words = {"project": "shop", "run": "login-timeout", "key": "tests", "verb": "pause"}
    found = [
        (path.format(name="style.css", **words) + "/style.css" * (path == "/static"), method)
        for path, method in ROUTES.items()
    ]
    return [*found, ("/login", "GET"), ("/nothing", "GET")]


def heads(client: Client) -> list[int]:
    """Return the revision of each run's head."""
    found = [path for folder in client.projects for path in folder.rglob("sync/**/state.json")]
    assert found
    return [json.loads(path.read_text())["revision"] for path in sorted(found)]


NAMES = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1:{port}.evil.example",
    "127.0.0.1",
    "127.0.0.1:{other}",
    "sequencer.localhost.evil.example:{port}",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_route_refuses_a_foreign_name(looking: Client, name: str) -> None:
    host = name.format(port=looking.port, other=looking.port + 1)
    for path, method in routes():
        answer = looking.ask(path, method, looking.headers(host=host))
        assert answer.status == 421, (path, answer.status)


def test_requests_with_no_name_or_two_names_are_refused(looking: Client) -> None:
    # Such a request is none, before anything of ours sees it.
    assert looking.get("/", host=None).status == 400
    twice = [*looking.headers(), ("host", "evil.example")]
    assert looking.ask("/", headers=twice).status == 400


@pytest.mark.parametrize("name", ["localhost", "sequencer.localhost", "SEQUENCER.localhost"])
def test_requests_under_our_own_names_are_answered(looking: Client, name: str) -> None:
    assert looking.get("/", host=f"{name}:{looking.port}").status == 200


def test_every_route_requires_the_cookie(looking: Client) -> None:
    for cookie in (None, "other=1", f"{looking.cookie}=wrong", f"{looking.cookie}="):
        for path, method in routes():
            if path != "/login":
                origin = f"http://{looking.host}" if method == "POST" else None
                answer = looking.ask(path, method, looking.headers(cookie=cookie, origin=origin))
                assert answer.status == 401, (path, cookie)


def test_the_links_token_is_not_a_cookie_and_not_a_form_token(looking: Client) -> None:
    assert looking.get("/", cookie=f"{looking.cookie}={LINK}").status == 401
    assert looking.post(ASK, {"form_token": LINK}).status == 403


def test_the_link_gives_a_cookie_that_scripts_and_other_sites_never_get(looking: Client) -> None:
    answer = looking.get(f"/login?token={LINK}".replace(" ", "%20"), cookie=None)
    assert answer.status == 200
    cookie = answer.header("set-cookie")
    assert cookie.startswith(f"{looking.cookie}={looking.session}; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert LINK not in answer.text


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", f"?token={LINK[:-1]}"])
def test_a_wrong_link_gives_no_cookie(looking: Client, query: str) -> None:
    answer = looking.get(f"/login{query.replace(' ', '%20')}", cookie=None)
    assert (answer.status, answer.header("set-cookie")) == (403, "")


NAVIGATION = {"accept": "text/html,*/*;q=0.8", "sec_fetch_mode": "navigate"}


def test_without_the_link_a_person_gets_a_page_to_type_the_key_at(looking: Client) -> None:
    for path in ("/", RUN, "/login"):
        page = looking.get(path, cookie=None, **NAVIGATION)
        assert page.status == (403 if path == "/login" else 401)
        assert '<form method="post" action="/login">' in page.text
        assert 'name="token" type="password"' in page.text
        assert "<script" not in page.text
    # A program gets one line.
    assert "<form" not in looking.get("/", cookie=None).text
    assert "<form" not in looking.get("/live?at=/", cookie=None, sec_fetch_mode="cors").text


def test_a_typed_key_gives_the_cookie_and_appears_in_no_address(looking: Client) -> None:
    answer = looking.post("/login", {"token": f" {LINK} ", "form_token": None}, cookie=None)
    assert answer.status == 200
    assert answer.header("set-cookie").startswith(f"{looking.cookie}=")
    wrong = looking.post("/login", {"token": LINK[:-1], "form_token": None}, cookie=None)
    assert (wrong.status, wrong.header("set-cookie")) == (403, "")
    assert "This key is from an earlier start" in wrong.text
    for origin in (None, "https://evil.example"):
        foreign = looking.post("/login", {"token": LINK}, cookie=None, origin=origin)
        assert (foreign.status, foreign.header("set-cookie")) == (403, "")
    large = looking.post("/login", {"token": "x" * 70_000}, cookie=None)
    assert (large.status, large.header("set-cookie")) == (413, "")


FOREIGN = ['a="', "{own}=junk", "{own}=", "a=b=c; ;=", 'x="\\"; {own}=junk']


@pytest.mark.parametrize("foreign", FOREIGN)
def test_cookies_of_other_servers_on_this_host_do_not_block_access(
    looking: Client, foreign: str
) -> None:
    name, session = looking.cookie, looking.session
    other, own = foreign.format(own=name), f"{name}={session}"
    assert looking.get("/", cookie=f"{other}; {own}").status == 200
    assert looking.get("/", cookie=f"{own}; {other}").status == 200
    assert looking.get("/", cookie=other).status == 401
    assert looking.get("/", cookie=f"x{own}").status == 401


HUGE = "9" * 5000


def test_numbers_of_any_length_cause_no_server_error(client: Client) -> None:
    log = f"{RUN}/log/iter-00001_collect.log"
    for path in (f"{RUN}?before={HUGE}", f"{RUN}/step/tests?try={HUGE}", f"{log}?from={HUGE}"):
        assert client.get(path).status == 200
    assert client.get(f"{RUN}/step/{HUGE}").status == 404
    assert client.post(f"{RUN}/do/approve", {"token": HUGE}).status == 409


@pytest.mark.parametrize("at", [HUGE, "99999999999999999999", "-1", "\u00b2", "x"])
def test_a_log_is_followed_from_any_requested_offset(looking: Client, at: str) -> None:
    headers = looking.headers(last_event_id=at if at.isascii() else None)
    path = f"{RUN}/log/iter-00001_collect.log/follow?from={at}"
    with looking.sent(path, headers=headers) as answer:
        assert (answer.status, answer.read(5)) == (200, b"retry")


def test_the_name_of_a_log_cannot_inject_a_header(client: Client, tmp_path: Path) -> None:
    log = next((tmp_path / "shop" / "logs").rglob("iter-00001_collect.log"))
    name = 'iter-00077_a"; filename="x\r\u2028é#%41.log'
    log.rename(log.with_name(name))
    answer = client.get(f"{RUN}/log/{quote(name)}/raw")
    assert answer.status == 200
    said = answer.header("content-disposition")
    assert said.isascii()
    assert said.isprintable()
    assert said.count(";") == 1
    assert '"' not in said


def test_an_address_with_an_extra_slash_is_not_found(looking: Client) -> None:
    for path in ("/runs/", f"{RUN}/", "/health/"):
        answer = looking.get(path)
        assert (answer.status, answer.header("location")) == (404, "")


def test_no_page_has_the_tokens_of_the_link_or_the_session(looking: Client) -> None:
    for path, method in routes():
        if method == "GET" and not path.endswith(("/follow", "/live")):
            text = looking.get(path).text
            assert LINK not in text
            assert looking.session not in text


WRITES = [
    {"origin": None},
    {"origin": "null"},
    {"origin": "http://evil.example"},
    {"origin": "http://127.0.0.1:{other}"},
    {"origin": "http://localhost:{port}"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},
]


@pytest.mark.parametrize("changed", WRITES)
def test_a_form_of_a_foreign_page_changes_nothing(
    client: Client, changed: dict[str, str | None]
) -> None:
    before, ports = heads(client), {"port": client.port, "other": client.port + 1}
    headers = {name: text and text.format(**ports) for name, text in changed.items()}
    answer = client.post(f"{RUN}/do/pause", {}, **headers)
    assert answer.status == 403
    assert heads(client) == before


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_a_form_without_our_token_changes_nothing(client: Client, token: str | None) -> None:
    before = heads(client)
    assert client.post(f"{RUN}/do/pause", {"form_token": token}).status == 403
    assert heads(client) == before


def test_our_own_form_is_accepted_and_no_header_replaces_its_token(client: Client) -> None:
    assert client.post(f"{RUN}/do/pause").status == 303
    script = client.post(f"{RUN}/do/resume", {"form_token": None}, x_sequencer="1")
    assert script.status == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_a_post_changes_anything(client: Client, method: str) -> None:
    before = heads(client)
    own, form = client.headers(origin=f"http://{client.host}"), f"form_token={client.form}"
    assert client.ask(f"{RUN}/do/pause", method, own, form.encode()).status == 405
    assert heads(client) == before


def test_a_foreign_page_may_link_here_and_nothing_else(looking: Client) -> None:
    opened = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert looking.get("/", sec_fetch_site="same-site", **opened).status == 200
    for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
        embedded = {"sec_fetch_mode": mode, "sec_fetch_dest": dest}
        for path in ("/", "/live", "/static/page.js"):
            assert looking.get(path, sec_fetch_site="same-site", **embedded).status == 403


def test_every_answer_forbids_foreign_and_inline_scripts_and_frames(looking: Client) -> None:
    answers = [
        looking.get("/"),
        looking.get("/nothing"),
        looking.get("/", host="evil.example"),
        looking.get("/", cookie=None),
        looking.get("/static/page.js"),
        looking.get("/login", cookie=None),
    ]
    for answer in answers:
        policy = answer.header("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("cache-control") == "no-store"
        assert answer.header("cross-origin-resource-policy") == "same-origin"


def test_pages_keep_to_their_policy(looking: Client) -> None:
    for path in ("/", "/runs", RUN, "/p/shop/-", f"{RUN}/step/tests", "/costs", "/health"):
        text = looking.get(path).text
        assert not re.search(r"<[^>]+\s(style|on\w+)=", text), path
        assert "<style" not in text
        assert re.findall(r"<script[^>]*>", text) == ['<script src="/static/page.js" defer>']
        assert not re.search(r"""(src|href)=["'](https?:)?//""", text)


TRICKS = [
    "/static/../guard.py",
    "/static/..%2fguard.py",
    "/static/%2e%2e/guard.py",
    "/static//etc/passwd",
    "/p/../../etc/passwd",
    "/p/shop/../login-timeout",
    "/p/shop/..",
    "/p/shop/runs",
    f"{RUN}/log/..%2f..%2f..%2fsync%2fstate.json",
    f"{RUN}/log/../../sync/state.json/raw",
    f"{RUN}/log/state.json/raw",
    f"{RUN}/log/iter-00001_collect.log%00.txt",
    f"{RUN}/step/../../orchestration.yaml",
    "/p/shop/%2d%2d",
]


@pytest.mark.parametrize("path", TRICKS)
def test_an_address_never_becomes_a_path(looking: Client, path: str) -> None:
    for asked in (path, path.replace("%2f", "/").replace("%2e", ".")):
        answer = looking.get(asked)
        assert answer.status == 404, asked
        assert "root:" not in answer.text
        assert "schema_version" not in answer.text


def test_a_log_that_was_replaced_by_a_link_is_not_followed(client: Client, tmp_path: Path) -> None:
    log = next((tmp_path / "shop" / "logs").rglob("iter-00001_collect.log"))
    log.unlink()
    log.symlink_to("/etc/passwd")
    for path in ("", "/raw"):
        answer = client.get(f"{RUN}/log/{log.name}{path}")
        assert answer.status == 409
        assert "root:" not in answer.text


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example/", "/\\evil", "evil", "/\t/evil", "/\t\\evil"]
)
def test_a_change_never_leads_to_a_foreign_page(client: Client, back: str) -> None:
    answer = client.post(f"{RUN}/do/pause", {"back": back})
    assert (answer.status, answer.header("location")) == (303, "/")


def test_a_form_that_is_too_large_is_refused(client: Client) -> None:
    text = "x" * (MAX_BODY_BYTES + 1)
    assert client.post(f"{RUN}/do/stop", {"text": text}).status == 413


def test_output_of_agents_is_shown_as_text(looking: Client) -> None:
    pages: list[Answer] = [
        looking.get(path)
        for path in ("/", RUN, f"{RUN}/step/tests", f"{RUN}/log/iter-00001_collect.log")
    ]
    for page in pages:
        assert "<script>alert" not in page.text
        assert "\x1b" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[2].text
    assert "works on collect: part 1 of 6 &lt;b&gt;" in pages[3].text


def test_a_raw_log_is_downloaded_and_never_shown_as_a_page(looking: Client) -> None:
    answer = looking.get(f"{RUN}/log/iter-00001_collect.log/raw")
    assert answer.header("content-disposition").startswith("attachment; ")
    assert answer.header("content-type").startswith("text/plain")


def test_an_untrusted_project_is_shown_but_cannot_be_changed(untrusted: Client) -> None:
    before = heads(untrusted)
    page = untrusted.get(RUN)
    assert page.status == 200
    assert "not trusted on this machine" in page.text
    assert 'method="post"' not in page.text
    for verb in ("pause", "stop", "approve", "answer", "retry", "resume", "feedback", "reject"):
        form = {"token": "1", "node": "decide", "value": "approve", "text": "no"}
        answer = untrusted.post(f"{RUN}/do/{verb}", form)
        assert answer.status == 409
        assert "is not trusted" in answer.text
    assert heads(untrusted) == before


def web(*options: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sequencer", "web", *options, "--no-browser"]
    return forked.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **env},
        capture_output=True,
        text=True,
    )


def test_the_command_refuses_open_addresses_and_agents(made: Path) -> None:
    opened = web("--bind", "0.0.0.0", folder=made / "shop")  # noqa: S104 - refused
    assert (opened.returncode, opened.stdout) == (2, "")
    assert "there is no token" in opened.stderr
    inside = web(folder=made / "shop", SEQUENCER_TOKEN="7")  # noqa: S106 - a claim's number
    assert inside.returncode == 2
    assert "for a person to decide" in inside.stderr


def test_the_key_appears_in_no_command_line(made: Path, tmp_path: Path) -> None:
    """A browser opens a file that leads to the link; the first login removes it."""
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$@" > "{opened}.new"\nmv "{opened}.new" "{opened}"\n')
    browser.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "BROWSER": str(browser)}
    command = [sys.executable, "-m", "sequencer", "web", "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with forked.Forked(command, cwd=made / "shop", env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            wait_for(opened.exists, lambda: "a browser was started")
            key, words = link.partition("token=")[2], opened.read_text()
            assert key
            assert key not in words
            path = Path(words.strip().removeprefix("file://"))
            assert path.stat().st_mode & 0o077 == 0
            assert link in path.read_text()
            port = int(urlsplit(link).port or 0)
            assert log_in(port, "wrong")[0] == 403
            assert path.exists()
            status, page = log_in(port, key)
            assert (status, path.exists()) == (200, False)
            # The address of that page has the key, and the next one is not told of it.
            assert '<meta name="referrer" content="no-referrer">' in page
        finally:
            process.kill()


def log_in(port: int, key: str) -> tuple[int, str]:
    """Open the link with *key*; return the status and the page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", f"/login?token={key}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_key_that_others_can_read_is_refused(made: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(LINK)
    for mode in (0o644, 0o640, 0o620):
        key.chmod(mode)
        refused = web("--token-file", str(key), folder=made / "shop")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "others can read or change" in refused.stderr


ODD_KEYS = {
    "no text": (b"\xff" * 40, "is not UTF-8: byte 0xff at offset 0"),
    "two lines": (f"two\nlines{LINK}".encode(), "has a line end or another character"),
    "a tab": (f"a\ttab{LINK}".encode(), "has a line end or another character"),
    "a zero": (f"nul\0{LINK}".encode(), "has a line end or another character"),
    "short": (b"short", "characters"),
}


@pytest.mark.parametrize("odd", ODD_KEYS)
def test_a_key_that_no_form_can_have_is_refused(made: Path, tmp_path: Path, odd: str) -> None:
    key, (text, why) = tmp_path / "key", ODD_KEYS[odd]
    key.write_bytes(text)
    key.chmod(0o600)
    refused = web("--token-file", str(key), folder=made / "shop")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert why in refused.stderr


def test_no_other_server_gets_the_key_at_our_second_address(made: Path) -> None:
    # Chromium asks for sequencer.localhost at ::1 first.
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        refused = web("--port", str(port), folder=made / "shop")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"can't listen at ::1, port {port}" in refused.stderr


def test_a_local_file_may_lead_to_the_link(looking: Client) -> None:
    opened = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    path = f"/login?token={LINK}".replace(" ", "%20")
    assert looking.get(path, cookie=None, sec_fetch_site="cross-site", **opened).status == 200


def test_behind_a_tls_proxy_the_cookie_is_secure_and_forms_are_accepted(
    client: Client, serve: Serve
) -> None:
    client = serve(client.projects, names=("https://runs.example.org",))
    path = f"/login?token={LINK}".replace(" ", "%20")
    there = client.get(path, cookie=None, host="runs.example.org")
    assert there.header("set-cookie").endswith("; Secure")
    assert "Secure" not in client.get(path, cookie=None).header("set-cookie")
    url, host = f"{RUN}/do/pause", "runs.example.org"
    assert client.post(url, host=host, origin=f"http://{host}").status == 403
    assert client.post(url, origin=f"https://{client.host}").status == 403
    assert client.post(url, host=host, origin=f"https://{host}").status == 303
