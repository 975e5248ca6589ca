"""Who may ask for anything: the wall around every route, static files included.

Raw ASGI, so that no framework's route, redirect or error page comes before it. A browser that
is on a foreign page sends our cookie along with some requests (ports do not separate
cookies), so the cookie alone never lets a change through, and GET changes nothing.

Nor does an agent change anything by the pages, even if it has read their key; see `peer`.

Not promised: that another program of the same user keeps out. It can read the project's files
and change them without us.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs

import anyio.to_thread
from msgspec import Struct, field
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sequencer.errors import UsageRefused
from sequencer.plugins.web.peer import is_from_agent

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OWN_NAME = "sequencer.localhost"
"""What the printed link says: browsers resolve it without asking anybody, and keep cookies of it
apart from those of other servers on this machine."""
MOST_BODY_BYTES = 64 * 1024
BODY_S = 10.0
"""In which a form has to arrive."""
LEAST_TOKEN_CHARS = 16
_STYLE = (
    "body { font: 16px/24px system-ui, sans-serif; max-width: 26em; margin: 3em auto; "
    "padding: 0 16px; color-scheme: light dark } h1 { font-size: 20px } "
    "input, button { font: inherit; box-sizing: border-box; width: 100%; min-height: 44px; "
    "margin: 4px 0 12px; padding: 4px 12px } code { font-size: 14px }"
)
_STYLE_DIGEST = b64encode(sha256(_STYLE.encode()).digest()).decode()
"""Of the style of the page to sign in, which stands in it: all files are behind the key."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    f"style-src 'self' 'sha256-{_STYLE_DIGEST}'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # No stricter: the origin of our own forms would then be null.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_TEXTS = {
    400: "This request can't be read.",
    401: "Open the link that 'sequencer web' printed: it has the key to these pages. "
    "Or type the key at /login.",
    403: "This request does not come from these pages, so nothing was done.",
    408: "The form did not arrive in time.",
    413: "The form is too large.",
    421: "These pages do not have that name.",
}
_AGENT = (
    "An agent sent this request, so nothing was done: these pages make a person's decisions. "
    "'sequencer status' shows an agent where its run stands."
)


class Keys(Struct, frozen=True):
    """The secrets of one start; who knows one has not got the others."""

    link: str
    """In the printed link; in no page."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """In the cookie."""
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """In every form: a page of another origin can send our cookie, and can't read this."""


class PageGuard:
    """Lets through who has opened the link, from these pages, by one of their names."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        origins: Iterable[str],
        port: int,
        opened: Callable[[], None] | None = None,
    ) -> None:
        """Stand before *app* at *port*, which browsers know by *origins*.

        *opened* is called when somebody has opened the link.
        """
        self._app = app
        self._keys = keys
        # By what a request calls us: behind what encrypts, it is https that its pages come from.
        self._origins = {one.partition("://")[2]: one for one in origins}
        self.cookie = f"sequencer_{port}"
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope, receive)
        answer, code = self._app, self.refusal(request)
        if not code and scope["path"] == "/login":
            answer, code = await self._log_in(request)
        elif not code and _is_write(request):
            code = await self._take_form(request)
            ends: tuple[Any, Any] = (scope.get("client"), scope.get("server"))
            if not code and all(ends) and await anyio.to_thread.run_sync(is_from_agent, *ends):
                answer = PlainTextResponse(_AGENT, 403)
        if code:
            more = {"connection": "close"} if code == 400 else {}  # noqa: PLR2004
            answer = PlainTextResponse(_TEXTS[code], code, more)
            if code == 401 and _wants_page(request):  # noqa: PLR2004
                answer = _sign_in_page(code)
        await answer(scope, receive, guarded)

    def refusal(self, request: Request) -> int:
        """Return the status with which its headers alone refuse *request*; 0: they do not."""
        headers = request.headers
        if is_two_lengths(headers):
            return 400
        hosts = headers.getlist("host")
        own = self._origins.get(hosts[0].lower()) if len(hosts) == 1 else None
        if own is None:
            return 421
        is_write = _is_write(request)
        # A link on another page may be followed: a GET of ours changes nothing.
        is_opened = (
            not is_write
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        site = headers.get("sec-fetch-site", "")
        if site not in ("", "same-origin", "none") and not is_opened:
            return 403
        if is_write and [one.lower() for one in headers.getlist("origin")] != [own]:
            return 403
        return 0 if request.scope["path"] == "/login" or self._is_known(headers) else 401

    def _is_known(self, headers: Headers) -> bool:
        # Another server on this host can set cookies that are sent along, even of our name:
        # they neither let anybody in nor keep ours out.
        given = ";".join(headers.getlist("cookie")).split(";")
        named = (one.strip().partition("=") for one in given)
        values = [value for name, _, value in named if name == self.cookie]
        return any(_is_same(value, self._keys.session) for value in values)

    async def _take_form(self, request: Request) -> int:
        """Note what the form of a write says; return why it is refused (0: it is not)."""
        fields, code = await _read_form(request)
        if not code and not _is_same(fields.pop("form_token", ""), self._keys.form):
            return 403
        request.state.form = fields
        return code

    async def _log_in(self, request: Request) -> tuple[Response, int]:
        """Exchange the key, of the link or typed, for the cookie; or return why it is refused.

        Not by a redirect: after a click on a foreign page a browser would withhold the new cookie.
        """
        query, code = request.scope["query_string"].decode("latin-1"), 0
        fields = {name: values[-1] for name, values in parse_qs(query).items()}
        if request.method == "POST":
            # In no address, and so in no history of a browser.
            fields, code = await _read_form(request)
        asked = fields.get("token", "").strip()
        if code or not _is_same(asked, self._keys.link):
            why = "This key is from an earlier start, or it is incomplete." if asked else ""
            return _sign_in_page(403, why), code
        if self._opened is not None:
            self._opened()
        cookie = f"{self.cookie}={self._keys.session}; HttpOnly; SameSite=Strict; Path=/"
        if self._origins[request.headers["host"].lower()].startswith("https:"):
            cookie += "; Secure"
        text = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>sequencer</title>'
            '<link rel="icon" href="data:,"><meta name="referrer" content="no-referrer">'
            '<meta http-equiv="refresh" content="0;url=/"><a href="/">Continue</a>'
        )
        return HTMLResponse(text, headers={"set-cookie": cookie}), 0


async def _read_form(request: Request) -> tuple[dict[str, str], int]:
    """Return the fields of a form, and why it is refused (0: it is not)."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY_BYTES:
                    return {}, 413
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
    except TimeoutError:
        return {}, 408
    except (ClientDisconnect, ValueError):
        return {}, 400
    return {name: values[-1] for name, values in form.items()}, 0


