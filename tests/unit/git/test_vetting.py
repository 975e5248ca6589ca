"""Keys in what an agent has committed itself: never merged, and never repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.git import selection as vetting
from sequencer.git.checkout import PlaceLeft, PlaceResult
from sequencer.git.process import Git
from sequencer.git.selection import with_keys
from tests.unit.git.clones import ENVIRONMENT, SECRET, commit, git, said, tree_of, write
from tests.unit.git.teams import branches, is_sound, opened, project, remains, worked
from tests.unit.git.teams import workplaces as workplaces_of

PEM = "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n"
OTHER = f"ghp_{'z9' * 18}"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return project(tmp_path / "here", {"a": "a\n", "b": "b\n"})


def refused(here: Path, work: Callable[[Path], object]) -> PlaceLeft:
    """Let *work* be done, and see that nothing of it is merged and nothing is lost."""
    before = said(here, "rev-parse", "HEAD")
    left = worked(workplaces_of(here), work)
    assert (left.result, left.error is not None) == (PlaceResult.KEPT, True)
    assert said(here, "rev-parse", "HEAD") == before
    assert branches(here) == [left.branch]
    assert remains(here) == []
    assert is_sound(here)
    told = f"{left.error} {left.hint} {left.notices}"
    assert not any(key in told for key in (SECRET, OTHER, "hunter2", "MIIE"))
    assert str(left.branch) in told
    return left


@pytest.mark.parametrize("text", [SECRET, OTHER, "hunter2-hunter2", PEM.format("MIIE" * 20)])
def test_a_commit_that_adds_a_key_is_not_merged(here: Path, text: str) -> None:
    left = refused(here, lambda at: commit(at, {"d/k.py": f"KEY = '{text}'\n", "a": "1\n"}))
    assert left.files == ("d/k.py",)
    assert "'d/k.py' holds what looks like a key" in str(left.error)
    assert f"KEY = '{text}'" in said(here, "show", f"{left.branch}:d/k.py")


def test_nor_is_one_whose_key_a_later_commit_takes_away(here: Path) -> None:
    """It would stand in the history for whoever gets that."""

    def work(at: Path) -> None:
        commit(at, {"k.py": SECRET})
        commit(at, {"k.py": "KEY = os.environ['KEY']\n"})

    assert refused(here, work).files == ("k.py",)


def test_a_key_in_a_message_or_a_name_counts_too(here: Path) -> None:
    def work(at: Path) -> None:
        write(at, {f"keys/{SECRET}.txt": "x"})
        git(at, "add", "-A")
        git(at, "commit", "-q", "-m", f"uses\n\n{OTHER}")

    left = refused(here, work)
    names = sorted(left.files)
    assert (names[0][:7], names[1]) == ("commit ", "keys/…")
    assert "has what looks like a key in its message" in str(left.error)


def test_a_key_that_was_there_forbids_nothing(here: Path) -> None:
    commit(here, {"fixture": f"{SECRET}\nother\n", "moved": f"{OTHER}\n"})

    def work(at: Path) -> None:
        commit(at, {"fixture": f"{SECRET}\nedited\n"})
        git(at, "mv", "moved", "elsewhere")
        git(at, "commit", "-q", "-m", "moved")

    assert worked(workplaces_of(here), work).result is PlaceResult.MERGED
    assert tree_of(here)["elsewhere"] == f"100644 {OTHER}\n"
    left = worked(
        workplaces_of(here), lambda at: commit(at, {"fixture": f"{SECRET}\n{OTHER}\n"}), token=2
    )
    assert left.files == ("fixture",)


def test_nobody_waits_for_a_turn_with_it(here: Path) -> None:
    place = opened(workplaces_of(here))
    commit(place.cwd, {"k.py": SECRET})
    turns: list[int] = []
    place.close(is_accepted=True, wait_for_turn=lambda: turns.append(1))
    assert turns == []


def test_where_git_can_not_look_nothing_is_merged(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(vetting, "_new", broken)
    before = said(here, "rev-parse", "HEAD")
    left = worked(workplaces_of(here), lambda at: commit(at, {"a": "1\n"}))
    assert left.result is PlaceResult.REFUSED
    assert "can't be merged: no memory" in str(left.error)
    assert said(here, "rev-parse", "HEAD") == before


# --- the look itself ---------------------------------------------------------------------


def found(here: Path, *, max_bytes: int = 10**6) -> list[tuple[str, str]]:
    known = [said(here, "rev-parse", "first")]
    return list(
        with_keys(
            Git(here, ENVIRONMENT),
            said(here, "rev-parse", "HEAD"),
            known,
            is_secret=lambda data: b"KEY" in data,
            is_new=lambda path, _: path != "old",
            max_bytes=max_bytes,
        )
    )


def test_every_content_is_looked_at_however_many_there_are(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vetting, "BATCH_BYTES", 100)
    git(here, "tag", "first")
    commit(here, {f"f{number:02}": f"{number}\n" * 20 for number in range(30)})
    commit(
        here, {"f07": "a KEY\n", "old": "KEY", "empty": "", "odd\nname": "1 KEY", "ä ö": "2 KEY"}
    )
    names = [path for path, _ in found(here)]
    assert sorted(names) == ["f07", "odd\nname".partition("\n")[0], "ä ö"]


def test_what_is_above_the_cap_is_not_read(here: Path) -> None:
    git(here, "tag", "first")
    commit(here, {"large": "KEY" * 100, "small": "KEY"})
    assert [path for path, _ in found(here, max_bytes=50)] == ["small"]
