"""Reads the prompts of a project: its own files first, then those of the built-in procedures."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from sequencer.errors import UnknownName
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step
from sequencer.workflows.prompts import PromptReader, prompt_path, relative_name

BUILTIN_FOLDERS = ("subroutines", "system", "team")
"""Folders under the prompts folder; a project's prompts there override the built-in ones."""


@cache
def builtin_texts() -> dict[str, str]:
    """Return the prompts of the built-in procedures, by name under the prompts folder."""
    root = files("sequencer").joinpath("builtin", "prompts")
    return {
        f"{folder}/{entry.name}": entry.read_text(encoding="utf-8")
        for folder in BUILTIN_FOLDERS
        for entry in sorted(root.joinpath(folder).iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".md")
    }


class PromptFolder(PromptReader):
    """Reads the prompts of a project by name."""

    def read(self, name: str) -> str:
        """Return the text of prompt *name*; see `PromptReader.read`."""
        try:
            return super().read(name)
        except UnknownName:
            key = relative_name(self.folder, name)
            if key.split("/", 1)[0] not in BUILTIN_FOLDERS or key not in builtin_texts():
                raise
            return builtin_texts()[key]

    def read_for(self, step: Step, executor: Executor) -> str:
        """Return the prompt of *step*; empty for a command without one."""
        if step.text is not None:
            return step.text
        # A rehearsal also replaces a command, whose step needs no prompt.
        is_fake = executor.kind in ("rehearsal", "scripted") and step.agent is not None
        replaces_command = getattr(executor, "is_for_command", is_fake)
        is_optional = step.prompt is None and (executor.kind == "command" or replaces_command)
        if is_optional:
            try:
                prompt_path(self.folder, step.prompt_name)
            except UnknownName:
                return ""
        return self.read(step.prompt_name)
