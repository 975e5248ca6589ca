"""Messages from people to the nodes of a graph, and their block in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sequencer.model.graph.marking import Marking, Reference
from sequencer.store import results

Message = tuple[str, str, str]
"""(reference of the text, sender, time)."""


def messages_block(messages: Iterable[Message], read: Callable[[str], str]) -> str:
    """Return the block of a prompt with *messages*; *read* returns the text of a reference."""
    texts = [f"- {author}, {at}:\n\n{read(name)}" for name, author, at in messages]
    return "# Messages to you\n\n" + "\n\n".join(texts)


def messages_to(marking: Marking, name: str) -> Iterator[Message]:
    """Yield the messages to node *name*, oldest first."""
    yield from (
        (reference, author, at) for reference, author, at in marking.ledger.told.get(name, ())
    )


def iter_unread(marking: Marking, name: str) -> Iterator[Message]:
    """Yield the messages to *name* that came after its last accepted attempt had started."""
    last_token = _find_token(marking.outputs.get(name))
    yield from (
        message for message in messages_to(marking, name) if _find_token(message[0]) > last_token
    )


def _find_token(reference: Reference | None) -> int:
    """Return the token of the attempt that *reference* belongs to; 0: none is known."""
    attempt = results.parse_attempt_name(reference) if isinstance(reference, str) else None
    return 0 if attempt is None else attempt[1]
