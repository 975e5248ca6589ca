"""The findings of a check: level, area, place and hint."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from sequencer.errors import ConfigurationError, SequencerError, StateRefused
from sequencer.files.yamlfile import format_key_path
from sequencer.project.settings import Settings


class Level(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """A step could not run, or its result could not be trusted."""
    WARNING = "warning"
    NOTICE = "notice"


class Area(StrEnum):
    """The subject of a finding."""

    CONFIGURATION = "configuration"
    WORKFLOW = "workflow"
    AGENT = "agent"
    REMOTE = "remote"
    """The server or git remote through which machines share a run."""
    STATE = "state"
    JOURNAL = "journal"
    FILES = "files"


class Diagnostic(Struct, frozen=True):
    """One finding that a person should know."""

    level: Level
    area: Area
    message: str
    where: str | None = None
    hint: str | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code that this finding alone would cause."""
        if self.level is not Level.ERROR:
            return 0
        is_state = self.area in (Area.STATE, Area.JOURNAL)
        return StateRefused.exit_code if is_state else ConfigurationError.exit_code


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """Return 2 if the configuration is wrong, else 3 if the state is, else 0."""
    codes = {finding.exit_code for finding in diagnostics} - {0}
    return min(codes, default=0)


def diagnose_error(
    area: Area, error: SequencerError, level: Level = Level.ERROR
) -> list[Diagnostic]:
    """Return one finding for each problem in *error*."""
    return [Diagnostic(level, area, part.message, part.where, part.hint) for part in error.each]


def locate_setting(settings: Settings, *path: str) -> str:
    """Return file, line and key of the setting at *path*, or only the key if it is a default."""
    source = settings.get_source(*path)
    return (
        format_key_path(path) if source.kind == "default" else f"{source}: {format_key_path(path)}"
    )
