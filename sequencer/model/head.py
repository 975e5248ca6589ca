"""The head: everything about a run that state.json holds.

Fields that this version does not know are kept on every rewrite, so that a person, an
agent or another tool may keep notes there. Wall-clock values are for people; only
``not_before`` and ``not_before_since`` are compared with a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from math import inf
from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, ValidationError
from sequencer.model.outcome import Usage
from sequencer.model.whole_numbers import MAX_COUNTER

SCHEMA_VERSION = 1

Counter = Annotated[int, Field(ge=0, le=MAX_COUNTER, strict=True)]
"""A JSON integer; 1.0, "1" and true are refused rather than converted."""


FLOW_DOCUMENT = "flow.json"
"""The document with the workflow that a graph run was started with, see `model.graph.source`."""
MARKINGS = "marking-"
"""The names of documents with a graph's marking start with this."""
TYPICAL_COSTS, MAX_COSTED = 5, 20
"""The head keeps the costs of this many accepted attempts per step, for this many steps."""
MOVED = "moved"
"""Field of a closed copy: where the run is, and the values that were replaced to close it."""
OWN_EXTRAS = frozenset({MOVED, "told", "recent_costs"})
"""The program's fields that exist only while they have a value; other unknown fields are notes."""


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
    """The process that holds a claim, with enough facts to prove later that it is gone."""

    host: str
    machine: str = ""
    """Digest of the machine id; empty if the machine has none."""
    boot_id: str
    pid_ns: str
    pid: int
    pid_start: int
    """Start time of the process in clock ticks since boot; it reveals a reused pid."""
    nonce: str

    @property
    def words(self) -> str:
        """Return the process in words; without a pid, any worker may take the step."""
        return f"process {self.pid} on {self.host}" if self.pid else "a worker"


class Claim(Frozen, extra="allow"):
    """The mark of a step that is being run."""

    token: Counter
    step: str
    step_index: Counter
    attempt: Counter
    owner: Owner
    claimed_at: str
    ttl_s: float = Field(gt=0, allow_inf_nan=False)
    """Lease: how long the claim is valid without a heartbeat."""
    claimed_boottime: float | None = Field(default=None, allow_inf_nan=False)
    """The owner's clock since boot, in seconds: the lease runs from here until the first beat."""

    def share(self, unit: str) -> float | None:
        """Return how much of *unit*, ``usd`` or ``tokens``, is reserved for this attempt.

        Stored as ``share_usd`` and ``share_tokens``, and only if there is a cap.
        """
        amount = (self.model_extra or {}).get(f"share_{unit}")
        if not isinstance(amount, (int, float)) or not 0 <= amount < MAX_COUNTER:
            return None
        return amount


class Session(Frozen):
    """The conversation of the last accepted step, for ``continue_session``."""

    executor: str
    id: str
    steps: Counter = 1
    """The number of its accepted steps."""
    context_tokens: Counter | None = None
    """Tokens that its last call sent; None: its client doesn't report them."""
    used_at: str | None = None
    """When its last step was accepted, ISO 8601 UTC; None: an earlier version wrote it."""


