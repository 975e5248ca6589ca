"""The marking of a graph run: where its tokens are. With the outputs, it is all of the progress.

A token is the right to run a node. It waits at the node until no other token can reach the node
along forward edges; then all tokens there merge into one execution. Every change is one of a few
operations on plain data (`Operation`), so that a marking can be stored as a snapshot and the
operations after it; replaying them gives the same marking.

Each operation also updates two derived values, so that it costs no more than what it changes: how
many forward edges to each node may still bring a token (``_live_ways``), and the nodes that may
start, by order.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.model.graph.graph import Graph, NodeKind, TaskExpansion, expand_graph
from sequencer.model.graph.tally import Ledger, Tally

Operation = list[Any]
"""The name of the operation and its arguments; plain JSON."""
Reference = str | dict[str, Any]
"""Where an output is: ``<step_index>-<token>``, or a map from node ids for several outputs."""


class FlowStatus(StrEnum):
    """Whether a graph run is running, or how it ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    COMPLETED_AFTER_ERROR = "completed_after_error"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    MAX_ITERATIONS = "max_iterations"
    CANCELLED = "cancelled"


_RUNNING, _AGENT = FlowStatus.RUNNING, NodeKind.AGENT
"""Looking up a member of an enum is slow, and these are needed several times per node."""


class Active(Struct, frozen=True):
    """An execution of a node that has started and has not ended."""

    sources: tuple[str, ...]
    """Where the merged tokens came from, in order of arrival; empty at an entry."""
    token: int = 0
    """Token of the claim, or of the question to a person; 0: no process holds the execution."""
    attempt: int = 0
    """Claims of this execution so far, including those taken over but not those given back."""
    failures: int = 0
    due: str | None = None
    """ISO 8601 UTC: the next attempt, or the end of the wait for a person."""
    since: str | None = None
    """ISO 8601 UTC: when a person was asked."""
    error: dict[str, Any] | None = None
    """Why a task has failed permanently. The tasks that it blocks wait, and the others continue."""

    @property
    def claim_details(self) -> dict[str, Any]:
        """Return the details of the fact about its next claim."""
        if self.failures:
            return {"retry": self.failures + 1}
        # An attempt that was given back does not count, but leaves a date.
        is_again = self.attempt or self.due is not None
        return {"again": True} if is_again else {"from": list(self.sources)}

    def as_json(self) -> dict[str, Any]:
        """Return the sources, and every other field that has a value, as plain JSON."""
        data: dict[str, Any] = {"from": list(self.sources)}
        for name in ("token", "attempt", "failures", "due", "since", "error"):
            if value := getattr(self, name):
                data[name] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Active:
        """Return what `as_json` has written."""
        fields = {name: value for name, value in data.items() if name != "from"}
        return cls(tuple(data["from"]), **fields)


