"""What lets a run continue: a *permit* is one process's permission for so many steps.

Its kind decides what it may claim and what an attempt's end means, its budget when it is used
up. Pure: time comes in, and what is written goes out through the store that it is given. Not
decided here: which worker makes an attempt, and whether that worker is alive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, cast

from msgspec.structs import replace

from sequencer.engine.capacity import Shares
from sequencer.engine.changes import Changes
from sequencer.engine.decide import (
    End,
    RecordExpired,
    Seen,
    SequenceSeen,
    TakeClaims,
    Wait,
    next_move,
)
from sequencer.engine.decide_graph import GraphSeen
from sequencer.engine.graph_budget import GraphBudget
from sequencer.engine.invocation_budget import InvocationBudget, Mode, SequenceBudget
from sequencer.engine.kinds import changes_of
from sequencer.errors import (
    ClaimHeld,
    Interrupted,
    MachineBusy,
    SequencerError,
    StaleClaim,
)
from sequencer.model.graph.graph_kind import RecordedResult
from sequencer.model.graph.transition import OpenTransition
from sequencer.model.head import Claim, Head, Work
from sequencer.model.kind import AttemptResult, Capacity, slots_at
from sequencer.model.limits import InvocationLimits, RunLimits, utc
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.sequence.order import present, step_at
from sequencer.model.sequence.sequence_kind import ContinuationKind
from sequencer.model.transitions import StepRef, Transition
from sequencer.model.workflow import Workflow, ensure_definition, has_definition
from sequencer.plugins.temporal.memo import HeldGraphChanges, MemoStore
from sequencer.plugins.temporal.wire import (
    AttemptReport,
    Ticket,
    ended_of,
    ensure_fitting,
    error_of,
    owner_of,
    packed_error,
    worker_name,
)
from sequencer.project.task_graphs import TASK_GRAPHS
from sequencer.store.protocol import Store

NOTE_CHARS = 500
"""Of why an attempt was put off."""


class WorkOrder(ABC):
    """One process's permission to go on, and why it ends."""

    budget: InvocationBudget
    waits_by_default: ClassVar[bool]
    """Whether it waits for others without limit, where nothing else is said."""

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        """Take what a process has sent, or what `kept` has returned."""
        self._data, self._store = dict(data), store
        self.by: str = data["by"]
        """The process; empty for one that no process waits for."""
        self.id: str = data["id"]
        self.ttl_s: float = data["ttl_s"]
        self.queue: str | None = data.get("queue")
        """Where its attempts are made; None: where all of the run's are."""
        self.workflow = Workflow.model_validate(data["workflow"])
        self._has_code: bool = data.get("has_code", False) or store.head.work is not None
        self._run_limits = RunLimits.model_validate(data.get("run_limits", {}))
        self._mode = Mode(data["mode"])
        self._limits = InvocationLimits.model_validate(data.get("limits", {}))
        self.end: dict[str, Any] | None = None
        """What its process is told; None: it goes on."""
        self.listeners = 0
        """Calls of its process that wait for its end."""
        self.silent_since: datetime | None = None
        """When the last of them has ended."""
        self._untaken = frozenset(data.get("untaken", ()))
        """Tokens that no worker had taken when its process asked."""
        self.until: datetime | None = None
        """When it has to be asked again, whatever happens."""
        self._waiting_since: datetime | None = None
        self._mine: set[int] = set()
        self._live: Collection[int] = ()
        self._at = datetime.min.replace(tzinfo=UTC)
        self._may_claim = False
        self._is_leaving = False
        """Its process ends, once it makes no attempt any more."""

    def kept(self) -> dict[str, Any]:
        """Return it as plain data, to continue elsewhere."""
        return {**self._data, "kept": self.budget.kept()}

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """End it, for a *reason* or with an *error*."""
        if self.end is None:
            self.end = {"reason": reason, **self.budget.kept()}
            if error is not None:
                self.end["error"] = packed_error(error)

    @property
    def is_detached(self) -> bool:
        """Return whether no process waits for its end."""
        return not self.by

    def told(self, since: str, at: datetime) -> dict[str, Any]:
        """Return what people are told of it, which was issued at *since*."""
        limits = self._limits.model_dump(mode="json", exclude_none=True)
        found = {"id": self.id, "mode": str(self._mode), "since": since, "limits": limits}
        if self.end is not None:
            error = self.end.get("error", {})
            found |= {"until": utc(at), "end": error.get("message") or self.end["reason"]}
        return found

    def vanish(self) -> None:
        """End it because its process is gone."""
        self.finish(
            "", Interrupted(f"{worker_name(self.by)} is gone", hint="start again to continue")
        )

    def merging(self, token: int, record: Mapping[str, Any]) -> Ticket | None:
        """Return how the work in the *record* of its attempt is merged with what was accepted.

        None: it was begun on that.
        """
        head, work = self._store.head, record.get("work")
        here = None if head.work is None else head.work.commit
        if work is None or work.get("base", here) == here or head.claim_with(token) is None:
            return None
        return Ticket(token, has_code=True, merge=work)

    @abstractmethod
    def ticket(self, token: int) -> Ticket:
        """Return what the attempt with *token* is told."""

    def words(self, token: int) -> str:
        """Return what the attempt with *token* is at, for people who look at the server."""
        claim = self._store.head.claim_with(token)
        return "" if claim is None else f"{claim.step}, iteration {claim.step_index + 1}"

    def timeout_s(self, token: int) -> float | None:
        """Return how long the attempt with *token* may take, if its step says it."""
        claim = self._store.head.claim_with(token)
        step = None if claim is None else self.workflow.steps_by_name.get(claim.step)
        return None if step is None else step.timeout_s

    # --- what happens --------------------------------------------------------------

    def advance(self, live: Collection[int], at: datetime, *, may_claim: bool) -> list[int]:
        """Do what can be done now, and return the tokens of the claims that this grants.

        The attempts with the tokens *live* are being made; others have vanished. It is not to
        claim anything unless it *may_claim*.
        """
        self._live, self._at, self._may_claim, self.until = live, at, may_claim, None
        try:
            ensure_fitting(self._store.sizes)
            return self._advanced()
        except SequencerError as error:
            self.finish("", error)
            return []

    def record(
        self,
        token: int,
        report: AttemptReport,
        live: Collection[int],
        at: datetime,
        *,
        jitter: float,
        may_claim: bool,
        is_told: bool = True,
    ) -> list[int]:
        """Record how its attempt with *token* has ended; else see `advance`.

        The server's history has the report, if *is_told*.
        """
        self._live, self._at, head = live, at, self._store.head
        is_on = self.end is None and report.left != self.by and self._store.has_room
        self._may_claim = may_claim and is_on
        self._mine.discard(token)
        if (claim := head.claim_with(token)) is None:
            return []
        ended = replace(self._ended(report, claim), jitter=jitter)
        self._store.told = (token, report.record) if is_told else None
        # What its worker has pushed is accepted with it.
        work = report.record.get("work")
        work = None if work is None else {k: one for k, one in work.items() if k != "base"}
        self._changes.work = None if work is None else Work.model_validate(work)
        try:
            granted = self._recorded(ended, report)
        except StaleClaim:
            return []
        except SequencerError as error:
            self.finish("", error)
            return []
        finally:
            self._store.told = self._changes.work = None
        self._mine.update(granted)
        return granted

    def _advanced(self) -> list[int]:
        """Do what can be done now; return the tokens of the claims that this grants."""
        granted: list[int] = []
        # A graph finds out whether it can claim only by trying; if it may not claim, it must
        # not try.
        is_known = self._changes.kind.has_one_place
        tried_at = None if self._may_claim or is_known else self._at
        while True:
            seen = self._see(tried_at)
            match next_move(seen):
                case RecordExpired() as move:
                    granted += self._grant(self._expire(move))
                case TakeClaims():
                    self._waiting_since = None
                    if not self._may_claim:
                        return granted
                    tried_at = self._at
                    granted += self._grant(self._changes.update(None, self._capacity)[1])
                case Wait() as move:
                    self._plan_wait(move, seen)
                    return granted
                case End() as move:
                    self.finish(move.reason, move.error)
                    return granted

    def _grant(self, tokens: list[int]) -> list[int]:
        """Count the attempts of *tokens* as running, so that nothing takes them over."""
        self._live = {*self._live, *tokens}
        self._mine.update(tokens)
        return tokens

    def _plan_wait(self, move: Wait, seen: Seen) -> None:
        """Note when this permit has to be asked again.

        Raises: see `_wait`.
        """
        self.until = move.until
        if seen.running:
            self._waiting_since = None
        # What the process before it has left, its own takes: that is no wait for others.
        elif move.is_for_others and (move.claim is None or move.claim.token not in self._untaken):
            self._wait(move.message)

    @abstractmethod
    def _see(self, tried_at: datetime | None) -> Seen:
        """Return what a decision takes into account; see `Seen`."""

    @abstractmethod
    def _expire(self, move: RecordExpired) -> list[int]:
        """Record what has expired; return the tokens of the claims that this grants."""

    @abstractmethod
    def _capacity(self, head: Head) -> Capacity:
        """Return what may be claimed at *head*."""

    @abstractmethod
    def _ended(self, report: AttemptReport, claim: Claim) -> AttemptResult:
        """Return the end of the attempt of *claim*, of which *report* tells."""

    @abstractmethod
    def _recorded(self, ended: AttemptResult, report: AttemptReport) -> list[int]:
        """Record the end of an attempt; return the tokens of the claims that this grants."""

    def give_back(self, token: int, facts: Mapping[str, Any], at: datetime) -> None:
        """Give the claim with *token* back, whose attempt could not start; that ends it."""
        self._mine.discard(token)
        self._at = at
        if self._store.head.claim_with(token) is not None:
            self._store.update(lambda head: self._expired(head, token, str(facts["message"])))
        self.finish("", error_of(facts))

    def put_off(self, token: int, why: str, live: Collection[int], at: datetime) -> None:
        """Give the claim with *token* back for a while: its worker could not even start it."""
        record = {"status": str(OutcomeStatus.INTERRUPTED), "error": why[:NOTE_CHARS]}
        ending = {"kind": str(ContinuationKind.BACK)}
        report = AttemptReport(record, ending=ending, postponed=why[:NOTE_CHARS])
        self.record(token, report, live, at, jitter=0.0, may_claim=False, is_told=False)

    def _expired(self, head: Head | None, token: int, why: str) -> Transition | None:
        return None if head is None else self._changes.kind.expire(head, token, why, at=self._at)

    def _changing(self, changes: Changes) -> Changes:
        """Return *changes*, by this permit's clock."""
        changes.now = lambda: self._at
        self._changes = changes
        return changes

    @property
    def _busy(self) -> set[int]:
        """Return the tokens of its attempts that are being made."""
        return self._mine.intersection(self._live)

    def _seen(self, head: Head) -> Head:
        """Return *head* without claims whose attempts have vanished: they are in nobody's way."""
        live = tuple(one for one in head.claims if one.token in self._live)
        return head if len(live) == len(head.claims) else head.replace(claims=live)

    def _gone(self, head: Head) -> frozenset[int]:
        return frozenset(one.token for one in head.claims if one.token not in self._live)

    def _wait(self, message: str) -> None:
        """Wait for others.

        Raises:
            ClaimHeld: it has waited as long as it may.
        """
        most = 0.0 if self._mode is Mode.TICK else self._limits.max_wait_s
        if most is None and (self.waits_by_default or self._mode is Mode.SYNC):
            return
        self._waiting_since = self._waiting_since or self._at
        until = self._waiting_since + timedelta(seconds=most or 0.0)
        if until <= self._at:
            raise ClaimHeld(message, hint="wait for it with --max-wait")
        self.until = until if self.until is None else min(until, self.until)


