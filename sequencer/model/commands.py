"""The commands that a person may give a run, as values.

Command line, web pages, MCP server, webhooks and library create the same values and pass them to
`Run.do`. The kind of the run decides what each command does (`Kind.apply`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import UsageRefused
from sequencer.model.edits import MAX_REASON_CHARS
from sequencer.model.head import Head
from sequencer.model.transitions import Fact

MAX_CHARS = {"note": 2_000, "output": inf, "reason": MAX_REASON_CHARS, "text": 20_000}
"""The fields with text that a person wrote, and their limits: a text goes into a prompt, and a
reason or a note into the head."""
_TEXTS = (*MAX_CHARS, "value")
"""`SetField.value` may be text, too."""


class RunCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """One command; see its subclasses."""

    verb: ClassVar[str]
    """Its name in messages."""
    permission: ClassVar[str | None] = None
    """The word in `agents_may_decide` that lets an agent use it; None: its verb."""
    is_free: ClassVar[bool] = False
    """Agents may use it too; see docs/how-to/trust-a-project.md."""
    drops_dead_claim: ClassVar[bool] = False
    """It is about the current step of a sequence; the claim of a dead process is dropped first."""
    without_run: ClassVar[tuple[str, str | None] | None] = None
    """Why it can't be used before the run has started, and what to do; None: it starts the run."""

    def redact_texts(self, redact: Callable[[str], str]) -> RunCommand:
        """Return the command with *redact* applied to every text that a person wrote."""
        texts = {
            name: redact(text)
            for name in _TEXTS
            if isinstance(text := getattr(self, name, None), str)
        }
        return replace(self, **texts) if texts else self

    def ensure_texts(self) -> None:
        """Refuse a text that is empty, not UTF-8, or longer than `MAX_CHARS` allows."""
        for name, limit in MAX_CHARS.items():
            text = getattr(self, name, None)
            if text is None:
                continue
            problem = hint = None
            if not isinstance(text, str) or not _is_utf8(text):
                problem = "is not UTF-8 text"
            elif name in ("reason", "text") and not any(map(str.isprintable, text.strip())):
                problem, hint = "is empty", "say something"
            elif len(text) > limit:
                problem = f"has {len(text)} characters; the limit is {limit}"
                hint = "shorten it, or write it to a file in the project and name the file here"
            if problem is not None:
                raise UsageRefused(f"{self.verb}: the {name} {problem}", hint=hint)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_NO_GATE = ("no gate is waiting", None)


class Approve(RunCommand, frozen=True):
    """Let the run continue after its gate."""

    verb = "approve"
    permission = "answer"
    without_run = _NO_GATE
    note: str | None = None
    token: int | None = None
    """The gate that the person has seen; None: any gate that waits."""


class Reject(RunCommand, frozen=True):
    """End the run at its gate; a graph's run is canceled, wherever it is."""

    verb = "reject"
    permission = "answer"
    without_run = _NO_GATE
    note: str | None = None
    token: int | None = None


class Feedback(RunCommand, frozen=True):
    """Send the run back with a text; it reaches the gate again later."""

    verb = "feedback"
    permission = "answer"
    without_run = _NO_GATE
    text: str
    token: int | None = None


class AnswerQuestion(RunCommand, frozen=True):
    """Answer the question of a node: an option's value or label, or a text."""

    verb = "answer"
    without_run = ("there is no question to answer", None)
    node: str
    text: str
    token: int | None = None
    """The question that the person has seen; None: any question of the node."""


class Tell(RunCommand, frozen=True):
    """Send a message to a step, position or node; the prompt of its next attempt contains it."""

    verb = "tell"
    is_free = True
    without_run = (
        "no step would read it",
        "'sequencer run' starts it; 'sequencer status --all' lists the others, --run names one",
    )
    text: str
    node: str | None = None
    """None, in a run without a graph: the next attempt, whatever its step."""


class RetryNow(RunCommand, frozen=True):
    """Try failed steps again now; in a graph, also nodes that the end of the run stopped."""

    verb = "retry"
    drops_dead_claim = True
    node: str | None = None
    """Only this one."""


class Skip(RunCommand, frozen=True):
    """Continue without the current step or a node; after a fixer, the verdict is asked again."""

    verb = "skip"
    drops_dead_claim = True
    note: str | None = None
    node: str | None = None


class SkipTo(RunCommand, frozen=True):
    """Skip the steps from one step_index to another in a single change."""

    verb = "skip"
    permission = "run"
    step_index: int
    present: int
    """Where the run has to be."""
    note: str | None = None


class Accept(RunCommand, frozen=True):
    """Accept the current step or a node without an agent; of a fixer, only the fix."""

    verb = "skip"
    drops_dead_claim = True
    note: str | None = None
    node: str | None = None
    output: str | None = None
    """The answer of the node."""


class Fail(RunCommand, frozen=True):
    """Mark the current step or a node as failed."""

    verb = "skip"
    drops_dead_claim = True
    note: str | None = None
    node: str | None = None


class Rewind(RunCommand, frozen=True):
    """Go back to a step_index or a node; everything that the node leads to runs again as well."""

    verb = "rewind"
    to: str


class StartAt(RunCommand, frozen=True):
    """Start the run of a graph at a node; nothing in the run has started yet."""

    verb = "start"
    permission = "run"
    node: str


class SetField(RunCommand, frozen=True):
    """Set one field of the head, as if it had been edited in state.json."""

    verb = "set"
    field: str
    value: Any


class Reset(RunCommand, frozen=True):
    """Start over with the configured workflow."""

    verb = "reset"
    ended: str | None = None
    """The id of the run, which has to be complete; None: any run, wherever it is."""


class Adopt(RunCommand, frozen=True):
    """Continue with the configured workflow."""

    verb = "adopt"


class TakeOver(RunCommand, frozen=True):
    """Drop every claim; the results of their holders are then refused."""

    verb = "takeover"


class StopNow(RunCommand, frozen=True):
    """Drop every claim of a run that was stopped or paused, as a part of ``stop --now``.

    If no process holds a step anymore, nothing changes.
    """

    verb = "takeover"
    permission = "stop"
    without_run = ("no process holds a step", None)


class Stop(RunCommand, frozen=True):
    """Let the running step end, and start no other."""

    verb = "stop"
    is_free = True
    reason: str | None = None


class Pause(RunCommand, frozen=True):
    """Pause the run after the running step; waiting processes keep waiting."""

    verb = "pause"
    is_free = True


class Resume(RunCommand, frozen=True):
    """Undo `Pause` and `Stop`."""

    verb = "resume"


class CommandResult(Struct, frozen=True):
    """The effect of a command."""

    head: Head
    """As it is after the command."""
    facts: tuple[Fact, ...]
    """The facts that the journal records about it."""

    @property
    def note(self) -> str:
        """Return the note of its last fact; empty: there is none."""
        return str(self.details.get("note") or "")

    @property
    def details(self) -> dict[str, Any]:
        """Return the outcome of its last fact; empty: there is none."""
        return dict(self.facts[-1].outcome or {}) if self.facts else {}
