"""``POST /hooks/github`` and ``/hooks/linear``: what is let in from outside.

The signature says who asks, so neither cookie nor Origin is asked for; it is checked over the
bytes as they came, before anything looks into them. Who and where are checked next, and the
delivery is kept on disk before its sender is told 202. What it asks for is done by the worker.

A signed delivery that asks for nothing here is answered 200 with the reason: a tracker shows it
beside the delivery, and switches off an address that answers with errors.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import anyio.to_thread

from sequencer.errors import SequencerError
from sequencer.project import Project
from sequencer.store.strictjson import parse_object
from sequencer.web.guard import App, Message, Receive, Scope, Send
from sequencer.web.hooks.acting import Desk, Say, ensure_allowed, options_of
from sequencer.web.hooks.box import BoxFull, key_of
from sequencer.web.hooks.reading import READERS, Unwanted
from sequencer.web.site import ShownProject

ADDRESS = "/hooks/"
MOST_BYTES = 1024 * 1024
"""GitHub's texts have at most 64 KiB; what is larger is none of an issue."""
BODY_S = 10.0
MOST_HELD_BYTES = 32 * MOST_BYTES
"""Of bodies that are read at the same time, as far as they have come."""
A_MINUTE = 600
"""Signed deliveries that are taken."""
LINEAR_S = 60.0
"""Within which of our clock Linear has to have sent it: its own advice."""
LEAST_SECRET_CHARS = 16


class Tracker(NamedTuple):
    """Where a tracker says what."""

    signature: bytes
    prefix: str
    id: bytes
    kind: bytes


TRACKERS: Mapping[str, Tracker] = {
    "github": Tracker(b"x-hub-signature-256", "sha256=", b"x-github-delivery", b"x-github-event"),
    "linear": Tracker(b"linear-signature", "", b"linear-delivery", b"linear-event"),
}


class Answered(Exception):
    """The request is answered with this."""

    def __init__(self, status: int, text: str) -> None:
        """Answer with *status* and *text*."""
        super().__init__(text)
        self.status, self.text = status, text


