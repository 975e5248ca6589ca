"""Reads the source of a graph's run, which the run keeps next to its state."""

from __future__ import annotations

from sequencer.errors import CorruptState
from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.source import FlowSource
from sequencer.model.head import FLOW_DOCUMENT
from sequencer.store.protocol import Store


def find_flow_source(store: Store) -> FlowSource | None:
    """Return the source that the graph run in *store* started with; None: it is not a graph.

    Raises:
        CorruptState: the file is not the source of a graph run.
    """
    data = store.read_document(FLOW_DOCUMENT)
    if data is None:
        return None
    try:
        return FlowSource.model_validate_json(data)
    except ValidationError as error:
        raise CorruptState(
            f"is not the source of a graph run: {error.messages(with_values=False)[0]}",
            where=str(store.state_path.with_name(FLOW_DOCUMENT)),
            hint="restore the file; 'sequencer status --all' lists the runs, and "
            "'sequencer --run NAME reset --yes --workflow WORKFLOW' starts one over",
        ) from None


def read_flow_source(store: Store) -> FlowSource:
    """Return the source of the graph run in *store*, from its start or from its last `adopt`.

    Raises:
        CorruptState: it can't be read, or is missing.
    """
    if (source := find_flow_source(store)) is None:
        raise CorruptState(
            "the file is missing; it records what the run was started with",
            where=str(store.state_path.with_name(FLOW_DOCUMENT)),
        )
    return source
