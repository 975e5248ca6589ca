"""Work of a step that was not accepted: it stays, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

from tests.unit.git.clones import (
    DOCS,
    claim,
    clone,
    commit,
    everything,
    head,
    pair,
    said,
    tree_of,
    write,
)


def test_work_that_was_not_accepted_is_kept(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ready(head())
    agents = commit(here, {"code": "1"})
    write(here, {"docs/a": "1", "else": "1"})
    before = everything(here)
    name = one.carrier.keep(claim(7, 12), "main", head())
    assert name == "sequencer-kept/default/7-12"
    after = everything(here)
    changed = {path for path in after if after[path] != before.get(path)}
    # git's own note of a push, and the branch.
    assert {path for path in changed if "/refs/remotes/" not in path} == {
        *(f".git/refs/heads/{name}", f".git/logs/refs/heads/{name}"),
    }
    assert said(bare, "rev-parse", f"{name}^") == agents
    assert tree_of(bare, name)["docs/a"] == "100644 1"
    assert "else" not in tree_of(bare, name)
    assert said(here, "rev-parse", "main") == agents


def test_no_work_is_nothing_to_keep(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    write(here, {"else": "1"})
    assert one.carrier.keep(claim(), "main", head()) is None
    assert said(here, "for-each-ref", "refs/heads/sequencer-kept") == ""


def test_commits_alone_are_kept_where_they_are(tmp_path: Path) -> None:
    _, here, _ = pair(tmp_path)
    one = clone(here, run="My run")
    one.carrier.ready(head())
    agents = commit(here, {"code": "1"})
    name = one.carrier.keep(claim(0, 1), "main", head())
    assert name is not None
    assert name.startswith("sequencer-kept/my-run--")
    assert said(here, "rev-parse", name) == agents
    # Once more is no more: it is the same work.
    assert one.carrier.keep(claim(0, 1), "main", head()) == name


def test_kept_work_is_never_overwritten(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = clone(here, commit=DOCS)
    one.carrier.ready(head())
    names = []
    for number in range(3):
        write(here, {"docs/a": str(number)})
        names.append(one.carrier.keep(claim(0, 1), "main", head()))
    assert names == [f"sequencer-kept/default/0-1{end}" for end in ("", ".2", ".3")]
    for number, name in enumerate(names):
        assert tree_of(bare, str(name))["docs/a"] == f"100644 {number}"


def test_a_remote_that_does_not_answer_keeps_nobody_from_keeping(tmp_path: Path) -> None:
    bare, here, _ = pair(tmp_path)
    one = clone(here)
    one.carrier.ready(head())
    commit(here, {"code": "1"})
    bare.rename(tmp_path / "moved away")
    name = one.carrier.keep(claim(), "main", head())
    assert said(here, "rev-parse", str(name)) == said(here, "rev-parse", "HEAD")
    assert one.carrier.take_notices() == [f"branch {name} is here only: it could not be pushed"]
