"""The section `schedules` of orchestration.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sequencer.model.step import Name
from sequencer.plugins.schedules.dates import Schedule
from sequencer.project.sections import ConfigSection, LocatedError
from sequencer.project.setting_checks import Check
from sequencer.project.settings import Settings


def get_schedules(settings: Settings) -> Mapping[str, Schedule]:
    """Return the section `schedules` of *settings*, by the name of the run that starts."""
    schedules: Mapping[str, Schedule] = settings.section("schedules")
    return schedules


def _problems(value: Mapping[str, Schedule], check: Check) -> Iterator[LocatedError]:
    for run, schedule in value.items():
        yield from check.check_workflow(schedule.workflow, ("schedules", run, "workflow"))


SECTION = ConfigSection(dict[Name, Schedule], dict, _problems)