def _wants_page(request: Request) -> bool:
    """Return whether a person has opened an address, and no script or program."""
    mode = request.headers.get("sec-fetch-mode", "navigate")
    is_page = "text/html" in request.headers.get("accept", "")
    return request.method == "GET" and mode == "navigate" and is_page


def _sign_in_page(status: int, why: str = "") -> Response:
    """Return the page that asks for the key, and says *why* it does so again."""
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Sign in · sequencer</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style><main><h1>sequencer</h1>'
        f"{f'<p><strong>{why}</strong></p>' if why else ''}"
        "<p>Open the link that <code>sequencer web</code> printed, or type its key: "
        "what stands after <code>token=</code>.</p>"
        '<form method="post" action="/login"><label for="key">Key</label>'
        '<input id="key" name="token" type="password" autocomplete="current-password" '
        'autocapitalize="off" required autofocus><button>Sign in</button></form></main>',
        status,
    )


def ensure_token(bind: str, token: str | None) -> str:
    """Return *token*, or a fresh one if only this machine can reach the address *bind*.

    Raises:
        UsageRefused: other machines can, and there is no token that a person chose, or it is
            short. One that changes with each start would stand in every log of the service.
    """
    if token is None:
        if bind not in LOOPBACK:
            raise UsageRefused(
                f"other machines can reach {bind}, and there is no token",
                where="--bind",
                hint="--token-file FILE names a file with a token of your own",
            )
        return secrets.token_urlsafe(24)
    if len(token) < LEAST_TOKEN_CHARS:
        raise UsageRefused(
            f"the token has {len(token)} characters",
            where="--token-file",
            hint=f"at least {LEAST_TOKEN_CHARS}; "
            "'python -c \"import secrets; print(secrets.token_urlsafe())\"' makes one",
        )
    return token


def origins_of(bind: str, port: int, names: Iterable[str]) -> list[str]:
    """Return how browsers may call what listens at *bind* and *port*, also by *names*; best first.

    A name with ``https://`` is that of something before us, which encrypts.

    No other name is answered, so that a name of somebody else that leads here (DNS
    rebinding) is of no use to its pages.
    """
    own = [f"[{bind}]" if ":" in bind else bind]
    if bind in LOOPBACK:
        own = [OWN_NAME, *own, "localhost", "127.0.0.1", "[::1]"]
    return [
        *(_origin(name.lower().rstrip("/"), port) for name in names),
        *(f"http://{name.lower()}:{port}" for name in own),
    ]


def _origin(name: str, port: int) -> str:
    """Return the origin of *name*, as browsers say it.

    >>> _origin("runs.example", 8420), _origin("https://runs.example", 8420)
    ('http://runs.example:8420', 'https://runs.example')
    """
    scheme, _, host = name.rpartition("://")
    if scheme == "https":
        return f"https://{host.removesuffix(':443')}"
    has_port = host.rpartition(":")[2].isdecimal()
    return f"http://{host}" if has_port else f"http://{host}:{port}"


def is_two_lengths(headers: Headers) -> bool:
    """Return whether a request says by two headers where it ends.

    We and a proxy before us could each believe another one (RFC 9112, 6.1).
    """
    return "content-length" in headers and "transfer-encoding" in headers


def _is_write(request: Request) -> bool:
    return request.method not in ("GET", "HEAD")


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
