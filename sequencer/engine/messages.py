"""Messages from people to the nodes of a graph, and their block in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sequencer.model.graph.marking import Marking, Reference
from sequencer.store import results

Message = tuple[str, str, str]
"""Where the text is, who said it, when."""


def messages_block(messages: Iterable[Message], read: Callable[[str], str]) -> str:
    """Return *messages* as they stand in a prompt; *read* reads the text of one."""
    said = [f"- {by}, {at}:\n\n{read(name)}" for name, by, at in messages]
    return "# Messages to you\n\n" + "\n\n".join(said)


def messages_to(marking: Marking, name: str) -> Iterator[Message]:
    """Yield the messages to *name*, as they came."""
    yield from ((where, by, at) for where, by, at in marking.ledger.told.get(name, ()))


def unread(marking: Marking, name: str) -> Iterator[Message]:
    """Yield the messages to *name* that came after its last accepted attempt began."""
    done = _token(marking.outputs.get(name))
    yield from (told for told in messages_to(marking, name) if _token(told[0]) > done)


def _token(reference: Reference | None) -> int:
    """Return the token under which something was kept; 0: nothing was, or nobody knows."""
    attempt = results.attempt_of(reference) if isinstance(reference, str) else None
    return 0 if attempt is None else attempt[1]
