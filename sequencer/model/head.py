"""The head: everything about a run that state.json holds.

Fields that this version does not know are kept on every rewrite, so that a person, an
agent or another tool may keep notes there. Wall-clock values are for people; nothing but
``not_before`` (a date that somebody waits for, and since when) is compared with a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from math import inf
from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Usage

SCHEMA_VERSION = 1
MAX_COUNTER = 2**63 - 1

Counter = Annotated[int, Field(ge=0, le=MAX_COUNTER, strict=True)]
"""A JSON integer; 1.0, "1" and true are refused rather than converted."""


FLOW_DOCUMENT = "flow.json"
"""The document that says what the run of a graph was started with, see `model.graph.source`."""
MARKINGS = "marking-"
"""How the names of documents begin that have a graph's marking."""
USUAL_COSTS, MOST_COSTED = 5, 20
"""The costs of so many accepted attempts are kept for each step, of so many steps."""
MOVED = "moved"
"""Field of a closed copy: where the run is, and what the closing has replaced."""
OWN_EXTRAS = frozenset({MOVED, "told", "recent_costs"})
"""Fields that are there only while they say something; all others are known, or a person's."""


class Status(StrEnum):
    """What the run as a whole is doing."""

    IDLE = "idle"
    RUNNING = "running"
    WAITING_NEXT = "waiting-next"
    WAITING_APPROVAL = "waiting-approval"
    PAUSED = "paused"
    FAILED = "failed"
    COMPLETE = "complete"


class Owner(Frozen, extra="allow"):
    """Which process holds a claim; enough to prove later that it is gone."""

    host: str
    machine: str = ""
    """Digest of the machine id; empty if the machine has none."""
    boot_id: str
    pid_ns: str
    pid: int
    pid_start: int
    """Start time of the process in clock ticks since boot; tells a reused pid apart."""
    nonce: str

    @property
    def words(self) -> str:
        """Return who that is, for people; without a pid any worker takes the step."""
        return f"process {self.pid} on {self.host}" if self.pid else "a worker"


class Claim(Frozen, extra="allow"):
    """A step marked as being run."""

    token: Counter
    step: str
    step_index: Counter
    attempt: Counter
    owner: Owner
    claimed_at: str
    ttl_s: float = Field(gt=0, allow_inf_nan=False)
    """Lease: how long the claim is believed without a heartbeat."""
    claimed_boottime: float | None = Field(default=None, allow_inf_nan=False)
    """The owner's clock since boot, in seconds: the lease runs from here until the first beat."""

    def share(self, unit: str) -> float | None:
        """Return how much of *unit*, ``usd`` or ``tokens``, no other attempt may use meanwhile.

        Kept as ``share_usd`` and ``share_tokens`` where there is a cap, and only there.
        """
        found = (self.model_extra or {}).get(f"share_{unit}")
        if not isinstance(found, (int, float)) or not 0 <= found < MAX_COUNTER:
            return None
        return found


class Session(Frozen):
    """The conversation of the last accepted step, for ``continue_session``."""

    executor: str
    id: str
    steps: Counter = 1
    """Accepted steps of it."""
    context_tokens: Counter | None = None
    """What was sent in its last call; None: its client doesn't tell."""
    used_at: str | None = None
    """When its last step was accepted, ISO 8601 UTC; None: an earlier version has kept it."""


class Gate(Frozen, extra="allow"):
    """A stop behind an accepted step until a person decides.

    It stays in the head after feedback, so that the steps that run again see what was said
    and the next question is counted; approval removes it, and so does a step by hand.
    """

    step: str
    """The step that asks."""
    step_index: Counter
    token: Counter
    """Of the attempt whose output is the question."""
    opened_at: str
    round: Counter = 1
    """How often it was asked, feedback in between."""
    feedback_to: Counter = 0
    """step_index of the step that runs again on feedback."""
    expires_at: str | None = None
    """ISO 8601 UTC: when ``on_timeout`` decides; None: never."""
    on_timeout: Literal["approve", "reject"] = "reject"
    decision: Literal["feedback", "rejected"] | None = None
    """None while it waits."""

    @property
    def is_open(self) -> bool:
        """Return whether a person has to decide."""
        return self.decision is None