class Door:
    """Takes deliveries, and lets everything else through to the pages."""

    def __init__(
        self,
        app: App,
        hosts: Iterable[str],
        projects: Iterable[ShownProject],
        desk: Desk,
    ) -> None:
        """Stand before *app*, under the names *hosts*; *desk* works on what *projects* take."""
        self._app = app
        self._hosts = frozenset(host.lower().encode() for host in hosts)
        self._projects = [*projects]
        self._desk = desk
        self._held = 0
        self._times: list[float] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the pages answer."""
        if scope["type"] != "http" or not scope["path"].startswith(ADDRESS):
            await self._app(scope, receive, send)
            return
        try:
            status, text = await self._take(scope, receive)
        except Answered as answered:
            status, text = answered.status, answered.text
        body = json.dumps({"sequencer": text}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"x-content-type-options", b"nosniff"),
            (b"cache-control", b"no-store"),
        ]
        if status >= 400:  # noqa: PLR2004 - a refusal; its body was perhaps not read
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _take(self, scope: Scope, receive: Receive) -> tuple[int, str]:
        headers = _headers(scope)
        # First, and whatever it is: a refusal before its end would reach nobody who still sends.
        body = await self._body(headers, receive)
        if headers.get(b"host", b"").lower() not in self._hosts:
            raise Answered(421, "not called by that name; --name says by which")
        name = scope["path"].removeprefix(ADDRESS)
        tracker = TRACKERS.get(name)
        if tracker is None:
            raise Answered(404, f"there are {ADDRESS}github and {ADDRESS}linear")
        if scope["method"] != "POST":
            raise Answered(405, "deliveries are POST requests")
        signature = headers.get(tracker.signature, b"").decode("latin-1")
        if not signature.startswith(tracker.prefix) or len(signature) < 2 * 32:
            raise Answered(401, f"there is no {tracker.signature.decode()}")
        if not headers.get(b"content-type", b"").lower().startswith(b"application/json"):
            raise Answered(415, "choose the content type application/json")
        signature = signature.removeprefix(tracker.prefix)
        await anyio.to_thread.run_sync(self._keep, name, headers, signature, body)
        return 202, "taken"

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        told = headers.get(b"content-length", b"0")
        if not told.isdigit() or int(told[:20]) > MOST_BYTES:
            raise Answered(413, f"at most {MOST_BYTES} bytes")
        parts = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message: Message = await receive()
                    if message["type"] != "http.request":
                        raise Answered(400, "it broke off")
                    part = message.get("body", b"")
                    parts += part
                    self._held += len(part)
                    if len(parts) > MOST_BYTES:
                        raise Answered(413, f"at most {MOST_BYTES} bytes")
                    if self._held > MOST_HELD_BYTES:
                        raise Answered(503, "too many deliveries at the same time")
                    if not message.get("more_body"):
                        return bytes(parts)
        except TimeoutError:
            raise Answered(408, "it did not arrive in time") from None
        finally:
            self._held -= len(parts)

    def _keep(self, name: str, headers: Mapping[bytes, bytes], signature: str, body: bytes) -> None:
        """Keep a delivery on disk, and let somebody work on it.

        Raises:
            Answered: it is refused, or asks for nothing here.
        """
        signed = [*self._signed(name, signature, body)]
        if not signed:
            raise Answered(401, "the signature is none of a secret that is known here")
        self._ensure_calm()
        tracker = TRACKERS[name]
        kind = headers.get(tracker.kind, b"").decode("latin-1")
        try:
            document = parse_object(body, MOST_BYTES)
        except ValueError as error:
            raise Answered(400, f"the body can't be read: {error}") from None
        if name == "linear":
            _ensure_just_sent(document)
        if kind == "ping":
            raise Answered(200, "the signature is right")
        shown, project = _wanted_by(signed, name, kind, document)
        # The id is not signed, and Linear signs a second try anew: either is the same delivery.
        keys = [key_of(body), key_of(name.encode() + headers.get(tracker.id, body))]
        try:
            if not self._desk.box(project).take(keys, name, kind, body):
                raise Answered(200, "it was taken before")
        except BoxFull:
            raise Answered(503, "too many deliveries wait") from None
        except (OSError, SequencerError):
            raise Answered(503, "it can't be kept") from None
        self._desk.work_on(shown, project)

    def _signed(
        self, name: str, signature: str, body: bytes
    ) -> Iterator[tuple[ShownProject, Project]]:
        """Yield the projects with whose secret *body* was signed.

        One that nobody trusts is none: it could name any variable, and take what is another's.
        """
        for shown in self._projects:
            try:
                project = shown.acting()
            except SequencerError:
                continue
            options = options_of(project, name)
            secret = os.environ.get(options.secret_env, "")
            if not options.places or len(secret) < LEAST_SECRET_CHARS:
                continue
            made = hmac.new(secret.encode(), body, "sha256").hexdigest()
            if hmac.compare_digest(made.encode(), signature.encode()):
                yield shown, project

    def _ensure_calm(self) -> None:
        now = time.monotonic()
        self._times = [one for one in self._times if now - one < 60]  # noqa: PLR2004 - seconds
        if len(self._times) >= A_MINUTE:
            raise Answered(429, "too many deliveries in a minute")
        self._times.append(now)


def opened(app: App, origins: Iterable[str], projects: Iterable[ShownProject], say: Say) -> Door:
    """Return a door to *projects* before *app*; what earlier servers have left is worked on."""
    desk, projects = Desk(say), [*projects]
    for shown in projects:
        desk.begin(shown)
    return Door(app, [one.partition("://")[2] for one in origins], projects, desk)


def _wanted_by(
    signed: Iterable[tuple[ShownProject, Project]],
    tracker: str,
    kind: str,
    document: dict[str, Any],
) -> tuple[ShownProject, Project]:
    """Return the first project that does what *document* asks for.

    Raises:
        Answered: none does.
    """
    why = ""
    for shown, project in signed:
        options = options_of(project, tracker)
        try:
            event = READERS[tracker](kind, document, options)
            ensure_allowed(event, options)
        except Unwanted as error:
            why = str(error)
            continue
        return shown, project
    raise Answered(200, f"nothing to do: {why}")


def _ensure_just_sent(document: Mapping[str, Any]) -> None:
    sent = document.get("webhookTimestamp")
    if not isinstance(sent, int) or abs(time.time() - sent / 1000) > LINEAR_S:
        raise Answered(401, "webhookTimestamp is not of this minute")


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request.

    Raises:
        Answered: one that counts stands there twice.
    """
    found: dict[bytes, bytes] = {}
    for key, value in scope["headers"]:
        if key in found and (
            key == b"host" or key.endswith((b"-256", b"-signature", b"-delivery"))
        ):
            raise Answered(400, f"{key.decode('latin-1')} stands there twice")
        found[key] = value
    return found
