"""Commits of declared paths, made straight by the committer."""

from __future__ import annotations

from pathlib import Path

from sequencer.executors.redaction import Redaction
from sequencer.plugins.git.code.commit import Committer, WrittenCommit
from sequencer.plugins.git.code.selection import Selection, Selector, make_secret_check
from sequencer.plugins.git.code.tree import WorkTree
from sequencer.project.schema import CommitOptions
from tests.unit.git.clones import said, tree_at

MAIN = "refs/heads/main"


def chosen(tree: WorkTree, *paths: str) -> Selection:
    options = CommitOptions(paths=paths or ("**",))
    return Selector(tree, options, make_secret_check(Redaction())).select(tree.read_status())


def committed(folder: Path, *paths: str, message: str = "a step\n") -> WrittenCommit:
    tree = tree_at(folder)
    parent = said(folder, "rev-parse", "HEAD")
    return Committer(tree).commit(chosen(tree, *paths), parent, MAIN, message)
