"""`repair`: show what is damaged in a run's files and how to recover; --apply does it.

`store.diagnosis` finds the damage and `store.repair` repairs it; this module only shows both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import strip_controls
from sequencer.errors import UsageRefused, format_command
from sequencer.project.runs import get_state_path, progress_evidence_for
from sequencer.store import repair as repairs
from sequencer.store.diagnosis import Action, Diagnosis, JournalReport, diagnose
from sequencer.store.highwater import HighWaterMark
from sequencer.store.repair import Repaired

MAX_BAD_LINES = 50
_BAD_LINE = ("offset", "reason")
_TEXTS = {
    "nothing": "nothing needs repair",
    "restore": "restore state.json from the last record of the journal",
    "rebuild": "start a new journal with the last good record, and restore state.json from it",
    "choose": "accepted steps may be lost, so choose which state to continue from",
    "hopeless": "nothing can be saved from these files; put a backup in their place",
}


@verb("repair")
@click.option("--apply", "is_applied", is_flag=True, help="Make the proposed repair.")
@click.option(
    "--accept-head",
    is_flag=True,
    help="With --apply: continue from state.json if the journal ends before it.",
)
@click.option(
    "--accept-journal",
    is_flag=True,
    help="With --apply: continue from the journal's last good record; later steps run again.",
)
@pass_invocation
def repair(
    invocation: Invocation, is_applied: bool, accept_head: bool, accept_journal: bool
) -> int:
    """Show what is damaged in the run's files and what can be saved; --apply repairs it.

    The originals are kept in a folder damaged-TIME next to the run and are never deleted.
    The history records the repair. Exit code 3 means that something needs repair.

    \b
    Examples:
      sequencer repair
      sequencer repair --apply
      sequencer repair --apply --accept-head   the journal is gone
    """
    if accept_head and accept_journal:
        raise UsageRefused("--accept-head and --accept-journal can't be used together")
    if (accept_head or accept_journal) and not is_applied:
        raise UsageRefused("--accept-head and --accept-journal need --apply", hint="add --apply")
    settings = invocation.project().settings
    if not settings.store_kind.is_local:
        raise UsageRefused(
            f"store.kind is {settings.store.kind!r}, but repair works only with the file store"
        )
    if invocation.run_name is not None:
        invocation.run()  # an unknown name is an error that lists the known ones
    state_path = get_state_path(settings, invocation.run_name)
    progress = progress_evidence_for(settings, state_path)
    if not is_applied:
        diagnosis = diagnose(state_path, progress)
        _print_diagnosis(invocation, diagnosis, repairs.list_options(diagnosis))
        return 0 if diagnosis.action is Action.NOTHING and not diagnosis.documents else 3
    choice = repairs.Choice.HEAD if accept_head else None
    choice = repairs.Choice.JOURNAL if accept_journal else choice
    network = settings.store.allow_network_fs
    mark = HighWaterMark(state_path)
    result = repairs.repair(
        state_path, choice, allow_network_fs=network, progress=progress, mark=mark
    )
    _print_repaired(invocation, result)
    return 3 if result.before.documents else 0


def _print_repaired(invocation: Invocation, result: Repaired) -> None:
    if invocation.is_json:
        head = result.head.model_dump(mode="json") if result.head else None
        invocation.print_json(
            {
                **_as_json(result.before),
                "head": head,
                "kept": str(result.kept) if result.kept else None,
            }
        )
        return
    for line in _format_documents(invocation, result.before):
        invocation.echo(strip_controls(line))
    if result.head is None and not result.before.documents:
        invocation.echo(_TEXTS["nothing"])
    elif result.head is not None:
        invocation.echo(
            f"repaired: revision {result.head.revision}, step_index {result.head.step_index}, "
            f"next step {result.head.expected_step!r}"
        )
        invocation.echo(f"the originals are in {result.kept}")


def _print_diagnosis(invocation: Invocation, diagnosis: Diagnosis, options: list[str]) -> None:
    if invocation.is_json:
        invocation.print_json({**_as_json(diagnosis), "options": options})
        return
    for line in _format_diagnosis(diagnosis):
        invocation.echo(strip_controls(line))
    for line in _format_documents(invocation, diagnosis):
        invocation.echo(strip_controls(line))
    if diagnosis.documents and diagnosis.action == "nothing":
        return
    invocation.echo(f"proposed: {_TEXTS[diagnosis.action]}")
    for option in options if diagnosis.action == "choose" else ():
        invocation.echo(strip_controls(f"  {option}"))
    if diagnosis.action in ("restore", "rebuild"):
        invocation.echo("'sequencer repair --apply' makes this repair and keeps the originals")


def _format_diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    state, last_record = diagnosis.state, diagnosis.last_record
    if diagnosis.refusal is not None:
        yield f"refused: {diagnosis.refusal.message}"
    if state.problem is not None:
        yield f"{state.path}: {state.problem}"
    elif state.head is None:
        yield f"{state.path}: valid JSON, but not a run's state"
    else:
        yield (
            f"{state.path}: readable, revision {state.head.revision}, step_index "
            f"{state.head.step_index}, {state.head.status}"
        )
    if diagnosis.pending is not None:
        yield f"  {diagnosis.pending}"
    if not diagnosis.journals:
        yield f"{state.path.parent / 'journal.jsonl'}: is missing"
    for report in diagnosis.journals:
        yield from _format_journal(report)
    if last_record is not None:
        yield (
            f"last good record: revision {last_record.revision} at byte {last_record.offset}, "
            f"step_index {last_record.data['head'].get('step_index')}, "
            f"{last_record.data.get('at')}; "
            f"{len(diagnosis.chain)} records lead to it without a gap"
        )


def _format_documents(invocation: Invocation, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the lost documents, which only a person can restore."""
    for path, reason in diagnosis.documents:
        yield f"{path}: {reason}"
        yield (
            "  repair can't recreate it: restore the file, or start over with "
            f"{format_command(invocation.run_name, 'reset')}"
        )


