"""A transition of a graph run under construction; the caller stores its result and marking."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sequencer.errors import StepFailed, StorageFailed, TransitionRefused, format_command
from sequencer.model import transitions
from sequencer.model.graph.choices import shorten
from sequencer.model.graph.graph import NodeKind, TaskExpansion
from sequencer.model.graph.marking import Active, FlowStatus, Marking, Reference
from sequencer.model.graph.record import Chain
from sequencer.model.graph.rules import RETRYABLE, FlowFact, MarkingEditor
from sequencer.model.head import Claim, Head, Status
from sequencer.model.kind import Capacity
from sequencer.model.limits import LATEST_RESET_S, format_utc_ms, format_utc_s
from sequencer.model.outcome import Decision, Outcome, Usage
from sequencer.model.transitions import Event, Fact, Transition, require_claim, update_head

LONGEST_PAUSE = timedelta(seconds=LATEST_RESET_S, days=1)
"""No attempt is put off for longer."""


def is_resting(active: Active) -> bool:
    """Return whether an execution waits for its next attempt."""
    return active.due is not None and active.since is None


def busy_ms(head: Head, marking: Marking, now: datetime) -> int:
    """Return how long agents have worked until *now*, in milliseconds.

    While *head* has no claims, only the waits for next attempts count, and only until their due
    dates. While the run is on hold, no time counts.
    """
    if marking.busy_since is None or head.is_on_hold:
        return marking.busy_ms
    end = now
    if not head.claims:
        resting_executions = filter(is_resting, marking.active.values())
        dues = [execution.due for execution in resting_executions if execution.due]
        end = min(now, datetime.fromisoformat(max(dues, default=marking.busy_since)))
    seconds = (end - datetime.fromisoformat(marking.busy_since)).total_seconds()
    return marking.busy_ms + max(round(seconds * 1000), 0)


def add_milliseconds(now: datetime, milliseconds: int) -> str:
    """Return the time *milliseconds* after *now* in the format of heads."""
    return format_utc_ms(now + timedelta(milliseconds=milliseconds))


def describe_failures(marking: Marking) -> str:
    """Return the permanent failures in words; a graph of tasks may have several."""
    failure = marking.failure or {}
    if not marking.graph.has_tasks:
        return f"node {marking.quote_node(failure.get('node'))} failed: {failure.get('message')}"
    return _describe_failed_tasks(marking.lost) or str(failure.get("message"))


def _describe_failed_tasks(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(f"task {name!r} failed: {info.get('message')}" for name, info in tasks.items())


def ensure_none_failed(head: Head, marking: Marking, reason: str) -> None:
    """Check that no needed task has failed when *reason* ends the work.

    Raises:
        StepFailed: a task has failed; the end is not a success then, even if a limit caused it.
    """
    if failures := marking.find_needed_failures():
        retry_command = format_command(head.run_name, "retry")
        raise StepFailed(
            f"{_describe_failed_tasks(failures)}; {reason}",
            hint=f"raise the limit; {retry_command} puts back what has failed",
        )


def bad_end_error(head: Head, marking: Marking) -> StepFailed:
    """Return the error for a run that ended badly; the same end always gives the same error."""
    error = marking.error or {}
    failure_text = f"node {marking.quote_node(error.get('node'))} failed ({error.get('message')})"
    message = {
        FlowStatus.COMPLETED_AFTER_ERROR: f"{failure_text}; the error node ran",
        FlowStatus.FAILED: describe_failures(marking),
        FlowStatus.TIMED_OUT: f"its agents took longer than {marking.graph.timeout_ms} ms",
        FlowStatus.MAX_ITERATIONS: f"it looped more than {marking.graph.max_iterations} times",
    }
    hint = f"{format_command(head.run_name, 'history')} shows what happened"
    if source := marking.find_answering_node():
        hint += f"; {format_command(head.run_name, 'rewind', source)} goes back, to another answer"
    elif marking.ended_at:
        hint += f"; {format_command(head.run_name, 'retry')} puts the nodes back that were stopped"
    return StepFailed(
        f"the run ended as {marking.status}: {message.get(marking.status, '')}",
        where=f"run {head.run_name}" if head.run_name else "the default run",
        hint=hint,
    )


NOTE_CHARS = 2000
"""Limit for the error of an attempt in the note for the next one."""
Pass = Callable[[Marking, str], tuple[str, Reference | None]]
"""Returns the output of a node that does no work, and its reference: what reached the node."""


class OpenTransition:
    """One transition under construction; `build_transition` completes it."""

    def __init__(
        self, head: Head, marking: Marking, now: datetime, hand_on: Pass, chain: Chain | None = None
    ) -> None:
        """Start without changes; *chain* has the documents with the marking of *head*."""
        self.head = self.before = head
        self.marking, self.editor = marking, MarkingEditor(marking)
        self.now, self.at, self.hand_on = now, format_utc_s(now), hand_on
        self.chain = Chain() if chain is None else chain
        self.facts: list[Fact] = []
        self.granted: list[int] = []
        """Tokens of the claims that this transition grants."""
        self.longest_taken_over_s = 0.0
        """The longest lease of the claims that this transition takes over."""
        is_limited = marking.graph.timeout_ms is not None
        self.spent_ms = busy_ms(head, marking, now) if is_limited else 0
        """The agents' time until now, computed before the transition changes anything."""
        self._closed_names: Collection[str] = ()
        """The nodes that the limits of the capacity close."""
        self._passing: list[int] = []
        """Active nodes that do no work and must be left, as a heap by order."""

    # --- an attempt ended ----------------------------------------------------------

    def accept(
        self,
        token: int,
        outcome: Outcome,
        reference: Reference | None,
        record: Mapping[str, Any],
        growth: TaskExpansion | None = None,
        *,
        decision: Decision | None = None,
    ) -> None:
        """Accept the result of the holder of *token*; its answer may add *growth* to the graph.

        A hook's *decision* may say where the run goes, or that it is complete.

        Raises:
            StaleClaim: the claim is no longer in the head.
        """
        claim = self._end_claim(token, outcome.usage, steps=1)
        index = self.head.step_index + 1
        self.head = self.head.replace(
            step_index=index,
            iteration=index + 1,
            last_prompt=outcome.prompt or self.head.last_prompt,
        )
        ledger = self.marking.ledger
        if ledger.streak or claim.step in ledger.notes:
            self.editor.do("team", "accepted", claim.step)
        if growth is not None:
            # Before its tokens move: nodes that wait for it also wait for what it adds.
            self.editor.do("grow", growth.as_json())
        self.editor.succeed(claim.step, outcome.output, reference, decision=decision)
        if growth is not None:
            self.editor.report_expansion(growth, claim.step)
        self._move_facts(claim, record)

    def refuse(
        self,
        token: int,
        outcome: Outcome,
        record: Mapping[str, Any],
        fix: TaskExpansion | None,
    ) -> None:
        """Record the "no" of a task that judges; *fix* runs before it judges again.

        Raises: see `accept`.
        """
        claim = self._end_claim(token, outcome.usage)
        self.editor.refuse(claim.step, (outcome.error or "").strip(), fix)
        self._move_facts(claim, record)

    def fail(
        self, token: int, outcome: Outcome, record: Mapping[str, Any], *, due: str | None, kind: str
    ) -> None:
        """Record that the attempt with *token* failed; the next one is at *due*, if one is left.

        Raises: see `accept`.
        """
        claim = self._end_claim(token, outcome.usage)
        message = (outcome.error or "no reason given").strip()
        if self.marking.graph.has_tasks:
            self.editor.do("team", "failed", claim.step, shorten(message, NOTE_CHARS))
        if kind in RETRYABLE or due is not None:
            self.editor.fail_attempt(claim.step, message, due, kind)
        else:
            self.editor.fail(claim.step, kind, message)
        self._move_facts(claim, record)

    def release(
        self,
        token: int,
        record: Mapping[str, Any] | None,
        usage: Usage,
        due: str | None = None,
        *,
        is_given_back: bool = False,
    ) -> None:
        """Release the claim; nothing failed, and an attempt that *is_given_back* doesn't count.

        Raises: see `accept`.
        """
        claim = self._end_claim(token, usage)
        given_back = (True,) if is_given_back else ()
        self.editor.do("drop", claim.step, due, *given_back)
        self._report(Event.RELEASED, claim, record)

    def charge(self, claim: Claim, usage: Usage, record: Mapping[str, Any]) -> None:
        """Count the *usage* of an attempt whose *claim* is gone; its result does not count."""
        self.head = self.head.replace(usage=self.head.usage.plus(usage, steps=0))
        self._spend(claim, usage)
        self._report(Event.RELEASED, claim, record)

    def _end_claim(self, token: int, usage: Usage, steps: int = 0) -> Claim:
        claim = require_claim(self.head, token)
        self.head = self.head.replace(
            claims=transitions.claims_without(self.head, token),
            usage=self.head.usage.plus(usage, steps=steps),
        )
        self._spend(claim, usage)
        return claim

    def _spend(self, claim: Claim, usage: Usage) -> None:
        """Count *usage* for the task of *claim* as well."""
        tokens = usage.input_tokens + usage.output_tokens
        exists = claim.step in self.marking.graph.by_id
        has_cost = usage.cost_usd or tokens or usage.seconds
        if has_cost and exists and self.marking.graph.has_tasks:
            amounts = round(usage.cost_usd, 9), tokens, round(usage.seconds, 3)
            self.editor.do("team", "spend", claim.step, *amounts)

    def _report(self, event: Event, claim: Claim, outcome: Mapping[str, Any] | None) -> None:
        fact = Fact(event, claim.step, claim.step_index, claim.token, claim.attempt, outcome)
        self.facts.append(fact)

    # --- people, time and ends -----------------------------------------------------

    def answer(
        self, name: str, text: str, reference: Reference | None, record: Mapping[str, Any]
    ) -> None:
        """Accept a person's answer to the question of the node *name*."""
        execution = self.marking.active[name]
        self.editor.succeed(name, text, reference)
        self._move_facts(None, record, token=execution.token)

    def expire(self, name: str) -> None:
        """Expire the question of the node *name*."""
        token = self.marking.active[name].token
        self.editor.expire(name)
        self._move_facts(None, {}, token=token)

    def time_out(self) -> None:
        """End the run because its agents took too long."""
        self.editor.time_out()
        self._move_facts(None, {})

    def cancel(self, record: Mapping[str, Any]) -> None:
        """End the run because a person decided so."""
        self.editor.cancel()
        self._move_facts(None, record)

    def tell(self, name: str, reference: str, record: Mapping[str, Any]) -> None:
        """Record a message to node *name*, whose text is at *reference*, under the newest token."""
        self.editor.do("team", "tell", name, reference, record.get("by", ""), self.at)
        head = self.head
        self.facts.append(Fact(Event.TOLD, name, head.step_index, head.token, 0, record))

    def complete_node(
        self,
        name: str,
        event: Event,
        output: str,
        reference: Reference | None,
        record: Mapping[str, Any],
    ) -> None:
        """Complete the active node *name* with *output*; if it is accepted, it counts as a step."""
        ledger = self.marking.ledger
        if ledger.streak or name in ledger.notes:
            self.editor.do("team", "accepted", name)
        self.editor.succeed(name, output, reference, event)
        self._move_facts(None, record)
        if event is Event.STAMPED:
            head, index = self.head, self.head.step_index + 1
            usage = head.usage.plus(Usage(steps=1))
            self.head = head.replace(step_index=index, iteration=index + 1, usage=usage)

    def fail_node(self, name: str, message: str, record: Mapping[str, Any]) -> None:
        """Fail the active node *name* permanently."""
        self.editor.report(Event.STAMPED, name, **record)
        self.editor.fail(name, "ByHand", message)
        self._move_facts(None, {})

    def rewind(
        self, name: str, region: list[str], tokens: list[list[Any]], again: list[str]
    ) -> None:
        """Take back *region*, the nodes from *name* on, and add *tokens*; *again* run again."""
        self.editor.do("rewind", region, tokens)
        self.head = self.head.replace(exit_reason=None)
        details = {"note": f"to {name}", "again": again}
        self.facts.append(Fact(Event.REWOUND, name, self.head.step_index, outcome=details))

    def restore_tokens(self) -> None:
        """Put back the tokens that were there when the run ended."""
        self.editor.do("restore")
        self.head = self.head.replace(exit_reason=None)
        self._resume_active()

    def warn(self, what: str, message: str) -> None:
        """Record a warning once."""
        self.editor.do("team", "warn", what)
        self.facts.append(Fact(Event.WARNED, "", self.head.step_index, outcome={"note": message}))

    def restore(self, only: str | None = None) -> None:
        """Put back the tokens that were there when the run failed, or make tries due immediately.

        With *only*, do this for that node alone; other failed tasks stay failed.

        Raises:
            TransitionRefused: nothing failed, and nothing waits for its next try.
        """
        marking, subject = self.marking, "nothing" if only is None else f"{only!r} has not"
        streak = marking.ledger.failures
        if marking.graph.has_tasks:
            self.editor.do("team", "again")
        if marking.ended_at:
            lost_errors = marking.lost
            self._report_command(f"retry: the run was {marking.status}")
            self.restore_tokens()
            for name, error in lost_errors.items():
                if only not in (None, name):
                    self.editor.do("block", name, error)
            return
        tries = [name for name, entry in marking.active.items() if is_resting(entry)]
        faults = list(marking.find_needed_failures() if only is None else marking.failed)
        if only is not None:
            tries, faults = ([only] if only in names else [] for names in (tries, faults))
        if not tries and not faults and (not streak or only is not None):
            raise TransitionRefused(
                f"retry: {subject} failed, and "
                f"{'no node waits' if only is None else 'does not wait'} for another try",
                hint="'sequencer status' shows where the run is",
            )
        for name in tries:
            self.editor.do("drop", name, None)
        for name in faults:
            self.editor.do("unblock", name)
        names = ", ".join([*tries, *faults])
        self._report_command(
            f"retry: {names} at once" if names else "retry: failures count from 0 again"
        )

    def _resume_active(self) -> None:
        """Ask or pass the active nodes; agent nodes are claimed later, like released ones."""
        graph = self.editor.graph
        for name in tuple(self.marking.active):
            node = graph.by_id[name]
            if node.kind is NodeKind.HUMAN:
                self.editor.report(Event.ASKED, name, again=True)
                self._ask(name, node.timeout_ms)
            elif not node.works:
                heapq.heappush(self._passing, graph.order[name])

    def _report_command(self, note: str) -> None:
        self.facts.append(Fact(Event.RESUMED, "", self.head.step_index, outcome={"note": note}))

    # --- what follows --------------------------------------------------------------

    def settle(self, capacity: Capacity | None) -> None:
        """Apply everything that follows automatically; claim what *capacity* allows."""
        closed_names: Collection[str] = ()
        slots_left, self._closed_names = 0, closed_names
        if capacity is not None:
            slots_left, closed_names = self._claim_again(capacity, capacity.slots)
        heap = self._passing
        marking, nodes, order = self.marking, self.editor.graph.nodes, self.editor.graph.order
        while marking.status is FlowStatus.RUNNING:
            can_claim = slots_left > 0 and self._is_below_max_parallel()
            name = marking.find_next_startable(agents=can_claim, closed=closed_names)
            if name is not None:
                is_agent = self.editor.graph.by_id[name].kind is NodeKind.AGENT
                token = self.head.token + 1 if is_agent else None
                node = self.editor.start(name, token)
                if is_agent and capacity is not None:
                    closed_names = self._grant(name, capacity, slots_left)
                    slots_left -= 1
                elif node.kind is NodeKind.HUMAN:
                    self._ask(name, node.timeout_ms)
                else:
                    self._move_facts(None, {})
                    heapq.heappush(heap, order[name])
                continue
            if not heap:
                break
            passed_name = nodes[heapq.heappop(heap)].id
            if passed_name in marking.active:
                self._pass(passed_name)
        self.editor.end_if_done()

    def _pass(self, name: str) -> None:
        """Leave a node that does no work."""
        try:
            text, reference = self.hand_on(self.marking, name)
        except StorageFailed as error:
            # Let only this node fail: otherwise the nodes before it could never be accepted.
            self.editor.fail(name, "Output", error.message)
        else:
            self.editor.succeed(name, text, reference)
        self._move_facts(None, {})

    def _is_below_max_parallel(self) -> bool:
        limit = self.editor.graph.max_parallel
        return limit is None or len(self.head.claims) < limit

    def _claim_again(self, capacity: Capacity, slots: int) -> tuple[int, Collection[str]]:
        """Claim active executions that no process holds; return slots left and closed nodes."""
        closed_names, expired = self._find_closed(capacity), capacity.expired_tokens
        claims = {claim.token: claim for claim in self.head.claims}
        order, nodes = self.editor.graph.urgency, self.editor.graph.by_id
        for name in sorted(self.marking.active, key=order.__getitem__):
            execution = self.marking.active.get(name)
            if execution is None or nodes[name].kind is not NodeKind.AGENT:
                continue
            claim = claims.get(execution.token)
            if claim is not None and claim.token in expired and name in closed_names:
                # It must not start again, and its holder is gone, so don't wait for it.
                self._take_over(claim, capacity.used.get(claim.token))
                self.editor.do("drop", name)
                continue
            if execution.error is not None or name in closed_names or slots <= 0:
                continue
            if claim is not None and claim.token not in expired:
                continue
            if not self._is_due(execution):
                continue
            if claim is not None:
                self._take_over(claim, capacity.used.get(claim.token))
            elif not self._is_below_max_parallel():
                continue
            if execution.attempt >= capacity.limits.attempts:
                message = f"started {execution.attempt} times without an end (limits.attempts)"
                self.editor.fail(name, "MaxAttempts", message)
                self._move_facts(None, {})
                continue
            self.editor.report(Event.CLAIMED, name, **execution.claim_details)
            self.editor.do("claim", name, self.head.token + 1)
            closed_names = self._grant(name, capacity, slots)
            slots -= 1
        return slots, closed_names

    def _is_due(self, execution: Active) -> bool:
        if execution.due is None:
            return True
        remaining_time = datetime.fromisoformat(execution.due) - self.now
        # No pause is this long: the date was set by a clock that was years ahead.
        return remaining_time <= timedelta(0) or remaining_time > LONGEST_PAUSE

    def _take_over(self, claim: Claim, usage: Usage | None) -> None:
        self.longest_taken_over_s = max(self.longest_taken_over_s, claim.ttl_s)
        self._end_claim(claim.token, usage or Usage())
        self.facts.append(transitions.take_over_fact(claim, usage))

    def _find_closed(self, capacity: Capacity, *, has_new_share: bool = True) -> Collection[str]:
        """Return the nodes that must not start now; ask for limits only after a new share."""
        if has_new_share:
            self._closed_names = capacity.closed(self.head, self.marking) or self._closed_names
        excluded_names = capacity.excluded(self.head, self.marking)
        return {*self._closed_names, *excluded_names} if excluded_names else self._closed_names

    def _grant(self, name: str, capacity: Capacity, slots: int) -> Collection[str]:
        """Add the claim of *name* with the next token, which the marking has already.

        Returns the nodes that must not start now.
        """
        token, max_claims = self.head.token + 1, self.editor.graph.max_parallel
        # If the graph limits how many work at once, other processes may use what is left.
        free_slots = slots if max_claims is None else max_claims - len(self.head.claims)
        share = capacity.share(self.head, self.marking, name, free_slots)
        new_claim = Claim(
            token=token,
            step=name,
            step_index=self.head.step_index,
            attempt=self.marking.active[name].attempt,
            owner=capacity.owner,
            claimed_at=self.at,
            ttl_s=capacity.ttl_s,
            claimed_boottime=capacity.boottime,
            **{f"share_{unit}": amount for unit, amount in share.items()},
        )
        self.head = self.head.replace(token=token, claims=(*self.head.claims, new_claim))
        self.granted.append(token)
        self._move_facts(new_claim, {})
        return self._find_closed(capacity, has_new_share=bool(share))

    def _ask(self, name: str, timeout_ms: int | None) -> None:
        token = self.head.token + 1
        self.head = self.head.replace(token=token)
        due_time = None if timeout_ms is None else add_milliseconds(self.now, timeout_ms)
        self.editor.do("ask", name, token, self.at, due_time)
        self._move_facts(None, {}, token=token)

    def _move_facts(
        self, claim: Claim | None, record: Mapping[str, Any], token: int | None = None
    ) -> None:
        """Move the facts from the editor to this transition; *record* goes with the first one."""
        for fact in self.editor.facts:
            self.facts.append(self._build_fact(fact, claim, record, token))
            record = {}
            if fact.event is Event.DIVERTED:
                # Every execution was canceled; the results of their holders must not count.
                self.head = self.head.replace(claims=())
        self.editor.facts.clear()

    def _build_fact(
        self, fact: FlowFact, claim: Claim | None, record: Mapping[str, Any], token: int | None
    ) -> Fact:
        outcome = {**record, **fact.details} or None
        if claim is not None and fact.node == claim.step:
            index, attempt = claim.step_index, claim.attempt
            return Fact(fact.event, fact.node, index, claim.token, attempt, outcome)
        return Fact(fact.event, fact.node, self.head.step_index, token or 0, 0, outcome)


