"""`sync`: show both sides of a run; with options, fetch what is new on the remote."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.readiness import LABEL_WIDTH, Snapshot, describe_holder, take_snapshot
from sequencer.cli.views.tables import format_table
from sequencer.cli.views.text import one_line, pluralize
from sequencer.engine.run import Run
from sequencer.errors import (
    ConfigurationError,
    RemoteUnreachable,
    SequencerError,
    UnknownName,
    UsageRefused,
    WorkTreeBusy,
    WorkTreeRefused,
    format_command,
)
from sequencer.files.textfile import slug
from sequencer.model.head import Head
from sequencer.model.kind import ReadinessKind
from sequencer.model.outcome import format_duration
from sequencer.plugins.git.code.tree import WorkTree
from sequencer.plugins.git.code.workspace import GitWorkspace, list_folders
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state.replica import REMOTE
from sequencer.plugins.git.state.store import GitStore
from sequencer.plugins.git.state.sync_status import (
    OtherRun,
    Relation,
    SyncStatus,
    compare_with_known,
    compare_with_remote,
    find_runs_elsewhere,
)
from sequencer.plugins.git.state.sync_status import take_theirs as set_aside_and_take
from sequencer.project.dependencies import extra_hint
from sequencer.project.diagnostics import locate_setting
from sequencer.project.project import Project
from sequencer.project.runs import get_state_path
from sequencer.project.schema import NONE
from sequencer.store.leases import Leases


@verb("sync")
@click.option("--fetch", is_flag=True, help="Ask the remote and bring new changes here.")
@click.option(
    "--take-theirs",
    is_flag=True,
    help="If the two have diverged: set the files here aside and take those of the branch. Implies "
    "--fetch.",
)
@click.option(
    "--to",
    type=click.Choice(("temporal", "file")),
    help="Move the run to a Temporal server, or from there into files.",
)
@click.option(
    "--copy",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the files of a run on Temporal into a new folder, for reading.",
)
@pass_invocation
def sync(
    invocation: Invocation, *, fetch: bool, take_theirs: bool, to: str | None, copy: Path | None
) -> None:
    """Show both sides of the run: the files here, and the branch on the remote.

    For runs that are kept in git (`store.kind: git`). Shows what this clone knows about the
    branch, who runs which step where, which code belongs to the state, and what you can do
    here next. It asks no remote and writes nothing. --fetch asks the remote and brings new
    changes here. You lose nothing: changes that don't apply are shown and left alone. Exit
    code 3 means that the remote did not answer, or that the two have diverged.

    \b
    Examples:
      sequencer sync
      sequencer sync --fetch
      sequencer --run nightly sync --fetch
      sequencer sync --fetch --json | jq .branch.step_index
      sequencer sync --to temporal
    """
    if sum((fetch or take_theirs, to is not None, copy is not None)) > 1:
        raise UsageRefused("--to and --copy can't be used with other options of sync")
    if to is not None or copy is not None:
        _move_or_copy(invocation, to, copy)
        return
    invocation.acts = fetch or take_theirs
    run, store = _open_shared_run(invocation)
    status = compare_with_remote(store) if invocation.acts else compare_with_known(store)
    other_runs = _list_remote_only_runs(invocation, run, store, status)
    aside_folder: Path | None = None
    if take_theirs:
        aside_folder, status = set_aside_and_take(store, status)
    report = build_report(invocation.project(), run, store, status, other_runs)
    if invocation.is_json:
        path = None if aside_folder is None else str(aside_folder)
        invocation.print_json(report.facts | {"set_aside": path})
    else:
        invocation.echo(format_report(report, invocation.max_width))
    if aside_folder is not None:
        invocation.notify(f"the files from here are now in {aside_folder}")
    invocation.show_notices(report.snapshot.notices if report.snapshot else ())
    if status.problem is not None:
        raise status.problem


def _move_or_copy(invocation: Invocation, new_kind: str | None, copy: Path | None) -> None:
    """Move the run between a Temporal server and this machine, or copy it from a server."""
    invocation.acts, invocation.changes = True, new_kind is not None
    project = invocation.project()
    project.ensure_may_act()
    kind, name = project.settings.store.kind, invocation.run_name
    try:
        from sequencer.plugins.temporal import client, export, store_move  # noqa: PLC0415 - an extra
    except ImportError as error:
        hint = extra_hint("fleet")
        raise ConfigurationError("Temporal's package is not installed", hint=hint) from error
    if new_kind is None:
        run = invocation.run()
        if copy is None or not isinstance(run.store, client.FleetStore):
            raise UsageRefused(
                f"--copy works only with a run on Temporal; the store of this run is {kind}"
            )
        head = export.write_copy(run.store, copy.absolute())
        invocation.notify(f"the files of revision {head.revision} are in {copy}")
        return
    origin = kind if kind != new_kind else "temporal"
    if kind == new_kind == "temporal":
        is_git = (get_state_path(project.settings, name).parent / REMOTE).exists()
        origin = "git" if is_git else "file"
    source, target = (
        project.with_store_kind(origin).run(name),
        project.with_store_kind(new_kind).run(name),
    )
    if new_kind == "temporal" and (
        project.settings.worktree or source.workflow_for(source.head).tasks
    ):
        raise UsageRefused(
            "this run needs worktrees on one machine, which Temporal can't provide",
            hint="keep it in files or in git",
        )
    sides = store_move.Side(source.store, origin), store_move.Side(target.store, new_kind)
    head = store_move.move(*sides)
    destination = sides[1].words
    if invocation.is_json:
        facts = {"run": name, "from": origin, "to": new_kind, "where": destination}
        invocation.print_json({**facts, "revision": head.revision, "step_index": head.step_index})
        return
    invocation.echo(f"the run is now in {destination}, at step_index {head.step_index}")
    if kind != new_kind:
        invocation.notify(
            f"set 'store: {{kind: {new_kind}}}' in orchestration.yaml to work on it there"
        )


def _open_shared_run(invocation: Invocation) -> tuple[Run, GitStore]:
    """Return the run and its store.

    Raises:
        ConfigurationError: the run is not kept in git.
    """
    # The command lists the runs, so a run that is not here is no error yet.
    run = invocation.run(may_begin=True)
    if not isinstance(run.store, GitStore):
        settings = invocation.project().settings
        raise ConfigurationError(
            f"runs are kept only on this machine (store.kind: {settings.store.kind}), so there is "
            "nothing to sync with",
            where=locate_setting(settings, "store", "kind"),
            hint="set 'store: {kind: git}' to share them through a remote",
        )
    return run, run.store


def _list_remote_only_runs(
    invocation: Invocation, run: Run, store: GitStore, sync_status: SyncStatus
) -> list[OtherRun]:
    """Return the runs that only the remote has, or none if one run was named.

    Raises:
        UnknownName: the named run is neither here nor on the remote.
    """
    is_lost = run.name is not None and sync_status.relation is Relation.NOWHERE
    is_silent = not sync_status.is_asked or isinstance(sync_status.problem, RemoteUnreachable)
    if is_silent or (run.name is not None and not is_lost):
        return []
    project = invocation.project()
    local_names = project.run_names()
    folders = set(map(slug, local_names))
    other_runs = find_runs_elsewhere(store.branch, project.settings.store.branch, folders)
    if is_lost:
        names = {other_run.name for other_run in other_runs if other_run.name is not None}
        raise UnknownName("run", str(run.name), names.union(local_names), where="--run")
    return other_runs


SHORT = 12
"""Number of characters shown of a commit's name."""
_USER = re.compile(r"(?<=://)[^/@]*@")
_WORDS = {
    Relation.NOWHERE: "the run has not started, neither here nor on the branch",
    Relation.UNPUBLISHED: "the run is only here; the next change puts it on the branch",
    Relation.NEW: "the run was only on the branch; now it is here too",
    Relation.BEHIND: "this folder had older state and is now up to date with the branch",
    Relation.EQUAL: "both are the same",
    Relation.GONE: "the branch is gone from the remote",
    Relation.DIVERGED: "the branch and this folder have diverged",
    Relation.ANOTHER_RUN: "the branch and this folder have different runs",
    Relation.UNREADABLE: "the branch does not contain a valid run",
    Relation.DAMAGED: "the files here are damaged; the branch is fine",
    Relation.UNKNOWN: "the remote did not answer; this is the last known state",
}
_UNASKED_WORDS = _WORDS | {
    Relation.NOWHERE: "the run has not started here; the remote was not asked",
    Relation.UNPUBLISHED: "the run is here; this clone has not seen it on the branch",
    Relation.BEHIND: "this folder is older than the branch; the next change brings it up to date",
    Relation.EQUAL: "this folder matches the branch as last seen",
    Relation.UNKNOWN: "the last known state of the branch is no longer in this repository",
}
"""The same texts if the remote was not asked."""


