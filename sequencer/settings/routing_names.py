"""What ``routing:`` names: procedures, an agent, prompts, each with its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.workflows.registry import Registry
from sequencer.workflows.requests.options import AUTO, RULES, RoutingSettings

Named = Iterator[tuple[KeyPath, str]]


@dataclass(frozen=True, slots=True)
class RoutingNames:
    """The names in one set of routing settings."""

    routing: RoutingSettings

    def procedures(self) -> Named:
        """Yield the procedures that a request may be given to."""
        yield ("routing", "fallback"), self.routing.fallback
        for word, name in self.routing.procedures.items():
            yield ("routing", "procedures", word), name

    def agents(self) -> Named:
        """Yield the agent that classifies, unless a word stands there that names none."""
        if self.routing.classifier not in (AUTO, RULES):
            yield ("routing", "classifier"), self.routing.classifier

    def prompts(self) -> Named:
        """Yield the system prompts."""
        for name, entry in self.routing.system_prompts.items():
            if entry.prompt is not None:
                yield ("routing", "system_prompts", name, "prompt"), entry.prompt


def ensure_procedure(
    name: str, path: KeyPath, registry: Registry, where: str
) -> Iterator[tuple[KeyPath, ConfigurationError]]:
    """Yield what is wrong with *name*, which stands at *path*, as a procedure."""
    known = registry.procedure_names
    if name in known:
        return
    if name in registry.names:
        message = f"workflow {name!r} is a cycle, and what a request starts has to end"
        hint = f"known procedures: {', '.join(known)}"
        yield path, ConfigurationError(message, where=where, hint=hint)
    else:
        yield path, UnknownName("procedure", name, known, where=where)
