"""``store.work:`` and ``commit:`` in orchestration.yaml: which code moves, and what is committed.

Closed by default: without a word in ``commit`` nothing is ever committed for anybody, and
only the agents' own commits move.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from sequencer.model.names import is_branch_name

MIB = 1024 * 1024
CURRENT, NONE = "current", "none"
MESSAGE = "{step}: iteration {iteration} (run {run})"
PLACEHOLDERS = ("step", "iteration", "step_index", "run", "token")
"""Words in braces that a message may hold."""

_WORD = re.compile(r"\{([^{}]*)\}")


def _is_branch(text: str) -> str:
    if not is_branch_name(text):
        raise ValueError("is no name of a branch")
    return text


def _is_pattern(text: str) -> str:
    parts = text.split("/")
    if "\0" in text or ".." in parts or not text.strip("/"):
        raise ValueError("a pattern is a path below the project's folder, with *, ? and **")
    return text


def _is_extension(text: str) -> str:
    if not text.startswith(".") or "/" in text or len(text) == 1:
        raise ValueError("an extension begins with a dot, for example .md")
    return text.lower()


def _is_message(text: str) -> str:
    unknown = [word for word in _WORD.findall(text) if word not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(f"{{{word}}}" for word in PLACEHOLDERS)
        raise ValueError(f"{{{unknown[0]}}} means nothing here; there are {known}")
    return text


_TEXT = StringConstraints(min_length=1, max_length=1000)
BranchName = Annotated[
    str, StringConstraints(min_length=1, max_length=200), AfterValidator(_is_branch)
]
Pattern = Annotated[str, _TEXT, AfterValidator(_is_pattern)]
Extension = Annotated[str, StringConstraints(max_length=100), AfterValidator(_is_extension)]
Message = Annotated[
    str,
    StringConstraints(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$"),
    AfterValidator(_is_message),
]
Bytes = Annotated[int, Field(ge=0, le=1024 * MIB)]


class WorkOptions(BaseModel):
    """``store.work:``, the code that moves with the state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    branch: BranchName = CURRENT
    """``current``: what was checked out when the first step began. ``none``: code is not moved.

    Else a branch's name, of which the guard of a run in files is made as well.
    """
    tolerated: tuple[Pattern, ...] = ()
    """Paths that may be dirty when a step begins."""


class CommitOptions(BaseModel):
    """``commit:``, what is committed after a step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: tuple[Pattern, ...] = ()
    """Whatever has changed there, removed files too."""
    docs: bool = True
    """Whether `doc_whitelist` counts."""
    doc_whitelist: tuple[Pattern, ...] = ()
    """The same as `paths`, for documents."""
    reports: bool = True
    """Whether the keys that begin with ``report_`` count."""
    report_extensions: tuple[Extension, ...] = ()
    """New and changed files with one of these extensions."""
    report_path_globs: tuple[Pattern, ...] = ()
    """Only there; without extensions: whatever is new or changed there."""
    tracked_outputs: bool = True
    """Whether the keys that begin with ``tracked_output_`` count."""
    tracked_output_extensions: tuple[Extension, ...] = ()
    """Changed files with one of these extensions that git knows already."""
    tracked_output_globs: tuple[Pattern, ...] = ()
    """Only there; without extensions: whatever has changed there."""
    exclude: tuple[Pattern, ...] = ()
    """Never these, whatever else says so."""
    max_file_bytes: Bytes = MIB
    """Of one file in `paths` or `doc_whitelist`."""
    max_report_file_bytes: Bytes = 5 * MIB
    max_report_total_bytes: Bytes = 20 * MIB
    max_tracked_output_file_bytes: Bytes = 32 * MIB
    max_tracked_output_total_bytes: Bytes = 100 * MIB
    max_total_bytes: Bytes = 128 * MIB
    """Of one commit in all."""
    message: Message = MESSAGE
    """First line of the commit's message."""

    @property
    def is_open(self) -> bool:
        """Return whether anything at all may be committed."""
        return bool(
            self.paths
            or (self.docs and self.doc_whitelist)
            or (self.reports and (self.report_extensions or self.report_path_globs))
            or (
                self.tracked_outputs
                and (self.tracked_output_extensions or self.tracked_output_globs)
            )
        )

    def first_line(self, facts: dict[str, str]) -> str:
        """Return the message with *facts* in place of the words in braces, in one pass."""
        return _WORD.sub(lambda found: facts[found[1]], self.message)
