"""Work orders: a run continues only while a process has issued one for a number of steps.

The kind of a work order decides what it may claim and what the end of an attempt means; its
budget decides when it is used up. Pure: callers pass the time in, and everything written goes to
the given store. Not decided here: which worker makes an attempt, and whether it is alive.

A work order is a *permit* in all data on the server and in the JSON of commands, so that earlier
releases can read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, cast

from msgspec.structs import replace

from sequencer.engine.capacity import BudgetShares
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
from sequencer.engine.kinds import make_changes
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
from sequencer.model.kind import AttemptResult, Capacity, count_slots
from sequencer.model.limits import InvocationLimits, RunLimits, format_utc_s
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.sequence.order import find_current_ref, step_at
from sequencer.model.sequence.sequence_kind import ContinuationKind
from sequencer.model.transitions import StepRef, Transition
from sequencer.model.workflow import Workflow, ensure_definition, has_definition
from sequencer.plugins.temporal.memo import MemoGraphChanges, MemoStore
from sequencer.plugins.temporal.wire import (
    AttemptReport,
    Ticket,
    build_run_owner,
    ensure_documents_fit,
    pack_error,
    unpack_error,
    unpack_result,
    worker_name,
)
from sequencer.project.task_graphs import TASK_GRAPHS
from sequencer.store.protocol import Store

MAX_TIMER_S = 10 * 365 * 86_400.0
"""The longest timer: the year of a date has at most four digits."""
NOTE_CHARS = 500
"""Longest reason recorded for a postponed attempt."""


class WorkOrder(ABC):
    """A process's permission for a run to continue, and how it ended."""

    budget: InvocationBudget
    waits_by_default: ClassVar[bool]
    """Whether it waits for others without limit unless a limit is set."""

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        """Create it from the *data* that a process sent or `to_data` returned."""
        self._data, self._store = dict(data), store
        self.by: str = data["by"]
        """The process that issued it; empty if no process waits for its end."""
        self.id: str = data["id"]
        self.ttl_s: float = data["ttl_s"]
        self.queue: str | None = data.get("queue")
        """Queue whose workers make its attempts; None: the run's own queue."""
        self.workflow = Workflow.model_validate(data["workflow"])
        self._has_code: bool = data.get("has_code", False) or store.head.work is not None
        self._run_limits = RunLimits.model_validate(data.get("run_limits", {}))
        self._mode = Mode(data["mode"])
        self._limits = InvocationLimits.model_validate(data.get("limits", {}))
        self.end: dict[str, Any] | None = None
        """The result for its process; None while it is open."""
        self.listeners = 0
        """Calls of its process that wait for its end."""
        self.silent_since: datetime | None = None
        """When the last of these calls ended."""
        self.is_suspected: bool = data.get("is_suspected", False)
        """Its process seems gone, and has not asked again since: nothing is claimed for it."""
        self._untaken = frozenset(data.get("untaken", ()))
        """Tokens that no worker had taken when the process issued it."""
        self.until: datetime | None = None
        """Latest time for the next `advance`."""
        self._waiting_since: datetime | None = None
        self._tokens: set[int] = set()
        """Tokens of its own attempts."""
        self._live: Collection[int] = ()
        self._at = datetime.min.replace(tzinfo=UTC)
        self._may_claim = False
        self._is_leaving = False
        """Its process is ending: it claims nothing more, and ends with its last attempt."""

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, to continue in another execution."""
        state = {"kept": self.budget.to_data(), "is_suspected": self.is_suspected}
        return {**self._data, **state}

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """End this work order for a *reason* or with an *error*; only the first end counts."""
        if self.end is None:
            self.end = {"reason": reason, **self.budget.to_data()}
            if error is not None:
                self.end["error"] = pack_error(error)

    @property
    def is_detached(self) -> bool:
        """Return whether no process waits for its end."""
        return not self.by

    def entry(self, since: str, at: datetime) -> dict[str, Any]:
        """Return its entry in the memo, for people; it was issued at *since*."""
        limits = self._limits.model_dump(mode="json", exclude_none=True)
        entry = {"id": self.id, "mode": str(self._mode), "since": since, "limits": limits}
        if self.end is not None:
            error = self.end.get("error", {})
            entry |= {"until": format_utc_s(at), "end": error.get("message") or self.end["reason"]}
        return entry

    def vanish(self) -> None:
        """End it because its process is gone."""
        self.finish(
            "", Interrupted(f"{worker_name(self.by)} is gone", hint="start again to continue")
        )

    def make_merge_ticket(self, token: int, record: Mapping[str, Any]) -> Ticket | None:
        """Return the ticket to merge the work in the *record* of an attempt with the run's work.

        None: the attempt started from the run's newest work, so there is nothing to merge.
        """
        head, work = self._store.head, record.get("work")
        commit = None if head.work is None else head.work.commit
        if work is None or work.get("base", commit) == commit or head.find_claim(token) is None:
            return None
        return Ticket(token, has_code=True, merge=work)

    @abstractmethod
    def ticket(self, token: int) -> Ticket:
        """Return the ticket for the worker of the attempt with *token*."""

    def describe_attempt(self, token: int) -> str:
        """Return the step and iteration of the attempt with *token*, for the server's web view."""
        claim = self._store.head.find_claim(token)
        return "" if claim is None else f"{claim.step}, iteration {claim.step_index + 1}"

    def timeout_s(self, token: int) -> float | None:
        """Return the time limit of the step of the attempt with *token*, if it has one."""
        claim = self._store.head.find_claim(token)
        step = None if claim is None else self.workflow.steps_by_name.get(claim.step)
        return None if step is None else step.timeout_s

    # --- what happens --------------------------------------------------------------

    def advance(self, live: Collection[int], at: datetime, *, may_claim: bool) -> list[int]:
        """Do everything possible now; return the tokens of the new claims.

        *live* are the tokens of the attempts that are running; all others have vanished. Nothing
        is claimed unless it *may_claim*.
        """
        self._live, self._at, self._may_claim, self.until = live, at, may_claim, None
        try:
            ensure_documents_fit(self._store.sizes)
            return self._advance()
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
        is_in_history: bool = True,
    ) -> list[int]:
        """Record the end of its attempt with *token*; the rest is as in `advance`.

        *is_in_history* says that the server's history has the report, so that a fact need not
        repeat it.
        """
        self._live, self._at, head = live, at, self._store.head
        can_continue = self.end is None and report.left != self.by and self._store.has_room
        self._may_claim = may_claim and can_continue
        self._tokens.discard(token)
        if (claim := head.find_claim(token)) is None:
            return []
        result = replace(self._to_result(report, claim), jitter=jitter)
        self._store.reported = (token, report.record) if is_in_history else None
        # The work that its worker pushed is accepted together with its end.
        work = report.record.get("work")
        work = (
            None if work is None else {key: value for key, value in work.items() if key != "base"}
        )
        self._changes.work = None if work is None else Work.model_validate(work)
        try:
            new_tokens = self._record_end(result, report)
        except StaleClaim:
            return []
        except SequencerError as error:
            self.finish("", error)
            return []
        finally:
            self._store.reported = self._changes.work = None
        self._tokens.update(new_tokens)
        return new_tokens

    def _advance(self) -> list[int]:
        """Do everything possible now; return the tokens of the new claims.

        Raises:
            SequencerError: the work order ends with this.
        """
        new_tokens: list[int] = []
        # A graph finds out whether it can claim only by trying; if it may not claim, it must
        # not try.
        is_known = self._changes.kind.has_one_place
        tried_at = None if self._may_claim or is_known else self._at
        while True:
            facts = self._collect_facts(tried_at)
            match next_move(facts):
                case RecordExpired() as move:
                    new_tokens += self._grant(self._expire(move))
                case TakeClaims():
                    self._waiting_since = None
                    if not self._may_claim:
                        return new_tokens
                    tried_at = self._at
                    new_tokens += self._grant(self._changes.update(None, self._capacity)[1])
                case Wait() as move:
                    self._plan_wait(move, facts)
                    return new_tokens
                case End() as move:
                    self.finish(move.reason, move.error)
                    return new_tokens

    def _grant(self, tokens: list[int]) -> list[int]:
        """Count the attempts of *tokens* as running, so that their claims do not expire."""
        self._live = {*self._live, *tokens}
        self._tokens.update(tokens)
        return tokens

    def _plan_wait(self, move: Wait, facts: Seen) -> None:
        """Set `until` for *move*.

        Raises: see `_wait`.
        """
        self.until = move.until
        if facts.running:
            self._waiting_since = None
        # A claim that an earlier process left untaken goes to this one's workers, so don't wait.
        elif move.is_for_others and (move.claim is None or move.claim.token not in self._untaken):
            self._wait(move.message)

    @abstractmethod
    def _collect_facts(self, tried_at: datetime | None) -> Seen:
        """Return the facts that the next decision depends on; see `Seen`."""

    @abstractmethod
    def _expire(self, move: RecordExpired) -> list[int]:
        """Record what has expired; return the tokens of the new claims."""

    @abstractmethod
    def _capacity(self, head: Head) -> Capacity:
        """Return how much may be claimed at *head*."""

    @abstractmethod
    def _to_result(self, report: AttemptReport, claim: Claim) -> AttemptResult:
        """Return the result in *report* of the attempt of *claim*."""

    @abstractmethod
    def _record_end(self, result: AttemptResult, report: AttemptReport) -> list[int]:
        """Record the end of an attempt; return the tokens of the new claims."""

    def release_with_error(self, token: int, facts: Mapping[str, Any], at: datetime) -> None:
        """Release the claim with *token* and end the work order with the error in *facts*."""
        self._tokens.discard(token)
        self._at = at
        if self._store.head.find_claim(token) is not None:
            self._store.update(lambda head: self._expire_claim(head, token, str(facts["message"])))
        self.finish("", unpack_error(facts))

    def postpone(self, token: int, why: str, live: Collection[int], at: datetime) -> None:
        """Release the claim with *token*, to be tried again later: no worker could start it."""
        record = {"status": str(OutcomeStatus.INTERRUPTED), "error": why[:NOTE_CHARS]}
        ending = {"kind": str(ContinuationKind.BACK)}
        report = AttemptReport(record, ending=ending, postponed=why[:NOTE_CHARS])
        self.record(token, report, live, at, jitter=0.0, may_claim=False, is_in_history=False)

    def _expire_claim(self, head: Head | None, token: int, reason: str) -> Transition | None:
        return None if head is None else self._changes.kind.expire(head, token, reason, at=self._at)

    def _bind_changes(self, changes: Changes) -> Changes:
        """Make *changes* use the time that callers of this work order pass in."""
        changes.now = lambda: self._at
        self._changes = changes
        return changes

    @property
    def _busy(self) -> set[int]:
        """Return the tokens of its attempts that are running."""
        return self._tokens.intersection(self._live)

    def _drop_vanished_claims(self, head: Head) -> Head:
        """Return *head* without claims whose attempts have vanished: they block nothing."""
        return head.drop_claims({claim.token for claim in head.claims}.difference(self._live))

    def _expired_tokens(self, head: Head) -> frozenset[int]:
        return frozenset(claim.token for claim in head.claims if claim.token not in self._live)

    def _wait(self, message: str) -> None:
        """Wait for others; *message* says for what.

        Raises:
            ClaimHeld: it has waited as long as it may.
        """
        max_wait_s = 0.0 if self._mode is Mode.TICK else self._limits.max_wait_s
        if max_wait_s is None and (self.waits_by_default or self._mode is Mode.SYNC):
            return
        self._waiting_since = self._waiting_since or self._at
        deadline = self._waiting_since + timedelta(seconds=min(max_wait_s or 0.0, MAX_TIMER_S))
        if deadline <= self._at:
            raise ClaimHeld(message, hint="wait for it with --max-wait")
        self.until = deadline if self.until is None else min(deadline, self.until)


