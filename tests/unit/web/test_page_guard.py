"""The rules of the guard: which keys it takes, which link it prints, which forms it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.routing import Mount, Route

from sequencer.errors import UsageRefused
from sequencer.plugins.web import guard
from sequencer.plugins.web.cli_web import _listeners as listening
from sequencer.plugins.web.server import environment, make_app
from sequencer.plugins.web.site import Site
from tests.web.test_guard import ROUTES

LINK = "a token of the link that is long enough"
PORT = 8420
HOST = f"127.0.0.1:{PORT}"


def test_the_limit_of_a_form_is_the_one_that_test_guard_exceeds() -> None:
    assert guard.MAX_BODY_BYTES == 64 * 1024


def test_a_form_that_never_ends_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.05)
    sent: list[Any] = []
    keys = guard.Keys(LINK)
    made = guard.PageGuard(never, keys, guard.list_origins("127.0.0.1", PORT, ()), PORT)

    async def send(message: Any) -> None:
        sent.append(message)

    cookie = f"{made.cookie}={keys.session}"
    headers = {"host": HOST, "origin": f"http://{HOST}", "cookie": cookie}
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/p/shop/-/do/stop",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(asyncio.wait_for(made(scope, never, send), 20))
    assert sent[0]["status"] == 408


async def never(*_: Any) -> Any:
    await asyncio.sleep(60)


def test_binding_beyond_this_machine_requires_a_token() -> None:
    for address in ("0.0.0.0", "192.0.2.7", "::"):  # noqa: S104 - that is what is refused
        with pytest.raises(UsageRefused, match="there is no token"):
            guard.ensure_token(address, None)
        assert guard.ensure_token(address, LINK) == LINK
    with pytest.raises(UsageRefused, match="characters"):
        guard.ensure_token("127.0.0.1", "short")
    assert len(guard.ensure_token("127.0.0.1", None)) >= 32


@pytest.mark.parametrize("odd", ["two words", "naïve", "a&b=c#d+e%20f"])
def test_a_browser_sends_the_whole_key_of_a_link(odd: str) -> None:
    key = guard.ensure_token("127.0.0.1", f"{odd}{LINK}")
    link = guard.make_link("http://127.0.0.1:1", key)
    assert (link.isascii(), " " in link) == (True, False)
    parts = urlsplit(link)
    assert (parse_qs(parts.query)["token"], parts.fragment) == ([key], "")


@pytest.mark.parametrize(
    ("bind", "names", "first"),
    [
        ("127.0.0.1", (), "http://sequencer.localhost:8420"),
        ("::1", (), "http://sequencer.localhost:8420"),
        ("0.0.0.0", ("runs.example.org",), "http://runs.example.org:8420"),  # noqa: S104 - a name
        ("0.0.0.0", ("runs.example.org:99",), "http://runs.example.org:99"),  # noqa: S104
        ("127.0.0.1", ("https://Runs.example.org/",), "https://runs.example.org"),
        ("fe80::7", (), "http://[fe80::7]:8420"),
    ],
)
def test_the_link_has_the_best_name(bind: str, names: tuple[str, ...], first: str) -> None:
    origins = guard.list_origins(bind, 8420, names)
    assert origins[0] == first
    assert ("http://localhost:8420" in origins) == (bind in guard.LOOPBACK)


def test_the_server_listens_at_both_loopback_addresses() -> None:
    for bind in ("127.0.0.1", "localhost", "::1"):
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(one) for one in listening(bind, 0)]
            assert {one.getsockname()[0] for one in found} == {"127.0.0.1", "::1"}
            assert len({one.getsockname()[1] for one in found}) == 1


def test_templates_escape_text_automatically() -> None:
    made = environment().from_string('<p title="{{ text }}">{{ text }}</p>{{ "<b>"|safe }}')
    shown = made.render(text='\x1b[2J\u202e"><img src=x onerror=alert(1)>\x07')
    assert not re.search("[\x1b\x07\u202e]", shown)
    assert "<img" not in shown
    assert shown.endswith("<b>")


def test_the_routes_are_those_that_test_guard_tries(site: Site) -> None:
    found = {}
    for route in make_app(site, "a token of the forms").routes:
        assert isinstance(route, Mount | Route)
        methods = () if isinstance(route, Mount) else route.methods or ()
        found[route.path] = "POST" if "POST" in methods else "GET"
    assert found == ROUTES


@pytest.mark.parametrize("hosts", [(), (HOST, "evil.example")])
def test_requests_with_no_name_or_two_names_are_refused(hosts: tuple[str, ...]) -> None:
    sent = asyncio.run(answer_to("http", [("host", host) for host in hosts]))
    assert sent[0]["status"] == 421


def test_a_web_socket_is_closed() -> None:
    sent = asyncio.run(answer_to("websocket", []))
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def answer_to(kind: str, headers: list[tuple[str, str]]) -> list[Any]:
    """Return what the guard sends for a request whose browser has the cookie."""
    sent: list[Any] = []
    keys = guard.Keys(LINK)
    made = guard.PageGuard(never, keys, guard.list_origins("127.0.0.1", PORT, ()), PORT)

    async def send(message: Any) -> None:
        sent.append(message)

    named = [*headers, ("cookie", f"{made.cookie}={keys.session}")]
    pairs = [(name.encode(), value.encode()) for name, value in named]
    scope: dict[str, Any] = {"type": kind, "method": "GET", "path": "/live", "query_string": b""}
    await asyncio.wait_for(made({**scope, "headers": pairs}, never, send), 20)
    return sent
