"""Half of the runs get one more instruction, so that the two halves can be compared."""

from __future__ import annotations

import hashlib

import sequencer


def group_of(run_id: str) -> str:
    """Return "a" or "b": always the same one for a run, so that a retry changes nothing."""
    return "ab"[hashlib.sha256(run_id.encode()).digest()[0] % 2]


@sequencer.hookimpl
def sequencer_prompt(context: sequencer.HookContext, text: str) -> str | None:
    """Return the prompt with what the run's group is told in addition, if there is anything."""
    folder = context.project / "prompts" / f"group-{group_of(context.run_id)}"
    more = folder / context.step.prompt_name
    if not more.is_file():
        return None
    return f"{text.rstrip()}\n\n{more.read_text(encoding='utf-8')}"
