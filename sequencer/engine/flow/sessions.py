"""Conversations that nodes continue: that of the node whose output reached them.

Only a graph in which some node continues one has them kept. Each lies beside the output
of its execution; where more than one reached a node there is none to continue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from pydantic import ValidationError

from sequencer.errors import CorruptState
from sequencer.model.head import Claim, Session
from sequencer.model.kind import Performed
from sequencer.model.net.marking import Marking
from sequencer.model.workflow import Workflow
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular, write_durably
from sequencer.store.protocol import Store
from sequencer.workflows.templates import carried

FILE = "session.json"
_MAX_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """The conversations of one run."""

    store: Store
    is_used: bool
    """Whether any node continues one."""

    @classmethod
    def of(cls, store: Store, workflow: Workflow) -> Self:
        """Return those of the run of *workflow* in *store*."""
        return cls(store, any(step.continue_session for step in workflow.steps))

    def keep(self, claim: Claim, performed: Performed) -> None:
        """Keep the conversation of an accepted attempt; one that can't be kept is not continued."""
        session_id = performed.outcome.session_id
        if not self.is_used or session_id is None:
            return
        folder = self.store.result_folder(claim.step_index, claim.token)
        found = {"executor": performed.agent, "id": session_id}
        try:
            folders.made(folder)
            write_durably(folder / FILE, json.dumps(found).encode())
        except OSError:
            return

    def reaching(self, marking: Marking, name: str) -> Session | None:
        """Return the conversation whose output has reached *name*, if it was exactly one."""
        if not self.is_used:
            return None
        reference = carried(marking, name)
        if not isinstance(reference, str):
            return None
        try:
            path = self.store.kept_result(reference) / FILE
            return Session.model_validate_json(read_regular(path, max_bytes=_MAX_BYTES))
        except (OSError, CorruptState, ValidationError):
            return None
