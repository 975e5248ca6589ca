"""Mode async: runs steps outside of the run in the store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from sequencer.engine.inline import InlineLoop
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.performing import Performer
from sequencer.engine.sequence_worker import SequenceWorker
from sequencer.engine.workspace import Workspace
from sequencer.errors import UsageRefused
from sequencer.model import transitions
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.sequence.order import find_step_ref
from sequencer.store.file import FileStore

MAX_RETRIES = 100
"""The most retries that a step can ask for."""


def run_async_mode(
    performer: Performer,
    limits: InvocationLimits,
    step_index: int,
    state_path: Path,
    on_ready: Callable[[Callable[[], None]], None] | None = None,
) -> Summary:
    """Run steps from *step_index* on in mode async, in a temporary run of this call.

    Agents get *state_path*, but the file is neither read nor written.

    Raises: see `WorkLoop.work`.
    """
    if performer.workspace.opens:
        raise UsageRefused(
            "mode async has no run, so its agents can't have a folder of their own",
            hint="choose another --mode, or remove the setting for their folder, such as worktree",
        )
    first_ref = find_step_ref(performer.workflow, step_index)
    # Only the step's own retries limit its failures.
    run_limits = RunLimits(failures_in_row=MAX_RETRIES, attempts=performer.max_attempts)
    performer = replace(performer, workspace=Workspace(performer.project))
    with TemporaryDirectory(prefix="sequencer-async-", ignore_cleanup_errors=True) as folder:
        store = FileStore(Path(folder).resolve() / "state.json", allow_network_fs=True)
        worker = SequenceWorker(store, performer, run_limits, agents_state_path=state_path)
        try:
            if on_ready is not None:
                on_ready(worker.interrupt)
            new_head = worker.kind.create_head(str(uuid.uuid4()), at=datetime.now(UTC)).replace(
                step_index=step_index, iteration=step_index + 1, expected_step=first_ref.step
            )
            head = store.update(lambda _: transitions.initialize(new_head))
            return replace(InlineLoop(worker, Mode.ASYNC, limits, head).work(), head=None)
        finally:
            worker.close()
