"""`sync`: show both sides of a run; ask the remote and bring what is new, if that is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb

if TYPE_CHECKING:
    from sequencer.cli.sync_view import Report
    from sequencer.engine.run import Run
    from sequencer.git.sides import OtherRun, Sides
    from sequencer.git.store import GitStore


@verb("sync")
@click.option("--fetch", is_flag=True, help="Ask the remote, and bring what is new here.")
@click.option(
    "--take-theirs",
    is_flag=True,
    help="Where the two have parted: keep the files here aside, and take the branch's; fetches.",
)
@pass_invocation
def sync(invocation: Invocation, *, fetch: bool, take_theirs: bool) -> None:
    """Show both sides of the run: the files here, and the branch on the remote.

    For runs that are kept in git (`store.kind: git`). Shows what this clone knows of the
    branch, who runs which step where, the code that the state goes with, and what can be
    done here next; no remote is asked and nothing is written. With --fetch the remote is
    asked, and what is new is brought here. Nothing is lost by it: what can't be brought is
    shown and left. Exit code 3: the remote did not answer, or the two have parted.

    \b
    Examples:
      sequencer sync
      sequencer sync --fetch
      sequencer --run nightly sync --fetch
      sequencer sync --fetch --json | jq .branch.step_index
    """
    from sequencer.cli.sync_view import Report  # noqa: PLC0415 - `--help` needs no store
    from sequencer.git.sides import as_known, compare  # noqa: PLC0415

    invocation.acts = fetch or take_theirs
    run, store = _shared(invocation)
    sides = compare(store) if invocation.acts else as_known(store)
    _ensure_known(invocation, run, store, sides)
    aside: Path | None = None
    if take_theirs:
        from sequencer.git.sides import take_theirs as take  # noqa: PLC0415

        aside, sides = take(store, sides)
    report = Report.of(
        invocation.project(), run, store, sides, _elsewhere(invocation, store, sides)
    )
    _show(invocation, report, aside)
    if sides.problem is not None:
        raise sides.problem


def _shared(invocation: Invocation) -> tuple[Run, GitStore]:
    """Return the run and its store.

    Raises:
        ConfigurationError: it is not kept in git.
    """
    from sequencer.errors import ConfigurationError  # noqa: PLC0415 - `--help` needs no store
    from sequencer.findings import place_of  # noqa: PLC0415
    from sequencer.git.store import GitStore  # noqa: PLC0415

    # Which runs there are is what is asked, so a run that is not here is no error yet.
    run = invocation.run(may_begin=True)
    if not isinstance(run.store, GitStore):
        settings = invocation.project().settings
        raise ConfigurationError(
            f"runs are kept on this machine alone (store.kind: {settings.store.kind}), so there "
            "is nothing to sync with",
            where=place_of(settings, "store", "kind"),
            hint="set 'store: {kind: git}' to share them through a remote",
        )
    return run, run.store


def _ensure_known(invocation: Invocation, run: Run, store: GitStore, sides: Sides) -> None:
    """Refuse a named run that is neither here nor on the remote."""
    from sequencer.errors import UnknownName  # noqa: PLC0415 - `--help` needs no store
    from sequencer.git.sides import Relation  # noqa: PLC0415

    if run.name is None or sides.relation is not Relation.NOWHERE or not sides.is_asked:
        return
    names = [one.name for one in _listed(invocation, store) if one.name is not None]
    raise UnknownName("run", run.name, {*names, *invocation.project().run_names()}, where="--run")


def _elsewhere(invocation: Invocation, store: GitStore, sides: Sides) -> list[OtherRun]:
    """Return the runs that only the remote has; of one run alone if that was asked for."""
    from sequencer.errors import RemoteUnreachable  # noqa: PLC0415 - `--help` needs no store

    is_silent = isinstance(sides.problem, RemoteUnreachable)
    if is_silent or invocation.run_name is not None or not sides.is_asked:
        return []
    return _listed(invocation, store)


def _listed(invocation: Invocation, store: GitStore) -> list[OtherRun]:
    from sequencer.git.sides import runs_elsewhere  # noqa: PLC0415
    from sequencer.model.names import slug  # noqa: PLC0415 - `--help` needs no store

    project = invocation.project()
    here = set(map(slug, project.run_names()))
    return runs_elsewhere(store.branch, project.settings.store.branch, here)


def _show(invocation: Invocation, report: Report, aside: Path | None) -> None:
    if invocation.is_json:
        facts = report.as_json()
        invocation.print_json(facts | {"set_aside": None if aside is None else str(aside)})
    else:
        invocation.echo(report.text(invocation.room))
    if aside is not None:
        invocation.say(f"the files that were here are in {aside}")
    invocation.notices(report.notices)
