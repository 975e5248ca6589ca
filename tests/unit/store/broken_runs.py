"""Runs on disk for the tests of repair, and ways to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sequencer.engine.run_commands import RunCommands
from sequencer.model.commands import Accept
from sequencer.model.head import Head, Owner
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef, Transition, claim
from sequencer.model.workflow import Review, Workflow
from sequencer.store.file import FileStore
from sequencer.store.identity import boottime
from sequencer.store.protocol import Store

WORKFLOW = Workflow(
    "demo",
    (Step(name="plan"), Step(name="build")),
    Review(every=2, step=Step(name="check")),
)


def begun(folder: Path, steps: int, *, rotate_bytes: int = 4 * 1024 * 1024, keep: int = 8) -> Path:
    """Make a run with *steps* accepted steps below *folder*; return the path of its head."""
    state_path = folder / "sync" / "state.json"
    store = FileStore(state_path, rotate_bytes=rotate_bytes, keep=keep)
    control = RunCommands(store, WORKFLOW)
    control.begin()
    for number in range(steps):
        control.do(Accept(f"step {number}"))
    store.close()
    return state_path


def go_on(state_path: Path) -> Head:
    """Accept one more step as any process would."""
    store = FileStore(state_path)
    try:
        return RunCommands(store, WORKFLOW).do(Accept("after the repair")).head
    finally:
        store.close()


def read_run(state_path: Path) -> tuple[Head, list[dict[str, Any]]]:
    """Return head and history as the ordinary reader has them."""
    store = FileStore(state_path)
    head = store.view().head
    assert head is not None
    return head, list(store.history())


def journal_of(state_path: Path) -> Path:
    return state_path.with_name("journal.jsonl")


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def damage_line(path: Path, number: int) -> int:
    """Flip a byte in line *number*, counted from 0; return the line's offset."""
    lines = lines_of(path)
    line = bytearray(lines[number])
    line[len(line) // 2] ^= 1
    lines[number] = bytes(line)
    path.write_bytes(b"".join(lines))
    return sum(map(len, lines[:number]))


def edit(state_path: Path, **changes: Any) -> None:
    """Change fields of state.json by hand."""
    content = json.loads(state_path.read_text()) | changes
    state_path.write_text(json.dumps(content))


def hold(store: Store, owner: Owner | None = None) -> None:
    """Claim the present step of the run in *store* for *owner* (None: this process)."""

    def change(head: Head | None) -> Transition:
        assert head is not None
        place = StepRef(head.step_index, head.expected_step, f"{head.expected_step}.md")
        return claim(
            head,
            place,
            owner or store.owner(),
            at=head.last_update,
            ttl_s=60,
            at_boottime=boottime(),
        )

    store.update(change)
