from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import CorruptState, UsageRefused
from sequencer.store import documents


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "d.json").symlink_to(tmp_path / "secret")
    with pytest.raises(CorruptState, match="can't be read"):
        documents.read(tmp_path, "d.json")
    (tmp_path / "e.json").mkdir()
    with pytest.raises(CorruptState, match="not a plain file"):
        documents.read(tmp_path, "e.json")


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "d.json").symlink_to(tmp_path / "secret")
    documents.keep(tmp_path, "d.json", b"ours")
    assert (tmp_path / "secret").read_text() == "s"
    assert documents.read(tmp_path, "d.json") == b"ours"


def test_a_document_can_only_be_so_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 10)
    documents.keep(tmp_path, "d.json", b"x" * 10)
    assert documents.read(tmp_path, "d.json") == b"x" * 10
    with pytest.raises(UsageRefused, match="11 bytes"):
        documents.keep(tmp_path, "d.json", b"x" * 11)
    (tmp_path / "d.json").write_bytes(b"x" * 11)
    with pytest.raises(CorruptState, match="more than 10 bytes"):
        documents.read(tmp_path, "d.json")
