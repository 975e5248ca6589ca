"""Invocations that a test plays: what the engine tells, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sequencer.executors.protocol import Piece
from sequencer.model.step import Step
from sequencer.plugins.posting.poster import Poster
from sequencer.plugins.posting.protocol import Sink
from sequencer.plugins.posting.web import WebhookSink
from sequencer.store.file import FileStore
from tests.unit.posting.desk import Desk
from tests.unit.posting.runs import OK, REDACTION, HandClock, attempt_at, new_store, succeed
from tests.unit.saying import Saying


class Rounds(threading.Event):
    """What the background thread sleeps on; tells when it has nothing left to do."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._slept = threading.Condition()

    def wait(self, timeout: float | None = None) -> bool:
        with self._slept:
            self._count += 1
            self._slept.notify_all()
        return super().wait(timeout)

    def wake_and_wait(self) -> None:
        """Let the thread look once more, and return when it sleeps again."""
        # The first sleep may end a round that was under way; the second ends one of ours.
        self._wake_once()
        self._wake_once()

    def _wake_once(self) -> None:
        with self._slept:
            before = self._count
            self.set()
            assert self._slept.wait_for(lambda: self._count > before, 20)


@dataclass
class Invocation:
    activities: Poster
    said: Saying
    """Of an attempt that the activities hear."""
    notices: list[str]
    """What was told; without the wait at the end, which depends on the machine's speed."""
    waits: list[str]
    """The waits at the end."""
    clock: HandClock
    rounds: Rounds
    on_wait: Callable[[], object] = bool
    """Called when somebody is told of a wait."""

    def step(self, store: FileStore, output: str, step: Step | None = None) -> None:
        """Let a step be performed and accepted, as the engine does it."""
        attempt = attempt_at(step)
        self.said.started(attempt)
        self.said.write(f"working on {output}\n".encode(), Piece.THOUGHT)
        self.said.ended(attempt, OK)
        succeed(store, output)


@contextmanager
def invoked(store: FileStore, *sinks: Sink, **options: Any) -> Iterator[Invocation]:
    """Run an invocation: its activities have a store of their own."""
    notices, waits, clock = list[str](), list[str](), HandClock()

    def notice(text: str) -> None:
        if text.startswith("waiting up to "):
            waits.append(text)
            made.on_wait()
        else:
            notices.append(text)

    own = new_store(store.folder.parent)
    options = {"clock": clock, **options}
    activities, rounds = Poster(own, sinks, REDACTION, notice, **options), Rounds()
    activities._wake = rounds
    made = Invocation(activities, Saying(activities), notices, waits, clock, rounds)
    with activities:
        yield made


def hook(desk: Desk, path: str = "/") -> WebhookSink:
    return WebhookSink("hook", desk.url + path, {})


def told(desk: Desk) -> list[str]:
    return [seen.body.get("body", seen.body.get("action")) for seen in desk.seen]
