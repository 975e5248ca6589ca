"""The workflows that the definitions of a project make, each after the one that it extends.

A definition extends at most one other, so a line of them either ends or runs in a circle;
a circle is named. What can't be made is left out, and what extends it with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from pydantic import ValidationError

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.workflow import Review, Workflow
from sequencer.resolution.extension import Extension, Found, KeyPath, Locate
from sequencer.resolution.registry import WorkflowDefinition

MAX_TOLD = 10
"""Of a circle's links; the rest is as good as these."""


class Composition:
    """What *definitions* make of each other and of the built-in workflows."""

    def __init__(
        self,
        definitions: Mapping[str, WorkflowDefinition],
        builtin: Mapping[str, Workflow],
        locate: Locate,
    ) -> None:
        """Compose *definitions*; *locate* takes paths that begin with a definition's name."""
        self.problems: list[Found] = []
        self._definitions = definitions
        self._builtin = builtin
        self._locate = locate
        made: dict[str, Workflow] = {}
        seen: set[str] = set()
        for name in definitions:
            line = self._line(name, seen)
            for each in reversed(line):
                self._make(each, made)
        self.workflows = {name: made[name] for name in definitions if name in made}
        """In the order of the definitions."""

    def _line(self, name: str, seen: set[str]) -> list[str]:
        """Return *name* and what it extends, as far as not *seen*; nothing for a circle."""
        line: list[str] = []
        here: str | None = name
        while here is not None and here not in seen:
            seen.add(here)
            line.append(here)
            here = self._extended(here)
        if here not in line:
            return line
        circle = line[line.index(here) :]
        path = (circle[0], "extends")
        links = [f"{one!r} extends {other!r}" for one, other in pairwise([*circle, here])]
        if len(links) > MAX_TOLD:
            links[MAX_TOLD - 1 : -1] = ["…"]
        told = ", ".join(links)
        hint = "let one of them extend another workflow, or list its steps"
        where = self._locate(path)
        error = ConfigurationError(f"runs in a circle: {told}", where=where, hint=hint)
        self.problems.append((path, error))
        return []

    def _extended(self, name: str) -> str | None:
        """Return the definition that *name* extends, if it is one and not a built-in workflow."""
        base = self._definitions[name].extends
        # Under its own name a definition changes the built-in workflow.
        return base if base in self._definitions and base != name else None

    def _make(self, name: str, made: dict[str, Workflow]) -> None:
        definition = self._definitions[name]
        if definition.extends is None:
            made[name] = definition.named(name)
            return
        base = self._base(name, definition.extends, made)
        if base is None:
            return

        def locate(path: KeyPath) -> str:
            return self._locate((name, *path))

        extension = Extension(base, definition, locate)
        workflow = extension.workflow(name)
        self.problems += [((name, *path), error) for path, error in extension.problems]
        if workflow is not None:
            about = definition.description or workflow.description
            made[name] = workflow.model_copy(update={"description": about})

    def _base(self, name: str, extends: str, made: dict[str, Workflow]) -> Workflow | None:
        """Return the workflow that *name* changes, with the review that it asks for."""
        if extends in self._definitions and extends != name:
            base = made.get(extends)
        else:
            base = self._builtin.get(extends)
            if base is None:
                known = {*self._builtin, *self._definitions} - {name}
                path = (name, "extends")
                error = UnknownName("workflow", extends, known, where=self._locate(path))
                self.problems.append((path, error))
        review = self._definitions[name].review
        if base is None or review is None:
            return base
        try:
            return Workflow(
                base.name,
                base.steps,
                Review(every=review.every, step=review.step),
                base.kind,
                description=base.description,
            )
        except ValidationError as refused:
            path = (name, "review")
            text = str(refused.errors()[0]["msg"]).removeprefix("Value error, ")
            self.problems.append((path, ConfigurationError(text, where=self._locate(path))))
            return None