class Report(Struct, frozen=True):
    """Both sides of one run: `facts` are for programs, and `format_report` comes from them."""

    facts: dict[str, Any]
    snapshot: Snapshot | None
    """None: the files here can't be trusted at the moment."""
    sync_status: SyncStatus
    refusal: SequencerError | None
    """Why no step can start in this work tree."""


def build_report(
    project: Project, run: Run, store: GitStore, sync_status: SyncStatus, others: list[OtherRun]
) -> Report:
    """Return the report about *run* with *sync_status*, the result of the comparison."""
    snapshot = None
    if sync_status.relation.is_sound or sync_status.relation is Relation.UNKNOWN:
        try:
            snapshot = take_snapshot(run)
        except SequencerError:
            # Both sides are facts, even if the files or the configuration are broken.
            if sync_status.problem is None:
                raise
    quiet_s = Leases(store.state_path.parent / "beats").silence_s
    work, refusal = _inspect_code(project, run, store, None if snapshot is None else snapshot.head)
    is_known = sync_status.relation is not Relation.UNKNOWN
    name, url = store.branch.remote.name, store.branch.remote.name
    with suppress(GitFailed):
        url = store.branch.git.read_output("ls-remote", "--get-url", "--", name)
    hide = project.redaction.hide_text
    facts = {
        "run": run.name,
        "relation": str(sync_status.relation),
        "problem": None if sync_status.problem is None else sync_status.problem.message,
        "remote": {
            "name": without_credentials(hide(name)),
            "url": without_credentials(hide(url)),
            "branch": store.branch.refs.branch,
            "asked": sync_status.is_asked,
            "reachable": is_known if sync_status.is_asked else None,
            "tip": sync_status.tip,
        },
        "known": sync_status.known
        and {
            "tip": sync_status.known.tip,
            "revision": sync_status.known.revision,
            "at": sync_status.known.at,
        },
        "here": _head_facts(sync_status.local_head),
        "branch": _head_facts(sync_status.remote_head),
        "claims": [
            claim.model_dump(mode="json") | {"liveness": str(liveness), "quiet_s": quiet_s(claim)}
            for claim, liveness in (snapshot.holders if snapshot else ())
        ],
        "work": work,
        "next": None if snapshot is None else snapshot.next,
        "then": _advice(run.name, sync_status, snapshot, refusal),
        "elsewhere": [_other_run_facts(other_run) for other_run in others],
    }
    return Report(facts, snapshot, sync_status, refusal)


