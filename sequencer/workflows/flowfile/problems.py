"""The problems of a workflow file: all of them together, each with a code and its place.

A problem's message is ``CODE SUBJECT: DETAIL``; the subject is a node, the two ends of an edge,
or the file. Codes that start with E are errors, and the workflow is not loaded; codes that start
with W are warnings. docs/reference/flowcharts.md lists all codes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.workflows.finding import MAX_LISTED, suggest_nearest
from sequencer.workflows.mermaid.text import Position

MAX_PROBLEMS = 500
"""Further problems are counted but not shown."""
MAX_COMPARED = 500
_PLACE = re.compile(r":(\d+):(\d+)$")


class FlowProblem(ConfigurationError):
    """One error, or something that the author may not have intended."""

    def __init__(
        self,
        code: str,
        subject: str,
        detail: str,
        *,
        where: str,
        position: Position | None = None,
        hint: str | None = None,
    ) -> None:
        """Report *detail* about *subject*; *position* is the line and column in *where*."""
        super().__init__(f"{code} {subject}: {detail}", where=where, hint=hint)
        self.code = code
        self.subject = subject
        self.detail = detail
        self.position = position


class FlowErrors(ConfigurationErrors):
    """All errors of a workflow file, in the order of the file."""

    def __init__(self, problems: Iterable[FlowProblem], warnings: Iterable[FlowProblem]) -> None:
        """Report *problems*; *warnings* are an attribute and not part of the message."""
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__(self.problems)


class Diagnostics:
    """Collects the problems of one file while it is read."""

    def __init__(self, file: Path) -> None:
        """Start without problems of *file*."""
        self.file = file
        self._errors: list[FlowProblem] = []
        self._warnings: list[FlowProblem] = []
        self._hidden_count = 0

    @property
    def has_errors(self) -> bool:
        """Return whether the workflow can't be loaded."""
        return bool(self._errors)

    @property
    def is_full(self) -> bool:
        """Return whether further errors would only be counted."""
        return len(self._errors) >= MAX_PROBLEMS

    @property
    def is_silent(self) -> bool:
        """Return whether further warnings would be left out."""
        return len(self._warnings) >= MAX_PROBLEMS

    @property
    def warnings(self) -> tuple[FlowProblem, ...]:
        """Return the warnings in the order of the file."""
        return tuple(sorted(self._warnings, key=_sort_position))

    def add(
        self,
        code: str,
        subject: str,
        detail: str,
        at: Position | None = None,
        hint: str | None = None,
    ) -> None:
        """Add a problem; it is an error if its *code* starts with E, else a warning."""
        problems = self._errors if code.startswith("E") else self._warnings
        if len(problems) < MAX_PROBLEMS:
            location = f"{self.file}:{at[0]}:{at[1]}" if at else str(self.file)
            problems.append(
                FlowProblem(code, subject, detail, where=location, position=at, hint=hint)
            )
        elif problems is self._errors:
            self._hidden_count += 1

    def add_error(self, code: str, subject: str, error: ConfigurationError) -> None:
        """Add the error of another reader, with its place if that is in the file."""
        place = _PLACE.search(error.where or "")
        position = (int(place[1]), int(place[2])) if place else None
        self.add(code, subject, error.message, position, error.hint)

    def ensure_none(self) -> None:
        """Check that there are no errors.

        Raises:
            FlowErrors: there are errors; it has all of them, in the order of the file.
        """
        if not self._errors:
            return
        errors = sorted(self._errors, key=_sort_position)
        if self._hidden_count:
            detail = f"{self._hidden_count} more problems are not shown"
            errors.append(FlowProblem("E-MORE", self.file.name, detail, where=str(self.file)))
        raise FlowErrors(errors, self.warnings)

    def hint_for(self, name: str, names: Collection[str]) -> str:
        """Return a hint that lists *names* and suggests the one that is nearest to *name*."""
        # Comparing every wrong name with every node would take minutes for a hostile file.
        is_small = len(names) <= MAX_COMPARED and len(self._errors) <= MAX_LISTED
        return suggest_nearest(name, names, compares=is_small)


def _sort_position(problem: FlowProblem) -> Position:
    return problem.position or (0, 0)
