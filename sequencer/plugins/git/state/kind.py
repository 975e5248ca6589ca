"""The git store as a kind of store: what is known about it before a run needs it."""

from __future__ import annotations

from sequencer.project.store_kinds import StoreKind

GIT = StoreKind(
    "git",
    "sequencer.plugins.git.state.store:open_git_store",
    code="store",
    carries_code=True,
    # Each transition pushes the whole open journal.
    max_open_journal_bytes=1024 * 1024,
    checks="sequencer.plugins.git.check:check_store",
)
