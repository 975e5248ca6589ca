"""The section `activity` of orchestration.yaml."""

from __future__ import annotations

from sequencer.plugins.posting.options import ActivityOptions
from sequencer.project.sections import ConfigSection
from sequencer.project.settings import Settings


def activity_of(settings: Settings) -> ActivityOptions:
    """Return the section `activity` of *settings*."""
    found: ActivityOptions = settings.section("activity")
    return found


def comment_tools_of(settings: Settings) -> tuple[str, ...]:
    """Return the tools with which an agent could post."""
    return activity_of(settings).comment_tools


SECTION = ConfigSection(ActivityOptions, ActivityOptions)