def _advice(
    name: str | None,
    sync_status: SyncStatus,
    snapshot: Snapshot | None,
    refusal: SequencerError | None,
) -> str:
    """Return what a person can do next in this clone."""
    if sync_status.relation is Relation.DAMAGED:
        take = format_command(name, "sync --take-theirs")
        return f"{take} sets them aside and takes those of the branch"
    if (error := sync_status.problem or refusal) is not None:
        return error.hint or ""
    readiness = None if snapshot is None else snapshot.readiness
    if readiness is not None and readiness.kind not in (ReadinessKind.READY, ReadinessKind.HELD):
        return readiness.message
    is_held = not any(live.allows_take_over for _, live in (snapshot.holders if snapshot else ()))
    if readiness is not None and readiness.kind is ReadinessKind.HELD and is_held:
        return f"{format_command(name, 'run --mode sync')} waits for its turn here"
    return f"{format_command(name, 'run')} {'starts it' if readiness is None else 'continues'} here"


def format_report(report: Report, max_width: int | None = None) -> str:
    """Return *report* for people, in several lines; tables are *max_width* columns wide."""
    facts, sync_status = report.facts, report.sync_status
    remote = facts["remote"]["name"]
    contact_time = "-" if sync_status.known is None else sync_status.known.at
    remote_cells = (*_cells(facts["branch"]), "just now" if sync_status.is_asked else contact_time)
    if facts["remote"]["reachable"] is False:
        remote_cells = ("?", "?", "?", "no answer")
    parts = []
    if facts["here"] or facts["branch"]:
        heads = ("SIDE", "REVISION", "STEP_INDEX", "STATUS", "LOOKED AT")
        rows = [("this clone", *_cells(facts["here"]), contact_time), (remote, *remote_cells)]
        parts = [format_table(heads, rows, right={1, 2}, max_width=max_width), ""]
    parts += [f"{label:<{LABEL_WIDTH}}  {one_line(v)}" for label, v in _rows(report) if v]
    if other_runs := facts["elsewhere"]:
        heads = ("ONLY THERE", "REVISION", "STEP_INDEX", "STATUS", "BRANCH")
        rows = [
            (one_line(other_run["run"] or "?"), *_cells(other_run), one_line(other_run["branch"]))
            for other_run in other_runs
        ]
        parts += ["", format_table(heads, rows, right={1, 2}, max_width=max_width)]
        names = [other_run["run"] for other_run in other_runs if other_run["run"] is not None]
        parts += [
            f"{format_command(name, 'sync --fetch')} brings one of them here" for name in names[:1]
        ]
    return "\n".join(parts)


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    facts, sync_status, snapshot = report.facts, report.sync_status, report.snapshot
    remote = facts["remote"]
    name, branch = remote["name"], remote["branch"]
    yield "run", facts["run"] or "default"
    yield "remote", name if remote["url"] == name else f"{name}, {remote['url']}"
    yield "branch", branch if sync_status.tip is None else f"{branch} at {sync_status.tip[:SHORT]}"
    yield "sides", (_WORDS if sync_status.is_asked else _UNASKED_WORDS)[sync_status.relation]
    if snapshot is not None:
        yield "next step", snapshot.format_next_step()
        for (claim, liveness), claim_facts in zip(snapshot.holders, facts["claims"], strict=True):
            quiet_s = claim_facts["quiet_s"]
            silence = (
                "" if quiet_s is None else f"; last sign of life {format_duration(quiet_s)} ago"
            )
            yield "held by", describe_holder([claim], liveness) + silence
    if facts["work"] is not None:
        yield "code", _format_code(facts["work"])
    if report.refusal is not None:
        yield "in the way", report.refusal.message
    if sync_status.problem is None or sync_status.relation is Relation.DAMAGED:
        # Otherwise it is the hint of the error that follows.
        yield "then", facts["then"]
    if sync_status.relation is Relation.DIVERGED and sync_status.known is not None:
        # It resets the branch to the known state, if the branch has not moved since.
        tip, ref = sync_status.known.tip, f"refs/heads/{branch}"
        lease = f"--force-with-lease={ref}:{sync_status.tip}"
        push = f"'git push {lease} {shlex.quote(name)} {tip}:{ref}'"
        yield "or", f"{push} discards what the branch has"


