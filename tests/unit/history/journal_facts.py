"""Facts as a journal has them, told by who runs when; seconds count from one noon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOON_S = NOON.timestamp()


def second(moment: float) -> str:
    """Return *moment* as the journal writes it: what is behind the second is cut off."""
    return (NOON + timedelta(seconds=int(moment))).strftime("%Y-%m-%dT%H:%M:%SZ")


def millisecond(moment: float) -> str:
    text = (NOON + timedelta(seconds=moment)).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


@dataclass
class Told:
    """The facts of one run; `list` them."""

    facts: list[dict[str, Any]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the open attempts, by step."""
    accepted: int = 0

    def tell(
        self,
        event: str,
        step: str,
        at: float,
        outcome: dict[str, Any] | None = None,
        *,
        token: int = 0,
        attempt: int = 0,
        step_index: int | None = None,
    ) -> Told:
        """Add one fact."""
        self.facts.append(
            {
                "revision": len(self.facts) + 1,
                "at": second(at),
                "event": event,
                "step": step,
                "step_index": self.accepted if step_index is None else step_index,
                "token": token,
                "attempt": attempt,
                "outcome": outcome,
            }
        )
        return self

    def claim(
        self, step: str, at: float, sources: Iterable[str] | None = (), *, attempt: int = 1
    ) -> Told:
        """Let *step* begin behind *sources*; None: once more."""
        token = self.tokens[step] = len(self.facts) + 1
        told = {"retry": attempt} if sources is None else {"from": list(sources)}
        return self.tell("claimed", step, at, told, token=token, attempt=attempt)

    def end(
        self,
        step: str,
        began: float,
        ended: float,
        event: str = "succeeded",
        *,
        attempt: int = 1,
        agent: str = "claude",
        **more: Any,
    ) -> Told:
        """Let the attempt at *step* end that began then; *more* goes into its record."""
        usage = {"seconds": round(ended - began, 6), **more.pop("usage", {})}
        outcome = {"agent": agent, "usage": usage, "began_at": millisecond(began), **more}
        token = self.tokens.pop(step)
        self.tell(event, step, ended, outcome, token=token, attempt=attempt)
        self.accepted += event == "succeeded"
        return self

    def run(self, step: str, began: float, ended: float, sources: Iterable[str] = ()) -> Told:
        """Let *step* be done in one attempt. Facts of others in between may come later."""
        return self.claim(step, began, sources).end(step, began, ended)