class SequenceWorkOrder(WorkOrder):
    """A work order for a run of a cycle or a procedure."""

    budget: SequenceBudget
    waits_by_default = False

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        super().__init__(data, store)
        self._bind_changes(make_changes(cast("Store", store), self.workflow))
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

    def _collect_facts(self, tried_at: datetime | None) -> SequenceSeen:
        head, busy, expired_tokens = (
            self._store.head,
            self._busy,
            self._expired_tokens(self._store.head),
        )
        if not busy:
            ensure_definition(head, self.workflow)
        self.budget.observe(head)
        return SequenceSeen(
            head,
            self._at,
            self._changes.kind,
            self.budget,
            expired_tokens=expired_tokens,
            running=busy,
            tried_at=tried_at,
        )

    def _expire(self, move: RecordExpired) -> list[int]:
        del move
        self._store.update(self._expire_waits)
        return []

    def ticket(self, token: int) -> Ticket:
        budget = self.budget.allowance(self._store.head)
        return Ticket(token, budget.cost_usd, budget.timeout_s, self._has_code)

    def _expire_waits(self, head: Head | None) -> Transition | None:
        return None if head is None else self._changes.kind.expire_waits(head, at=self._at)

    def _capacity(self, head: Head) -> Capacity:
        """Return the capacity for the sequence's next step."""
        return Capacity(
            owner=build_run_owner(head.run_id),
            ttl_s=self.ttl_s,
            boottime=None,
            slots=1,
            expired_tokens=self._expired_tokens(head),
            limits=self._run_limits,
        )

    def _to_result(self, report: AttemptReport, claim: Claim) -> AttemptResult:
        ref = find_current_ref(self.workflow, self._store.head)
        return unpack_result(report, claim, ref, step_at(self.workflow, ref), self.workflow)

    def _record_end(self, result: AttemptResult, report: AttemptReport) -> list[int]:
        self.budget.count(result)
        next_place = result.ending.next_place
        may_claim = self._may_claim and report.raised is None
        may_claim = (
            may_claim and next_place is not None and self.budget.is_mine(next_place.step_index)
        )

        def capacity(head: Head) -> Capacity | None:
            may_continue = may_claim and self.budget.find_reached_limit(head) is None
            if not may_continue or not has_definition(head, self.workflow):
                return None
            return self._capacity(head)

        kind, run_id = self._changes.kind, self._store.head.run_id
        head, new_tokens = self._changes.update(
            lambda change: kind.apply_result(change, result), capacity, run_id=run_id
        )
        if report.raised is not None:
            self.finish("", unpack_error(report.raised))
        elif report.left is not None and report.left == self.by:
            text = f"interrupted in step {result.place.step!r}; the claim was released"
            self.finish("", Interrupted(text, hint="start again to continue"))
        self.budget.ensure_goes_on(result, head)
        return new_tokens