class Marking(Struct, dict=True):
    """The progress of one run; only `apply` changes it."""

    graph: Graph
    waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    """Node -> the sources of the tokens that wait there, each once, in order of arrival."""
    active: dict[str, Active] = field(default_factory=dict)
    iterations: int = 0
    outputs: dict[str, Reference] = field(default_factory=dict)
    """The latest output of each node that has one."""
    keys: dict[str, str] = field(default_factory=dict)
    """Key of the state -> the node that wrote it last; dots as the author wrote them."""
    done: dict[str, int] = field(default_factory=dict)
    """Node -> how often it was done."""
    error: dict[str, Any] | None = None
    """What made the run jump to its error node: node, type, message, attempts."""
    failure: dict[str, Any] | None = None
    """The error that ended the run, with the same keys."""
    status: FlowStatus = FlowStatus.RUNNING
    ended_at: list[list[Any]] = field(default_factory=list)
    """The tokens at the time when the run stopped early, so that `retry` can put them back."""
    busy_ms: int = 0
    """Time in which an agent ran or waited for its next try, up to ``busy_since``."""
    busy_since: str | None = None
    lost: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For a run with tasks that is over: the failed tasks and their errors; if the run itself
    failed, only the tasks that are still needed."""
    growths: list[TaskExpansion] = field(default_factory=list)
    """What was added to the graph since the run started, in order; ``graph`` includes it."""
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        """Compute the derived values."""
        self._recompute()
        self.tally = Tally.from_ledger(self.graph, self.ledger)

    # --- reading -------------------------------------------------------------------

    def is_live(self, name: str) -> bool:
        """Return whether a token is at *name* or can still get there."""
        return name in self.waiting or name in self.active or self._live_ways.get(name, 0) != 0

    def may_start(self, name: str) -> bool:
        """Return whether tokens are at *name* and no other token can arrive there first."""
        return (
            name in self.waiting
            and name not in self.active
            and not self._live_ways.get(name)
            and self.status is _RUNNING
        )

    def find_next_startable(
        self, *, agents: bool = True, closed: Collection[str] = frozenset()
    ) -> str | None:
        """Return the first node in order that may start.

        Agent nodes in *closed* are skipped, and all of them if *agents* is false.
        """
        passing_name = self._find_first(self._passing) if self._passing else None
        agent_node = self._find_first(self._working, closed) if agents and self._working else None
        if passing_name is None or agent_node is None:
            return passing_name or agent_node
        order = self.graph.order
        return passing_name if order[passing_name] < order[agent_node] else agent_node

    def _find_first(
        self, heap: list[int], closed_names: Collection[str] = frozenset()
    ) -> str | None:
        names = self.graph.by_urgency
        while heap:
            name = names[heap[0]]
            if self.may_start(name):
                return (
                    name if name not in closed_names else self._find_first_open(heap, closed_names)
                )
            heapq.heappop(heap)
        return None

    def _find_first_open(self, heap: list[int], closed_names: Collection[str]) -> str | None:
        """Return the first of *heap* that may start and is not in *closed_names*."""
        names = self.graph.by_urgency
        for rank in sorted(heap):
            if names[rank] not in closed_names and self.may_start(names[rank]):
                return names[rank]
        return None

    @property
    def is_over(self) -> bool:
        """Return whether no token is left."""
        return not self.waiting and not self.active

    @property
    def has_only_failed(self) -> bool:
        """Return whether there are active executions and all of them have failed permanently."""
        # Newest first: running executions usually started after the failed ones.
        executions = reversed(self.active.values())
        return bool(self.active) and all(execution.error is not None for execution in executions)

    @property
    def failed(self) -> dict[str, dict[str, Any]]:
        """Return the tasks that have failed permanently, with their errors."""
        return {
            name: execution.error
            for name, execution in self.active.items()
            if execution.error is not None
        }

    def has_started(self, name: str) -> bool:
        """Return whether *name* is active or was done before."""
        return name in self.active or name in self.done

    def quote_node(self, name: str | None) -> str:
        """Return the node *name* for an error message, with its title."""
        node = self.graph.by_id.get(name or "")
        title = "" if node is None or node.task is not None else node.title
        return f"{name!r} ({title})" if title else repr(name)

    def find_answering_node(self) -> str | None:
        """Return the node whose output ended the run, because it matched no label at a later node.

        The later node does no work, so a `retry` would end the run again. None: the run did not end
        like this.
        """
        failure = self.failure or {}
        node = self.graph.by_id.get(failure.get("node", ""))
        if node is None or node.works or failure.get("type") != "NoMatchingBranch":
            return None
        sources = (token[1] for token in self.ended_at if token[0] == node.id)
        return next((names[0] for names in sources if names), None)

    def find_needed_failures(self) -> dict[str, dict[str, Any]]:
        """Return the failed tasks except those that every later task continued without."""
        failures = self.failed
        if not (failures and self.graph.spares):
            return failures
        graph, hopeless_names = self.graph, self._find_hopeless()
        return {
            name: error
            for name, error in failures.items()
            if graph.is_needed(name, hopeless_names, self.has_started)
        }

    def _find_hopeless(self) -> set[str]:
        return (
            self.graph.find_hopeless(self.failed, self.has_started) if self.graph.spares else set()
        )

    # --- changing ------------------------------------------------------------------

    def apply(self, operation: Operation) -> None:
        """Change the marking; each method ``_do_NAME`` below is the operation NAME."""
        _WORDS[operation[0]](self, *operation[1:])

    def _do_token(self, name: str, source: str | None = None) -> None:
        """Put a token from *source* on *name*; None: it has no source, as at an entry."""
        sources = self.waiting.get(name)
        if sources is None:
            was_live = name in self.active or self._live_ways.get(name, 0) > 0
            self.waiting[name] = sources = {}
            if not was_live:
                self._propagate_live(name)
            self._push_startable(name)
        if source is not None:
            sources[source] = None

    def _do_start(self, name: str, token: int = 0) -> None:
        """Start *name* with all its tokens; with *token*, it is also claimed."""
        sources = tuple(self.waiting.pop(name))
        self.active[name] = Active(sources, token, attempt=1 if token else 0)

    def _do_claim(self, name: str, token: int) -> None:
        execution = self.active[name]
        self.active[name] = replace(execution, token=token, attempt=execution.attempt + 1, due=None)

    def _do_ask(self, name: str, token: int, since: str, due: str | None = None) -> None:
        self.active[name] = replace(self.active[name], token=token, since=since, due=due)

    def _do_drop(self, name: str, due: str | None = None, is_given_back: bool = False) -> None:
        """Release the execution; the next claim must not come before *due*.

        The attempt counts, unless it *is_given_back*.
        """
        execution = self.active[name]
        attempt = max(execution.attempt - int(is_given_back), 0)
        self.active[name] = replace(execution, token=0, due=due, attempt=attempt)

    def _do_fail(self, name: str, due: str) -> None:
        """Record that an attempt failed; the next one is due at *due*."""
        execution = self.active[name]
        self.active[name] = replace(execution, token=0, failures=execution.failures + 1, due=due)

    def _do_block(self, name: str, error: dict[str, Any]) -> None:
        """Record that the execution has failed permanently; it blocks the tasks after it."""
        execution = self.active[name]
        self.active[name] = replace(execution, token=0, due=None, error=error)
        if self.graph.spares:
            self._release_spared()

    def _release_spared(self) -> None:
        """Start the tasks that can do without the failed tasks they waited for."""
        self._recompute()
        hopeless_names = self._find_hopeless()
        released_names = {
            target for name in hopeless_names for target in self.graph.forward[name]
        } - hopeless_names
        for target in self.graph.spares:
            # Its other predecessors were done before it was added, so they have left no token.
            if target in released_names and not self.is_live(target) and target not in self.done:
                self._do_token(target)

    def _do_unblock(self, name: str) -> None:
        """Let a failed execution start again with its first attempt."""
        self.active[name] = Active(self.active[name].sources)
        if self.graph.spares:
            self._recompute()

    def _do_grow(self, growth: dict[str, Any]) -> None:
        """Add nodes to the graph; nothing has reached them yet."""
        self.growths.append(TaskExpansion.model_validate(growth))
        self.graph = expand_graph(self.graph, self.growths[-1])
        self._recompute()

    def _do_team(self, word: str, *arguments: Any) -> None:
        self.ledger.apply(word, *arguments)
        if word == "spend":
            self.tally.add(self.graph, self.ledger, *arguments[:3])

    def _do_done(
        self, name: str, reference: Reference | None = None, key: str | None = None
    ) -> None:
        """Record the output of *name* at *reference*; the execution keeps its token."""
        self.done[name] = self.done.get(name, 0) + 1
        if reference is not None:
            self.outputs[name] = reference
        else:
            # Forget the output of the previous execution.
            self.outputs.pop(name, None)
        if key is not None:
            for nested_key in [
                known_key for known_key in self.keys if known_key.startswith(f"{key}.")
            ]:
                del self.keys[nested_key]
            self.keys.pop(key, None)
            self.keys[key] = name

    def _do_leave(self, name: str) -> None:
        """End the execution of *name*; the tokens for the next nodes were added before."""
        del self.active[name]
        if not self.is_live(name):
            self._propagate_dead(name)
        elif name in self.waiting:
            self._push_startable(name)

    def _do_follow(self, name: str, targets: list[str]) -> None:
        """Continue from *name* to *targets*."""
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
        """Do `done` and `follow` in one operation, because most executions end with both."""
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
        """Remove every token."""
        self.waiting, self.active = {}, {}
        self._recompute()

    def _do_halt(self, status: str) -> None:
        """Stop the run early; keep the tokens for `restore`."""
        self.lost = self.find_needed_failures()
        spared_errors = {
            name: [error] for name, error in self.failed.items() if name not in self.lost
        }
        self.ended_at = [[*token, *spared_errors.get(token[0], ())] for token in self.list_tokens()]
        self._do_clear()
        self.status = FlowStatus(status)

    def _do_restore(self) -> None:
        """Put back the tokens that `halt` has kept; each execution starts with its first attempt.

        If a limit ended the run, it counts from 0 again, or else the run would end immediately.
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
                # The tasks that waited for it have started without it.
                self._do_block(name, *error)

    def _do_rewind(self, region: list[str], tokens: list[list[Any]]) -> None:
        """Forget the nodes of *region*, and add *tokens*: each is a node and its sources."""
        for name in region:
            for entries in (self.waiting, self.active, self.done, self.outputs, self.lost):
                entries.pop(name, None)
            self.ledger.forget(name)
        self.keys = {key: name for key, name in self.keys.items() if name not in region}
        if self.error is not None and self.error.get("node") in region:
            self.error = None
        self.status, self.failure = FlowStatus.RUNNING, None
        for name, sources in tokens:
            self.waiting.setdefault(name, {}).update(dict.fromkeys(sources))
        self._recompute()

    def _do_end(self, status: str) -> None:
        if self.active:
            # The other tasks continued without these.
            self.lost = self.failed
            self._do_clear()
        self.status = FlowStatus(status)

    def list_tokens(self) -> list[list[Any]]:
        """Return every token: its node, its sources, and whether its node is active.

        Active ones come first, because a node may be both.
        """
        order = self.graph.order
        active_names = sorted(self.active, key=order.__getitem__)
        tokens = [[name, list(self.active[name].sources), True] for name in active_names]
        return tokens + [[name, list(self.waiting[name]), False] for name in self.waiting]

    # --- derived values ------------------------------------------------------------

    def _recompute(self) -> None:
        self._live_ways: dict[str, int] = {}
        self._passing: list[int] = []
        """Nodes that may start and are not agents, as a heap by urgency."""
        self._working: list[int] = []
        """Agent nodes that may start, as a heap by urgency."""
        targets_by_name, stack = self.graph.forward, list({**self.waiting, **self.active})
        spares = self.graph.spares
        hopeless_names = self._find_hopeless()
        seen_names = set(stack)
        while stack:
            source = stack.pop()
            for target in targets_by_name[source]:
                if source in hopeless_names and target in spares and target not in hopeless_names:
                    continue
                self._live_ways[target] = self._live_ways.get(target, 0) + 1
                if target not in seen_names:
                    seen_names.add(target)
                    stack.append(target)
        for name in self.waiting:
            self._push_startable(name)

    def _propagate_live(self, name: str) -> None:
        """Update the nodes after *name*, which has become live."""
        targets_by_name, stack = self.graph.forward, [name]
        while stack:
            source = stack.pop()
            for target in targets_by_name[source]:
                was_live = self.is_live(target)
                self._live_ways[target] = self._live_ways.get(target, 0) + 1
                if not was_live:
                    stack.append(target)

    def _propagate_dead(self, name: str) -> None:
        """Update the nodes after *name*, which is no longer live."""
        targets_by_name, stack = self.graph.forward, [name]
        while stack:
            source = stack.pop()
            for target in targets_by_name[source]:
                live_ways = self._live_ways[target] - 1
                self._live_ways[target] = live_ways
                if live_ways:
                    continue
                if self.is_live(target):
                    self._push_startable(target)
                else:
                    stack.append(target)

    def _push_startable(self, name: str) -> None:
        if self.may_start(name):
            is_agent = self.graph.by_id[name].kind is _AGENT
            heap = self._working if is_agent else self._passing
            heapq.heappush(heap, self.graph.urgency[name])


