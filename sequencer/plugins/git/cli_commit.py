"""`plan --commit`: what a step would commit, what it would leave out, and why."""

from __future__ import annotations

from typing import Any

from sequencer.cli.context import Invocation
from sequencer.cli.views.tables import format_table
from sequencer.cli.views.text import one_line
from sequencer.plugins.git.code.selection import Selection, Selector, make_secret_check
from sequencer.plugins.git.code.tree import WorkTree
from sequencer.plugins.git.code.workspace import list_folders
from sequencer.plugins.git.process import Git
from sequencer.plugins.git.state.objects import Objects
from sequencer.project.project import Project

NOT_COMMITTED = "-"


def plan_commit(invocation: Invocation) -> None:
    """Show which changes in the work tree a step would commit now.

    Steps commit by themselves if `commit` in orchestration.yaml declares paths and the run is kept
    in git.
    """
    project = invocation.project()
    branch, selection = _select_changes(project)
    facts = _facts(project, branch, selection)
    if invocation.is_json:
        invocation.print_json(facts)
        return
    _print(invocation, facts)
    if not facts["open"]:
        invocation.notify(
            "nothing is declared: name what steps may commit, for example in 'commit.paths'"
        )


def _select_changes(project: Project) -> tuple[str | None, Selection]:
    """Return the checked-out branch and what would be committed on it."""
    settings = project.settings
    objects = Objects(Git(settings.project_dir))
    tree = WorkTree(list_folders(settings, settings.state_file), objects)
    status = tree.read_status()
    selector = Selector(tree, settings.commit, make_secret_check(project.redaction))
    return status.branch, selector.select(status)


def _facts(project: Project, branch: str | None, selection: Selection) -> dict[str, Any]:
    hide = project.redaction.hide_text
    return {
        "branch": branch,
        "open": project.settings.commit.is_open,
        "bytes": sum(choice.size for choice in selection.chosen),
        "committed": [
            {
                "path": hide(choice.path),
                "change": str(choice.change),
                "key": choice.key,
                "bytes": choice.size,
            }
            for choice in selection.chosen
        ],
        "skipped": [
            {
                "path": hide(exclusion.path),
                "reason": exclusion.reason,
                "declared": exclusion.is_declared,
            }
            for exclusion in selection.skipped
        ],
    }


def _print(invocation: Invocation, facts: dict[str, Any]) -> None:
    rows = [
        (file["change"], str(file["bytes"]), one_line(file["path"]), f"commit.{file['key']}")
        for file in facts["committed"]
    ]
    rows += [
        (NOT_COMMITTED, "", one_line(file["path"]), one_line(file["reason"]))
        for file in facts["skipped"]
    ]
    if not rows:
        invocation.echo("nothing changed in the work tree")
        return
    invocation.echo(
        format_table(
            ("CHANGE", "BYTES", "PATH", "WHY"), rows, right={1}, max_width=invocation.max_width
        )
    )
    invocation.notify(
        f"{len(facts['committed'])} would be committed ({facts['bytes']} bytes), "
        f"{len(facts['skipped'])} would not"
    )
