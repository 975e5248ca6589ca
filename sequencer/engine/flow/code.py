"""The code of a graph run, where it moves with the state.

The nodes of one process share one work tree, so it is brought to the state's code only
while none of them works, and what one has left is moved with whatever others have by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sequencer.engine import code
from sequencer.engine.carrier import Carrier
from sequencer.engine.flow.attempts import Running
from sequencer.engine.patience import Patience
from sequencer.errors import RemoteUnreachable, WorkTreeRefused
from sequencer.model.head import Head, Work


class FlowCode:
    """Moves code for one process's nodes."""

    def __init__(self, carrier: Carrier, patience: Patience) -> None:
        """Move with *carrier*; *patience* waits for a remote that is out of reach."""
        self._carrier = carrier
        self._patience = patience
        self.is_ready = True
        """Whether a node may begin in this work tree, as it was seen last."""

    def ensure_ready(self, head: Head) -> None:
        """Return if a node may begin while none is running.

        Raises:
            WorkTreeRefused: none may.
        """
        self.is_ready = False
        self._patience.reach(lambda: self._carrier.ready(head))
        self.is_ready = True

    def look(self, head: Head) -> None:
        """Look whether a node may begin; if not, the next claim says why."""
        try:
            self._carrier.ready(head)
            self.is_ready = True
        except (WorkTreeRefused, RemoteUnreachable):
            self.is_ready = False

    def arrive(self, head: Head) -> None:
        """See `Carrier.arrive`."""
        self._patience.reach(lambda: self._carrier.arrive(head))

    def collect(self, ended: Sequence[Running], head: Head) -> Work | None:
        """Return the code that moves with the end of *ended*; see `Carrier.collect`.

        Where it can't move, those that were accepted have failed.
        """
        worked = _worked(ended)
        if not worked:
            return None
        claim = worked[0].claim
        try:
            found = self._carrier.collect(claim, claim.step, head)
        except WorkTreeRefused as refusal:
            self.refuse(ended, head, refusal)
            return None
        return None if found is None else found.work

    def refuse(self, ended: Sequence[Running], head: Head, refusal: WorkTreeRefused) -> None:
        """Make failures of those of *ended* whose code was not taken, and keep their work."""
        for one in _worked(ended):
            if one.performed is not None:
                outcome = code.failed(
                    self._carrier, one.claim, head, one.performed.outcome, refusal
                )
                one.performed = replace(one.performed, outcome=outcome)


def _worked(ended: Sequence[Running]) -> list[Running]:
    return [
        one
        for one in ended
        if one.performed is not None and one.error is None and one.performed.outcome.is_accepted
    ]