_WORDS: dict[str, Callable[..., None]] = {
    name.removeprefix("_do_"): method
    for name, method in vars(Marking).items()
    if name.startswith("_do_")
}
"""Name of an operation -> the method that applies it."""


def find_incoming_output(marking: Marking, name: str) -> Reference | None:
    """Return the reference to the output that reached the active execution of *name*.

    With one source, it is the output of that source. With several, it is a map from their ids in
    order of arrival; if a source passes on such a map, its entries are merged in. Nested maps would
    double in size with each pair of markers that another marker joins.
    """
    sources = marking.active[name].sources
    if len(sources) == 1:
        return marking.outputs.get(sources[0])
    merged_outputs: dict[str, Any] = {}
    for source in sources:
        reference = marking.outputs.get(source)
        merged_outputs.update(reference if isinstance(reference, dict) else {source: reference})
    return merged_outputs or None


def read_value(reference: Reference | None, read: Callable[[str], str]) -> Any:
    """Return the text at *reference*, or a map of texts; empty if there is no output."""
    if reference is None:
        return ""
    if isinstance(reference, str):
        return read(reference)
    return {name: read_value(item, read) for name, item in reference.items()}


def read_text(reference: Reference | None, read: Callable[[str], str]) -> str:
    """Return the output at *reference* as text; a map becomes JSON on one line."""
    value = read_value(reference, read)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
