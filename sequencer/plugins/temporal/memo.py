"""The head of a run where it is decided over: its memo, seen as the engine's store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from sequencer.engine.graph_changes import GraphChanges
from sequencer.errors import StorageFailed
from sequencer.model.head import Head
from sequencer.plugins.temporal.wire import (
    DOCUMENT_BYTES,
    FACTS,
    RUN,
    documents_in,
    head_of,
    own_facts,
    packed,
    sizes_of,
)
from sequencer.store.protocol import Change, View

OUTPUT_BYTES = 1024 * 1024
"""Of a graph's outputs, for the next execution; a server takes no piece of more than 2 MiB."""


class MemoStore:
    """What a `Store` is to the engine, where the head itself is; its records go to *write*."""

    ttl_s, retry_for_s = 60.0, 0.0
    state_path = Path("state.json")

    def __init__(self, memo: Mapping[str, Any], publish: Callable[[dict[str, Any]], None]) -> None:
        """Start with what *memo* has; *publish* changes it."""
        self.head = head_of(memo)
        self.documents = documents_in(memo)
        self.sizes = sizes_of(self.documents)
        self.outputs: dict[str, str] = {}
        """Of attempts, by their names, where a choice may ask for them; the oldest come first."""
        self.said: dict[str, str] = {}
        """What picks the next node, of those that are too large to travel, by the same names."""
        self.told: tuple[int, Mapping[str, Any]] | None = None
        """Token and record of the attempt that is being recorded; its report is kept anyway."""
        self._publish = publish
        self._run = memo[RUN]
        self._changed: dict[str, str | None] = {}

    def view(self) -> View:
        """Return the head that this process holds; no one else changes it."""
        return View(self.head)

    def update(self, change: Change) -> Head:
        """Run *change* on the head, and publish what it makes as the next revision."""
        made = change(self.head)
        if made is None:
            return self.head
        head = made.head.replace(revision=self.head.revision + 1, journal_offset=0)
        return self.write(head, own_facts(made.facts, self.told))

    def write(self, head: Head, facts: list[Any]) -> Head:
        """Accept *head* and the *facts* that have led to it: one record of the journal."""
        parts = packed(head)
        if parts[RUN] == self._run:
            del parts[RUN]
        else:
            self._run = parts[RUN]
        self._publish({**parts, FACTS: facts, **self._changed})
        self._changed, self.head = {}, head
        return head

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield nothing: the server has the facts, and no one asks for them here."""
        del after
        return iter(())

    def document(self, name: str) -> bytes | None:
        """Return the document *name* of the run, or None if there is none."""
        found = self.documents.get(name)
        return None if found is None else found.encode()

    def keep_document(self, name: str, data: bytes) -> None:
        """Keep *data* as the document *name*; the next `write` publishes it."""
        self.change_documents({name: data.decode()})

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """Remove the documents whose names start with *prefix*, except those in *keep*."""
        gone = [name for name in self.documents if name.startswith(prefix) and name not in keep]
        self.change_documents(dict.fromkeys(gone))

    @property
    def has_room(self) -> bool:
        """Return whether the documents are few enough for another claim."""
        return sum(self.sizes.values()) <= DOCUMENT_BYTES

    def newest_outputs(self) -> dict[str, str]:
        """Return the newest outputs, as many as a server takes in one piece."""
        found, left = dict[str, str](), OUTPUT_BYTES
        for name, text in reversed(self.outputs.items()):
            left -= len(text.encode("utf-8", "replace"))
            if left < 0:
                break
            found[name] = text
        return dict(reversed(found.items()))

    def change_documents(self, changed: Mapping[str, str | None]) -> None:
        """Put documents in the place of those of their names; None removes one."""
        self._changed.update(changed)
        for name, text in changed.items():
            self.documents.pop(name, None)
            self.sizes.pop(name, None)
            if text is not None:
                self.documents[name] = text
        self.sizes |= sizes_of(changed)


class HeldGraphChanges(GraphChanges):
    """A graph's run whose outputs are where its head is."""

    def read_output(self, name: str) -> str:
        store = cast("MemoStore", self.store)
        if (found := store.outputs.get(name, store.said.get(name))) is not None:
            return found
        raise StorageFailed(
            "an answer that picks the next node is not on the server: it was too large, or too "
            f"many followed (execution {name})",
            hint="make its node answer in fewer words, then use 'sequencer retry'",
        )

    def keep_output(self, step_index: int, token: int, output: str) -> str | None:
        if not output:
            return None
        name = f"{step_index}-{token}"
        cast("MemoStore", self.store).outputs[name] = output
        return name
