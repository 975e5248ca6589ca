"""Exports a run on Temporal as the files of a run in files: to read, or to continue there.

Not promised: the whole history from before the run moved to the server, if it was too large to
travel; it is in the store that the run came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import TransitionRefused, UsageRefused
from sequencer.model.head import FLOW_DOCUMENT, Head
from sequencer.model.request import DEFINITION_FILE
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.events import EventReader
from sequencer.plugins.temporal.wire import unpack_head
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.store.head import encode_head
from sequencer.store.journal import NAME
from sequencer.store.protocol import Store
from sequencer.store.run_import import PastRecord, encode_journal, keep_outputs
from sequencer.store.strictjson import parse_object


class RunExport(Struct, frozen=True):
    """Everything that the server has of a run."""

    head: Head
    journal_lines: list[bytes]
    outputs: dict[str, str]
    """Outputs of attempts that were small enough to travel, by folder name."""
    documents: dict[str, bytes]
    """The documents of the run, by name."""


def export_run(store: FleetStore) -> RunExport:
    """Return everything that the server has of the run in *store*.

    Raises:
        TransitionRefused: the run was never started.
        RemoteUnreachable: the server does not answer.
    """
    records: list[PastRecord] = []

    def add_records(reader: EventReader, facts: list[dict[str, Any]]) -> None:
        records.extend(_group_records(facts, unpack_head(reader.memo)))

    reader = store.connection.call(store.read(add_records))
    if not records:
        raise TransitionRefused("the run was never started on the server", where=store.id)
    head = unpack_head(reader.memo)
    outputs = {**reader.outputs, **dict(_iter_reported_outputs(reader, records))}
    return RunExport(
        head=head,
        journal_lines=encode_journal(records, head.run_id),
        outputs=outputs,
        documents=read_documents(store, head),
    )


def _group_records(facts: list[dict[str, Any]], head: Head) -> Iterator[PastRecord]:
    """Yield one record per revision in *facts*; only the one of *head* has a head."""
    for revision, group in groupby(facts, key=itemgetter("revision")):
        revision_facts = list(group)
        newest_head = head if revision == head.revision else None
        yield PastRecord(revision, revision_facts[0]["at"], revision_facts, newest_head)


def _iter_reported_outputs(
    reader: EventReader, records: list[PastRecord]
) -> Iterator[tuple[str, str]]:
    """Yield (folder name of the attempt, output) for each output in the report of an attempt."""
    for fact in (fact for record in records for fact in record.facts):
        report, outcome = reader.reports.get(fact["token"]), fact["outcome"] or {}
        if report is not None and (output := report.get("output")):
            name = results.extract_attempt_name(outcome.get("output_file"))
            yield name or f"{fact['step_index']}-{fact['token']}", output


def read_documents(store: Store, head: Head) -> dict[str, bytes]:
    """Return the documents of the run in *store*, which is at *head*, by their names."""
    names, documents = [DEFINITION_FILE, FLOW_DOCUMENT, head.base], dict[str, bytes]()
    while names:
        name = names.pop(0)
        data = None if name is None else store.read_document(name)
        if name is not None and data is not None:
            documents[name] = data
            if name not in (DEFINITION_FILE, FLOW_DOCUMENT):
                # It is a marking, which may be stored as changes to an earlier one.
                names.append(parse_object(data).get("base"))
    return documents


def write_copy(store: FleetStore, folder: Path) -> Head:
    """Write the files of the run in *store* to the new *folder*; return the head in them.

    Raises:
        UsageRefused: the folder already exists.
    """
    copy = export_run(store)
    try:
        folders.make_new_folder(folder)
    except FileExistsError:
        raise UsageRefused("this folder already exists", where=str(folder)) from None
    keep_outputs(folder, copy.outputs)
    files = {**copy.documents, NAME: b"".join(copy.journal_lines)}
    for name, data in {**files, store.state_path.name: encode_head(copy.head)}.items():
        folders.write_atomically(folder / name, data)
        (folder / name).chmod(0o400)
    return copy.head
