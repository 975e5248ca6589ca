"""Decides which requests reach the pages; it protects every route, including static files.

It is raw ASGI, so that no framework's route, redirect or error page comes before it. A browser on
another site's page sends our cookie with some requests (ports do not separate cookies), so the
cookie alone never allows a change, and GET changes nothing.

An agent can't change anything through the pages either, even with their key; see `peer`.

Not promised: protection from another program of the same user. It can read and change the
project's files directly.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, quote

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
"""Host of the printed link: browsers resolve it without a name server, and keep its cookies
separate from those of other servers on this machine."""
MAX_BODY_BYTES = 64 * 1024
BODY_S = 10.0
"""Time limit for a form to arrive."""
MIN_TOKEN_CHARS = 16
_STYLE = (
    "body { font: 16px/24px system-ui, sans-serif; max-width: 26em; margin: 3em auto; "
    "padding: 0 16px; color-scheme: light dark } h1 { font-size: 20px } "
    "input, button { font: inherit; box-sizing: border-box; width: 100%; min-height: 44px; "
    "margin: 4px 0 12px; padding: 4px 12px } code { font-size: 14px }"
)
_STYLE_DIGEST = b64encode(sha256(_STYLE.encode()).digest()).decode()
"""The digest of the sign-in page's style, which is inline, because all files need the key."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    f"style-src 'self' 'sha256-{_STYLE_DIGEST}'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # A stricter policy would make the origin of our own forms null.
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
    "'sequencer status' shows an agent the state of its run."
)


class Keys(Struct, frozen=True):
    """The secrets of one start of the server; knowing one does not reveal the others."""

    link: str
    """In the printed link; never in a page."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """In the cookie."""
    form: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """In every form: a page of another origin can send our cookie, but can't read this."""


