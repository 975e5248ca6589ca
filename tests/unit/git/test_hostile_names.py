"""Names that a shell, an option parser or a pathspec would read as something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sequencer.settings.schema import CommitOptions
from tests.unit.git.clones import (
    clone,
    everything,
    git,
    head,
    pair,
    porcelain,
    said,
    tree_of,
    write,
)

NAMES = [
    *("-rf", "--help", "--stdin", "-", "--", "-z", "a -- b"),
    *(":(exclude)*", ":!x", ":/x", ":(top)", ":0:x", "*", "?", "[a]", "**", "!x", "^x", "~x"),
    *("a b", " lead", "trail ", "tab\there", "we\nird", "\nfirst", "cr\rhere", "bell\a"),
    *('"quoted"', "'single'", "back\\slash", "\\n", "\\134", "octal\\303"),
    *("$(touch canary)", "`touch canary`", "; touch canary", "a|touch canary", "a&b", "> canary"),
    *("@", "@{0}", "HEAD", "refs", "main", "a..b", "#hash", "%s", "{step}", "a,b", "a=b", "0"),
    *("ä", "計画", "caf\udce9", "\udcff\udcfe", "e\u0301", "\u202eright to left", "x" * 255),
    *("...", ".x", "COM1", "a\x01\x1b[31mb", "1 .M N...", "? x", "100644 x\ty", "Run: x"),
]


def usable(folder: Path, name: str) -> bool:
    try:
        write(folder, {name: "1"})
    except (OSError, UnicodeError):  # pragma: no cover - a file system that refuses the name
        return False
    return True


def test_all_at_once(tmp_path: Path) -> None:
    bare, here, there = pair(tmp_path)
    one, other = clone(here, commit=CommitOptions(paths=("out/",))), clone(there)
    one.carrier.ready(head())
    names = [f"out/{name}" for name in NAMES if usable(here / "out", name)]
    assert len(names) > len(NAMES) // 2
    before = {path: text for path, text in everything(here).items() if ".git/" not in path}
    state = one.push(head())
    assert {path for path in tree_of(bare, "main") if path.startswith("out/")} == set(names)
    assert porcelain(here) == []
    assert said(bare, "fsck", "--strict") == ""
    after = {path: text for path, text in everything(here).items() if ".git/" not in path}
    assert after == before
    # Changed and removed, then carried to the other clone.
    write(here, dict.fromkeys(names[::2], "2"))
    for name in names[1::2]:
        (here / name).unlink()
    state = one.push(state, token=2)
    other.carrier.ready(head())
    other.carrier.arrive(state)
    carried = {name: text for name, text in tree_of(there).items() if name.startswith("out/")}
    assert carried == dict.fromkeys(names[::2], "100644 2")
    assert porcelain(here) == porcelain(there) == []
    found = {os.fsdecode(path.name) for folder in (here, there) for path in folder.iterdir()}
    assert "canary" not in found


@pytest.mark.parametrize("branch", ["feature/x", "ä", "UPPER", "a.b", "x" * 100, "a,b", "$(x)"])
def test_names_of_branches(tmp_path: Path, branch: str) -> None:
    bare, here, _ = pair(tmp_path)
    git(here, "switch", "-q", "-c", branch)
    one = clone(here, commit=CommitOptions(paths=("a",)))
    one.carrier.ready(head())
    write(here, {"a": "1"})
    state = one.push(head())
    assert state.work is not None
    assert state.work.branch == branch
    assert said(bare, "rev-parse", f"refs/heads/{branch}") == state.work.commit
    one.carrier.ready(state)
