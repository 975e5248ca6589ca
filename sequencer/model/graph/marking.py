"""Where the tokens of a graph run are: the whole progress of one run, apart from its outputs.

A token is the right to run a node. It waits at the node until nothing else can still reach
the node along forward edges; then all tokens there merge into one execution. Every change
is one of a few operations on plain data (`Operation`), so that a marking can be written
down as a snapshot and the operations since; replayed, they give the same marking.

Kept in step with each operation, because no event may cost more than what it changes: how
many forward edges of each node come from a node that a token can still come through
(``_live_ways``), and the nodes that may start, by order.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from sequencer.model.graph.graph import Graph, NodeKind, TaskExpansion, grown_graph
from sequencer.model.graph.tally import Ledger, Tally

Operation = list[Any]
"""Its word, then its arguments; plain JSON."""
Reference = str | dict[str, Any]
"""Where an output is: ``<step_index>-<token>``; of several nodes at once a map by their ids."""


class FlowStatus(StrEnum):
    """How a graph run stands, or how it ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_AFTER_ERROR = "completed_after_error"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    MAX_ITERATIONS = "max_iterations"
    CANCELLED = "cancelled"


_RUNNING, _AGENT = FlowStatus.RUNNING, NodeKind.AGENT
"""An enum's members take a while to look up, and these are asked for several times a node."""


class Active(NamedTuple):
    """An execution of a node that has begun and has not ended."""

    sources: tuple[str, ...]
    """Where the merged tokens came from, as they arrived; empty at an entry."""
    token: int = 0
    """Of the claim, or of the question that a person is asked; 0: nobody holds it."""
    attempt: int = 0
    """Claims of this execution so far, those that were taken over included."""
    failures: int = 0
    due: str | None = None
    """ISO 8601 UTC: the next attempt, or the end of the wait for a person."""
    since: str | None = None
    """ISO 8601 UTC: when a person was asked."""
    error: dict[str, Any] | None = None
    """Of a team's task that has failed for good: why. What it blocks waits, the rest goes on."""

    def as_json(self) -> dict[str, Any]:
        """Return what differs from an execution that nobody has claimed."""
        found: dict[str, Any] = {"from": list(self.sources)}
        for name in ("token", "attempt", "failures", "due", "since", "error"):
            if value := getattr(self, name):
                found[name] = value
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Active:
        """Return what `as_json` has written."""
        rest = {name: value for name, value in data.items() if name != "from"}
        return cls(tuple(data["from"]), **rest)


