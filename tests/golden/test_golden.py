"""Runs that earlier versions have recorded replay to the same heads, and can be continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.continued import list_misfits
from tests.golden.recording import FOLDER, bring_back, journals, played, steady
from tests.golden.stories import STORIES

pytestmark = pytest.mark.parametrize("name", STORIES)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def play(folder: Path, name: str, first: int) -> None:
    """Give the commands of *name* from the one numbered *first* on; they end as they did."""
    for words, expected, code, text in played(folder, STORIES[name].commands[first:]):
        assert code == expected, f"{words}: {text}"


def same(folder: Path, name: str) -> None:
    assert [*list_misfits(folder)] == []
    expected = steady(recorded(name)["journals"])
    for path, records in journals(folder).items():
        for found, meant in zip(records, expected.pop(path), strict=True):
            assert found == meant
    assert expected == {}


def test_a_run_writes_the_recorded_files(name: str, tmp_path: Path) -> None:
    STORIES[name].make(tmp_path)
    play(tmp_path, name, 0)
    same(tmp_path, name)


@pytest.mark.slow(sample=4)
def test_a_recorded_run_is_continued(name: str, tmp_path: Path) -> None:
    STORIES[name].make(tmp_path)
    bring_back(recorded(name)["cut"], tmp_path)
    play(tmp_path, name, STORIES[name].cut)
    same(tmp_path, name)


def test_a_lost_head_is_read_from_the_journal(name: str, tmp_path: Path) -> None:
    STORIES[name].make(tmp_path)
    bring_back(recorded(name)["end"], tmp_path)
    for path in tmp_path.glob("sync/**/state.json"):
        run = () if path.parent.name == "sync" else ("--run", path.parent.name)
        status = (*run, "status", "--json")
        before = json.loads(cli(tmp_path, *status).stdout)
        path.unlink()
        after = json.loads(cli(tmp_path, *status).stdout)
        (told,) = after.pop("notices")
        assert f"{path} was missing; the state was read from the journal" in told
        # Of a flow without a head the nodes are not listed until somebody works on it.
        assert after == {key: before[key] for key in after}
