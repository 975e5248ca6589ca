"""The section `routing` of orchestration.yaml."""

from __future__ import annotations

from collections.abc import Iterator

from sequencer.plugins.requests.routing import AUTO, RULES, RoutingSettings, list_system_prompts
from sequencer.project.sections import ConfigSection, LocatedError
from sequencer.project.setting_checks import Check
from sequencer.project.settings import Settings


def get_routing_settings(settings: Settings) -> RoutingSettings:
    """Return the section `routing` of *settings*."""
    options: RoutingSettings = settings.section("routing")
    return options


def get_system_prompts(settings: Settings) -> list[str]:
    """Return every system prompt that a step with system_from_labels may get."""
    return list_system_prompts(get_routing_settings(settings))


def _problems(value: RoutingSettings, check: Check) -> Iterator[LocatedError]:
    if value.classifier not in (AUTO, RULES):
        yield from check.check_agent(value.classifier, ("routing", "classifier"))
    for name, entry in value.system_prompts.items():
        yield from check.check_prompt(entry.prompt, ("routing", "system_prompts", name, "prompt"))
    yield from check.check_procedure(value.fallback, ("routing", "fallback"))
    for word, name in value.procedures.items():
        yield from check.check_procedure(name, ("routing", "procedures", word))


SECTION = ConfigSection(RoutingSettings, RoutingSettings, _problems)