ERROR_CHARS = 4000
"""Limit for the error of a run in its journal."""
ENDS_BADLY = (FlowStatus.FAILED, FlowStatus.TIMED_OUT, FlowStatus.MAX_ITERATIONS)


def resting_status(marking: Marking) -> Status:
    """Return the status of a run while no process works on it."""
    if marking.status in ENDS_BADLY:
        return Status.FAILED
    if marking.status is not FlowStatus.RUNNING:
        return Status.COMPLETE
    if marking.find_next_startable() is not None:
        return Status.WAITING_NEXT
    has_only_questions = all(execution.since is not None for execution in marking.active.values())
    return Status.WAITING_APPROVAL if has_only_questions else Status.WAITING_NEXT


def build_transition(step: OpenTransition) -> Transition:
    """Return the result of *step*; the caller has to store the marking in the head."""
    _count_time(step)
    marking = step.marking
    head = update_head(step.head, step.at, expected_step=_find_expected_node(marking))
    if marking.status is FlowStatus.RUNNING:
        return Transition(_refresh_status(head, marking), tuple(step.facts))
    is_new = step.head.flow is None or step.head.flow.status == FlowStatus.RUNNING
    if is_new:
        details = {"status": str(marking.status)}
        if marking.status is FlowStatus.FAILED:
            details["error"] = shorten(describe_failures(marking), ERROR_CHARS)
        step.facts.append(Fact(Event.COMPLETED, "", head.step_index, 0, 0, details))
    reason = None if marking.status is FlowStatus.COMPLETED else str(marking.status)
    head = head.replace(
        claims=(), status=resting_status(marking), pause_requested=False, exit_reason=reason
    )
    return Transition(head, tuple(step.facts))


