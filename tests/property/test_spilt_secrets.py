"""The campaign of talkative agents in the amount of every push, and that it can fail."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tests.long.report import Size
from tests.property.spilt_secrets import CLIENT_WAYS, COMMAND_WAYS, campaign, invent, told


def test_no_secret_an_agent_reveals_is_written(tmp_path: Path) -> None:
    report = campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["secrets"] >= 30 * len((*COMMAND_WAYS, *CLIENT_WAYS))


def test_a_secret_in_any_file_is_detected(tmp_path: Path) -> None:
    secrets = invent(Random(1))  # noqa: S311 - they open nothing
    (tmp_path / "journal.jsonl").write_text(json.dumps(f"[secret] and {secrets.key}"))
    (tmp_path / "log").write_text(f"x{secrets.shaped[0]}x")
    assert sorted(told(tmp_path, secrets, ())) == ["journal.jsonl holds key", "log holds sk-a"]
