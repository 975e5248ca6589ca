"""The documents that a graph's head goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sequencer.model.graph import record as flow_record
from sequencer.model.head import Flow, Head
from sequencer.store import diagnosis
from sequencer.store import documents as flow_documents
from sequencer.store.documents import find_problems
from tests.unit.engine.flow.labs import lab


def head_on(base: str | None) -> Head:
    return Head(
        run_id="r",
        workflow_name="flow",
        workflow_digest="d",
        expected_step="a",
        last_update="2026-11-22T08:00:00Z",
        flow=Flow(base=base),
    )


def kept(folder: Path, content: Mapping[str, Any] | list[int]) -> str:
    """Write *content* as the run would, and return its name."""
    name, data = flow_record._build_document(content)  # type: ignore[arg-type]
    (folder / name).write_bytes(data)
    return name


def chain(folder: Path) -> list[str]:
    """Write three documents that go on from each other, the newest first."""
    names = [kept(folder, {"marking": {}})]
    for number in range(2):
        names.append(kept(folder, {"base": names[-1], "since": [["end", number]]}))
    return names[::-1]


def test_a_whole_chain_has_no_problems(tmp_path: Path) -> None:
    assert find_problems(tmp_path, head_on(chain(tmp_path)[0])) == ()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_document_is_named(tmp_path: Path, which: int) -> None:
    names = chain(tmp_path)
    (tmp_path / names[which]).unlink()
    ((path, why),) = find_problems(tmp_path, head_on(names[0]))
    assert (path, why.split(",")[0]) == (tmp_path / names[which], "is missing")


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("data", [b"", b"{", b'{"marking":{"done":["a"]}}'])
def test_a_changed_document_is_named(tmp_path: Path, which: int, data: bytes) -> None:
    names = chain(tmp_path)
    (tmp_path / names[which]).write_bytes(data)
    ((path, why),) = find_problems(tmp_path, head_on(names[0]))
    assert (path, why.split(",")[0]) == (
        tmp_path / names[which],
        "was changed after it was written",
    )


def test_an_invalid_document_is_reported(tmp_path: Path) -> None:
    name = kept(tmp_path, [1, 2])
    assert find_problems(tmp_path, head_on(name)) == (
        (tmp_path / name, "is not a document of a marking"),
    )


@pytest.mark.parametrize("name", ["../state.json", "/etc/passwd", "a/b", ".."])
def test_nothing_outside_the_folder_is_read(tmp_path: Path, name: str) -> None:
    assert len(find_problems(tmp_path, head_on(name))) == 1


def test_a_document_replaced_by_a_writer_meanwhile_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_record, "INLINE_BYTES", 0)
    monkeypatch.setattr(flow_record, "SINCE_BYTES", 0)
    monkeypatch.setattr(flow_record, "SHORTEST_CHAIN", 0)
    said: dict[str, Any] = {"a": [*["x"] * 40, "y"]}
    made = lab(tmp_path, "a -->|x| a; a -->|y| b", said, max_iterations=50)
    made.work(limits={"max_steps": 1})
    looks: list[Path] = []

    def look(folder: Path, head: Head | None) -> tuple[tuple[Path, str], ...]:
        looks.append(folder)
        if len(looks) == 1:
            # A worker goes on, between the head and its document.
            made.work(limits={"max_steps": 30})
        return find_problems(folder, head)

    monkeypatch.setattr(flow_documents, "find_problems", look)
    state = tmp_path / "sync/state.json"
    assert diagnosis.diagnose(state).documents == ()
    assert len(looks) == 2
    base = json.loads(state.read_text())["flow"]["base"]
    (state.parent / base).unlink()
    assert [path.name for path, _ in diagnosis.diagnose(state).documents] == [base]
