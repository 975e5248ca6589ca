"""The web application: addresses, templates, and the server that listens.

Pages are rendered in threads, one at a time, because they share the data that was read; the event
loop sends changes and logs. Not promised: speed for hundreds of different pages at once. It is one
person's view of their machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import resource
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from socket import socket
from typing import Any
from urllib.parse import parse_qsl

import anyio.to_thread
import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, compile_path
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from sequencer import __version__
from sequencer.cli.views.states import STATE_DISPLAYS
from sequencer.cli.views.text import one_line, strip_controls
from sequencer.errors import RemoteUnreachable, SequencerError, UnknownName
from sequencer.plugins.web import checks, pages, run_page, steps
from sequencer.plugins.web.actions import perform_action
from sequencer.plugins.web.costs import build_costs_page
from sequencer.plugins.web.live import Channels, RenderedPage, follow_log
from sequencer.plugins.web.pages import Page, build_needs_page, every_need
from sequencer.plugins.web.site import Site

PAGES: Mapping[str, Callable[..., Page]] = {
    "/": pages.build_needs_page,
    "/runs": pages.build_runs_page,
    "/costs": build_costs_page,
    "/health": checks.build_health_page,
    "/more/{name}": pages.build_added_page,
    "/p/{project}/{run}": run_page.build_run_page,
    "/p/{project}/{run}/step/{key}": steps.build_step_page,
    "/p/{project}/{run}/log/{name}": steps.build_log_page,
}
"""Address -> function that makes its page from the site, the query and the address's names."""
MAX_CONNECTIONS = 1000
KEEP_ALIVE_S = 15
HEADERS_S = 10.0
"""A connection is closed after twice this time without a request."""


def environment() -> Environment:
    """Return the environment of the templates."""
    templates = Environment(
        autoescape=True,
        # Text that is copied from a page into a terminal must not contain control sequences.
        finalize=lambda value: strip_controls(value) if type(value) is str else value,
        loader=PackageLoader("sequencer.plugins.web"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"plain": strip_controls, "line": one_line, **pages.WORDS}
    templates.globals |= {"version": __version__, "looks": STATE_DISPLAYS}
    return templates


class Answers:
    """The handlers of all addresses; pages are made one at a time."""

    def __init__(self, site: Site, form_token: str) -> None:
        """Show *site*; each form of its pages has *form_token*."""
        self._site = site
        self._form_token = form_token
        self._templates = environment()
        self._paths = [(compile_path(path)[0], fill) for path, fill in PAGES.items()]
        self._added = pages.added_pages(site)
        self.channels = Channels(self.render_parts)

    def render_parts(self, address: str) -> RenderedPage:
        """Return the parts of the page at *address*, a path with its query.

        Raises:
            UnknownName: there is no such page, project, run or step.
        """
        path, _, query = address.partition("?")
        matches = ((pattern.match(path), fill) for pattern, fill in self._paths)
        match, fill = next((pair for pair in matches if pair[0]), (None, None))
        if match is None or fill is None:
            raise UnknownName("page", path, PAGES)
        values = dict(parse_qsl(query))
        if fill is build_costs_page or "journal" in values:
            # These read whole journals; other pages must not wait for that.
            self._site.read_ahead()
        with self._site.lock:
            page = fill(self._site, values, **match.groupdict())
            template = self._templates.get_template(page.template)
            is_found = fill is build_needs_page
            needs = page.context["needs"] if is_found else every_need(self._site)
            badge = sum(1 for _ in needs)
            context = template.new_context(
                {
                    "page": page,
                    "badge": badge,
                    "address": address,
                    **page.context,
                    "added": self._added,
                    "form_token": self._form_token,
                }
            )
            parts = {name: "".join(block(context)) for name, block in template.blocks.items()}
        digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()
        return RenderedPage(page, parts, digest)

    def warm_up(self) -> None:
        """Read the data of all pages, and compile the first template; pages report any error.

        The other templates are compiled when needed: all of them take a third of a start.
        """
        with suppress(SequencerError):
            self.render_page("/")

    def render_page(self, address: str) -> str:
        """Return the whole HTML of the page at *address*."""
        made_page, frame = self.render_parts(address), self._templates.get_template("base.html")
        return frame.render(made=made_page, page=made_page.page, address=address)

    def show(self, request: Request) -> Response:
        """Answer with a page."""
        query = request.url.query
        return HTMLResponse(self.render_page(request.url.path + (f"?{query}" if query else "")))

    def change(self, request: Request) -> Response:
        """Do what a button asks for, and show its page again."""
        perform_action(self._site, request.state.form, **request.path_params)
        return RedirectResponse(_find_return_address(request), status_code=303)

    async def stream_page(self, request: Request) -> Response:
        """Send the parts of a page that change, starting from what the reader has seen."""
        query = request.query_params
        last_id = request.headers.get("last-event-id") or query.get("id", "")
        return _stream(self.channels.follow(query.get("at", "/"), last_id))

    async def follow(self, request: Request) -> Response:
        """Send the lines of a log as they are written."""
        names = request.path_params
        offset = request.headers.get("last-event-id") or request.query_params.get("from", "0")
        path = await anyio.to_thread.run_sync(lambda: steps.log_path(self._site, **names))
        return _stream(follow_log(path, pages.parse_number(offset)))

    def send_log(self, request: Request) -> Response:
        """Answer with a whole log as a download."""
        return steps.download_log(self._site, **request.path_params)

    def refuse(self, request: Request, error: SequencerError) -> Response:
        """Answer with a page that explains a deliberate *error*."""
        code, title, text = 409, "This was refused", error.message
        if isinstance(error, UnknownName):
            code, title = 404, "There is no such page"
        elif isinstance(error, RemoteUnreachable):
            code, title = 503, "The server of these runs can't be reached"
            text = f"{error.where}: {text}" if error.where else text
        values = {
            "title": title,
            "text": text,
            "hint": error.hint or "",
            "back": _find_return_address(request),
        }
        template = self._templates.get_template("problem.html")
        return HTMLResponse(template.render(values), status_code=code)


def make_app(site: Site, form_token: str) -> Starlette:
    """Return the application that shows *site*; it must be wrapped in a `PageGuard`."""
    answers = Answers(site, form_token)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # Read hundreds of heads now, so that the first request need not wait for them.
        threading.Thread(target=answers.warm_up, daemon=True).start()
        yield
        answers.channels.close()

    log = "/p/{project}/{run}/log/{name}"
    routes = [
        *(Route(path, answers.show) for path in PAGES),
        Route("/live", answers.stream_page),
        Mount("/static", StaticFiles(packages=[("sequencer.plugins.web", "static")])),
        Route(f"{log}/follow", answers.follow),
        Route(f"{log}/raw", answers.send_log),
        Route("/p/{project}/{run}/do/{verb}", answers.change, methods=["POST"]),
    ]
    refusals: dict[Any, Any] = {SequencerError: answers.refuse}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=refusals)
    # A redirect would use the Host that the request sent; an extra slash is an error instead.
    app.router.redirect_slashes = False
    return app


