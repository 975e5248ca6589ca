"""Step fields that a task has from its role, where its agent can't honour them.

A role says what its agents may do in words for every client; a command that stands in for
one has no tools that could be taken from it. What a task's author wrote is never left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from sequencer.engine.prepared import Agents
from sequencer.errors import ConfigurationError
from sequencer.model.step import Step


def honoured(step: Step, brought: Sequence[str], agents: Agents) -> tuple[Step, tuple[str, ...]]:
    """Return *step* without those of the fields *brought* that its agent can't honour.

    Raises:
        ConfigurationError: it has no agent, or that can't honour what the author wrote.
    """
    kept, left_out = step, list[str]()
    fields = [name for name in brought if not name.startswith("fixer.")]
    while True:
        try:
            agents.choose(kept, kept.name)
        except ConfigurationError:
            refused = _first_refused(kept, fields, agents)
            if refused is None:
                raise
            fields.remove(refused)
            left_out.append(refused)
            kept = _without(kept, refused)
        else:
            return kept, tuple(left_out)


def _first_refused(step: Step, fields: Sequence[str], agents: Agents) -> str | None:
    """Return the first of *fields* that a step with nothing else could not be performed with."""
    for name in fields:
        bare = Step(name=step.name, text=".", executor=step.executor)
        try:
            agents.choose(bare.model_copy(update={name: getattr(step, name)}), step.name)
        except ConfigurationError:
            return name
    return None


def _without(step: Step, field: str) -> Step:
    default = Step.model_fields[field].get_default(call_default_factory=True)
    return step.model_copy(update={field: default})
