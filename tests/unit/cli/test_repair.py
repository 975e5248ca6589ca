from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.calling import call, state, worked
from tests.unit.store.broken_runs import damage_line


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "sync").iterdir() if p.is_file()}


def test_it_shows_everything_and_changes_nothing(tmp_path: Path) -> None:
    worked(tmp_path, 4)
    bad = damage_line(tmp_path / "sync" / "journal.jsonl", 2)
    (tmp_path / "sync" / "state.json").write_text("<<<<<<< HEAD\n")
    before = files(tmp_path)
    called = call(tmp_path, "repair")
    assert called.code == 3
    for said in (
        "refused: revision 3 is missing before byte",
        "state.json: can't be read (",
        "revisions 1 to 6",
        "  revision 3 is missing before byte",
        f"the line at byte {bad} does not count: damaged",
        "last good record: revision 6 at byte",
        "3 records lead to it without a gap",
        "proposed: start a new journal",
        "sequencer repair --apply",
    ):
        assert said in called.out, called.out
    assert files(tmp_path) == before


def test_json_has_the_same(tmp_path: Path) -> None:
    worked(tmp_path, 4)
    damage_line(tmp_path / "sync" / "journal.jsonl", 2)
    found = call(tmp_path, "repair", "--json").json
    assert found["action"] == "rebuild"
    assert found["journals"][0]["gaps"][0]["first"] == 3
    assert found["last_good"]["revision"] == 6
    assert found["state"]["revision"] == 6


def test_apply_makes_the_run_usable_and_saves_the_originals(tmp_path: Path) -> None:
    worked(tmp_path, 4)
    damage_line(tmp_path / "sync" / "journal.jsonl", 2)
    (tmp_path / "sync" / "state.json").unlink()
    assert call(tmp_path, "run").code == 3
    original = (tmp_path / "sync" / "journal.jsonl").read_bytes()
    called = call(tmp_path, "repair", "--apply")
    assert called.code == 0, called.err
    assert "repaired: revision 7, step_index 4" in called.out
    kept = next((tmp_path / "sync").glob("damaged-*"))
    assert f"the originals are in sync/{kept.name}\n" in called.out
    assert (kept / "journal.jsonl").read_bytes() == original
    assert call(tmp_path, "run", "--max-steps", "1", "--quiet").code == 0
    assert state(tmp_path)["step_index"] == 5
    last = [json.loads(line) for line in call(tmp_path, "history", "--json").out.splitlines()]
    assert [fact["event"] for fact in last if fact["revision"] == 7] == ["edited"]


def test_apply_prints_the_head_as_json(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    (tmp_path / "sync" / "state.json").write_text("{")
    found = call(tmp_path, "repair", "--apply", "--json").json
    assert found["head"] == state(tmp_path)
    assert Path(found["kept"]).is_dir()


def test_a_lost_journal_waits_for_a_decision(tmp_path: Path) -> None:
    worked(tmp_path, 4)
    (tmp_path / "sync" / "journal.jsonl").unlink()
    shown = call(tmp_path, "repair")
    assert shown.code == 3
    assert "--accept-head continues from state.json (revision 6, step_index 4)" in shown.out
    refused = call(tmp_path, "repair", "--apply")
    assert refused.code == 3
    assert "--accept-head" in refused.err
    assert call(tmp_path, "repair", "--apply", "--accept-head").code == 0
    assert call(tmp_path, "run", "--max-steps", "1", "--quiet").code == 0
    assert state(tmp_path)["step_index"] == 5


def test_unrecoverable_files_need_a_backup(tmp_path: Path) -> None:
    worked(tmp_path, 4)
    (tmp_path / "sync" / "journal.jsonl").write_text("x\n")
    (tmp_path / "sync" / "state.json").write_text("x\n")
    shown = call(tmp_path, "repair")
    assert shown.code == 3
    assert "put a backup" in shown.out
    assert call(tmp_path, "repair", "--apply").code == 3


@pytest.mark.parametrize(
    "arguments",
    [("--accept-head",), ("--accept-journal",), ("--apply", "--accept-head", "--accept-journal")],
)
def test_choices_without_a_meaning_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    worked(tmp_path, 1)
    assert call(tmp_path, "repair", *arguments).code == 2


def test_a_named_run_is_repaired_alone(tmp_path: Path) -> None:
    worked(tmp_path, 2)
    assert call(tmp_path, "--run", "night", "run", "--max-steps", "2", "--quiet").code == 0
    (tmp_path / "sync" / "runs" / "night" / "state.json").write_text("{")
    before = files(tmp_path)
    assert call(tmp_path, "--run", "night", "repair", "--apply").code == 0
    assert list((tmp_path / "sync" / "runs" / "night").glob("damaged-*"))
    assert files(tmp_path) == before
    assert call(tmp_path, "--run", "nihgt", "repair").code == 2
