"""This user's own records: where they are, and whose folder is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, CorruptState, StorageFailed, UnsafeFolder
from sequencer.plugins.schedules import check
from sequencer.store.user_state import (
    STATE_VARIABLE,
    read_user_record,
    user_state_path,
    write_user_record,
)
from tests.unit.cli.calling import call, project


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_record_is_only_accessible_to_its_user(state: Path) -> None:
    assert read_user_record("ticks", "a.json", 9) is None
    write_user_record("ticks", "a.json", b"kept")
    assert read_user_record("ticks", "a.json", 9) == b"kept"
    path = user_state_path("ticks", "a.json")
    assert path == state / "sequencer" / "ticks" / "a.json"
    modes = [one.stat().st_mode & 0o777 for one in (path, path.parent, path.parents[1], state)]
    assert modes == [0o600, 0o700, 0o700, 0o700]
    assert [one.name for one in path.parent.iterdir()] == ["a.json"]


def test_links_above_our_own_folder_are_followed(state: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    state.symlink_to(tmp_path / "disk")
    write_user_record("ticks", "a.json", b"kept")
    assert read_user_record("ticks", "a.json", 9) == b"kept"
    assert (tmp_path / "disk" / "sequencer" / "ticks" / "a.json").exists()


@pytest.mark.parametrize("name", ["sequencer", "sequencer/ticks"])
def test_a_link_in_the_place_of_our_own_folder_is_refused(
    state: Path, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere" / "ticks"
    elsewhere.mkdir(parents=True)
    (elsewhere / "a.json").write_bytes(b"forged")
    (state / name).parent.mkdir(parents=True)
    (state / name).symlink_to(elsewhere if name.endswith("ticks") else elsewhere.parent)
    with pytest.raises(UnsafeFolder):
        read_user_record("ticks", "a.json", 9)
    with pytest.raises(UnsafeFolder):
        write_user_record("ticks", "a.json", b"kept")
    assert (elsewhere / "a.json").read_bytes() == b"forged"


def test_a_folder_that_others_may_write_in_is_refused(state: Path) -> None:
    write_user_record("ticks", "a.json", b"kept")
    (state / "sequencer" / "ticks").chmod(0o770)
    with pytest.raises(UnsafeFolder, match="other users may write in it"):
        read_user_record("ticks", "a.json", 9)


def test_a_folder_in_place_of_a_record_is_an_error(state: Path) -> None:
    (state / "sequencer" / "ticks" / "a.json").mkdir(parents=True)
    (state / "sequencer" / "ticks").chmod(0o700)
    with pytest.raises(CorruptState):
        read_user_record("ticks", "a.json", 9)
    with pytest.raises(StorageFailed):
        write_user_record("ticks", "a.json", b"kept")


def test_an_unknown_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_VARIABLE, "not/absolute")
    monkeypatch.setenv("HOME", "nor/this")
    with pytest.raises(ConfigurationError, match="your home folder is unknown"):
        read_user_record("ticks", "a.json", 9)


@pytest.mark.parametrize(("kind", "is_lasting"), [("ext4", True), ("overlay", False)])
def test_check_reports_records_that_would_not_survive_a_restart(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_lasting: bool
) -> None:
    monkeypatch.setattr(check, "filesystem_type", lambda _: kind)
    folder = project(
        tmp_path / "p",
        "agent: rehearsal\nworkflows: {two: {kind: procedure, steps: [supervisor, main]}}\n"
        "schedules: {night: {workflow: two, at: 0 2 * * *}}\n",
    )
    findings = call(folder, "check", "--json").json["findings"]
    about = [one for one in findings if "own records may be gone" in one["message"]]
    assert [one["level"] for one in about] == ([] if is_lasting else ["notice"])
    for one in about:
        start = "is on overlay, so your own records may be gone after a restart"
        assert one["message"].startswith(start)
        assert one["where"] == str(state / "sequencer")
