"""One run as the transitions of its head, with a clock that is told the time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sequencer.history.trace import trace_line
from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Marking, Reference, find_incoming_output, read_text
from sequencer.model.graph.transition import OpenTransition, build_transition, resting_status
from sequencer.model.head import Flow, Head
from sequencer.model.kind import Capacity
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.transitions import Fact
from tests.contract.store_cases import STRANGER, new_head

START = datetime(2026, 1, 1, tzinfo=UTC)
OK = Outcome(status=OutcomeStatus.OK, output="", usage=Usage(cost_usd=0.5, seconds=2))
BAD = Outcome(status=OutcomeStatus.FAILED, error=" boom ", usage=Usage(cost_usd=0.25))


def date(milliseconds: int) -> str:
    moment = START + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _wait(_: OpenTransition) -> None:
    pass


class Run:
    """One run; its head and marking are kept here, and time is told."""

    def __init__(self, made: Graph, *, slots: int = 10, **head: Any) -> None:
        self.head: Head = new_head(flow=Flow(), **head)
        self.marking = Marking(made)
        self.slots = slots
        self.gone: frozenset[int] = frozenset()
        self.max_attempts = 20
        self.rules: dict[str, Any] = {}
        """More fields of the capacity."""
        self.now = 0
        self.facts: tuple[Fact, ...] = ()
        self.outputs: dict[str, str] = {}
        self.granted: list[int] = []

    @property
    def capacity(self) -> Capacity:
        limits = RunLimits(attempts=self.max_attempts)
        return Capacity(STRANGER, 60.0, 5.0, self.slots, self.gone, limits, **self.rules)

    def update(self, act: Callable[[OpenTransition], None], *, claims: bool = True) -> list[str]:
        """Make one transition and return the lines of what happened."""
        moment = START + timedelta(milliseconds=self.now)
        step = OpenTransition(self.head, self.marking, moment, self._hand_on)
        act(step)
        step.settle(self.capacity if claims else None)
        made = build_transition(step)
        flow = Flow(status=str(self.marking.status), rest=resting_status(step.marking))
        self.head, self.facts = made.head.replace(flow=flow), made.facts
        self.granted = step.granted
        return [str(trace_line(f.event, f.step, f.outcome or {}) or f.event) for f in made.facts]

    def _hand_on(self, marking: Marking, name: str) -> tuple[str, Reference | None]:
        reference = find_incoming_output(marking, name)
        return read_text(reference, self.outputs.__getitem__), reference

    def begin(self, *, claims: bool = True) -> list[str]:
        return self.update(lambda step: step.editor.begin(), claims=claims)

    def look(self, *, claims: bool = True) -> list[str]:
        """Let nothing happen but what is due."""
        return self.update(_wait, claims=claims)

    def token(self, name: str) -> int:
        return self.marking.active[name].token

    def accept(self, name: str, output: str = "", **options: Any) -> list[str]:
        token = self.token(name)
        reference = f"{self.head.step_index}-{token}"
        self.outputs[reference] = output
        outcome = OK.replace(output=output, **options)
        return self.update(lambda step: step.accept(token, outcome, reference, {"status": "ok"}))

    def fail(self, name: str, due: int | None = None, kind: str = "error") -> list[str]:
        token, at = self.token(name), None if due is None else date(due)
        return self.update(lambda step: step.fail(token, BAD, {"s": 1}, due=at, kind=kind))

    @property
    def held(self) -> dict[str, int]:
        return {claim.step: claim.token for claim in self.head.claims}
