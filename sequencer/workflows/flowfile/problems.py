"""What is wrong with a workflow file: all of it at once, each with a code and its place.

A problem's message is ``CODE SUBJECT: what``; the subject is a node, the two ends of an
edge, or the file. Codes that begin with E stop the workflow from being loaded, those that
begin with W are warnings. docs/reference/flowcharts.md lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.workflows.finding import MAX_LISTED, nearest
from sequencer.workflows.mermaid.text import Position

MAX_PROBLEMS = 500
"""More of them are counted and not shown."""
MAX_COMPARED = 500
_PLACE = re.compile(r":(\d+):(\d+)$")


class FlowProblem(ConfigurationError):
    """One thing that is wrong, or that its author may not have meant."""

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
        """Say *detail* about *subject*; *position* is line and column within *where*."""
        super().__init__(f"{code} {subject}: {detail}", where=where, hint=hint)
        self.code = code
        self.subject = subject
        self.detail = detail
        self.position = position


class FlowErrors(ConfigurationErrors):
    """Everything that keeps a workflow file from being loaded, in the order of the file."""

    def __init__(self, problems: Iterable[FlowProblem], warnings: Iterable[FlowProblem]) -> None:
        """Hold *problems*; *warnings* are kept beside them and are not in the message."""
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__(self.problems)


class Diagnostics:
    """The problems of one file, collected while it is read."""

    def __init__(self, file: Path) -> None:
        """Collect the problems of *file*."""
        self.file = file
        self._errors: list[FlowProblem] = []
        self._warnings: list[FlowProblem] = []
        self._uncounted = 0

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
        return tuple(sorted(self._warnings, key=_in_file))

    def tell(
        self,
        code: str,
        subject: str,
        detail: str,
        at: Position | None = None,
        hint: str | None = None,
    ) -> None:
        """Add a problem; one whose *code* begins with E keeps the workflow from being loaded."""
        found = self._errors if code.startswith("E") else self._warnings
        if len(found) < MAX_PROBLEMS:
            where = f"{self.file}:{at[0]}:{at[1]}" if at else str(self.file)
            found.append(FlowProblem(code, subject, detail, where=where, position=at, hint=hint))
        elif found is self._errors:
            self._uncounted += 1

    def of(self, code: str, subject: str, error: ConfigurationError) -> None:
        """Add what another reader found, with its place if that is in the file."""
        place = _PLACE.search(error.where or "")
        at = (int(place[1]), int(place[2])) if place else None
        self.tell(code, subject, error.message, at, error.hint)

    def ensure_none(self) -> None:
        """Return if the workflow can be loaded.

        Raises:
            FlowErrors: it can't; all errors, in the order of the file.
        """
        if not self._errors:
            return
        errors = sorted(self._errors, key=_in_file)
        if self._uncounted:
            detail = f"{self._uncounted} more problems are not shown"
            errors.append(FlowProblem("E-MORE", self.file.name, detail, where=str(self.file)))
        raise FlowErrors(errors, self.warnings)

    def known(self, name: str, names: Collection[str]) -> str:
        """Return a hint that names the nearest of *names* and lists them."""
        # Comparing every wrong name with every node would take minutes for a hostile file.
        is_small = len(names) <= MAX_COMPARED and len(self._errors) <= MAX_LISTED
        return nearest(name, names, compares=is_small)


def _in_file(problem: FlowProblem) -> Position:
    return problem.position or (0, 0)