class Gate(Frozen, extra="allow"):
    """A stop after an accepted step until a person decides.

    It stays in the head after feedback, so that the steps that run again see the feedback and
    the next question is counted. Approval removes it, and so does a command that moves the run.
    If another gate asks on the way back, it keeps this one until it is approved, see `earlier`.
    """

    step: str
    """The step that asks."""
    step_index: Counter
    token: Counter
    """Token of the attempt whose output is the question."""
    opened_at: str
    round: Counter = 1
    """How often the question was asked, counting from 1; each feedback leads to another."""
    feedback_to: Counter = 0
    """step_index of the step that runs again on feedback."""
    expires_at: str | None = None
    """ISO 8601 UTC: when ``on_timeout`` decides; None: never."""
    on_timeout: Literal["approve", "reject"] = "reject"
    decision: Literal["feedback", "rejected"] | None = None
    """None while the gate waits."""

    @property
    def is_open(self) -> bool:
        """Return whether a person has to decide."""
        return self.decision is None

    @property
    def completes_run(self) -> bool:
        """Return whether the run is complete after approval, even if a step follows.

        Stored as ``completes_run``, and only if the step, its hook or the run's kind said so.
        """
        return self.model_extra.get("completes_run") is True

    @property
    def earlier(self) -> tuple[Gate, ...]:
        """Return the gates after this one that got feedback and will ask again, nearest first.

        Stored as ``earlier``, and only while there are any.
        """
        stored_gates = self.model_extra.get("earlier")
        gates = []
        for stored_gate in stored_gates if isinstance(stored_gates, (list, tuple)) else ():
            with suppress(ValidationError):
                gates.append(Gate.model_validate(stored_gate))
        return tuple(gates)

    def with_earlier(self, gates: Collection[Gate]) -> Gate:
        """Return this gate with *gates* as `earlier`; their own `earlier` is dropped."""
        fields = self.model_dump(exclude={"earlier"})
        if gates:
            options: dict[str, Any] = {"exclude": {"earlier"}, "exclude_defaults": True}
            fields["earlier"] = [gate.model_dump(**options) for gate in gates]
        return Gate.model_validate(fields)


class Flow(Frozen):
    """The progress of a graph run; read and written by `model.graph.record`.

    A small marking is stored here as a whole. For a larger one, ``base`` names the document that
    contains it, and ``since`` lists the operations after that document was written.
    """

    status: str = "running"
    """A value of `FlowStatus`: where the graph's run is, or how it ended."""
    rest: Status = Status.WAITING_NEXT
    """The status of the run while no process works on it."""
    begun_at: str | None = None
    """ISO 8601 UTC."""
    asks: tuple[str, ...] = ()
    """Nodes whose questions wait for a person, but only the first few."""
    marking: dict[str, Any] | None = None
    base: str | None = None
    since: tuple[list[Any], ...] = ()


class Loop(Frozen, extra="allow"):
    """The current round of a step that judges."""

    stage: Literal["fix", "verify"]
    """What runs next: the fixer, or the step itself again."""
    round: Counter
    """Number of the last judgment (``fix``) or the next one (``verify``), from 1."""
    reason: str = Field(default="", max_length=1000)
    """Why the last judgment was "no"."""
    exhausted: Counter = 0
    """How often all rounds said "no" and the rounds started again without a person."""


