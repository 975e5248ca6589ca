"""``POST /hooks/github`` and ``/hooks/linear``: what is let in from outside.

The signature says who asks, so neither cookie nor Origin is asked for; it is checked over the
bytes as they came, before anything looks into them. Who and where are checked next, and the
delivery is kept on disk before its sender is told so. What it asks for is done by the clerk.

A signed delivery that asks for nothing here is answered 200 with the reason: a tracker shows it
beside the delivery, and switches off an address that answers with errors. Linear counts every
other status as one.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sequencer.errors import SequencerError
from sequencer.plugins.web.guard import is_two_lengths
from sequencer.plugins.web.section import webhooks_of
from sequencer.plugins.web.site import Site
from sequencer.plugins.web.webhooks.acting import Clerk, Say, ensure_allowed
from sequencer.plugins.web.webhooks.box import BoxBusy, BoxFull
from sequencer.plugins.web.webhooks.reading import Unwanted, is_count, read
from sequencer.plugins.web.webhooks.uploads import BODY_S, MOST_BYTES, TooMuch, Upload, Uploads
from sequencer.project.project import Project
from sequencer.store.strictjson import parse_object

ADDRESS = "/hooks/"
LINEAR_S = 60.0
"""Within which of our clock Linear has to have sent it: its own advice."""
NOTHING = "nothing to do: "
MOST_REFUSED = 20
"""Kinds of refusals that are remembered for the page about health."""
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class Tracker(NamedTuple):
    """Where a tracker says what."""

    signature: str
    prefix: str
    id: str
    kind: str


TRACKERS: Mapping[str, Tracker] = {
    "github": Tracker("x-hub-signature-256", "sha256=", "x-github-delivery", "x-github-event"),
    "linear": Tracker("linear-signature", "", "linear-delivery", "linear-event"),
}


class Answered(Exception):
    """The request is answered with a status and a text."""


class WebhookReceiver:
    """Takes deliveries, and lets everything else through to the pages."""

    def __init__(self, app: ASGIApp, origins: Iterable[str], site: Site, say: Say) -> None:
        """Stand before *app*, which has *origins*; the projects of *site* take what they may."""
        self._app = app
        self._hosts = frozenset(one.partition("://")[2].lower() for one in origins)
        self._clerks = [Clerk(shown, say) for shown in site.projects.values()]
        self._refused = site.refused
        self._uploads = Uploads()

    def begin(self) -> None:
        """Work on what earlier servers have left."""
        for clerk in self._clerks:
            clerk.begin()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the pages answer."""
        if scope["type"] != "http" or not scope["path"].startswith(ADDRESS):
            await self._app(scope, receive, send)
            return
        name = scope["path"].removeprefix(ADDRESS)
        try:
            await self._take(Request(scope, receive), name)
            status, text = (200 if name == "linear" else 202), "taken"
        except Answered as answered:
            status, text = answered.args
            if status >= 400 or text.startswith(NOTHING):  # noqa: PLR2004
                self._remember(f"{status}, {text}" if name in TRACKERS else "404, another address")
        # The body of a refused request was perhaps not read.
        more = {"connection": "close"} if status >= 400 else {}  # noqa: PLR2004
        answer = JSONResponse({"sequencer": text}, status, {**_HEADERS, **more})
        await answer(scope, receive, send)

    def _remember(self, refusal: str) -> None:
        count, _ = self._refused.pop(refusal, (0, 0.0))
        self._refused[refusal] = count + 1, time.time()
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    async def _take(self, request: Request, name: str) -> None:
        if is_two_lengths(request.headers):
            raise Answered(400, "its length is given twice, as Content-Length and as chunks")
        told = request.headers.get("content-length")
        if not (told or "0").isdecimal() or int((told or "0")[:20]) > MOST_BYTES:
            raise Answered(413, f"at most {MOST_BYTES} bytes")
        address = request.client.host if request.client else ""
        size = int(told) if told else None if "transfer-encoding" in request.headers else 0
        try:
            async with self._uploads.room(address, size) as upload:
                # Before any other check: a refusal would not reach a tracker that still sends.
                body = await _read(request, upload)
                _ensure_delivery(request, name, self._hosts)
                signed = await to_thread.run_sync(self._signed, name, request.headers, body)
                upload.is_signed = True
                await to_thread.run_sync(_keep, name, request.headers, body, signed)
        except TooMuch as error:
            raise Answered(429 if error.is_peer else 503, str(error)) from None

    def _signed(
        self, name: str, headers: Mapping[str, str], body: bytes
    ) -> list[tuple[Clerk, Project]]:
        """Return the projects with whose secret *body* was signed, each with who works for it.

        One that nobody trusts is none: it could name any variable, and take what is another's.

        Raises:
            Answered: there is none.
        """
        tracker = TRACKERS[name]
        signature = headers[tracker.signature].removeprefix(tracker.prefix)
        found = []
        for clerk in self._clerks:
            try:
                project = clerk.shown.acting()
            except SequencerError:
                continue
            options = webhooks_of(project.settings).of(name)
            if not options.places or options.lack(os.environ):
                continue
            secret = os.environ[options.secret_env].encode()
            made = hmac.new(secret, body, "sha256").hexdigest()
            if hmac.compare_digest(made.encode(), signature.encode()):
                found.append((clerk, project))
        if not found:
            raise Answered(401, "the signature does not match any secret that is set here")
        return found