class GraphWorkOrder(WorkOrder):
    """A work order for a run of a flowchart."""

    budget: GraphBudget
    waits_by_default = True

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        super().__init__(data, store)
        rules, capacity_rule, expander = data.get("team"), None, None
        # All workers must decide the same, even if a project disables the plug-in.
        if rules is not None:
            graphs = TASK_GRAPHS.get(even_disabled=True) or TASK_GRAPHS.require()
            capacity_rule, expander = graphs.load(rules)
        self._capacity_rule = capacity_rule
        self._nodes = MemoGraphChanges(cast("Store", store), self.workflow, expander)
        self._bind_changes(self._nodes)
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
        self._shares = BudgetShares(
            self._run_limits, self._capacity_rule, build_run_owner(store.head.run_id)
        )
        self._shares.own_usd = self.budget.usd_left

    def _collect_facts(self, tried_at: datetime | None) -> GraphSeen:
        head, marking = self._nodes.marking(self._store.head)
        ensure_definition(head, self.workflow)
        return GraphSeen(
            self._drop_vanished_claims(head),
            self._at,
            marking,
            self._nodes.graph_kind,
            self.budget,
            expired_tokens=self._expired_tokens(head),
            running=self._busy,
            is_stopped=self._is_leaving,
            tried_at=tried_at,
        )

    def _expire(self, move: RecordExpired) -> list[int]:
        new_tokens: list[int] = []
        for act in move.acts:
            new_tokens += self._grant(self._nodes.update(act, self._capacity)[1])
        return new_tokens

    def ticket(self, token: int) -> Ticket:
        """Return the ticket for the worker of the attempt with *token*.

        It sets no cost limit of its own: the claim's share already limits the cost.
        """
        return Ticket(token, None, self._limits.step_timeout_s, self._has_code)

    def _capacity(self, head: Head) -> Capacity:
        """Return how many nodes may start now, and which: none if no claim is allowed."""
        expired_tokens, limits = self._expired_tokens(head), self._run_limits
        free_slots = self.budget.slots(len(self._busy)) if self._may_claim else 0
        return Capacity(
            owner=build_run_owner(head.run_id),
            ttl_s=self.ttl_s,
            # The time since the boot of a worker means nothing on the server.
            boottime=None,
            slots=count_slots(head, limits, free_slots, expired_tokens, self._at),
            expired_tokens=expired_tokens,
            limits=limits,
            closed=partial(self._shares.find_closed, expired=expired_tokens),
            share=partial(self._shares.compute_share, expired=expired_tokens),
        )

    def _to_result(self, report: AttemptReport, claim: Claim) -> AttemptResult:
        _, marking = self._nodes.marking(self._store.head)
        workflow = self._nodes.graph_kind.workflow_at(marking)
        step, ref = workflow.steps_by_name[claim.step], StepRef(claim.step_index, claim.step, "")
        result = unpack_result(report, claim, ref, step, workflow)
        if (name := report.reference) is None:
            return result
        outputs = self._store.outputs if report.said is None else self._store.short_texts
        outputs[name] = result.outcome.output
        return replace(result, reference=name)

    def _record_end(self, result: AttemptResult, report: AttemptReport) -> list[int]:
        error = None if report.raised is None else unpack_error(report.raised)
        outcome, step, results = result.outcome, result.place.step, list[RecordedResult]()
        self.budget.count_attempt()
        if error is None:
            self.budget.count(step, outcome)

        def act(change: OpenTransition) -> None:
            results.append(self._nodes.graph_kind.apply_result(change, result))
            if self._capacity_rule is not None:
                self._capacity_rule.warn_about_limits(change)

        run_id = self._store.head.run_id
        if isinstance(error, SequencerError) and not isinstance(error, MachineBusy):
            self._may_claim = False
            self.finish("", error)
        self._is_leaving = self._is_leaving or report.left == self.by
        new_tokens = self._nodes.update(act, self._capacity, run_id=run_id)[1]
        self.budget.correct_counts(
            step, None if error else outcome, results[-1] if results else None
        )
        if isinstance(error, MachineBusy) and not self._busy and not new_tokens:
            self.finish("", error)
        return new_tokens


WORK_ORDERS: Mapping[str, type[SequenceWorkOrder | GraphWorkOrder]] = {"graph": GraphWorkOrder}
"""Work orders by kind of workflow; every other kind is a sequence of steps."""


def read_work_order(data: Mapping[str, Any], store: MemoStore) -> WorkOrder:
    """Return the work order in the *data* that a process sent."""
    return WORK_ORDERS.get(data["workflow"].get("kind", ""), SequenceWorkOrder)(data, store)
