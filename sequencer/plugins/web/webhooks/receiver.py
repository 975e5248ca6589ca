"""``POST /hooks/github`` and ``/hooks/linear``: checks a tracker's deliveries and stores them.

The signature identifies the sender, so no cookie or Origin is required. It is checked on the raw
bytes before they are parsed. Then the sender and the repository or team are checked, and the
delivery is on disk before the sender gets its answer. The handler does what the delivery asks for.

A signed delivery that asks for nothing here gets status 200 and the reason: a tracker shows the
reason next to the delivery, and disables an address that answers with errors. Linear treats every
other status as an error.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from anyio import to_thread
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sequencer.errors import SequencerError
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.plugins.web.guard import has_two_lengths
from sequencer.plugins.web.section import get_webhook_options
from sequencer.plugins.web.site import Site
from sequencer.plugins.web.webhooks.acting import DeliveryHandler, Say, ensure_allowed
from sequencer.plugins.web.webhooks.deliveries import DeliveryQueueFull, TooManyDeliveries
from sequencer.plugins.web.webhooks.reading import DeliveryIgnored, is_count, read_event
from sequencer.plugins.web.webhooks.uploads import (
    BODY_S,
    MAX_BYTES,
    Upload,
    UploadLimitReached,
    Uploads,
)
from sequencer.project.project import Project
from sequencer.store.strictjson import parse_object

ADDRESS = "/hooks/"
LINEAR_S = 60.0
"""Maximum difference between Linear's sending time and our clock, as Linear recommends."""
NOTHING = "nothing to do: "
MAX_REFUSED = 20
"""Kinds of refusals that the health page shows."""
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}


class Tracker(Struct, frozen=True):
    """The names of a tracker's headers."""

    signature: str
    prefix: str
    id: str
    kind: str


TRACKERS: Mapping[str, Tracker] = {
    "github": Tracker("x-hub-signature-256", "sha256=", "x-github-delivery", "x-github-event"),
    "linear": Tracker("linear-signature", "", "linear-delivery", "linear-event"),
}


class Answered(Exception):
    """Ends a request with a status and a text for the sender."""