def _stream(texts: AsyncIterator[str]) -> Response:
    return StreamingResponse(texts, media_type="text/event-stream")


def _find_return_address(request: Request) -> str:
    """Return the form's return address if it is one of ours; otherwise the first page.

    The pattern is strict because browsers ignore tabs and treat a backslash as a slash.
    """
    address = getattr(request.state, "form", {}).get("back", "/")
    return address if re.fullmatch(r"/(?!/)[!-\[\]-~]*", address) else "/"


class IdleTimeoutProtocol(H11Protocol):
    """Closes idle connections: each one uses a file descriptor of this process."""

    _was_idle = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Serve a new connection; if there are too many, close an idle one."""
        super().connection_made(transport)
        self.loop.call_later(HEADERS_S, self._close_if_idle)
        if len(self.connections) >= MAX_CONNECTIONS:
            connections = (connection for connection in self.connections if connection is not self)
            idle = (
                connection
                for connection in connections
                if isinstance(connection, IdleTimeoutProtocol) and connection.is_idle
            )
            if (idle_connection := next(idle, None)) is not None:
                idle_connection.transport.abort()
                self.connections.discard(idle_connection)

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if self.transport.is_closing():
            return
        if self.is_idle and self._was_idle:
            self.transport.close()
            return
        self._was_idle = self.is_idle
        self.loop.call_later(HEADERS_S, self._close_if_idle)


class SlowPollServer(uvicorn.Server):
    """Checks once a second whether to end, not ten times, so that an idle server costs little."""

    async def main_loop(self) -> None:
        """Run until the server should end; check that once a second."""
        while not await self.on_tick(0):  # noqa: ASYNC110 - a signal sets a flag and no event
            await asyncio.sleep(1.0)


def serve(app: Any, listeners: list[socket]) -> None:
    """Answer on *listeners* until a signal ends this process."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
        ws="none",
        loop="asyncio",
        http=IdleTimeoutProtocol,
    )
    with suppress(OSError, ValueError):
        # Enough descriptors for all connections and for the files that they show.
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = 2 * MAX_CONNECTIONS + 100
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(soft_limit, min(target, hard_limit)), hard_limit)
        )
    SlowPollServer(config).run(sockets=listeners)
