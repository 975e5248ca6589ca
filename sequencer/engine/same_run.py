"""Whether a run is still the one that this process knows.

Somebody may remove a run's files while processes work on it, and somebody may begin another
run in their place. Its tokens count from 1 again, so there a token alone says nothing.
"""

from __future__ import annotations

from sequencer.errors import StaleClaim
from sequencer.model.head import Head
from sequencer.model.transitions import Event
from sequencer.store.protocol import Store


def present(store: Store, head: Head | None) -> Head:
    """Return *head*.

    Raises:
        StaleClaim: there is none, where a run had begun.
    """
    if head is None:
        raise StaleClaim(
            "the run's files are gone",
            where=str(store.state_path),
            hint="bring the folder back, or remove all of it to begin anew",
        )
    return head


def of_run(store: Store, run_id: str, head: Head | None) -> Head:
    """Return *head* if it is of the run *run_id*.

    Raises:
        StaleClaim: the files are gone, or they are of another run.
    """
    found = present(store, head)
    if found.run_id != run_id:
        raise StaleClaim(
            "the run is gone, and another one was begun in its place",
            where=str(store.state_path),
            hint="what an agent answered is in its step log; start again to work on that run",
        )
    return found


def followed(store: Store, known: Head, head: Head | None) -> Head:
    """Return *head* if it is of the run of *known*, or of one that a reset of it has begun.

    Another program's state has no run before it is migrated; until then its head is a
    preview at revision 0, with a run id of its own at each look.

    Raises:
        StaleClaim: see `of_run`.
    """
    found = present(store, head)
    is_same = found.run_id == known.run_id or not known.revision
    if is_same or _was_reset(store, known.run_id):
        return found
    return of_run(store, known.run_id, found)


def _was_reset(store: Store, run_id: str) -> bool:
    """Return whether the journal says that *run_id* was ended on purpose."""
    resets = (fact["outcome"] for fact in store.history() if fact["event"] == Event.RESET)
    return any(run_id in str(outcome) for outcome in resets)