def _refresh_status(head: Head, marking: Marking) -> Head:
    if head.claims:
        return head.replace(status=Status.RUNNING)
    if head.status is Status.PAUSED or head.pause_requested:
        return head.replace(status=Status.PAUSED, pause_requested=False)
    return head.replace(status=resting_status(marking))


def _find_expected_node(marking: Marking) -> str:
    """Return a node that comes next, for readers of the head alone."""
    return marking.find_next_startable() or next(iter(marking.active), "")


def _count_time(step: OpenTransition) -> None:
    """Record how long agents have worked, if the run has a limit for that."""
    marking = step.marking
    if marking.graph.timeout_ms is None:
        return
    time_ms = marking.busy_ms if marking.busy_since is None else step.spent_ms
    if step.longest_taken_over_s and marking.busy_since is not None:
        # As far as is known, its process worked no longer than its lease.
        time_ms = min(time_ms, marking.busy_ms + round(step.longest_taken_over_s * 1000))
    has_waits = any(map(is_resting, marking.active.values())) and not step.head.is_on_hold
    is_busy = marking.status is FlowStatus.RUNNING and (has_waits or bool(step.head.claims))
    # Not ``at``: it has whole seconds, and the lost fractions would add up with each change.
    start = add_milliseconds(step.now, 0) if is_busy else None
    if (time_ms, start) != (marking.busy_ms, marking.busy_since):
        step.editor.do("busy", time_ms, start)