class Flow(Frozen):
    """The progress of a graph run; read and written by `model.flow_record`.

    A small marking stands here as it is. Of a larger one, ``base`` names the document that
    has it, and ``since`` what has happened after that was written.
    """

    status: str = "running"
    """A value of `FlowStatus`: where the graph's run is, or how it ended."""
    rest: Status = Status.WAITING_NEXT
    """What the run's status is while nobody works on it."""
    begun_at: str | None = None
    """ISO 8601 UTC."""
    asks: tuple[str, ...] = ()
    """Nodes whose questions wait for a person, at most a few of them."""
    marking: dict[str, Any] | None = None
    base: str | None = None
    since: tuple[list[Any], ...] = ()


class Loop(Frozen, extra="allow"):
    """Where a step that judges stands in its rounds."""

    stage: Literal["fix", "verify"]
    """What comes next: the fixer, or the step itself again."""
    round: Counter
    """Of the judgement that was made last (``fix``) or comes next (``verify``), from 1."""
    reason: str = Field(default="", max_length=1000)
    """Why the last judgement was "no"."""
    exhausted: Counter = 0
    """How often all rounds said "no", and they began again, without a person."""


class Work(Frozen, extra="allow"):
    """The code that a state goes with, where both move together."""

    branch: str = Field(min_length=1, max_length=250)
    commit: str = Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")

    @property
    def ref(self) -> str:
        """Return the ref of the remote that has the commit, if that is not the branch yet.

        Kept as ``ref`` where attempts push to refs of their own, and only there.
        """
        found = self.model_extra.get("ref")
        return found if isinstance(found, str) else ""