class SequenceWorkOrder(WorkOrder):
    """In the run of a cycle or a procedure."""

    budget: SequenceBudget
    waits_by_default = False

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        super().__init__(data, store)
        self._changing(changes_of(cast("Store", store), self.workflow))
        self.budget = SequenceBudget(
            self.workflow,
            self._mode,
            self._limits,
            self._run_limits,
            store.head,
            positions=data.get("positions", ()),
        )
        if "kept" in data:
            self.budget.restore(data["kept"])

    def _see(self, tried_at: datetime | None) -> SequenceSeen:
        head, own = self._store.head, self._busy
        if not own:
            ensure_definition(head, self.workflow)
        self.budget.observe(head)
        gone = self._gone(head)
        return SequenceSeen(
            head,
            self._at,
            self._changes.kind,
            self.budget,
            expired_tokens=gone,
            running=own,
            tried_at=tried_at,
        )

    def _expire(self, move: RecordExpired) -> list[int]:
        del move
        self._store.update(self._lapsed)
        return []

    def ticket(self, token: int) -> Ticket:
        budget = self.budget.allowance(self._store.head)
        return Ticket(token, budget.cost_usd, budget.timeout_s, self._has_code)

    def _lapsed(self, head: Head | None) -> Transition | None:
        return None if head is None else self._changes.kind.expire_waits(head, at=self._at)

    def _capacity(self, head: Head) -> Capacity:
        owner = owner_of(head.run_id)
        return Capacity(owner, self.ttl_s, None, 1, self._gone(head), self._run_limits)

    def _ended(self, report: AttemptReport, claim: Claim) -> AttemptResult:
        here = present(self.workflow, self._store.head)
        return ended_of(report, claim, here, step_at(self.workflow, here), self.workflow)

    def _recorded(self, ended: AttemptResult, report: AttemptReport) -> list[int]:
        self.budget.count(ended)
        following = ended.ending.next_place
        is_on = self._may_claim and report.raised is None
        is_on = is_on and following is not None and self.budget.is_mine(following.step_index)

        def capacity(head: Head) -> Capacity | None:
            may_go_on = is_on and self.budget.reached(head) is None
            return (
                self._capacity(head) if may_go_on and has_definition(head, self.workflow) else None
            )

        kind, run_id = self._changes.kind, self._store.head.run_id
        head, granted = self._changes.update(
            lambda change: kind.take(change, ended), capacity, run_id=run_id
        )
        if report.raised is not None:
            self.finish("", error_of(report.raised))
        elif report.left is not None and report.left == self.by:
            text = f"interrupted in step {ended.place.step!r}; the claim was released"
            self.finish("", Interrupted(text, hint="start again to continue"))
        self.budget.ensure_goes_on(ended, head)
        return granted


