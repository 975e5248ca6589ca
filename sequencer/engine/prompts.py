"""Prompts: the text of a step's prompt, by name."""

from __future__ import annotations

from typing import Protocol

from sequencer.executors.protocol import Executor
from sequencer.model.step import Step


class Prompts(Protocol):
    """Reads prompts by name."""

    def read(self, name: str) -> str:
        """Return the text of prompt *name*; see `workflows.prompts`."""

    def read_for(self, step: Step, executor: Executor) -> str:
        """Return the step's prompt; empty for a command without one."""
