"""What the journal keeps of an attempt, and where an output goes that is too large for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sequencer.errors import StorageFailed
from sequencer.model.kind import Performed
from sequencer.model.outcome import Outcome
from sequencer.store import folder as folders
from sequencer.store import results

INLINE_BYTES = 4 * 1024
"""A larger output goes to the results folder instead of the journal record."""


def chance() -> float:
    """Return a random number below 1; the module `random` would cost each tick its import."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def shown_log(path: str | None, project: Path) -> str | None:
    """Return a step log's path as records have it: relative to *project* if it is inside."""
    return None if path is None else path.removeprefix(f"{project}{os.sep}")


def journal_record(
    outcome: Outcome, agent: str, log: str | None, output: dict[str, Any]
) -> dict[str, Any]:
    """Return what the journal keeps of *outcome*; *output* is inline or a reference."""
    record: dict[str, Any] = {
        "status": str(outcome.status),
        "agent": agent,
        "prompt": outcome.prompt,
        "log": log,
        **output,
        "output_cut_from": outcome.cut_from_bytes,
        "usage": {name: value for name, value in vars(outcome.usage).items() if value},
        "error": outcome.error[:4000] if outcome.error else None,
        "denials": [line[:200] for line in outcome.denials[:20]] or None,
        "exit_code": outcome.exit_code,
    }
    return {key: value for key, value in record.items() if value is not None}


def circumstances(performed: Performed) -> dict[str, Any]:
    """Return when *performed* began, its model and its note, where they are known."""
    step = performed.step
    known = {"model": step.model, "began_at": performed.began_at, "note": performed.note}
    return {key: value for key, value in known.items() if value is not None}


def performed_record(
    performed: Performed, log: str | None, output: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Return what the journal keeps of *performed*, which judged for the *rounds*-th time."""
    record = journal_record(performed.outcome, performed.agent, log, output)
    record |= circumstances(performed)
    verdict, decision = performed.verdict, performed.decision
    if verdict is not None:
        record["verdict"] = {"pass": verdict.is_pass, "source": verdict.source, "round": rounds}
        if verdict.reason:
            record["verdict"]["reason"] = verdict.reason
    if decision is not None:
        told = {"move": str(decision.move), "target": decision.target, "reason": decision.reason}
        record["decision"] = {key: value for key, value in told.items() if value}
    return record


def keep_output(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Return the output for the record; a large one goes to *folder*, which else goes."""
    data = outcome.output.encode("utf-8", "replace")
    if len(data) <= INLINE_BYTES:
        _remove(folder)
        return {"output": outcome.output} if outcome.output else {}
    try:
        results.keep(folder, data)
    except OSError as error:
        raise StorageFailed(
            f"the step's output can't be kept: {error.strerror}", where=str(folder)
        ) from error
    reference = {"output_file": f"results/{folder.name}/output.txt"}
    return {**reference, "output_bytes": len(data)}


def _remove(folder: Path) -> None:
    """Remove an attempt's folder, whose content has been read into the outcome."""
    if not os.access(folder, os.F_OK):
        return  # most often: nobody had anything to write there
    folders.remove_tree(folder)
