"""remote.json: what the processes of a clone know of the branch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sequencer.git.replica import Known, KnownFile

BRANCH, AT = "sequencer/default", "2026-01-01T00:00:00Z"
KNOWN = Known(remote="origin", branch=BRANCH, tip="a" * 40, revision=3, at=AT)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps({"remote": "o", "branch": "b", "tip": "../x", "revision": 1, "at": ""}),
        json.dumps({"remote": "o", "branch": "b", "tip": "a" * 40, "revision": "1", "at": ""}),
        json.dumps({"remote": "o", "branch": "b", "tip": 7, "revision": 1, "at": ""}),
        json.dumps({"remote": "o" * 9000, "branch": "b", "tip": "a" * 40, "revision": 1, "at": ""}),
    ],
)
def test_what_cannot_be_read_is_not_known(tmp_path: Path, content: str) -> None:
    path = tmp_path / "remote.json"
    path.write_text(content)
    assert KnownFile(path).read() is None


def test_what_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    KnownFile(tmp_path / "file" / "remote.json").write(KNOWN)
