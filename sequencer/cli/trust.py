"""`trust`, and the question on a terminal: whether a project may act on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sequencer.assembly import trusting as trusted
from sequencer.assembly.agents import AgentOverrides
from sequencer.assembly.flows import all_flows
from sequencer.cli.context import ALWAYS, Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import one_line
from sequencer.errors import ConfigurationError, DecisionRefused, NotTrusted, UsageRefused
from sequencer.project import Project, open_project
from sequencer.settings.location import find_config, is_inside_agent
from sequencer.settings.sources import Given

_BUILT_IN = "steps can use these agents, and those that are built in as they come"


_SETTINGS: Mapping[str, tuple[str, str]] = {
    "workflow": ("workflow", "name"),
    "review_every": ("workflow", "review_every_n"),
    "agent": ("agent", "default"),
    "router": ("router", "enabled"),
    "mode": ("run", "mode"),
    "max_steps": ("run", "max_steps"),
    "max_cycles": ("run", "max_cycles"),
    "max_cost": ("run", "max_cost_usd"),
    "max_wait": ("run", "max_wait_s"),
    "step_timeout": ("run", "step_timeout_s"),
    "max_parallel": ("run", "max_parallel"),
}
"""The options that lie over a setting."""


def opened(
    invocation: Invocation,
    options: Mapping[str, object],
    overrides: AgentOverrides | None,
    *,
    rehearses: bool,
) -> Project:
    """Return the project that *invocation* is about, with *options* laid over its settings."""
    flags: dict[tuple[str | int, ...], Given] = {
        key: Given(f"--{'no-' if options[name] is False else ''}{name.replace('_', '-')}", value)
        for name, key in _SETTINGS.items()
        if (value := options.get(name)) is not None
    }
    return open_project(
        config=invocation.config,
        flags=flags,
        overrides=overrides,
        acts=invocation.acts,
        rehearses=rehearses,
        trust=lambda refused: ask(invocation, refused),
    )


def ensure_is_one(project: Project) -> None:
    """Return if there is anything of a project, were it one flowchart.

    Raises:
        ConfigurationError: there is nothing, so that the settings' defaults are nobody's wish.
    """
    settings = project.settings
    if settings.config_path or settings.prompts_dir.exists() or settings.state_file.parent.exists():
        return
    if not all_flows(project):
        raise ConfigurationError(
            "there is no project here: no orchestration.yaml in this folder or above it",
            hint="'sequencer init' makes a project here; 'cd' to yours, or name it with --config",
        )


def is_watched() -> bool:
    """Return whether a person can see a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask(invocation: Invocation, refused: NotTrusted) -> bool:
    """Return whether a person at the terminal trusts what *refused* lists; nobody there: no.

    Raises:
        UsageRefused: they said no, with the list before their eyes.
    """
    if is_inside_agent() or not _can_ask(invocation):
        return False
    changed = "what this project can do has changed since you trusted it:"
    heading = changed if refused.changed else "nobody has trusted this project here. It can:"
    listed = refused.changed or (*refused.acts, _BUILT_IN)
    # Also with --quiet: the question makes no sense without.
    for line in (f"{refused.project}: {heading}", *(f"  {line}" for line in listed)):
        click.echo(_safe(line), err=True)
    if _agrees():
        return True
    raise UsageRefused(
        "you did not trust it; nothing of it was run",
        where=refused.project,
        hint="'sequencer trust' asks again",
    )


def _can_ask(invocation: Invocation) -> bool:
    return not invocation.is_json and is_watched()


def _agrees() -> bool:
    return click.confirm("Let it act on this machine?", default=False, err=True)


def _safe(line: str) -> str:
    return "  " * line.startswith("  ") + one_line(line)


def ensure_may_change(invocation: Invocation, project: Project) -> None:
    """Return if the verb of *invocation* may be used here, by whoever calls it.

    Raises:
        DecisionRefused: an agent calls a verb for people, and its project does not allow it.
        NotTrusted: the verb would reach a remote, run hooks or post with secrets.
    """
    settings = project.settings
    words = (ALWAYS, *(word.partition("=")[0] for word in invocation.arguments))
    decides = invocation.decides != "" and invocation.decides in words
    if decides and is_inside_agent():
        # Of the file and as it was trusted: the variables here are the agent's own.
        if invocation.verb not in (settings.written.get("agents_may_decide") or ()):
            _refuse(invocation.verb, f"agents_may_decide: [{invocation.verb}] allows it")
        project.trust.ensure(may_ask=False)
    acts = settings.store.kind != "file"
    if decides:
        acts = acts or bool(settings.hooks) or bool(settings.activity.sinks)
    if acts and invocation.changes:
        project.trust.ensure()