class Work(Frozen, extra="allow"):
    """The code that belongs to a state, if both move together."""

    branch: str = Field(min_length=1, max_length=250)
    commit: str = Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")

    @property
    def ref(self) -> str:
        """Return the ref of the remote that has the commit; empty: the branch has it.

        Stored as ``ref``, and only if attempts push to separate refs.
        """
        ref = self.model_extra.get("ref")
        return ref if isinstance(ref, str) else ""


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
    """Attempts at the current step so far."""
    failures_in_row: Counter = 0
    usage: Usage = Usage()
    journal_offset: Counter = 0
    """Where the record of this revision starts in journal.jsonl, in bytes."""
    exit: bool = Field(default=False, strict=True)
    exit_reason: str | None = None
    pause_requested: bool = Field(default=False, strict=True)
    """A pause that takes effect when the running step has ended."""
    not_before: str | None = None
    """ISO 8601 UTC: no step starts earlier (rate limit reset, retry delay)."""
    not_before_reason: str | None = None
    not_before_since: str | None = None
    """When the program set ``not_before``; None for a date that a person gave. If a clock shows an
    earlier time, it was set back, or it was wrong when the date was set."""
    session: Session | None = None
    gate: Gate | None = None
    loop: Loop | None = None
    flow: Flow | None = None
    """For the run of a graph; its steps are nodes, and step_index counts the accepted ones."""
    work: Work | None = None
    """The code that the last accepted step has left; None: code is not moved with the state."""
    has_definition: bool = Field(default=False, strict=True)
    """The run was created from a request, and can't continue without its definition.json."""

    @property
    def is_at_gate(self) -> bool:
        """Return whether the run waits for a person's decision."""
        return self.gate is not None and self.gate.is_open

    @property
    def is_held_back(self) -> bool:
        """Return whether a person has stopped or paused the run, even if a step still runs."""
        return self.exit or self.pause_requested or self.status is Status.PAUSED

    @property
    def is_on_hold(self) -> bool:
        """Return whether nothing runs, and a person has stopped or paused the run."""
        return self.is_held_back and not self.claims

    @property
    def asks(self) -> tuple[str, ...]:
        """Return the nodes whose questions wait for a person, but only the first few."""
        return () if self.flow is None else self.flow.asks

    @property
    def begun_at(self) -> str | None:
        """Return when a graph's run was started, ISO 8601 UTC; None: unknown, or another kind."""
        return None if self.flow is None else self.flow.begun_at

    @property
    def needs_every_output(self) -> bool:
        """Return whether every output must be kept: a marking can refer to the oldest one."""
        return self.flow is not None

    @property
    def base(self) -> str | None:
        """Return the name of the newest document of its marking; None: the head has the marking."""
        return None if self.flow is None else self.flow.base

    @property
    def waiting_messages(self) -> tuple[tuple[str, int], ...]:
        """Return (recipient, newest token at that time) for each message that waits to be read.

        The recipient "" is the next attempt. Stored as ``told`` in the run of a sequence, and only
        while messages wait; their texts are in the journal.
        """
        extra_fields, messages = self._given[1], []
        for row in extra_fields["told"] or () if "told" in extra_fields else ():
            match row:
                case [str(recipient), int(token)]:
                    messages.append((recipient, token))
        return tuple(messages)

    def with_messages(self, messages: Collection[tuple[str, int]]) -> Head:
        """Return this head with *messages* as those that wait to be read."""
        other_fields = {name: value for name, value in self.model_extra.items() if name != "told"}
        extra_fields = (
            {**other_fields, "told": [list(message) for message in messages]}
            if messages
            else other_fields
        )
        values = {name: self.__dict__[name] for name in self.model_fields}
        return self.from_checked(values, {*self.model_fields_set, *extra_fields}, extra_fields)

    @property
    def recent_costs(self) -> Mapping[str, tuple[float, ...]]:
        """Return the costs of the newest accepted attempts of each step in USD, oldest first.

        Stored as ``recent_costs``, and only while there are any.
        """
        stored_costs = self._given[1].get("recent_costs")
        by_step = dict[str, tuple[float, ...]]()
        for step, costs in stored_costs.items() if isinstance(stored_costs, dict) else ():
            if isinstance(costs, list) and all(type(cost) in (int, float) for cost in costs):
                by_step[step] = tuple(cost for cost in costs if 0 <= cost < inf)
        return by_step

    def with_cost(self, step: str, cost_usd: float) -> Head:
        """Return this head with *cost_usd* as the newest cost of *step*; the oldest are dropped."""
        costs = dict(self.recent_costs)
        costs[step] = (*costs.pop(step, ()), round(cost_usd, 6))[-TYPICAL_COSTS:]
        newest_costs = {name: list(costs[name]) for name in list(costs)[-MAX_COSTED:]}
        extra_fields = {**self.model_extra, "recent_costs": newest_costs}
        values = {name: self.__dict__[name] for name in self.model_fields}
        return self.from_checked(values, {*self.model_fields_set, *extra_fields}, extra_fields)

    @property
    def moved_to(self) -> str | None:
        """Return where the run is now, if this is the closed copy that it left behind."""
        move_record = self._given[1].get(MOVED)
        return (
            str(move_record["where"])
            if isinstance(move_record, dict) and "where" in move_record
            else None
        )

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

    def drop_claims(self, tokens: Collection[int]) -> Head:
        """Return the head without the claims with *tokens*; itself if it has none of them."""
        claims = tuple(claim for claim in self.claims if claim.token not in tokens)
        return self if len(claims) == len(self.claims) else self.replace(claims=claims)

    def find_claim(self, token: int) -> Claim | None:
        """Return the claim with *token*, if it is still in the head."""
        for claim in self.claims:
            if claim.token == token:
                return claim
        return None
