"""Two histories in one journal are found where `check` accepts what once looked like them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sequencer.model.commands import Pause, Stop, TakeOver
from tests.continued import list_misfits
from tests.golden.stories import Story, flow
from tests.unit.cli.calling import call
from tests.unit.engine.flow.labs import lab, let_go, until
from tests.unit.store.test_one_history import GATED, Paid

GATE: dict[str, Any] = {
    "workflow": {"name": "w"},
    "workflows": {"w": {"kind": "procedure", "steps": ["one", GATED, "three"]}},
}
ASKS = flow(
    "z --> a --> q{{Fine?}}\nq --> b",
    sections="".join(f"### {name}\nx\n\n" for name in "zab"),
)
DONE = "--run flow skip a --as-done --output hello"


def merge(folder: Path, other: Path) -> str:
    """Append to each journal of *folder* what only that of *other* has; return what is found."""
    for path in sorted(folder.rglob("journal.jsonl")):
        ours = path.read_bytes().splitlines(keepends=True)
        theirs = (other / path.relative_to(folder)).read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*ours, *(line for line in theirs if line not in ours)]))
    return " ".join(list_misfits(folder))


def play(folder: Path, *commands: str) -> None:
    """Give *commands*, which leave one history."""
    for command in commands:
        assert call(folder, *command.split()).code in (0, 4), command
    assert [*list_misfits(folder)] == []


HELD = ("stop --pause", "resume")


@pytest.mark.parametrize(
    ("story", "ours", "theirs", "reason"),
    [
        pytest.param(
            Story(GATE, ("run --quiet",), 1),
            ("answer feedback better",),
            ("stop --pause", "answer approve"),
            "no gate waits",
            id="a gate that was decided",
        ),
        pytest.param(
            Story(GATE, ("run --quiet",), 1),
            ("answer feedback better", "run --quiet"),
            (*HELD, *HELD, "answer approve"),
            "token 4, waits",
            id="the gate of a later attempt",
        ),
        pytest.param(
            Story({}, ("run flow --quiet --max-steps 1",), 1, files=ASKS),
            (DONE,),
            ("--run flow tell a careful", DONE),
            "grants token",
            id="texts that took tokens",
        ),
    ],
)
def test_mixed_decisions_and_texts_of_people_are_found(
    story: Story,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    reason: str,
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    story.make(first)
    play(first, *story.commands)
    shutil.copytree(first, second)
    play(first, *ours)
    play(second, *theirs)
    assert reason in merge(first, second)


def test_the_late_use_of_an_attempt_in_another_history_is_found(tmp_path: Path) -> None:
    """In ours, the agent works again after its process was killed; in theirs its use is counted."""
    first, second = tmp_path / "first", tmp_path / "second"
    hold = Paid()
    theirs = lab(second, "a --> b", {"a": hold})
    with let_go(hold):
        working = theirs.works()
        hold.wait()
        shutil.copytree(second, first)
        claim = theirs.head.claims[0]
        theirs.run().do(Stop())
        theirs.run().do(TakeOver())
        working.end()
    until(lambda: theirs.head.usage.cost_usd == 0.5)
    ours = lab(first, "a --> b")
    ours.gone.add(claim.owner.nonce)
    ours.claimed()
    ours.run().do(Pause())
    for folder in (first, second):
        assert [*list_misfits(folder)] == []
    assert "only counts what an attempt has used" in merge(first, second)