class WebhookReceiver:
    """Takes deliveries and passes every other request on to the pages."""

    def __init__(self, app: ASGIApp, origins: Iterable[str], site: Site, say: Say) -> None:
        """Wrap *app*, which has *origins*, and take deliveries for the projects of *site*.

        *say* gets the messages for the person who started the server.
        """
        self._app = app
        self._hosts = frozenset(origin.partition("://")[2].lower() for origin in origins)
        self._handlers = [DeliveryHandler(project, say) for project in site.projects.values()]
        self._refused = site.refused
        self._uploads = Uploads()

    def begin(self) -> None:
        """Act on the deliveries and runs that earlier servers left."""
        for handler in self._handlers:
            handler.begin()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a delivery; pass any other request on."""
        if scope["type"] != "http" or not scope["path"].startswith(ADDRESS):
            await self._app(scope, receive, send)
            return
        name = scope["path"].removeprefix(ADDRESS)
        try:
            await self._receive(Request(scope, receive), name)
            status, text = (200 if name == "linear" else 202), "taken"
        except Answered as outcome:
            status, text = outcome.args
            if status >= 400 or text.startswith(NOTHING):  # noqa: PLR2004
                self._count_refusal(
                    f"{status}, {text}" if name in TRACKERS else "404, another address"
                )
        # A refused request's body may be unread, so the connection can't be used again.
        extra_headers = {"connection": "close"} if status >= 400 else {}  # noqa: PLR2004
        answer = JSONResponse({"sequencer": text}, status, {**_HEADERS, **extra_headers})
        await answer(scope, receive, send)

    def _count_refusal(self, refusal: str) -> None:
        count, _ = self._refused.pop(refusal, (0, 0.0))
        self._refused[refusal] = count + 1, time.time()
        if len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]

    async def _receive(self, request: Request, name: str) -> None:
        if has_two_lengths(request.headers):
            raise Answered(400, "its length is given twice, as Content-Length and as chunks")
        length = request.headers.get("content-length")
        size = parse_whole_number(length or "0")
        if size is None or size > MAX_BYTES:
            raise Answered(413, f"at most {MAX_BYTES} bytes")
        address = request.client.host if request.client else ""
        if not length and "transfer-encoding" in request.headers:
            size = None
        try:
            async with self._uploads.reserve_space(address, size) as upload:
                # Read first, then check: a tracker that is still sending would miss a refusal.
                body = await _read_body(request, upload)
                _ensure_delivery(request, name, self._hosts)
                signers = await to_thread.run_sync(self._find_signers, name, request.headers, body)
                upload.is_signed = True
                await to_thread.run_sync(_store_delivery, name, request.headers, body, signers)
        except UploadLimitReached as error:
            raise Answered(429 if error.is_peer else 503, str(error)) from None

    def _find_signers(
        self, name: str, headers: Mapping[str, str], body: bytes
    ) -> list[tuple[DeliveryHandler, Project]]:
        """Return each project whose secret signed *body*, with its handler.

        Only trusted projects are considered: another one could name any environment variable as
        its secret, and so take deliveries for a different project.

        Raises:
            Answered: no project's secret matches.
        """
        tracker = TRACKERS[name]
        signature = headers[tracker.signature].removeprefix(tracker.prefix)
        signers = []
        for handler in self._handlers:
            try:
                project = handler.shown.open_for_change()
            except SequencerError:
                continue
            options = get_webhook_options(project.settings).get_hook(name)
            if not options.places or options.find_secret_problem(os.environ):
                continue
            secret = os.environ[options.secret_env].encode()
            digest = hmac.new(secret, body, "sha256").hexdigest()
            if hmac.compare_digest(digest.encode(), signature.encode()):
                signers.append((handler, project))
        if not signers:
            raise Answered(401, "the signature does not match any secret that is set here")
        return signers


async def _read_body(request: Request, upload: Upload) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S) as upload.arriving:
            async for part in request.stream():
                body += part
                upload.received = len(body)
                # The sender may have announced less, or no length.
                if len(body) > MAX_BYTES:
                    raise Answered(413, f"at most {MAX_BYTES} bytes")
        return bytes(body)
    except TimeoutError:
        if upload.made_room:
            raise Answered(503, "too many deliveries at the same time") from None
        raise Answered(408, "it did not arrive in time") from None
    except ClientDisconnect:
        raise Answered(400, "the connection broke") from None
    finally:
        upload.arriving = None


def _ensure_delivery(request: Request, name: str, hosts: Collection[str]) -> None:
    """Check that *request* has the headers of a delivery; the signature is not verified.

    Raises:
        Answered: a header is missing, wrong, or repeated.
    """
    headers, tracker = request.headers, TRACKERS.get(name)
    own_headers = (tracker.signature, tracker.id, tracker.kind) if tracker else ()
    for header in ("host", *own_headers):
        if len(headers.getlist(header)) > 1:
            raise Answered(400, f"header {header} appears more than once")
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


def _store_delivery(
    name: str,
    headers: Mapping[str, str],
    body: bytes,
    signers: list[tuple[DeliveryHandler, Project]],
) -> None:
    """Store a delivery for the first of the *signers* that accepts it; wake its handler.

    Raises:
        Answered: it is refused, or asks for nothing here.
    """
    document, kind = _document(name, body), headers.get(TRACKERS[name].kind, "")
    if kind == "ping":
        raise Answered(200, "the signature is right")
    reason = ""
    for handler, project in signers:
        options = get_webhook_options(project.settings).get_hook(name)
        try:
            ensure_allowed(read_event(name, kind, document, options), options)
        except DeliveryIgnored as error:
            reason = str(error)
            continue
        try:
            if not handler.deliveries.add_delivery(
                name, kind, headers.get(TRACKERS[name].id, "").encode(), body
            ):
                raise Answered(200, "it was taken before")
        except TooManyDeliveries:
            raise Answered(429, "too many new deliveries in a minute") from None
        except DeliveryQueueFull:
            raise Answered(503, "too many deliveries are waiting") from None
        except (OSError, sqlite3.Error, SequencerError):
            raise Answered(503, "it can't be saved") from None
        handler.wake()
        return
    raise Answered(200, f"{NOTHING}{reason}")


def _document(name: str, body: bytes) -> dict[str, Any]:
    """Return the JSON object in the signed *body* from the tracker called *name*.

    Raises:
        Answered: it can't be read, or Linear sent it more than `LINEAR_S` ago.
    """
    try:
        document = parse_object(body, MAX_BYTES)
    except ValueError as error:
        raise Answered(400, f"the body can't be read: {error}") from None
    sent_ms = document.get("webhookTimestamp")
    is_late = not is_count(sent_ms) or abs(time.time() * 1000 - sent_ms) > LINEAR_S * 1000
    if name == "linear" and is_late:
        raise Answered(401, "webhookTimestamp is more than a minute off")
    return document
