"""`trust`: allow a project to act on this machine, withdraw that, or list trusted projects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sequencer.cli.context import BUILT_IN, Invocation, can_ask, confirm_trust, fit_lines
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import one_line
from sequencer.errors import ConfigurationError, NotTrusted, UsageRefused, summarize_facts
from sequencer.files.textfile import find_config
from sequencer.project import trusting as trusted
from sequencer.project.named_files import list_uncompared_files
from sequencer.project.project import open_project
from sequencer.store.identity import ensure_person


@verb("trust")
@click.argument("folder", metavar="[DIR|FLOW]", required=False, type=click.Path(path_type=Path))
@click.option("--yes", "is_sure", is_flag=True, help="Trust it without asking; for scripts.")
@click.option("--list", "lists", is_flag=True, help="List the projects that are trusted here.")
@click.option("--remove", "removes", is_flag=True, help="Stop trusting it.")
@pass_invocation
def trust(
    invocation: Invocation, folder: Path | None, is_sure: bool, lists: bool, removes: bool
) -> None:
    """Show what a project can do on this machine, and allow it.

    Programs, permissions, hooks, stores, addresses, caps, what each step may do, and the files
    that an agent's client reads are remembered. If one of them grows, you see the difference and
    are asked again. Prompts, the order of steps and lower caps are free to change. On a machine
    without people, set SEQUENCER_TRUST to folders or to all. FLOW is a workflow file of this
    project outside its workflow folders. If the project has many steps, you see one line for each
    workflow; --verbose shows each step, with its limits.

    \b
    Examples:
      sequencer trust
      sequencer trust --yes
      sequencer trust --list
      sequencer trust --remove ../other
    """
    # An agent may not even learn what is trusted.
    ensure_person("trust", "ask a person to run it")
    if sum((is_sure, lists, removes)) > 1:
        raise UsageRefused("use only one of --yes, --list and --remove", where="sequencer trust")
    if lists:
        _list_trusted(invocation)
    elif removes:
        _remove(invocation, folder)
    else:
        _trust(invocation, folder, is_sure=is_sure)


def _trust(invocation: Invocation, folder: Path | None, *, is_sure: bool) -> None:
    flow_path = _find_flow(folder)
    try:
        project = open_project(Path() if flow_path else folder or Path(), config=invocation.config)
    except ConfigurationError:
        # It is not known yet what the project can do, and nothing runs until it is fixed.
        invocation.notify(
            "nothing runs until you fix the configuration; trust the project after that:"
        )
        raise
    project.ensure_exists()
    if flow_path is not None:
        project.trust.add_flow(flow_path.absolute())
    trusting = project.trust
    refusal, acts = trusting.refusal(), trusting.acts
    changes = refusal.changed if refusal else ()
    uncompared_files = list_uncompared_files(project.settings.project_dir)
    if not invocation.is_json:
        lines = _format_trust(trusting, changes, is_full=invocation.is_verbose)
        if uncompared_files:
            lines.append(f"read by trusted programs, not compared: {', '.join(uncompared_files)}")
        max_width = None if invocation.is_verbose else invocation.max_width
        for line in fit_lines(map(project.redaction.hide_text, lines), max_width):
            invocation.echo(line)
    is_new = refusal is not None or is_sure
    if is_new:
        if not is_sure and not can_ask(invocation):
            message = (
                "there is no terminal to ask you; 'sequencer trust --yes' trusts what is listed"
            )
            raise UsageRefused(message, where="sequencer trust")
        if not is_sure and not confirm_trust():
            raise NotTrusted(trusting.key, ()) from None
        trusting.save_record()
    if invocation.is_json:
        facts = {"project": trusting.key, "digest": acts.digest, "acts": acts.described}
        invocation.print_json({**facts, "changed": list(changes), "not_compared": uncompared_files})
        return
    invocation.echo("trusted" if is_new else "it was trusted before, and nothing has changed")


def _find_flow(folder: Path | None) -> Path | None:
    """Return *folder* if it is a workflow file; None: it is a folder or was not given.

    Raises:
        UsageRefused: it does not exist. Trusting a project above it would be a surprise.
    """
    if folder is None or folder.is_dir():
        return None
    if not folder.is_file():
        raise UsageRefused("there is no such folder or workflow file", where=str(folder))
    return folder


def _format_trust(trusting: trusted.Trust, changes: Sequence[str], *, is_full: bool) -> list[str]:
    """Return the lines that a person decides about; with *is_full*, each step and its limits."""
    all_facts, summary = trusting.acts.described, trusting.acts.summary
    facts = all_facts if is_full else summary
    lines = [f"{trusting.key} can:", *(f"  {line}" for line in (*facts, BUILT_IN))]
    lines += (
        ["each step, with its limits: 'sequencer --verbose trust'"] if facts != all_facts else []
    )
    lines += ["what has changed since you trusted it:"] if changes else []
    lines += [f"  {line}" for line in changes]
    return [*lines, *summarize_facts(changes or facts)]


def _list_trusted(invocation: Invocation) -> None:
    entries = list(trusted.list_records())
    if invocation.is_json:
        facts: list[dict[str, Any]] = [
            {"project": entry.project, "at": entry.at, "digest": entry.digest} for entry in entries
        ]
        invocation.print_json(facts)
        return
    for entry in entries:
        invocation.echo(one_line(f"{entry.project}  since {entry.at}"))
    if not entries:
        invocation.echo("no project is trusted on this machine")


def _remove(invocation: Invocation, folder: Path | None) -> None:
    """Forget the trust in the project of *folder*, even if the project is gone or damaged."""
    root = (folder or Path()).absolute()
    config = (
        None
        if invocation.config is None and not root.is_dir()
        else find_config(root, invocation.config)
    )
    key = trusted.project_key(config.parent if config else root, config)
    is_removed = trusted.forget(key)
    if invocation.is_json:
        invocation.print_json({"project": key, "removed": is_removed})
    else:
        invocation.echo(f"{'no longer trusted' if is_removed else 'was not trusted'}: {key}")
