"""Each git worktree of the project may have a folder of prompts of its own."""

from __future__ import annotations

from pathlib import Path

import sequencer


def worktree_of(project: Path) -> str | None:
    """Return the name of the worktree that *project* is; None for the main one or without git."""
    git = project / ".git"
    if not git.is_file():
        return None
    folder = Path(git.read_text(encoding="utf-8").removeprefix("gitdir:").strip())
    # A submodule has such a file too; its folder is in "modules".
    return folder.name if folder.parent.name == "worktrees" else None


@sequencer.hookimpl
def sequencer_prompt(context: sequencer.HookContext, text: str) -> str | None:
    """Return the prompt with the worktree's own text in the place of the step's."""
    name = worktree_of(context.project)
    prompts = context.project / "prompts"
    own = prompts / "worktrees" / (name or "") / context.step.prompt_name
    if name is None or not own.is_file():
        return None
    common = (prompts / context.step.prompt_name).read_text(encoding="utf-8").strip()
    instead = own.read_text(encoding="utf-8").strip()
    # The request and the like, which follow the step's text, stay.
    return text.replace(common, instead, 1) if common in text else f"{instead}\n\n{text}"
