"""Commits of declared paths, made straight by the committer."""

from __future__ import annotations

from pathlib import Path

from sequencer.checkout.committing import Committer, Written
from sequencer.checkout.content import secrets_by
from sequencer.checkout.options import CommitOptions
from sequencer.checkout.selection import Selection, Selector
from sequencer.checkout.tree import WorkTree
from sequencer.executors.redaction import Redaction
from tests.unit.checkout.clones import said, tree_at

MAIN = "refs/heads/main"


def chosen(tree: WorkTree, *paths: str) -> Selection:
    options = CommitOptions(paths=paths or ("**",))
    return Selector(tree, options, secrets_by(Redaction())).select(tree.status())


def committed(folder: Path, *paths: str, message: str = "a step\n") -> Written:
    tree = tree_at(folder)
    parent = said(folder, "rev-parse", "HEAD")
    return Committer(tree).commit(chosen(tree, *paths), parent, MAIN, message)
