"""What workflows have decided is decided again by this release, as long as `EDITION` is the same.

Who has changed it has to raise that number and to record again; see CONTRIBUTING.md.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from sequencer.model.head import Head
from sequencer.plugins.temporal.memo import MemoStore
from sequencer.plugins.temporal.wire import EDITION, FACTS, HEAD, pack_head
from sequencer.plugins.temporal.workflow import RunWorkflow

RECORDED = sorted((Path(__file__).parents[2] / "data" / "fleet").glob("*.json"))
CHANGED = "workflows decide something else: raise EDITION, and 'python -m tests.fleet.recording'"


def test_there_are_recordings_of_this_edition() -> None:
    queues = {_events(path)[0]["workflowExecutionStartedEventAttributes"]["taskQueue"]["name"]
              for path in RECORDED}  # fmt: skip
    assert {queue.rpartition("@")[2].partition("/")[0] for queue in queues} == {str(EDITION)}, (
        CHANGED
    )


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_replayed_recordings_lead_to_the_same_decisions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[tuple[dict[str, Any], list[Any]]] = []
    write = MemoStore.write

    def noted(store: MemoStore, head: Head, facts: list[Any]) -> Head:
        decided.append((pack_head(head)[HEAD], facts))
        return write(store, head, facts)

    monkeypatch.setattr(MemoStore, "write", noted)
    replayer = Replayer(workflows=[RunWorkflow], workflow_runner=UnsandboxedWorkflowRunner())
    history = WorkflowHistory.from_json("seq/recorded/run", path.read_text(encoding="utf-8"))
    result = asyncio.run(replayer.replay_workflow(history, raise_on_replay_failure=False))
    assert result.replay_failure is None, f"{CHANGED}: {result.replay_failure}"
    assert [head for head, _ in decided] == [head for head, _ in _memos(path)], CHANGED
    assert [facts for _, facts in decided] == [facts for _, facts in _memos(path)], CHANGED


def _events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["events"]
    return found


def _memos(path: Path) -> list[tuple[dict[str, Any], list[Any]]]:
    found = []
    for event in _events(path):
        told = event.get("workflowPropertiesModifiedEventAttributes")
        fields = {} if told is None else told["upsertedMemo"]["fields"]
        if HEAD in fields:
            found.append((_plain(fields[HEAD]), _plain(fields[FACTS])))
    return found


def _plain(payload: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(payload["data"]))
