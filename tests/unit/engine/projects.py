"""Projects whose agents follow a script, opened as a program would open them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequencer.engine.events import (
    AttemptEnded,
    AttemptStarted,
    AttemptUsed,
    AttemptWrote,
    HeadMoved,
    NoticeGiven,
    RunEvent,
    Waiting,
)
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.executors.protocol import Piece
from sequencer.model.head import Head
from sequencer.project.project import open_project
from sequencer.store.queue import TicketQueue, queue_file_name

OK = {"status": "ok", "output": "done"}
FAILED = {"status": "failed", "error": "it broke"}
LIMIT_S = 60.0


def write_project(folder: Path, *outcomes: Mapping[str, Any], **settings: Any) -> Path:
    """Write a project in *folder* whose default agent plays *outcomes*."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    for name in ("supervisor", "main", "reviewer"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do the work of {name}.\n")
    document: dict[str, Any] = {
        "workflow": {"name": "standard"},
        "agent": {"default": "canned"},
        "agents": {"canned": {"kind": "scripted", "outcomes": list(outcomes) or [OK]}},
        **settings,
    }
    # YAML holds JSON.
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def open_scripted(folder: Path, *outcomes: Mapping[str, Any], **settings: Any) -> Run:
    write_project(folder, *outcomes, **settings)
    return open_project(folder, environment={"PATH": "/usr/bin:/bin"}).run()


def reopen(folder: Path) -> Run:
    return open_project(folder, environment={"PATH": "/usr/bin:/bin"}).run()


def head_of(run: Run) -> Head:
    head = run.head
    assert head is not None
    return head


def events(run: Run) -> list[str]:
    return [fact["event"] for fact in run.history()]


def in_background(run: Any, *args: Any, **options: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def work() -> None:
        try:
            answers.append(run.work(*args, **options))
        except SequencerError as error:
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, answers


def until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def until_queued(folder: Path, number: int = 1, positions: Collection[str] = ()) -> None:
    """Return when *number* have come to wait for a turn of *positions*, and none has left.

    Each draws a number at one file, and has looked at the run before.
    """
    path = folder / "sync" / queue_file_name(positions)
    until(lambda: path.exists() and _last_number(path) >= number)


def _last_number(path: Path) -> int:
    with path.open("rb") as file:
        return TicketQueue()._next_free(file.fileno(), 1) - 1


@dataclass
class Recorder:
    """Writes down what happens."""

    steps: list[tuple[str, int, int]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    waits: list[tuple[str, str | None]] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    output: bytes = b""
    logs: list[Path] = field(default_factory=list)

    def __call__(self, event: RunEvent) -> None:
        match event:
            case AttemptStarted(attempt, log):
                self.steps.append((attempt.step.name, attempt.step_index, attempt.number))
                self.logs.append(Path(log))
            case AttemptWrote(_, data, kind):
                assert isinstance(kind, Piece)
                self.output += data
            case AttemptUsed(_, usage):
                assert usage.steps == 0
            case AttemptEnded(attempt, outcome, verdict):
                assert attempt.iteration == attempt.step_index + 1
                self.verdicts += [verdict] if verdict else []
                self.ends.append(str(outcome.status))
            case HeadMoved(head):
                self.revisions.append(head.revision)
            case NoticeGiven(text):
                self.notices.append(text)
            case Waiting(reason, until):
                self.waits.append((reason, until))
