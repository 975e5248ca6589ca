from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import CorruptState, UsageRefused
from sequencer.store import documents


def test_a_document_can_only_be_so_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 10)
    documents.keep(tmp_path, "d.json", b"x" * 10)
    assert documents.read(tmp_path, "d.json") == b"x" * 10
    with pytest.raises(UsageRefused, match="11 bytes"):
        documents.keep(tmp_path, "d.json", b"x" * 11)
    (tmp_path / "d.json").write_bytes(b"x" * 11)
    with pytest.raises(CorruptState, match="more than 10 bytes"):
        documents.read(tmp_path, "d.json")