class PageGuard:
    """Passes on requests from browsers that opened the link; changes must come from our pages."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        origins: Iterable[str],
        port: int,
        opened: Callable[[], None] | None = None,
    ) -> None:
        """Wrap *app*, which listens at *port* and which browsers know by *origins*.

        *opened* is called when a person has opened the link.
        """
        self._app = app
        self._keys = keys
        # By the request's Host; behind a proxy that encrypts, the origin of our pages is https.
        self._origins = {origin.partition("://")[2]: origin for origin in origins}
        self.cookie = f"sequencer_{port}"
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, log a browser in, or pass the request on."""
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
        answer, code = self._app, self.check_headers(request)
        if not code and scope["path"] == "/login":
            answer, code = await self._log_in(request)
        elif not code and _is_write(request):
            code = await self._accept_form(request)
            endpoints: tuple[Any, Any] = (scope.get("client"), scope.get("server"))
            if (
                not code
                and all(endpoints)
                and await anyio.to_thread.run_sync(is_from_agent, *endpoints)
            ):
                answer = PlainTextResponse(_AGENT, 403)
        if code:
            extra_headers = {"connection": "close"} if code == 400 else {}  # noqa: PLR2004
            answer = PlainTextResponse(_TEXTS[code], code, extra_headers)
            if code == 401 and _is_page_request(request):  # noqa: PLR2004
                answer = _sign_in_page(code)
        await answer(scope, receive, guarded)

    def check_headers(self, request: Request) -> int:
        """Return the status that refuses *request* because of its headers; 0: it may continue."""
        headers = request.headers
        if has_two_lengths(headers):
            return 400
        hosts = headers.getlist("host")
        origin = self._origins.get(hosts[0].lower()) if len(hosts) == 1 else None
        if origin is None:
            return 421
        is_write = _is_write(request)
        # People may follow a link from another page: our GET requests change nothing.
        is_opened = (
            not is_write
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        site = headers.get("sec-fetch-site", "")
        if site not in ("", "same-origin", "none") and not is_opened:
            return 403
        if is_write and [value.lower() for value in headers.getlist("origin")] != [origin]:
            return 403
        return 0 if request.scope["path"] == "/login" or self._is_known(headers) else 401

    def _is_known(self, headers: Headers) -> bool:
        # Another server on this host can set cookies with our name that browsers send here too.
        # They must not let a request in, and must not hide our cookie.
        cookies = ";".join(headers.getlist("cookie")).split(";")
        cookie_parts = (cookie.strip().partition("=") for cookie in cookies)
        values = [value for name, _, value in cookie_parts if name == self.cookie]
        return any(_is_same(value, self._keys.session) for value in values)

    async def _accept_form(self, request: Request) -> int:
        """Put the fields of a write's form on *request*; return a refusal's status, or 0."""
        fields, code = await _read_form(request)
        if not code and not _is_same(fields.pop("form_token", ""), self._keys.form):
            return 403
        request.state.form = fields
        return code

    async def _log_in(self, request: Request) -> tuple[Response, int]:
        """Exchange the key, from the link or typed, for the cookie; or return a refusal's status.

        There is no redirect: after a click on another site's page, a browser would not send the
        new cookie with it.
        """
        query, code = request.scope["query_string"].decode("latin-1"), 0
        fields = {name: values[-1] for name, values in parse_qs(query).items()}
        if request.method == "POST":
            # A typed key must not get into an address: browsers keep those in their history.
            fields, code = await _read_form(request)
        key = fields.get("token", "").strip()
        if code or not _is_same(key, self._keys.link):
            reason = "This key is from an earlier start, or it is incomplete." if key else ""
            return _sign_in_page(403, reason), code
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
    """Return the fields of a form, and the status that refuses it, or 0."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return {}, 413
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20)
    except TimeoutError:
        return {}, 408
    except (ClientDisconnect, ValueError):
        return {}, 400
    # A browser sends each line break as two characters (HTML: "Constructing the entry list").
    return {name: values[-1].replace("\r\n", "\n") for name, values in form.items()}, 0


def _is_page_request(request: Request) -> bool:
    """Return whether a person opened the address, not a script or another program."""
    mode = request.headers.get("sec-fetch-mode", "navigate")
    is_page = "text/html" in request.headers.get("accept", "")
    return request.method == "GET" and mode == "navigate" and is_page


def _sign_in_page(status: int, reason: str = "") -> Response:
    """Return the page that asks for the key; *reason* says why the last one was refused."""
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Sign in · sequencer</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style><main><h1>sequencer</h1>'
        f"{f'<p><strong>{reason}</strong></p>' if reason else ''}"
        "<p>Open the link that <code>sequencer web</code> printed, or type its key: "
        "the part after <code>token=</code>.</p>"
        '<form method="post" action="/login"><label for="key">Key</label>'
        '<input id="key" name="token" type="password" autocomplete="current-password" '
        'autocapitalize="off" required autofocus><button>Sign in</button></form></main>',
        status,
    )


def ensure_token(bind: str, token: str | None) -> str:
    """Return *token*, or a new one if only this machine can reach the address *bind*.

    Raises:
        UsageRefused: *token* is too short or can't be typed, or other machines can reach *bind*
            and a person has not chosen one: a new one for each start would be in every log of the
            service.
    """
    if token is None:
        if bind not in LOOPBACK:
            raise UsageRefused(
                f"other machines can reach {bind}, and there is no token",
                where="--bind",
                hint="--token-file FILE names a file with a token of your own",
            )
        return secrets.token_urlsafe(24)
    problem = None
    if len(token) < MIN_TOKEN_CHARS:
        problem = f"has {len(token)} characters"
    elif not token.isprintable():
        problem = "has a line end or another character that can't be typed into a form"
    if problem is not None:
        raise UsageRefused(
            f"the token {problem}",
            where="--token-file",
            hint=f"one line of at least {MIN_TOKEN_CHARS} characters; "
            "'python -c \"import secrets; print(secrets.token_urlsafe())\"' makes one",
        )
    return token


def make_link(origin: str, token: str) -> str:
    """Return the link that opens the pages at *origin*.

    The token is quoted: a link ends at a space, and a browser does not send what follows a ``#``.
    """
    return f"{origin}/login?token={quote(token, safe='')}"


def list_origins(bind: str, port: int, names: Iterable[str]) -> list[str]:
    """Return the origins under which browsers may reach the server at *bind* and *port*.

    *names* come first and are added to the machine's own; the first origin is for the link. A
    name with ``https://`` belongs to a proxy that encrypts. Requests with any other name are
    refused, so that a stranger's name that resolves to us (DNS rebinding) is of no use.
    """
    hosts = [f"[{bind}]" if ":" in bind else bind]
    if bind in LOOPBACK:
        hosts = [OWN_NAME, *hosts, "localhost", "127.0.0.1", "[::1]"]
    return [
        *(_origin(name.lower().rstrip("/"), port) for name in names),
        *(f"http://{host.lower()}:{port}" for host in hosts),
    ]


def _origin(name: str, port: int) -> str:
    """Return the origin of *name*, as browsers write it.

    >>> _origin("runs.example", 8420), _origin("https://runs.example", 8420)
    ('http://runs.example:8420', 'https://runs.example')
    """
    scheme, _, host = name.rpartition("://")
    if scheme == "https":
        return f"https://{host.removesuffix(':443')}"
    has_port = host.rpartition(":")[2].isdecimal()
    return f"http://{host}" if has_port else f"http://{host}:{port}"


def has_two_lengths(headers: Headers) -> bool:
    """Return whether two headers say where the request ends.

    A proxy in front of us could follow one of them, and we the other (RFC 9112, 6.1).
    """
    return "content-length" in headers and "transfer-encoding" in headers


def _is_write(request: Request) -> bool:
    return request.method not in ("GET", "HEAD")


def _is_same(candidate: str, secret: str) -> bool:
    return hmac.compare_digest(candidate.encode(), secret.encode())
