"""The section `activity` of orchestration.yaml."""

from __future__ import annotations

from sequencer.plugins.posting.options import ActivityOptions
from sequencer.project.sections import ConfigSection
from sequencer.project.settings import Settings


def get_activity_options(settings: Settings) -> ActivityOptions:
    """Return the section `activity` of *settings*."""
    options: ActivityOptions = settings.section("activity")
    return options


def list_comment_tools(settings: Settings) -> tuple[str, ...]:
    """Return the tools that an agent could use to post comments."""
    return get_activity_options(settings).comment_tools


SECTION = ConfigSection(ActivityOptions, ActivityOptions)
