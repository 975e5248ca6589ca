"""Creates the starter that turns requests into runs of a project."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sequencer import extensions
from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import Objection, without_tools
from sequencer.model.step import Step
from sequencer.plugins.posting.section import get_activity_options
from sequencer.plugins.requests.routing import choose_classifier
from sequencer.plugins.requests.section import get_routing_settings
from sequencer.plugins.requests.starting import Questions, Starter, TeamStarter
from sequencer.plugins.teams.section import get_team_options
from sequencer.project.diagnostics import Area, Diagnostic, Level
from sequencer.project.project import Project
from sequencer.store.user_state import make_user_folder


def find_classifier(project: Project) -> str | None:
    """Return the agent that classifies requests; None: the rules classify them."""
    if project.rehearses:
        return None
    return choose_classifier(
        get_routing_settings(project.settings), project.agents.default_model_agent()
    )


def build_starter(project: Project) -> Starter:
    """Return the starter that turns requests into runs."""
    settings, agent = project.settings, find_classifier(project)
    return Starter(
        registry=settings.registry,
        routing=get_routing_settings(settings),
        agents=project.agents,
        prompts=project.prompts,
        step_defaults=settings.step_defaults,
        comment_tools=get_activity_options(settings).comment_tools,
        questions=None
        if agent is None
        else partial(
            Questions,
            project.agents,
            agent,
            within_s=get_routing_settings(settings).timeout_s,
            project=settings.project_dir,
            ensure_may_ask=project.trust.ensure,
            make_place=partial(make_user_folder, "questions"),
        ),
        hooks=project.hooks,
        agent=settings.agent.default if _is_agent_typed(project) else None,
        team=TeamStarter(get_team_options(settings), get_routing_settings(settings))
        if extensions.is_available("teams")
        else None,
    )


def _is_agent_typed(project: Project) -> bool:
    """Return whether ``--agent`` chose the run's agent; a rehearsal does not record it."""
    source = project.settings.get_source("agent", "default")
    return source.kind == "flag" and not project.rehearses


def check_project(project: Project, run: str | None, *, looks: bool) -> Iterator[Diagnostic]:
    """Yield the reason if the rules classify requests although an agent is configured."""
    del run
    if looks:
        return
    name = find_classifier(project)
    if name is None:
        return
    try:
        _, executor = project.agents.choose(Step(name="classifier", agent=name), "classifier")
    except ConfigurationError:
        return  # another check reports it
    limited_executor = without_tools(executor, project.settings.project_dir)
    if isinstance(limited_executor, Objection):
        text = f"keyword rules classify requests, not agent {name!r}: {limited_executor.reason}"
        hint = f"{limited_executor.hint} in routing.classifier; 'rules' there is what happens now"
        yield Diagnostic(Level.NOTICE, Area.AGENT, text, "routing.classifier", hint)
