"""The store that the engine uses inside a workflow: the run's head and documents are its memo."""

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
    measure_documents,
    pack_facts,
    pack_head,
    unpack_head,
)
from sequencer.store.protocol import Change, View

OUTPUT_BYTES = 1024 * 1024
"""Limit of a graph's outputs for the next execution; a server refuses more than 2 MiB at once."""


class MemoStore:
    """The parts of `Store` that the engine needs inside a workflow; `write` makes its records."""

    ttl_s, retry_for_s = 60.0, 0.0
    state_path = Path("state.json")

    def __init__(self, memo: Mapping[str, Any], publish: Callable[[dict[str, Any]], None]) -> None:
        """Start with the contents of *memo*; *publish* changes the memo on the server."""
        self.head = unpack_head(memo)
        self.documents = documents_in(memo)
        self.sizes = measure_documents(self.documents)
        self.outputs: dict[str, str] = {}
        """Outputs of attempts that a choice may depend on, by name, oldest first."""
        self.short_texts: dict[str, str] = {}
        """The text that picks the next node, for outputs too large to travel; by the same names."""
        self.reported: tuple[int, Mapping[str, Any]] | None = None
        """Token and record of the attempt being recorded, if the server's history has them."""
        self._publish = publish
        self._run = memo[RUN]
        self._changed: dict[str, str | None] = {}

    def view(self) -> View:
        """Return the head that this process holds; no one else changes it."""
        return View(self.head)

    def update(self, change: Change) -> Head:
        """Run *change* on the head, and publish what it makes as the next revision."""
        transition = change(self.head)
        if transition is None:
            return self.head
        head = transition.head.replace(revision=self.head.revision + 1, journal_offset=0)
        return self.write(head, pack_facts(transition.facts, self.reported))

    def write(self, head: Head, facts: list[Any]) -> Head:
        """Accept *head* and the *facts* that led to it: one record of the journal."""
        parts = pack_head(head)
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

    def read_document(self, name: str) -> bytes | None:
        """Return the document *name* of the run, or None if there is none."""
        text = self.documents.get(name)
        return None if text is None else text.encode()

    def keep_document(self, name: str, data: bytes) -> None:
        """Keep *data* as the document *name*; the next `write` publishes it."""
        self.change_documents({name: data.decode()})

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """Remove the documents whose names start with *prefix*, except those in *keep*."""
        removed_names = [
            name for name in self.documents if name.startswith(prefix) and name not in keep
        ]
        self.change_documents(dict.fromkeys(removed_names))

    @property
    def has_room(self) -> bool:
        """Return whether the documents are small enough for another claim."""
        return sum(self.sizes.values()) <= DOCUMENT_BYTES

    def newest_outputs(self) -> dict[str, str]:
        """Return the newest outputs, oldest first, as many as fit into `OUTPUT_BYTES`."""
        outputs, room = dict[str, str](), OUTPUT_BYTES
        for name, text in reversed(self.outputs.items()):
            room -= len(text.encode("utf-8", "replace"))
            if room < 0:
                break
            outputs[name] = text
        return dict(reversed(outputs.items()))

    def change_documents(self, changed: Mapping[str, str | None]) -> None:
        """Replace the documents with these names; None removes one."""
        self._changed.update(changed)
        for name, text in changed.items():
            self.documents.pop(name, None)
            self.sizes.pop(name, None)
            if text is not None:
                self.documents[name] = text
        self.sizes |= measure_documents(changed)


class MemoGraphChanges(GraphChanges):
    """Changes a graph's run inside a workflow; outputs are in the `MemoStore`."""

    def read_output(self, name: str) -> str:
        store = cast("MemoStore", self.store)
        if (output := store.outputs.get(name, store.short_texts.get(name))) is not None:
            return output
        raise StorageFailed(
            "an answer that picks the next node is not on the server: it was too large, or too "
            f"many followed (execution {name})",
            hint="make its node answer in fewer words, then use 'sequencer retry'",
        )

    def store_output(self, step_index: int, token: int, output: str) -> str | None:
        if not output:
            return None
        name = f"{step_index}-{token}"
        cast("MemoStore", self.store).outputs[name] = output
        return name
