"""The section `activity` of orchestration.yaml."""

from __future__ import annotations

from sequencer.plugins.posting.options import ActivityOptions
from sequencer.project.sections import ConfigSection
from sequencer.project.settings import Settings


def activity_of(settings: Settings) -> ActivityOptions:
    """Return the section `activity` of *settings*."""
    found: ActivityOptions = settings.section("activity")
    return found


SECTION = ConfigSection(ActivityOptions, ActivityOptions)