def _format_journal(report: JournalReport) -> Iterator[str]:
    if report.problem is not None:
        yield f"{report.path}: {report.problem}"
        return
    revisions = (
        f"revisions {report.scan.winners[0].revision} to {report.scan.winners[-1].revision}"
        if report.scan.winners
        else "no good record"
    )
    yield f"{report.path}: {report.scan.size} bytes, {revisions}"
    for gap in report.scan.gaps:
        yield f"  {gap}"
    for offset, reason in report.misfits[:MAX_BAD_LINES]:
        yield f"  the journal does not continue at byte {offset}: {reason}"
    for offset, reason in report.scan.skipped[:MAX_BAD_LINES]:
        yield f"  the line at byte {offset} does not count: {reason}"
    if len(report.scan.skipped) > MAX_BAD_LINES:
        yield f"  … and {len(report.scan.skipped) - MAX_BAD_LINES} more such lines"


def _as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    last_record, head, mark = diagnosis.last_record, diagnosis.state.head, diagnosis.lost_mark
    return {
        "action": str(diagnosis.action),
        "refusal": diagnosis.refusal and diagnosis.refusal.message,
        "state": {
            "path": str(diagnosis.state.path),
            "problem": diagnosis.state.problem,
            "revision": head and head.revision,
            "step_index": head and head.step_index,
        },
        "journals": [
            {
                "path": str(report.path),
                "bytes": report.scan.size,
                "problem": report.problem,
                "records": len(report.scan.winners),
                "gaps": [gap._asdict() for gap in report.scan.gaps],
                "bad_lines": [
                    dict(zip(_BAD_LINE, line, strict=True)) for line in report.scan.skipped
                ],
            }
            for report in diagnosis.journals
        ],
        "documents": [
            {"path": str(path), "reason": reason} for path, reason in diagnosis.documents
        ],
        "shown_beyond": mark
        and {"path": str(mark.where), "token": mark.token, "revision": mark.revision},
        "last_good": last_record
        and {
            "revision": last_record.revision,
            "offset": last_record.offset,
            "step_index": last_record.data["head"].get("step_index"),
        },
    }
