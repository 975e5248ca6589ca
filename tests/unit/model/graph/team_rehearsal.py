"""Random teams on a virtual clock: each event is a transition that is written and read back.

Tasks end well, fail, say no, add others, are given back, or their process dies. Two processes
share the run. What was kept is compared with what is read after every transition.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from sequencer import (
    Claim,
    Edge,
    Fact,
    Graph,
    Head,
    Node,
    NodeKind,
    Outcome,
    OutcomeStatus,
    RunLimits,
    Usage,
)
from sequencer.errors import ConfigurationError
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.graph import TaskExpansion
from sequencer.model.graph.marking import FlowStatus, Marking
from sequencer.model.graph.task import TaskTraits
from sequencer.model.graph.transition import OpenTransition, build_transition, resting_status
from sequencer.model.head import Flow
from sequencer.model.kind import Capacity
from sequencer.plugins.teams.graphs import build_task_workflow, expand_by_tasks
from sequencer.plugins.teams.team import Task
from tests.contract.store_cases import STRANGER, new_head
from tests.unit.model.graph.flow_rehearsal import ensure_same, with_document

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTS = ("ok", "ok", "ok", "ok", "fail", "retry", "no", "no-fix", "grow", "release", "die")
MAX_HEAD_BYTES = 4096
MAX_EVENTS = 400
MAX_NODES = 20
"""After which nothing is added any more."""


def tasks_of(
    random: Random, size: int, *, prefix: str = "t", after: tuple[str, ...] = ()
) -> list[Task]:
    """Return tasks each of which waits for some before it in the list, and for some of *after*."""
    made: list[Task] = []
    for number in range(size):
        known = [*after, *(one.id for one in made)]
        blockers = random.sample(known, min(len(known), random.choice([0, 0, 1, 1, 2, 3])))
        name = f"{prefix}{number}"
        weight = random.choice([1, 1, 2, 3, 7])
        needs = random.choice(["all", "any", random.randint(1, max(len(blockers), 1))])
        fields = {"blocked_by": blockers, "weight": weight, "needs": needs if blockers else "all"}
        made.append(Task.model_validate({"id": name, "subject": name, **fields}))
    random.shuffle(made)
    return made


def graph_of(tasks: list[Task], size: int | None) -> Graph:
    graph = build_task_workflow("team", tasks, {}, size=size).graph
    assert graph is not None
    return graph


def may_miss(graph: Graph, name: str, missing: Collection[str]) -> bool:
    """Return whether task *name* may begin without the tasks *missing*, by its own words."""
    traits = {one: node.task or TaskTraits() for one, node in graph.by_id.items()}
    inputs = [one for one in graph.incoming[name] if traits[one].fixes != name]
    needs = traits[name].needs
    least = {"all": len(inputs), "any": 1}.get(str(needs), needs)
    return set(missing) <= set(inputs) and len(inputs) - len(missing) >= int(least)


def length(graph: Graph, name: str) -> int:
    """Return how long task *name* takes, in milliseconds."""
    task = graph.by_id[name].task
    assert task is not None
    return round(task.weight * 1000)


@dataclass
class Story:
    """What was seen of one run."""

    claimed: list[str] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    """When each task was accepted, in milliseconds."""
    begun: dict[str, int] = field(default_factory=dict)
    """When its last attempt began."""
    failed: set[str] = field(default_factory=set)
    """Those that have failed for good."""
    held_back: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """Who has waited for an adder, and what it added."""
    events: dict[str, int] = field(default_factory=dict)
    most_claims: int = 0
    biggest_head: int = 0


class TeamRehearsal:
    """One team's run; *parts* are what may happen at the end of an attempt."""

    def __init__(
        self,
        graph: Graph,
        random: Random,
        *,
        places: int = 100,
        parts: tuple[str, ...] = ("ok",),
    ) -> None:
        self.first, self.random, self.places, self.parts = graph, random, places, parts
        self.head: Head = new_head(flow=Flow(marking={}))
        self.documents: dict[str, bytes] = {}
        self.kept = Marking(graph)
        """By operations alone; never read."""
        self.now = 0
        self.story = Story()
        self._ends: list[tuple[int, int, str]] = []
        """When, the token (0: a try is due), the task."""
        self._gone: set[int] = set()
        self._read = self.read()
        """Of the head: what another process would have."""

    def read(self) -> tuple[Marking, flow_record.Chain]:
        assert self.head.flow is not None
        return flow_record.read(self.first, self.head.flow, self.documents.__getitem__)

    # --- a transition --------------------------------------------------------------

    def update(self, act: Callable[[OpenTransition], None]) -> None:
        marking, chain = self._read
        moment = START + timedelta(milliseconds=self.now)
        step = OpenTransition(self.head, marking, moment, lambda *_: ("", None))
        act(step)
        step.settle(self._room())
        made = build_transition(step)
        flow = self.head.flow
        written = flow_record.write(
            marking, resting_status(marking), flow, chain, step.editor.operations
        )
        self.documents = with_document(self.documents, written, chain)
        text = made.head.replace(flow=written.flow).model_dump_json(exclude_defaults=True)
        self.head = Head.model_validate_json(text)
        for operation in step.editor.operations:
            self.kept.apply(operation)
        self._read = self.read()
        ensure_same(self.kept, self._read[0])
        if any(operation[0] == "grow" for operation in step.editor.operations):
            assert self.kept.graph == self._read[0].graph
            assert self.kept.graph.urgency == self._read[0].graph.urgency
        self._watch(text, made.facts)

    def _room(self) -> Capacity:
        live = [claim for claim in self.head.claims if claim.token not in self._gone]
        slots = max(self.places - len(live), 0)
        return Capacity(
            STRANGER, 60.0, 0.0, slots, frozenset(self._gone), limits=RunLimits(attempts=1000)
        )

    def _watch(self, text: str, facts: tuple[Fact, ...]) -> None:
        story, graph = self.story, self.kept.graph
        story.biggest_head = max(story.biggest_head, len(text.encode()))
        story.most_claims = max(story.most_claims, len(self.head.claims))
        held = {claim.step: claim for claim in self.head.claims}
        assert len(held) == len(self.head.claims), "one task is held twice"
        for fact in facts:
            if fact.event != "claimed":
                continue
            name = fact.step
            story.claimed.append(name)
            is_first = name not in story.begun
            story.begun[name] = self.now
            missing = [one for one in graph.incoming[name] if not self.kept.done.get(one)]
            if is_first:
                is_allowed = not missing or may_miss(graph, name, missing)
                assert is_allowed, f"{name} was begun before {missing}"
                assert all(map(self.is_hopeless, missing)), f"{name} was begun before {missing}"
            claim = held.get(name)
            if claim is not None and claim.token == fact.token:
                end = self.now + length(graph, name)
                heapq.heappush(self._ends, (end, claim.token, name))

    def is_hopeless(self, name: str) -> bool:
        """Return whether task *name* can't be done any more, by a search through all before it."""
        if name in self.story.failed or name in self.kept.done or name in self.kept.active:
            return name in self.story.failed
        before = self.kept.graph.incoming[name]
        missing = [one for one in before if self.is_hopeless(one)]
        return bool(missing) and not may_miss(self.kept.graph, name, missing)

    def is_needed(self, name: str) -> bool:
        """Return whether something was not done because of task *name*, or nothing follows it."""
        graph = self.kept.graph
        behind = {graph.edges[place].target for place in graph.outgoing[name]}
        never_begun = behind - self.kept.done.keys() - self.story.failed
        return not behind or any(map(self.is_needed, never_begun))

    def ensure_ended(self) -> None:
        """Check which tasks were not done, and whether that makes the run's end a bad one."""
        undone = self.kept.graph.by_id.keys() - self.kept.done.keys()
        assert {name for name in self.kept.graph.by_id if self.is_hopeless(name)} == undone
        needed = {name for name in self.story.failed if self.is_needed(name)}
        assert self.kept.lost.keys() == (needed or self.story.failed)
        expected = FlowStatus.FAILED if needed else FlowStatus.COMPLETED
        assert self.kept.status is expected

    # --- the clock -----------------------------------------------------------------

    def run(self) -> TeamRehearsal:
        self.update(lambda step: step.editor.begin())
        for _ in range(MAX_EVENTS):
            if self.kept.status is not FlowStatus.RUNNING:
                return self
            self.step()
        raise AssertionError("it goes on for ever")

    def step(self) -> None:
        """Let the next attempt end, or the next try come."""
        assert self._ends, "nothing is under way, and it is not over"
        due, token, name = heapq.heappop(self._ends)
        claim = self.head.find_claim(token) if token else None
        if token and (claim is None or token in self._gone):
            return
        self.now = max(self.now, due)
        self.update(self._event(claim, name) if claim is not None else lambda _: None)

    def _event(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        parts = self.parts
        if self.story.claimed.count(name) > 4 or len(self.kept.graph.nodes) > MAX_NODES:
            parts = ("ok",)
        part = self.random.choice(parts)
        self.story.events[part] = self.story.events.get(part, 0) + 1
        return getattr(self, f"_{part.replace('-', '_')}")(claim, name)  # type: ignore[no-any-return]

    @staticmethod
    def _outcome(status: OutcomeStatus) -> Outcome:
        usage = Usage(cost_usd=0.25, input_tokens=3, seconds=1)
        return Outcome(status=status, output="x", usage=usage)

    def _ok(
        self, claim: Claim, name: str, growth: TaskExpansion | None = None
    ) -> Callable[[OpenTransition], None]:
        self.story.ended[name] = self.now
        outcome, reference = self._outcome(OutcomeStatus.OK), f"0-{claim.token}"
        return lambda step: step.accept(claim.token, outcome, reference, {}, growth)

    def _grow(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        graph, count = self.kept.graph, len(self.kept.growths)
        done = tuple(one for one in graph.by_id if self.kept.done.get(one))
        made = tasks_of(self.random, self.random.randint(1, 5), prefix=f"g{count}.", after=done)
        try:
            growth = expand_by_tasks(graph, name, made, {})
        except ConfigurationError:
            # One of *done* went on without a task that waits for this one: they can't be placed.
            return self._ok(claim, name)
        added = frozenset(task.id for task in made)
        followers = {graph.edges[place].target for place in graph.outgoing[name]}
        self.story.held_back += [(follower, added) for follower in sorted(followers)]
        return self._ok(claim, name, growth)

    def _fail(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        self.story.failed.add(name)
        outcome = self._outcome(OutcomeStatus.FAILED)
        return lambda step: step.fail(claim.token, outcome, {}, due=None, kind="error")

    def _retry(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        outcome = self._outcome(OutcomeStatus.FAILED)
        moment = START + timedelta(milliseconds=self.now + 500)
        due = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        heapq.heappush(self._ends, (self.now + 500, 0, name))
        return lambda step: step.fail(claim.token, outcome, {}, due=due, kind="error")

    def _no(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        count = len(self.kept.growths)
        fix = Node(id=f"fix{count}", kind=NodeKind.AGENT, task=TaskTraits(fixes=name))
        growth = TaskExpansion(nodes=(fix,), edges=(Edge(source=fix.id, target=name),))
        outcome = self._outcome(OutcomeStatus.FAILED)
        return lambda step: step.refuse(claim.token, outcome, {}, growth)

    def _no_fix(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        del name
        outcome = self._outcome(OutcomeStatus.FAILED)
        return lambda step: step.refuse(claim.token, outcome, {}, None)

    def _release(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        del name
        return lambda step: step.release(claim.token, None, Usage(cost_usd=0.25))

    def _die(self, claim: Claim, name: str) -> Callable[[OpenTransition], None]:
        """Let the holder die: its claim is taken over."""
        del name
        self._gone.add(claim.token)
        return lambda _: None