def _refuse(verb_name: str, hint: str) -> None:
    raise DecisionRefused(
        f"{verb_name}: this is for a person to decide, and an agent calls it "
        "(SEQUENCER_TOKEN is set)",
        hint=f"{hint}; nothing was changed",
    )


@verb("trust")
@click.argument("folder", metavar="[DIR|FLOW]", required=False, type=click.Path(path_type=Path))
@click.option("--yes", "is_sure", is_flag=True, help="Trust it without a question; for scripts.")
@click.option("--list", "lists", is_flag=True, help="List the projects that are trusted here.")
@click.option("--remove", "removes", is_flag=True, help="Trust it no longer.")
@pass_invocation
def trust(
    invocation: Invocation, folder: Path | None, is_sure: bool, lists: bool, removes: bool
) -> None:
    """Show what a project can do on this machine, and say that it may.

    Programs, permissions, hooks, stores, addresses and caps are remembered. If one of them
    changes, you see the difference and are asked again. Steps, prompts and lower caps are
    free to change. On a machine without people, SEQUENCER_TRUST names folders, or all. FLOW is
    a workflow of this project that stands outside of its folders of workflows.

    \b
    Examples:
      sequencer trust
      sequencer trust --yes
      sequencer trust --list
      sequencer trust --remove ../other
    """
    # An agent that could trust would need nothing else.
    if is_inside_agent():
        _refuse("trust", "a person runs it")
    if sum((is_sure, lists, removes)) > 1:
        raise UsageRefused("--yes, --list and --remove exclude each other", where="sequencer trust")
    if lists:
        _list(invocation)
    elif removes:
        _remove(invocation, folder)
    else:
        _trust(invocation, folder, is_sure=is_sure)


def _trust(invocation: Invocation, folder: Path | None, *, is_sure: bool) -> None:
    flow = folder if folder is not None and folder.is_file() else None
    project = open_project(Path() if flow else folder or Path(), config=invocation.config)
    ensure_is_one(project)
    if flow is not None:
        project.trust.add_flow(flow.absolute())
    trusting = project.trust
    refused, acts = trusting.refusal(), trusting.acts
    changed = refused.changed if refused else ()
    if not invocation.is_json:
        lines = [f"{trusting.key} can:", *(f"  {line}" for line in (*acts.described, _BUILT_IN))]
        lines += ["what has changed since it was trusted:"] if changed else []
        for line in (*lines, *(f"  {line}" for line in changed)):
            invocation.echo(_safe(project.redaction.hide_text(line)))
    is_new = refused is not None or is_sure
    if is_new:
        if not is_sure and not (_can_ask(invocation) and _agrees()):
            raise NotTrusted(trusting.key, ()) from None
        trusting.keep()
    if invocation.is_json:
        told = {"project": trusting.key, "digest": acts.digest, "acts": acts.described}
        invocation.print_json({**told, "changed": list(changed)})
        return
    invocation.echo("trusted" if is_new else "it is trusted, and nothing has changed")


def _list(invocation: Invocation) -> None:
    found = list(trusted.everything())
    if invocation.is_json:
        told: list[dict[str, Any]] = [
            {"project": one.project, "at": one.at, "digest": one.acts.digest} for one in found
        ]
        invocation.print_json(told)
        return
    for one in found:
        invocation.echo(one_line(f"{one.project}  since {one.at}"))
    if not found:
        invocation.echo("no project is trusted on this machine")


def _remove(invocation: Invocation, folder: Path | None) -> None:
    """Forget the project of *folder*; one that is gone or damaged can be forgotten too."""
    here = (folder or Path()).absolute()
    config = (
        None
        if invocation.config is None and not here.is_dir()
        else find_config(here, invocation.config)
    )
    key = trusted.project_key(config.parent if config else here, config)
    was_there = trusted.forget(key)
    if invocation.is_json:
        invocation.print_json({"project": key, "removed": was_there})
    else:
        invocation.echo(f"{'no longer trusted' if was_there else 'was not trusted'}: {key}")