class Head(Frozen, extra="allow"):
    """The content of state.json."""

    schema_version: Literal[1] = 1
    run_id: str = Field(min_length=1, max_length=100)
    run_name: str | None = None
    """As given with ``--run``; the folder's name is derived from it. None: the default run."""
    revision: Counter = 0
    workflow_name: str
    workflow_digest: str
    params: dict[str, int | float | str | bool | None] = Field(default_factory=dict)
    step_index: Counter = 0
    iteration: Counter = 1
    """step_index + 1, for people and log names."""
    expected_step: str
    status: Status = Status.IDLE
    last_prompt: str | None = None
    last_update: str
    token: Counter = 0
    """The newest token that was ever granted."""
    claims: tuple[Claim, ...] = ()
    attempt: Counter = 0
    """Attempts made at the present step so far."""
    failures_in_row: Counter = 0
    usage: Usage = Usage()
    journal_offset: Counter = 0
    """Where the record of this revision starts in journal.jsonl, in bytes."""
    exit: bool = Field(default=False, strict=True)
    exit_reason: str | None = None
    pause_requested: bool = Field(default=False, strict=True)
    """A pause that takes effect when the step that runs has ended."""
    not_before: str | None = None
    """ISO 8601 UTC: no step starts earlier (rate limit reset, retry delay)."""
    not_before_reason: str | None = None
    not_before_since: str | None = None
    """When the program set ``not_before``; None for a date that a person gave. A clock with
    an earlier time was set back since, or the other one was wrong."""
    session: Session | None = None
    gate: Gate | None = None
    loop: Loop | None = None
    flow: Flow | None = None
    """For the run of a graph; its steps are nodes, and step_index counts the accepted ones."""
    work: Work | None = None
    """What the last accepted step has left of code; None: code is not moved."""
    has_definition: bool = Field(default=False, strict=True)
    """The run was made from a request, and can't continue without its definition.json."""

    @property
    def is_at_gate(self) -> bool:
        """Return whether the run waits for a person's decision."""
        return self.gate is not None and self.gate.is_open

    @property
    def is_held_back(self) -> bool:
        """Return whether a person has stopped or paused the run; a step that runs still ends."""
        return self.exit or self.pause_requested or self.status is Status.PAUSED

    @property
    def is_on_hold(self) -> bool:
        """Return whether nothing runs, and a person has stopped or paused the run."""
        return self.is_held_back and not self.claims

    @property
    def asks(self) -> tuple[str, ...]:
        """Return nodes whose questions wait for a person, at most a few of them."""
        return () if self.flow is None else self.flow.asks

    @property
    def begun_at(self) -> str | None:
        """Return when a graph's run was started, ISO 8601 UTC; of other runs nobody knows."""
        return None if self.flow is None else self.flow.begun_at

    @property
    def needs_every_output(self) -> bool:
        """Return whether an output may be asked for whose record is gone: a marking names any."""
        return self.flow is not None

    @property
    def base(self) -> str | None:
        """Return the name of the document that its marking begins with; None: there is none."""
        return None if self.flow is None else self.flow.base

    @property
    def told(self) -> tuple[tuple[str, int], ...]:
        """Return for whom messages wait, "" for whoever comes next, each with the newest token.

        Kept as ``told`` in the run of a line while there are some; the texts are in the journal.
        """
        extra, found = self._given[1], []
        for row in extra["told"] or () if "told" in extra else ():
            match row:
                case [str(to), int(token)]:
                    found.append((to, token))
        return tuple(found)

    def telling(self, told: Collection[tuple[str, int]]) -> Head:
        """Return this head, in which the messages *told* wait."""
        others = {name: value for name, value in self.model_extra.items() if name != "told"}
        extra = {**others, "told": [list(one) for one in told]} if told else others
        values = {name: self.__dict__[name] for name in self.model_fields}
        return self.made(values, {*self.model_fields_set, *extra}, extra)

    @property
    def recent_costs(self) -> Mapping[str, tuple[float, ...]]:
        """Return by step what its newest accepted attempts have cost in USD, oldest first.

        Kept as ``recent_costs`` while there are some.
        """
        kept = self._given[1].get("recent_costs")
        found = dict[str, tuple[float, ...]]()
        for step, costs in kept.items() if isinstance(kept, dict) else ():
            if isinstance(costs, list) and all(type(one) in (int, float) for one in costs):
                found[step] = tuple(one for one in costs if 0 <= one < inf)
        return found

    def costing(self, step: str, cost_usd: float) -> Head:
        """Return this head with one more cost of *step*, of whose costs the newest are kept."""
        costs = dict(self.recent_costs)
        costs[step] = (*costs.pop(step, ()), round(cost_usd, 6))[-USUAL_COSTS:]
        newest = {name: list(costs[name]) for name in list(costs)[-MOST_COSTED:]}
        extra = {**self.model_extra, "recent_costs": newest}
        values = {name: self.__dict__[name] for name in self.model_fields}
        return self.made(values, {*self.model_fields_set, *extra}, extra)

    @property
    def moved_to(self) -> str | None:
        """Return where the run is, if this is the closed copy that it has left; see `moving`."""
        told = self._given[1].get(MOVED)
        return str(told["where"]) if isinstance(told, dict) and "where" in told else None

    @property
    def was_rejected(self) -> bool:
        """Return whether a person ended the run at a gate."""
        return self.gate is not None and self.gate.decision == "rejected"

    @property
    def ended_as(self) -> str | None:
        """Return how the run ended: complete, rejected, cancelled, …; None: it has not ended."""
        if self.status is not Status.COMPLETE:
            return None
        if self.was_rejected:
            return "rejected"
        word = "complete" if self.flow is None else self.flow.status
        return "complete" if word.startswith(("completed", "running")) else word

    def claim_with(self, token: int) -> Claim | None:
        """Return the claim that was granted with *token*, if it still stands."""
        for claim in self.claims:
            if claim.token == token:
                return claim
        return None
