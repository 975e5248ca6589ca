"""Saves the conversations of a graph's nodes, each next to the output of its node."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Self

from msgspec import Struct

from sequencer.errors import CorruptState
from sequencer.frozen.fields import ValidationError
from sequencer.model.graph.marking import Marking, find_incoming_output
from sequencer.model.head import Claim, Session
from sequencer.model.kind import AttemptResult
from sequencer.model.transitions import make_session
from sequencer.model.workflow import Workflow
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular, write_durably
from sequencer.store.protocol import Store

FILE = "session.json"
_MAX_BYTES = 10_000


class Sessions(Struct, frozen=True):
    """The conversations of one run."""

    store: Store
    is_used: bool
    """Whether any node continues one."""

    @classmethod
    def from_store(cls, store: Store, workflow: Workflow) -> Self:
        """Return the conversations of the run of *workflow* in *store*."""
        return cls(store, any(step.continue_session for step in workflow.steps))

    def keep(self, claim: Claim, ended: AttemptResult, at: str) -> None:
        """Save the conversation of an attempt that was accepted at the time *at*.

        If it can't be saved, that is not an error: a new conversation starts later.
        """
        session = make_session(ended.outcome, ended.agent, at)
        if not self.is_used or session is None:
            return
        folder = self.store.result_folder(claim.step_index, claim.token)
        data = session.model_dump(mode="json", exclude_none=True)
        try:
            folders.make_folder(folder)
            write_durably(folder / FILE, json.dumps(data).encode())
        except OSError:
            return

    def find_incoming(self, marking: Marking, name: str) -> Session | None:
        """Return the conversation of the node whose output reached *name*.

        None: there is none, or several outputs reached it.
        """
        try:
            if (path := self._path(marking, name)) is None:
                return None
            return Session.model_validate_json(read_regular(path, max_bytes=_MAX_BYTES))
        except (OSError, CorruptState, ValidationError):
            return None

    def end(self, marking: Marking, name: str) -> None:
        """Remove the conversation that reached *name*, because its client has lost it."""
        with suppress(OSError, CorruptState):
            if (path := self._path(marking, name)) is not None:
                path.unlink(missing_ok=True)

    def _path(self, marking: Marking, name: str) -> Path | None:
        reference = find_incoming_output(marking, name) if self.is_used else None
        return (
            self.store.find_result_folder(reference) / FILE if isinstance(reference, str) else None
        )