@dataclass
class Marking:
    """The progress of one run; changed by `apply` only."""

    graph: Graph = field(repr=False)
    waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    """Tokens that wait at a node, by their sources, each source once, as they arrived."""
    active: dict[str, Active] = field(default_factory=dict)
    iterations: int = 0
    outputs: dict[str, Reference] = field(default_factory=dict)
    """The latest output of each node that has one."""
    keys: dict[str, str] = field(default_factory=dict)
    """Which node wrote a key of the state last, by key; dots as the author wrote them."""
    done: dict[str, int] = field(default_factory=dict)
    """How often each node was done."""
    error: dict[str, Any] | None = None
    """What made the run jump to its error node: node, type, message, attempts."""
    failure: dict[str, Any] | None = None
    """What the run ended with, in the same words."""
    status: FlowStatus = FlowStatus.RUNNING
    ended_at: list[list[Any]] = field(default_factory=list)
    """The tokens when the run stopped before its end, so that `retry` can put them back."""
    busy_ms: int = 0
    """Time in which an agent ran or waited for its next try, up to ``busy_since``."""
    busy_since: str | None = None
    lost: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of a team's run that is over: the tasks that have failed, and with what; where it has failed
    itself, only those that something still needs."""
    growths: list[TaskExpansion] = field(default_factory=list)
    """What was added to the graph since the run began, in order; ``graph`` has it all."""
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        """Work out what is derived."""
        self._count_anew()
        self.tally = Tally.of(self.graph, self.ledger)

    # --- reading -------------------------------------------------------------------

    def is_live(self, name: str) -> bool:
        """Return whether a token is at *name* or can still get there."""
        return name in self.waiting or name in self.active or self._live_ways.get(name, 0) != 0

    def may_start(self, name: str) -> bool:
        """Return whether the tokens at *name* have nobody to wait for any more."""
        return (
            name in self.waiting
            and name not in self.active
            and not self._live_ways.get(name)
            and self.status is _RUNNING
        )

    def next_startable(
        self, *, agents: bool = True, closed: Collection[str] = frozenset()
    ) -> str | None:
        """Return the first node in order that may start; without *agents*, the first other one.

        Agents' nodes that are *closed* are passed over.
        """
        passing = self._first_of(self._passing) if self._passing else None
        working = self._first_of(self._working, closed) if agents and self._working else None
        if passing is None or working is None:
            return passing or working
        order = self.graph.order
        return passing if order[passing] < order[working] else working

    def _first_of(self, heap: list[int], closed: Collection[str] = frozenset()) -> str | None:
        names = self.graph.by_urgency
        while heap:
            name = names[heap[0]]
            if self.may_start(name):
                return name if name not in closed else self._first_open(heap, closed)
            heapq.heappop(heap)
        return None

    def _first_open(self, heap: list[int], closed: Collection[str]) -> str | None:
        """Return the first of *heap* that may start and is not *closed*."""
        names = self.graph.by_urgency
        for place in sorted(heap):
            if names[place] not in closed and self.may_start(names[place]):
                return names[place]
        return None

    @property
    def is_over(self) -> bool:
        """Return whether no token is left."""
        return not self.waiting and not self.active

    @property
    def has_only_failed(self) -> bool:
        """Return whether every execution that has begun has failed for good, at least one."""
        # The newest first: what runs has begun later than most of what has failed.
        newest_first = reversed(self.active.values())
        return bool(self.active) and all(one.error is not None for one in newest_first)

    @property
    def failed(self) -> dict[str, dict[str, Any]]:
        """Return the tasks that have failed for good, with what they failed."""
        return {name: one.error for name, one in self.active.items() if one.error is not None}

    def has_begun(self, name: str) -> bool:
        """Return whether *name* is being executed, or was done before."""
        return name in self.active or name in self.done

    def titled(self, name: str | None) -> str:
        """Return the node *name* as an error is to name it, with its title."""
        node = self.graph.by_id.get(name or "")
        title = "" if node is None or node.task is not None else node.title
        return f"{name!r} ({title})" if title else repr(name)

    def answered_by(self) -> str | None:
        """Return whose output fitted no label at a node without work; None: it did not end so.

        Such a node would choose the same again, so a `retry` would end the run again.
        """
        failure = self.failure or {}
        node = self.graph.by_id.get(failure.get("node", ""))
        if node is None or node.works or failure.get("type") != "NoMatchingBranch":
            return None
        sources = (token[1] for token in self.ended_at if token[0] == node.id)
        return next((names[0] for names in sources if names), None)

    def needed(self) -> dict[str, dict[str, Any]]:
        """Return the failed tasks, without those that everything behind them went on without."""
        failed = self.failed
        if not (failed and self.graph.spares):
            return failed
        graph, lost = self.graph, self._hopeless()
        return {n: one for n, one in failed.items() if graph.is_needed(n, lost, self.has_begun)}

    def _hopeless(self) -> set[str]:
        return self.graph.hopeless(self.failed, self.has_begun) if self.graph.spares else set()

    # --- changing ------------------------------------------------------------------

    def apply(self, operation: Operation) -> None:
        """Change the marking; the words are the methods below that begin with ``_do_``."""
        _WORDS[operation[0]](self, *operation[1:])

    def _do_token(self, name: str, source: str | None = None) -> None:
        """Put a token on *name*; no source: at an entry."""
        sources = self.waiting.get(name)
        if sources is None:
            was_live = name in self.active or self._live_ways.get(name, 0) > 0
            self.waiting[name] = sources = {}
            if not was_live:
                self._spread(name)
            self._offer(name)
        if source is not None:
            sources[source] = None

    def _do_start(self, name: str, token: int = 0) -> None:
        """Let *name* begin with all its tokens; with *token* somebody has claimed it."""
        sources = tuple(self.waiting.pop(name))
        self.active[name] = Active(sources, token, attempt=1 if token else 0)

    def _do_claim(self, name: str, token: int) -> None:
        now = self.active[name]
        self.active[name] = now._replace(token=token, attempt=now.attempt + 1, due=None)

    def _do_ask(self, name: str, token: int, since: str, due: str | None = None) -> None:
        self.active[name] = self.active[name]._replace(token=token, since=since, due=due)

    def _do_drop(self, name: str, due: str | None = None) -> None:
        """Nobody holds the execution any more; the next claim comes not before *due*."""
        self.active[name] = self.active[name]._replace(token=0, due=due)

    def _do_fail(self, name: str, due: str) -> None:
        """An attempt failed, and the next one comes at *due*."""
        now = self.active[name]
        self.active[name] = now._replace(token=0, failures=now.failures + 1, due=due)

    def _do_block(self, name: str, error: dict[str, Any]) -> None:
        """The execution has failed for good, and holds back what comes behind it."""
        now = self.active[name]
        self.active[name] = now._replace(token=0, due=None, error=error)
        if self.graph.spares:
            self._let_go()

    def _let_go(self) -> None:
        """Let those wait no longer for what has failed that can do without it."""
        self._count_anew()
        lost = self._hopeless()
        released = {target for name in lost for target in self.graph.forward[name]} - lost
        for target in self.graph.spares:
            # All else that it waits for was done before it was added, and has left no token.
            if target in released and not self.is_live(target) and target not in self.done:
                self._do_token(target)

    def _do_unblock(self, name: str) -> None:
        """Let an execution that has failed begin its attempts anew."""
        self.active[name] = Active(self.active[name].sources)
        if self.graph.spares:
            self._count_anew()

    def _do_grow(self, growth: dict[str, Any]) -> None:
        """Add nodes to the graph; nothing has reached them yet."""
        self.growths.append(TaskExpansion.model_validate(growth))
        self.graph = grown_graph(self.graph, self.growths[-1])
        self._count_anew()

    def _do_team(self, word: str, *arguments: Any) -> None:
        self.ledger.apply(word, *arguments)
        if word == "spend":
            self.tally.add(self.graph, self.ledger, *arguments[:3])

    def _do_done(
        self, name: str, reference: Reference | None = None, key: str | None = None
    ) -> None:
        """Keep what the execution of *name* has said; it still holds its token."""
        self.done[name] = self.done.get(name, 0) + 1
        if reference is not None:
            self.outputs[name] = reference
        else:
            # Not what it said the time before.
            self.outputs.pop(name, None)
        if key is not None:
            for below in [known for known in self.keys if known.startswith(f"{key}.")]:
                del self.keys[below]
            self.keys.pop(key, None)
            self.keys[key] = name

    def _do_leave(self, name: str) -> None:
        """End the execution of *name*; the tokens that go on from it were put down before."""
        del self.active[name]
        if not self.is_live(name):
            self._wither(name)
        elif name in self.waiting:
            self._offer(name)

    def _do_follow(self, name: str, targets: list[str]) -> None:
        """Go on from *name* to *targets*."""
        for target in targets:
            self._do_token(target, name)
        self._do_leave(name)

    def _do_step(
        self,
        name: str,
        targets: list[str],
        reference: Reference | None = None,
        key: str | None = None,
    ) -> None:
        """Do what `done` and `follow` do: most executions end so."""
        self._do_done(name, reference, key)
        self._do_follow(name, targets)

    def _do_loop(self, count: int) -> None:
        self.iterations = count

    def _do_error(self, error: dict[str, Any]) -> None:
        self.error = error

    def _do_failure(self, error: dict[str, Any]) -> None:
        self.failure = error

    def _do_busy(self, milliseconds: int, since: str | None = None) -> None:
        self.busy_ms, self.busy_since = milliseconds, since

    def _do_clear(self) -> None:
        """Take every token away."""
        self.waiting, self.active = {}, {}
        self._count_anew()

    def _do_halt(self, status: str) -> None:
        """End the run before its end; the tokens are kept for `restore`."""
        self.lost = self.needed()
        spared = {name: [one] for name, one in self.failed.items() if name not in self.lost}
        self.ended_at = [[*token, *spared.get(token[0], ())] for token in self.tokens()]
        self._do_clear()
        self.status = FlowStatus(status)

    def _do_restore(self) -> None:
        """Put the tokens back that `halt` has kept; everything begins its attempts anew.

        A limit that has ended the run counts from nothing again; else it would end at once.
        """
        if self.status is FlowStatus.TIMED_OUT:
            self.busy_ms = 0
        if self.status is FlowStatus.MAX_ITERATIONS:
            self.iterations = 0
        self.status, self.failure = FlowStatus.RUNNING, None
        tokens, self.ended_at, self.lost = self.ended_at, [], {}
        for name, sources, is_active, *_ in tokens:
            self._do_token(name, None)
            self.waiting[name] |= dict.fromkeys(sources)
            if is_active:
                self._do_start(name)
        for name, _, _, *error in tokens:
            if error:
                # All that waited for it has begun without it.
                self._do_block(name, *error)

    def _do_rewind(self, region: list[str], tokens: list[list[Any]]) -> None:
        """Forget the nodes of *region*, and put down *tokens*: a node and its sources each."""
        for name in region:
            for known in (self.waiting, self.active, self.done, self.outputs, self.lost):
                known.pop(name, None)
            self.ledger.forget(name)
        self.keys = {key: name for key, name in self.keys.items() if name not in region}
        if self.error is not None and self.error.get("node") in region:
            self.error = None
        self.status, self.failure = FlowStatus.RUNNING, None
        for name, sources in tokens:
            self.waiting.setdefault(name, {}).update(dict.fromkeys(sources))
        self._count_anew()

    def _do_end(self, status: str) -> None:
        if self.active:
            # All else went on without these.
            self.lost = self.failed
            self._do_clear()
        self.status = FlowStatus(status)

    def tokens(self) -> list[list[Any]]:
        """Return every token: where it is, its sources, and whether its node has begun.

        Active ones come first, because a node may be both.
        """
        order = self.graph.order
        begun = sorted(self.active, key=order.__getitem__)
        found = [[name, list(self.active[name].sources), True] for name in begun]
        return found + [[name, list(self.waiting[name]), False] for name in self.waiting]

    # --- what is derived -----------------------------------------------------------

    def _count_anew(self) -> None:
        self._live_ways: dict[str, int] = {}
        self._passing: list[int] = []
        """Nodes that may start and need no place among the agents, a heap by urgency."""
        self._working: list[int] = []
        forward, pending = self.graph.forward, list({**self.waiting, **self.active})
        spares = self.graph.spares
        lost = self._hopeless()
        seen = set(pending)
        while pending:
            here = pending.pop()
            for target in forward[here]:
                if here in lost and target in spares and target not in lost:
                    continue
                self._live_ways[target] = self._live_ways.get(target, 0) + 1
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        for name in self.waiting:
            self._offer(name)

    def _spread(self, name: str) -> None:
        """Let everybody behind *name*, which has become live, know."""
        forward, pending = self.graph.forward, [name]
        while pending:
            here = pending.pop()
            for target in forward[here]:
                was_live = self.is_live(target)
                self._live_ways[target] = self._live_ways.get(target, 0) + 1
                if not was_live:
                    pending.append(target)

    def _wither(self, name: str) -> None:
        """Let everybody behind *name*, which has no token any more, know."""
        forward, pending = self.graph.forward, [name]
        while pending:
            here = pending.pop()
            for target in forward[here]:
                left = self._live_ways[target] - 1
                self._live_ways[target] = left
                if left:
                    continue
                if self.is_live(target):
                    self._offer(target)
                else:
                    pending.append(target)

    def _offer(self, name: str) -> None:
        if self.may_start(name):
            is_agent = self.graph.by_id[name].kind is _AGENT
            heap = self._working if is_agent else self._passing
            heapq.heappush(heap, self.graph.urgency[name])


_WORDS: dict[str, Callable[..., None]] = {
    name.removeprefix("_do_"): method
    for name, method in vars(Marking).items()
    if name.startswith("_do_")
}
"""What an operation's first item means."""


def carried(marking: Marking, name: str) -> Reference | None:
    """Return where the output is that reached the present execution of *name*.

    One source: its output. Several: a map from their ids, in the order of their arrival; of a
    source that itself hands on such a map, what is in that. Maps within maps would grow
    twofold with each pair of markers that one other marker joins.
    """
    sources = marking.active[name].sources
    if len(sources) == 1:
        return marking.outputs.get(sources[0])
    found: dict[str, Any] = {}
    for source in sources:
        reference = marking.outputs.get(source)
        found.update(reference if isinstance(reference, dict) else {source: reference})
    return found or None


def value_of(reference: Reference | None, read: Callable[[str], str]) -> Any:
    """Return the text at *reference*, or a map of texts; empty where nothing was said."""
    if reference is None:
        return ""
    if isinstance(reference, str):
        return read(reference)
    return {name: value_of(inner, read) for name, inner in reference.items()}


def text_of(reference: Reference | None, read: Callable[[str], str]) -> str:
    """Return the same as a text; a map as JSON on one line."""
    value = value_of(reference, read)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
