"""The marking of a run, kept between transitions so that it need not be read at each.

A transition changes the marking before the store has accepted it. So whoever takes the
marking owns it, and gives it back only when the transition stands; after an error it is
read anew from the run's files.
"""

from __future__ import annotations

from sequencer.errors import CorruptState
from sequencer.model.head import Flow, Head
from sequencer.model.names import command
from sequencer.model.net import record as flow_record
from sequencer.model.net.graph import Graph
from sequencer.model.net.marking import Marking
from sequencer.model.net.record import Chain
from sequencer.store.documents import is_whole
from sequencer.store.protocol import Store


class Keeper:
    """Keeps the marking of the run in one store."""

    def __init__(self, store: Store, graph: Graph) -> None:
        """Begin without one."""
        self._store = store
        self._graph = graph
        self._kept: tuple[str, Flow, Marking, Chain] | None = None

    def take(self, head: Head) -> tuple[Marking, Chain]:
        """Return the marking of *head*; the caller may change it.

        Raises:
            CorruptState: the run has none that could be read.
        """
        kept, self._kept = self._kept, None
        flow = self._flow_of(head)
        if kept is not None and kept[0] == head.run_id:
            _, known, marking, chain = kept
            if known == flow:
                return marking, chain
            if _follows(flow, known):
                for operation in flow.since[len(known.since) :]:
                    marking.apply(operation)
                return marking, chain
        return self._read(head, flow)

    def look(self, head: Head) -> Marking:
        """Return the marking of *head*, for looking only.

        Raises: see `take`.
        """
        marking, chain = self.take(head)
        self.keep(head, marking, chain)
        return marking

    def keep(self, head: Head, marking: Marking, chain: Chain) -> None:
        """Keep *marking*, which is that of *head*, an accepted one."""
        if head.flow is not None:
            self._kept = (head.run_id, head.flow, marking, chain)

    def _flow_of(self, head: Head) -> Flow:
        if head.flow is None:
            raise CorruptState(
                f"the run of {head.workflow_name!r} has no marking",
                where=str(self._store.state_path),
                hint=f"{command(head.run_name, 'reset')} begins it anew",
            )
        return head.flow

    def _read(self, head: Head, flow: Flow) -> tuple[Marking, Chain]:
        try:
            return flow_record.read(self._graph, flow, self._document)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            way_out = "bring the file back, or " if flow.base is not None else ""
            raise CorruptState(
                f"the marking of the run can't be read: {error}",
                where=str(self._store.state_path),
                hint=f"{way_out}{command(head.run_name, 'reset')} begins again",
            ) from error

    def _document(self, name: str) -> bytes:
        if not name.startswith(flow_record.PREFIX) or "/" in name:
            raise ValueError(f"{name!r} is no document of a marking")
        data = self._store.document(name)
        if data is None:
            raise ValueError(f"{name} is gone")
        if not is_whole(name, data):
            raise ValueError(f"{name} is not as it was written")
        return data


def _follows(flow: Flow, known: Flow) -> bool:
    """Return whether *flow* is *known* and what came after, on the same base."""
    if flow.base is None or flow.base != known.base:
        return False
    return flow.since[: len(known.since)] == known.since
