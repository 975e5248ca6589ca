"""The section `activity` of orchestration.yaml."""

from __future__ import annotations

from sequencer.plugins.posting.options import ActivityOptions
from sequencer.project.sections import ConfigSection
from sequencer.project.settings import Settings


def activity_of(settings: Settings) -> ActivityOptions:
    """Return the section `activity` of *settings*."""
    options: ActivityOptions = settings.section("activity")
    return options


def comment_tools_of(settings: Settings) -> tuple[str, ...]:
    """Return the tools that an agent could use to post comments."""
    return activity_of(settings).comment_tools


SECTION = ConfigSection(ActivityOptions, ActivityOptions)
