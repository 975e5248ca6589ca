from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sequencer.posting.protocol import Unreachable
from sequencer.posting.sinks import JsonlSink
from tests.unit.posting.posts import result


def test_a_line_that_was_torn_does_not_tear_the_next(tmp_path: Path) -> None:
    sink = JsonlSink("file", tmp_path / "a.jsonl")
    sink.post(result(1))
    with sink.path.open("ab") as file:
        file.write(b'{"half": ')
    sink.post(result(2))
    texts = sink.path.read_text().splitlines()
    assert [json.loads(texts[place])["revision"] for place in (0, 2)] == [1, 2]
    assert texts[1] == '{"half": '


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
