"""Runs whose journal a test writes fact by fact, and what listens to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sequencer.engine.attempt import Attempt
from sequencer.executors.redaction import Redaction
from sequencer.model.head import Head
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from sequencer.model.transitions import Event, Fact, Transition, initialize
from sequencer.plugins.posting.protocol import Post, Refused, Unreachable
from sequencer.plugins.posting.sink_queue import SinkContext, SinkQueue
from sequencer.store.file import FileStore
from tests.continued import make_up
from tests.unit.saying import attempt

SECRET = "hunter2-hunter2-hunter2"  # noqa: S105 - no real one
REDACTION = Redaction([SECRET])
OK = Outcome(status=OutcomeStatus.OK)


def new_store(folder: Path) -> FileStore:
    """Return the store of the run in *folder*, begun or not."""
    return FileStore(folder / "sync" / "state.json")


def begin(store: FileStore, run_id: str = "run-1", run_name: str | None = None) -> FileStore:
    head = Head(
        run_id=run_id,
        run_name=run_name,
        workflow_name="standard",
        workflow_digest="sha256:0",
        expected_step="main",
        last_update="2027-01-31T08:00:00Z",
    )
    store.update(lambda _: initialize(head))
    return store


def record(store: FileStore, *facts: tuple[Event, dict[str, Any] | None], **update: Any) -> int:
    """Add one record with *facts* about step main; return its revision."""
    told = tuple(
        Fact(event, "main", step_index=0, token=1, attempt=1, outcome=outcome)
        for event, outcome in facts
    )

    def change(head: Head | None) -> Transition:
        assert head is not None
        return Transition(head.replace(**update), told)

    return make_up(store, change).revision


def head_of(store: FileStore) -> Head:
    head = store.view().head
    assert head is not None
    return head


def succeed(store: FileStore, output: str = "done") -> int:
    return record(store, (Event.SUCCEEDED, {"status": "ok", "output": output}))


def attempt_at(step: Step | None = None, run_id: str = "run-1", number: int = 1) -> Attempt:
    return attempt(step or "main", run_id=run_id, token=number, attempt=number)


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Box:
    """A sink in memory: keeps what it is given, unless *trouble* has something else in store."""

    name: str = "box"
    trouble: list[Exception | None] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    tries: int = 0
    is_closed: bool = False
    kind: ClassVar[str] = "box"
    max_chars: ClassVar[int] = 1000
    takes_thoughts: ClassVar[bool] = True

    def post(self, post: Post) -> None:
        self.tries += 1
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble is not None:
            raise trouble
        self.posts.append(post)

    def close(self) -> None:
        self.is_closed = True

    @property
    def bodies(self) -> list[str]:
        return [post.activity.body for post in self.posts]

    @property
    def keys(self) -> list[str | None]:
        return [post.key for post in self.posts]


def unreachable(retry_after_s: float | None = None) -> Unreachable:
    return Unreachable("nobody is there", retry_after_s)


def refused() -> Refused:
    return Refused("HTTP 422", status=422, answer=f"no thanks, {SECRET} " + "x" * 1000)


@dataclass
class Told:
    """A sink queue with its sink, its clock and the notices that it gave."""

    queue: SinkQueue
    box: Box
    clock: HandClock
    notices: list[str]

    def deliver(self) -> None:
        self.queue.note_news()
        self.queue.deliver(lambda: True)


def lane_for(store: FileStore, box: Box | None = None, clock: HandClock | None = None) -> Told:
    """Return a queue that has begun, as in a process of its own."""
    box, clock, notices = box or Box(), clock or HandClock(), list[str]()
    context = SinkContext(
        store=store, redaction=REDACTION, notice=notices.append, clock=clock, jitter=lambda: 1.0
    )
    queue = SinkQueue(box, context)
    queue.begin()
    return Told(queue, box, clock, notices)