def without_credentials(url: str) -> str:
    """Return *url* without the name and password in it.

    >>> without_credentials("https://me:secret@example.org/x.git")
    'https://example.org/x.git'
    >>> without_credentials("git@example.org:x.git"), without_credentials("ssh://git@example.org/x")
    ('git@example.org:x.git', 'ssh://git@example.org/x')
    """
    is_ssh = url.startswith(("ssh://", "git+ssh://"))
    match = _USER.search(url)
    if match is None or (is_ssh and ":" not in match[0]):
        return url
    return url[: match.start()] + url[match.end() :]


def _head_facts(head: Head | None) -> dict[str, Any] | None:
    names = ("revision", "step_index", "status", "last_update")
    return None if head is None else {name: getattr(head, name) for name in names}


def _other_run_facts(other_run: OtherRun) -> dict[str, Any]:
    return {
        "run": other_run.name,
        "branch": other_run.branch,
        **(_head_facts(other_run.head) or {}),
    }


def _cells(facts: dict[str, Any] | None) -> tuple[str, str, str]:
    revision, step_index, status = (
        str((facts or {}).get(name, "-")) for name in ("revision", "step_index", "status")
    )
    return revision, step_index, status


# --- the code --------------------------------------------------------------------------


def _inspect_code(
    project: Project, run: Run, store: GitStore, head: Head | None
) -> tuple[dict[str, Any] | None, SequencerError | None]:
    """Return how the work tree compares to the code of *head*, and why no step can start in it."""
    settings, branch = project.settings, store.branch
    if settings.store.work.branch == NONE:
        return None, None
    tree = WorkTree(list_folders(settings, settings.state_file), branch.objects)
    workspace = GitWorkspace(
        tree,
        branch.remote,
        store.state_path,
        run=run.name,
        work=settings.store.work,
        commit=settings.commit,
        redaction=project.redaction,
        notify=branch.replica.notices.append,
    )
    refusal: SequencerError | None = None
    if head is not None and project.acts:
        # If a process was killed, this completes its work.
        try:
            workspace.ensure_ready(head)
        except WorkTreeRefused as error:
            refusal = error
        except (RemoteUnreachable, WorkTreeBusy):
            pass  # the claims say who works here
    keys = ("branch", "commit", "checked_out", "head", "ahead", "behind")
    facts: dict[str, Any] = {**dict.fromkeys(keys), "dirty": []}
    try:
        facts = _compare_code(tree, head)
    except WorkTreeRefused as error:
        refusal = refusal or error
    return {**facts, "refusal": None if refusal is None else refusal.message}, refusal


