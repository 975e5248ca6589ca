from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from sequencer.posting.protocol import Unreachable
from sequencer.posting.sinks import JsonlSink
from tests.unit.posting.posts import action, result


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_activity(tmp_path: Path) -> None:
    sink = JsonlSink("file", tmp_path / "logs" / "activity.jsonl")
    sink.post(action())
    sink.post(result(3, body="grün\nund ganz"))
    first, second = lines(sink.path)
    assert first == {
        "schema_version": 1,
        "run_id": "run-1",
        "at": "2027-01-31T08:00:00Z",
        "type": "action",
        "step": "main",
        "step_index": 4,
        "attempt": 1,
        "action": "Bash",
        "parameter": "make",
        "result": "ok",
    }
    assert second["key"] == "run-1:3:0"
    assert (second["type"], second["event"], second["body"]) == (
        "response",
        "succeeded",
        "grün\nund ganz",
    )
    sink.close()


def test_a_line_that_was_torn_does_not_tear_the_next(tmp_path: Path) -> None:
    sink = JsonlSink("file", tmp_path / "a.jsonl")
    sink.post(result(1))
    with sink.path.open("ab") as file:
        file.write(b'{"half": ')
    sink.post(result(2))
    texts = sink.path.read_text().splitlines()
    assert [json.loads(texts[place])["revision"] for place in (0, 2)] == [1, 2]
    assert texts[1] == '{"half": '


def test_runs_that_share_a_file_leave_each_other_whole(tmp_path: Path) -> None:
    def write(name: str) -> None:
        sink = JsonlSink(name, tmp_path / "a.jsonl")
        for number in range(1, 26):
            sink.post(result(number, body=name * 3000))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = lines(tmp_path / "a.jsonl")
    assert len(found) == 100
    assert {len(set(str(line["body"]))) for line in found} == {1}


@pytest.mark.parametrize("kind", ["folder", "link", "pipe", "no-folder"])
def test_what_is_no_plain_file_is_an_outage(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        (tmp_path / "x").write_text("")
        path = tmp_path / "x" / "a.jsonl"
    with pytest.raises(Unreachable, match=r"a\.jsonl"):
        JsonlSink("file", path).post(result(1))
    assert not (tmp_path / "elsewhere").exists()