async def _read(request: Request, upload: Upload) -> bytes:
    parts = bytearray()
    try:
        async with asyncio.timeout(BODY_S) as upload.arriving:
            async for part in request.stream():
                parts += part
                upload.received = len(parts)
                if len(parts) > MOST_BYTES:
                    raise Answered(413, f"at most {MOST_BYTES} bytes")
        return bytes(parts)
    except TimeoutError:
        if upload.made_room:
            raise Answered(503, "too many deliveries at the same time") from None
        raise Answered(408, "it did not arrive in time") from None
    except ClientDisconnect:
        raise Answered(400, "the connection broke") from None
    finally:
        upload.arriving = None


def _ensure_delivery(request: Request, name: str, hosts: Collection[str]) -> None:
    """Return if the headers of *request* are those of a delivery, its signature aside.

    Raises:
        Answered: they are not.
    """
    headers, tracker = request.headers, TRACKERS.get(name)
    for one in ("host", *(tracker or ())):
        if len(headers.getlist(one)) > 1:
            raise Answered(400, f"header {one} is there more than once")
    if headers.get("host", "").lower() not in hosts:
        raise Answered(421, "this is not the name of these pages; --name sets it")
    if tracker is None:
        raise Answered(404, f"use {ADDRESS}github or {ADDRESS}linear")
    if request.method != "POST":
        raise Answered(405, "deliveries are POST requests")
    signature = headers.get(tracker.signature, "")
    if not signature.startswith(tracker.prefix) or len(signature) < 2 * 32:
        raise Answered(401, f"header {tracker.signature} is missing or is not a signature")
    if not headers.get("content-type", "").lower().startswith("application/json"):
        raise Answered(415, "choose the content type application/json")


def _keep(
    name: str, headers: Mapping[str, str], body: bytes, signed: list[tuple[Clerk, Project]]
) -> None:
    """Keep a delivery of those who *signed* it on disk, and let somebody work on it.

    Raises:
        Answered: it is refused, or asks for nothing here.
    """
    document, kind = _document(name, body), headers.get(TRACKERS[name].kind, "")
    if kind == "ping":
        raise Answered(200, "the signature is right")
    why = ""
    for clerk, project in signed:
        options = webhooks_of(project.settings).of(name)
        try:
            ensure_allowed(read(name, kind, document, options), options)
        except Unwanted as error:
            why = str(error)
            continue
        try:
            if not clerk.box.take(name, kind, headers.get(TRACKERS[name].id, "").encode(), body):
                raise Answered(200, "it was taken before")
        except BoxBusy:
            raise Answered(429, "too many new deliveries in a minute") from None
        except BoxFull:
            raise Answered(503, "too many deliveries are waiting") from None
        except (OSError, sqlite3.Error, SequencerError):
            raise Answered(503, "it can't be saved") from None
        clerk.wake()
        return
    raise Answered(200, f"{NOTHING}{why}")


def _document(name: str, body: bytes) -> dict[str, Any]:
    """Return what the signed *body* of the tracker called *name* says.

    Raises:
        Answered: it can't be read, or was sent long ago.
    """
    try:
        document = parse_object(body, MOST_BYTES)
    except ValueError as error:
        raise Answered(400, f"the body can't be read: {error}") from None
    sent = document.get("webhookTimestamp")
    is_late = not is_count(sent) or abs(time.time() * 1000 - sent) > LINEAR_S * 1000
    if name == "linear" and is_late:
        raise Answered(401, "webhookTimestamp is more than a minute off")
    return document