def _compare_code(tree: WorkTree, head: Head | None) -> dict[str, Any]:
    """Return the checked-out code, and how it compares to the code that belongs to the state.

    ``ahead`` and ``behind`` are None if that commit is not here yet; the next step fetches it.
    """
    status = tree.read_status()
    work = None if head is None else head.work
    ahead_count = behind_count = None
    if work is not None and status.commit is not None and tree.resolve(work.commit):
        divergence = tree.divergence(status.commit, work.commit)
        ahead_count, behind_count = divergence.ahead, divergence.behind
    return {
        "branch": None if work is None else work.branch,
        "commit": None if work is None else work.commit,
        "checked_out": status.branch,
        "head": status.commit,
        "ahead": ahead_count,
        "behind": behind_count,
        "dirty": [entry.path for entry in tree.find_dirty(status, tree.make_patterns(()))],
    }


def _format_code(code: dict[str, Any]) -> str:
    if code["head"] is None and code["checked_out"] is None:
        return ""
    state_code = f"{code['branch']} at {(code['commit'] or '')[:SHORT]}"
    local_code = f"{code['checked_out'] or 'no branch'} at {(code['head'] or 'no commit')[:SHORT]}"
    if code["commit"] is None:
        distance = "no step has changed the code yet"
    elif code["behind"] is None:
        distance = f"the next step brings {state_code}"
    elif (code["ahead"], code["behind"]) == (0, 0):
        distance = "same code as the state"
    else:
        ahead_count, behind_count = code["ahead"], code["behind"]
        distance = (
            f"{ahead_count} ahead of the state's code ({state_code}) and {behind_count} missing"
        )
    dirty_paths = code["dirty"]
    change_text = f"{pluralize(len(dirty_paths), 'path')} changed" if dirty_paths else "clean"
    return f"{local_code} is here, {distance}, {change_text}"