class GraphWorkOrder(WorkOrder):
    """In the run of a flowchart."""

    budget: GraphBudget
    waits_by_default = True

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        super().__init__(data, store)
        rules, capacity_rule, expander = data.get("team"), None, None
        # Every worker has to decide alike, whatever its project disables.
        if rules is not None:
            graphs = TASK_GRAPHS.get(even_disabled=True) or TASK_GRAPHS.required()
            capacity_rule, expander = graphs.load(rules)
        self._capacity_rule = capacity_rule
        self._nodes = HeldGraphChanges(cast("Store", store), self.workflow, expander)
        self._changing(self._nodes)
        self.budget = GraphBudget(
            self._mode,
            self._limits,
            self._run_limits,
            store.head,
            places=data["places"],
            capacity_rule=self._capacity_rule,
        )
        if "kept" in data:
            self.budget.restore(data["kept"])
        self._shares = Shares(self._run_limits, self._capacity_rule, owner_of(store.head.run_id))
        self._shares.own_usd = self.budget.usd_left

    def _see(self, tried_at: datetime | None) -> GraphSeen:
        head, marking = self._nodes.marking(self._store.head)
        ensure_definition(head, self.workflow)
        return GraphSeen(
            self._seen(head),
            self._at,
            marking,
            self._nodes.graph_kind,
            self.budget,
            expired_tokens=self._gone(head),
            running=self._busy,
            is_stopped=self._is_leaving,
            tried_at=tried_at,
        )

    def _expire(self, move: RecordExpired) -> list[int]:
        granted: list[int] = []
        for act in move.acts:
            granted += self._grant(self._nodes.update(act, self._capacity)[1])
        return granted

    def ticket(self, token: int) -> Ticket:
        """Return what the worker of the attempt with *token* gets.

        It sets no limit on the cost: the claim's share does.
        """
        return Ticket(token, None, self._limits.step_timeout_s, self._has_code)

    def _capacity(self, head: Head) -> Capacity:
        gone, limits = self._gone(head), self._run_limits
        free = self.budget.slots(len(self._busy)) if self._may_claim else 0
        return Capacity(
            owner_of(head.run_id),
            self.ttl_s,
            None,
            slots_at(head, limits, free, gone, self._at),
            gone,
            limits,
            closed=partial(self._shares.closed, expired=gone),
            share=partial(self._shares.of, expired=gone),
        )

    def _ended(self, report: AttemptReport, claim: Claim) -> AttemptResult:
        _, marking = self._nodes.marking(self._store.head)
        workflow = self._nodes.graph_kind.workflow_at(marking)
        step, here = workflow.steps_by_name[claim.step], StepRef(claim.step_index, claim.step, "")
        ended = ended_of(report, claim, here, step, workflow)
        if (name := report.reference) is None:
            return ended
        kept = self._store.outputs if report.said is None else self._store.said
        kept[name] = ended.outcome.output
        return replace(ended, reference=name)

    def _recorded(self, ended: AttemptResult, report: AttemptReport) -> list[int]:
        error = None if report.raised is None else error_of(report.raised)
        outcome, step, made = ended.outcome, ended.place.step, list[RecordedResult]()
        self.budget.tried()
        if error is None:
            self.budget.count(step, outcome)

        def act(change: OpenTransition) -> None:
            made.append(self._nodes.graph_kind.take(change, ended))
            if self._capacity_rule is not None:
                self._capacity_rule.watch(change)

        run_id = self._store.head.run_id
        if isinstance(error, SequencerError) and not isinstance(error, MachineBusy):
            self._may_claim = False
            self.finish("", error)
        self._is_leaving = self._is_leaving or report.left == self.by
        granted = self._nodes.update(act, self._capacity, run_id=run_id)[1]
        self.budget.count_again(step, None if error else outcome, made[-1] if made else None)
        if isinstance(error, MachineBusy) and not self._busy and not granted:
            self.finish("", error)
        return granted


PERMITS: Mapping[str, type[SequenceWorkOrder | GraphWorkOrder]] = {"graph": GraphWorkOrder}
"""By the kind of the workflow; every other one goes from step to step."""


def permit_of(data: Mapping[str, Any], store: MemoStore) -> WorkOrder:
    """Return the permit that a process has sent as *data*."""
    return PERMITS.get(data["workflow"].get("kind", ""), SequenceWorkOrder)(data, store)
