"""The checkout of a project whose code other clones share: code moves with the state of the run.

A step starts on the code that belongs to the state. Its commits, and the files that are committed
for it, are pushed by the store together with the state, in one push. Nothing here forces or merges:
a branch is fast-forwarded or left alone, and if that is not possible, a person is told before
anything runs. Only code that was not accepted is reset (see `WorkTreeLock.reset_unaccepted`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from shlex import quote

from sequencer.engine.workspace import Workspace
from sequencer.errors import (
    RemoteUnreachable,
    SequencerError,
    WorkTreeRefused,
    format_other_command,
)
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import is_branch_name, slug
from sequencer.model.head import Claim, Head, Work
from sequencer.plugins.git.code.commit import Committer, RefMoved
from sequencer.plugins.git.code.selection import Selection, Selector, make_secret_check
from sequencer.plugins.git.code.tree import SHOWN_PATHS, Folders, TreeStatus, WorkTree, format_paths
from sequencer.plugins.git.code.work_tree_lock import Note, WorkTreeLock, find_changed_paths
from sequencer.plugins.git.process import GitFailed
from sequencer.plugins.git.state.remote import DEEPER, NoAtomicPush, PushVerdict, RefMove, Remote
from sequencer.plugins.git.state.store import GitStore
from sequencer.plugins.posting.section import get_activity_options
from sequencer.project.schema import CURRENT, NONE, CommitOptions, WorkOptions
from sequencer.project.settings import Settings
from sequencer.project.store_requests import CodeRequest
from sequencer.store.identity import this_process

_TRAILERS = ("run", "step", "iteration", "token")
_TRIES = 3


class GitWorkspace(Workspace):
    """The checkout around the project, for one run in one clone."""

    def __init__(
        self,
        tree: WorkTree,
        remote: Remote,
        state: Path,
        *,
        run: str | None,
        work: WorkOptions,
        commit: CommitOptions,
        redaction: Redaction,
        notify: Callable[[str], None],
    ) -> None:
        """Move the code of *run* (None: the default run) between *tree* and *remote*.

        *state* is the run's state file on this machine. *redaction* finds secrets in files, and
        hides them in the notices for people that *notify* gets.
        """
        super().__init__(tree.folders.project)
        self._tree = tree
        self._remote = remote
        self._seen: Note | None = None
        """The note of the work tree at the time when it was found ready."""
        self._reported: Note | None = None
        """The note whose leftover changes were reported last."""
        self._run = run
        self._work = work
        self._options = commit
        self._hide, self._notify = redaction.hide_text, notify
        self._tolerated = tree.make_patterns(work.tolerated)
        self._selector = Selector(tree, commit, make_secret_check(redaction))
        self._committer = Committer(tree)
        self._work_tree_lock = WorkTreeLock(tree, run, state, self._committer)
        self.code_move: RefMove | None = None
        """The move that goes with the last collected work; None: the remote has the code."""
        self._used: set[str] = set()
        """Commits with which steps have started or ended here."""

    # --- names ---------------------------------------------------------------------

    @property
    def moves(self) -> bool:
        return True

    @cached_property
    def branch(self) -> str | None:
        """Return the branch that moves; None: no branch is checked out, so nothing can move."""
        return self._tree.branch if self._work.branch == CURRENT else self._work.branch

    @property
    def refs(self) -> dict[str, str]:
        """Return the remote's branch -> the local ref to fetch it into."""
        if self.branch is None:
            return {}
        return {f"refs/heads/{self.branch}": self._local}

    @property
    def _local(self) -> str:
        # The remote may be an address, which can't be part of a ref.
        return f"refs/worktree/sequencer-work/{slug(self._remote.name)}/{self.branch}"

    def _remote_commit(self, head: Head) -> str | None:
        """Return the remote's commit of the branch, as far as known; None: it has no such branch.

        The remote also has the code of an accepted state, which moved with the state; the local
        ref is older until the next fetch. That commit is used only if a step used it here: a fetch
        that was killed may have brought the commit without its files.
        """
        fetched_commit = self._tree.resolve(self._local)
        work = head.work
        if work is None or work.branch != self.branch or not self._was_used_here(work.commit):
            return fetched_commit
        if fetched_commit is None or self._tree.contains(work.commit, fetched_commit):
            return work.commit
        return fetched_commit

    def _was_used_here(self, commit: str) -> bool:
        if commit in self._used:
            return True
        current_commit = self._tree.resolve("HEAD")
        return current_commit is not None and self._tree.contains(current_commit, commit)

    # --- before a step -------------------------------------------------------------

    def ensure_ready(self, head: Head) -> None:
        self._finish_commit()
        status = self._tree.read_status()
        commit = self._ensure_branch(status, head)
        note = self._work_tree_lock.load_note()
        self._work_tree_lock.ensure_free(note, head)
        has_changed = self._work_tree_lock.ensure_work_tree_free(note)
        if self._reset_unaccepted(note, head) or has_changed:
            # The files and the note may have changed meanwhile, so read them again.
            status, note = self._tree.read_status(), self._work_tree_lock.load_note()
            commit = self._ensure_branch(status, head)
        self._ensure_clean(status, head, note)
        self._seen = note
        remote_commit = self._remote_commit(head)
        is_unseen = self._tree.is_shallow and self._tree.resolve(self._local) is None
        if (remote_commit is None or is_unseen) and self._remote.fetch(self.refs):
            remote_commit = self._remote_commit(head)
        contains = self._tree.contains
        if remote_commit and not (
            contains(commit, remote_commit) or contains(remote_commit, commit)
        ):
            raise self._divergence_error(commit, remote_commit)

    def _reset_unaccepted(self, note: Note | None, head: Head) -> bool:
        """Take back code that was not accepted before *head*; return whether there was any."""
        remote_commit = self._work_tree_lock.find_accepted_commit(head, self._remote_commit(head))
        if (
            self._work_tree_lock.is_occupied
            or self._work_tree_lock.find_unaccepted(note, remote_commit) is None
        ):
            return False
        # Another run's state may have accepted it; a fetch shows that in any case.
        self._remote.fetch(self.refs)
        remote_commit = self._work_tree_lock.find_accepted_commit(head, self._remote_commit(head))
        with self._work_tree_lock.lock_note() as newest_note:
            if notice := self._work_tree_lock.reset_unaccepted(newest_note, remote_commit):
                self._notify(notice)
        return True

    def _finish_commit(self) -> None:
        """Complete a commit that a kill interrupted; else its files would seem to be staged."""
        if self._committer.has_abandoned_lock():
            with self._work_tree_lock.lock_note():
                self._committer.finish_interrupted_commit()

    def _ensure_clean(self, status: TreeStatus, head: Head, note: Note | None) -> None:
        """Check that all uncommitted changes are leftovers of the step of *head*, else raise."""
        dirty_paths = [entry.path for entry in self._tree.find_dirty(status, self._tolerated)]
        if not dirty_paths:
            return
        hint = (
            "commit them, put them away ('git stash -u%s'), or have git ignore them; "
            "list paths that may stay like this in store.work.tolerated"
        )
        paths = f"{len(dirty_paths)} changed {'path' if len(dirty_paths) == 1 else 'paths'}"
        if note is None or not note.is_of_step(head):
            raise self._tree.make_refusal(
                f"branch {self.branch} has uncommitted changes ({paths}): "
                + format_paths(dirty_paths, self._hide),
                hint % "",
            )
        if changed_paths := find_changed_paths(note, self._tree.top, dirty_paths):
            number = (
                f"{len(changed_paths)} {'path was' if len(changed_paths) == 1 else 'paths were'}"
            )
            raise self._tree.make_refusal(
                f"{number} changed since attempt {note.attempt} ended, and the next one would "
                f"commit that as its own: {format_paths(changed_paths, self._hide)}",
                hint % " -- PATH",
            )
        if note != self._reported:
            self._reported = note
            doubt = ", or someone changed since" if note.left is None else ""
            self._notify(
                f"continues with what attempt {note.attempt} left{doubt}: {paths}, "
                + format_paths(dirty_paths, self._hide)
            )

    def _ensure_branch(self, status: TreeStatus, head: Head) -> str:
        """Return the checked-out commit if the run's branch is checked out, else raise."""
        # First, because a rebase detaches HEAD, and the hint below would not help then.
        if operation := self._tree.find_operation():
            location = "" if status.branch is None else f" on branch {status.branch}"
            hint = "finish it or abort it, then start again"
            raise self._tree.make_refusal(f"{operation} is under way{location}", hint)
        branch = self.branch or status.branch
        if self._work.branch == CURRENT and (run_branch := self._read_branch(head)) is not None:
            branch = run_branch
            if not is_branch_name(branch):
                raise self._tree.make_refusal(
                    f"the run's code is on {branch!r}, but git does not allow that branch name",
                    "look at who wrote that state: 'sequencer history'",
                )
        if status.branch is None or branch is None:
            detail = f"; the run's code is on {branch}" if branch else ""
            hint = f"{format_other_command('git', 'switch', branch or 'BRANCH')}, then start again"
            raise self._tree.make_refusal(
                f"HEAD is detached: no branch is checked out{detail}", hint
            )
        if status.branch != branch:
            raise self._tree.make_refusal(
                f"branch {status.branch} is checked out, but the run's code is on {branch}",
                f"{format_other_command('git', 'switch', branch)}, or set store.work.branch",
            )
        # Another branch may have been checked out when this process started.
        self.branch = branch
        if status.commit is None:
            raise self._tree.make_refusal(
                f"branch {branch} has no commit yet", "make the first commit"
            )
        return status.commit

    def _read_branch(self, head: Head) -> str | None:
        """Return the branch of the run of *head*, which its first step decides.

        None: no step of it was accepted, and the last step in this work tree is another run's.
        """
        if head.work is not None:
            return head.work.branch
        note = self._work_tree_lock.load_note()
        return note.branch if note is not None and note.run_id == head.run_id else None

    def enter(self, head: Head) -> None:
        was_occupied = self._work_tree_lock.is_occupied
        try:
            with self._work_tree_lock.lock_note() as note:
                self._work_tree_lock.ensure_free(note, head)
                self._work_tree_lock.occupy(note)
                if note != self._seen:
                    # Another step has started here since the tree was found ready.
                    self._ensure_clean(self._tree.read_status(), head, note)
                self._seen = self._work_tree_lock.record_start(head, self.branch)
            self._update_code(head)
            if not was_occupied:
                self._work_tree_lock.base = self._tree.resolve("HEAD")
        except BaseException:
            if not was_occupied:
                self._work_tree_lock.vacate()
            raise

    def _update_code(self, head: Head) -> None:
        commit = head.work.commit if head.work is not None else None
        remote_commit = self._remote_commit(head)
        if commit is not None and not self._has_commit(remote_commit, commit):
            remote_commit = self._remote_commit(head) if self._remote.fetch(self.refs) else None
            if (
                remote_commit
                and self._tree.is_shallow
                and not self._has_commit(remote_commit, commit)
            ):
                self._remote.fetch(self.refs, f"--deepen={DEEPER}")
            if not self._has_commit(remote_commit, commit):
                raise self._missing_code_error(remote_commit, commit)
        if remote_commit is not None:
            self._fast_forward(remote_commit)

    def _fast_forward(self, remote_commit: str) -> None:
        commit = self._tree.resolve("HEAD")
        self._used.add(remote_commit)
        if commit is None or self._tree.contains(commit, remote_commit):
            return
        if not self._tree.contains(remote_commit, commit):
            raise self._divergence_error(commit, remote_commit)
        if not self._tree.has_all_objects(remote_commit):
            # Git trusts its refs, so a plain fetch would not bring what is missing.
            self._remote.refetch(self.refs)
            if not self._tree.has_all_objects(remote_commit):
                raise self._tree.make_refusal(
                    f"commit {remote_commit[:12]} of branch {self.branch} can't be fetched "
                    "completely",
                    "look at both repositories with 'git fsck'; a fresh clone shows whether "
                    f"{self._remote.name!r} has it",
                )
        obstacle = self._tree.fast_forward(remote_commit)
        if obstacle is not None:
            raise self._tree.make_refusal(
                f"branch {self.branch} can't be fast-forwarded to {remote_commit[:12]}: "
                + obstacle.reason,
                f"{obstacle.hint}, then start again",
            )

    def _has_commit(self, remote_commit: str | None, commit: str) -> bool:
        return remote_commit is not None and self._tree.contains(remote_commit, commit)

    # --- after a step --------------------------------------------------------------

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        self.code_move = None
        for _ in range(_TRIES):
            status = self._tree.read_status()
            commit = self._ensure_branch(status, head)
            remote_commit = self._remote_commit(head)
            if remote_commit is not None and not self._tree.contains(commit, remote_commit):
                raise self._tree.make_refusal(
                    f"step {step!r} left branch {self.branch} without the commit "
                    f"{remote_commit[:12]} that {self._remote.name!r} has: its history was "
                    "rewritten",
                    f"look at {format_other_command('git', 'reflog', str(self.branch))}; "
                    "nothing was pushed",
                )
            selection = self._selector.select(status)
            has_more, branch = bool(selection.chosen), str(self.branch)
            self._work_tree_lock.record_plan(
                claim, branch, commit, remote_commit, has_more=has_more
            )
            try:
                commit = self._commit_selection(selection, status, commit, claim, step)
            except RefMoved:
                continue
            move = RefMove(f"refs/heads/{branch}", remote_commit, commit)
            self.code_move = move if commit != remote_commit else None
            if self.code_move is None and (head.work is not None or self._work.branch != CURRENT):
                return None
            self._used.add(commit)
            # Even without a move, this records the branch, and the run stays on it.
            return Work(branch=branch, commit=commit)
        raise self._tree.make_refusal(
            f"someone else keeps committing on branch {self.branch}",
            "work in a clone of your own while steps run",
        )

    def merge_work(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* unchanged: only code that moves with the state is accepted."""
        del claim, head
        return work

    def find_obstacle(self, head: Head) -> SequencerError | None:
        """Return why the next step of *head* can't start here; does not ask the remote."""
        try:
            self._ensure_clean(self._tree.read_status(), head, self._work_tree_lock.load_note())
        except SequencerError as error:
            return error
        return None

    def publish(self, head: Head) -> None:
        """Do nothing: the code moves with the state."""

    def leave(self, head: Head | None) -> None:
        """Release the folder; note the step's leftover files if it is still the current step."""
        if not self._work_tree_lock.is_occupied:
            return
        try:
            note = self._work_tree_lock.load_note()
            is_own_note = note is not None and note.owner.nonce == this_process().nonce
            # Without a head the result is not known; the next process finds out.
            if (
                head is not None
                and is_own_note
                and self._work_tree_lock.reset_unaccepted(
                    note, self._work_tree_lock.find_accepted_commit(head, None)
                )
            ):
                note = self._work_tree_lock.load_note()
            if note is not None and is_own_note and (head is None or note.is_of_step(head)):
                dirt = self._tree.find_dirty(self._tree.read_status(), self._tolerated)
                self._work_tree_lock.record_end(note, [entry.path for entry in dirt])
        except SequencerError as error:
            # Without the note, the next attempt continues with all changes, of any author.
            self._notify(f"can't record what the step left: {error.message}")
        finally:
            self._work_tree_lock.vacate()

    def _commit_selection(
        self, selection: Selection, status: TreeStatus, commit: str, claim: Claim, step: str
    ) -> str:
        """Commit *selection*; return the new commit, or the old one if nothing was chosen."""
        ref = f"refs/heads/{self.branch}"
        if selection.chosen:
            message = self._commit_message(claim, step)
            result = self._committer.commit(selection, commit, ref, message)
            commit, selection = result.commit, result.selection
        declared_exclusions = [
            exclusion for exclusion in selection.skipped if exclusion.is_declared
        ]
        for exclusion in declared_exclusions[:SHOWN_PATHS]:
            self._notify(f"not committed: {self._hide(exclusion.path)!r} {exclusion.reason}")
        if len(declared_exclusions) > SHOWN_PATHS:
            rest_count = len(declared_exclusions) - SHOWN_PATHS
            self._notify(f"not committed: {rest_count} more; 'sequencer plan --commit'")
        committed_paths = {choice.path for choice in selection.chosen}
        dirt = self._tree.find_dirty(status, self._tolerated)
        left_paths = [entry.path for entry in dirt if entry.path not in committed_paths]
        if left_paths:
            self._notify(
                f"{format_paths(left_paths, self._hide)}: not committed, so no other clone "
                "gets them; no step starts here until you commit or remove them, or list them in "
                "store.work.tolerated"
            )
        return commit

    def _commit_message(self, claim: Claim, step: str) -> str:
        facts = {
            "step": step,
            "iteration": str(claim.step_index + 1),
            "step_index": str(claim.step_index),
            "run": self._run or "default",
            "token": str(claim.token),
        }
        facts = {name: " ".join(text.split()) for name, text in facts.items()}
        trailers = [f"{name.title()}: {facts[name]}" for name in _TRAILERS]
        return self._hide("\n".join([self._options.first_line(facts), "", *trailers]) + "\n")

    # --- when work tree and remote have diverged -----------------------------------

    # Names are quoted, so that people can copy the commands whatever a branch is called.

    def _divergence_error(self, commit: str, remote_commit: str) -> WorkTreeRefused:
        """Return the error for a branch that has diverged: *commit* here, *remote_commit* there."""
        if self._tree.is_shallow:
            return self._shallow_error(remote_commit)
        remote, divergence = self._remote.name, self._tree.divergence(commit, remote_commit)
        remote_branch = quote(f"{remote}/{self.branch}")
        return self._tree.make_refusal(
            f"branch {self.branch} has diverged: {divergence.ahead} commits are only here, "
            f"{divergence.behind} only on {remote!r}",
            f"bring both together ('git fetch {remote}', then 'git rebase {remote_branch}'), "
            f"or set yours aside ('git branch mine', then 'git reset --keep {remote_branch}')",
        )

    def _missing_code_error(self, remote_commit: str | None, commit: str) -> WorkTreeRefused:
        """Return the error for a remote without *commit*, the code that belongs to the state."""
        if self._tree.is_shallow and remote_commit is not None:
            return self._shallow_error(commit)
        remote, change = self._remote.name, "is gone" if remote_commit is None else "was moved back"
        refspec = quote(f"{commit}:refs/heads/{self.branch}")
        return self._tree.make_refusal(
            f"branch {self.branch} of {remote!r} {change}: it does not have commit "
            f"{commit[:12]}, which belongs to the state",
            f"'git push {remote} {refspec}' from "
            "a clone that has it; to continue without it, 'sequencer reset' starts a new run on "
            "what the branch has, and 'sequencer set step_index=N' moves it to where this one was",
        )

    def _shallow_error(self, commit: str) -> WorkTreeRefused:
        """Return the error for a shallow clone whose history does not reach back to *commit*."""
        return self._tree.make_refusal(
            f"this clone is shallow: its history of branch {self.branch} ends before commit "
            f"{commit[:12]}, so this clone can't tell whether the branch has it",
            f"'git fetch --unshallow {quote(self._remote.name)}' brings the rest, then start again",
        )

    # --- when it was not accepted --------------------------------------------------

    def keep(self, claim: Claim, step: str, head: Head) -> str | None:
        status = self._tree.read_status()
        commit = status.commit
        if commit is None:
            return None
        selection = self._selector.select(status)
        remote_commit = self._remote_commit(head)
        if not selection.chosen and (
            remote_commit is None or self._tree.contains(remote_commit, commit)
        ):
            return None
        base = self._work_tree_lock.kept_branch_name(claim)
        name = self._work_tree_lock.keep_on_branch(
            base, commit, selection, self._commit_message(claim, step)
        )
        ref = f"refs/heads/{name}"
        tip = self._tree.resolve(ref)
        try:
            verdict = self._remote.push([RefMove(ref, None, tip)]).verdict
        except (GitFailed, RemoteUnreachable, NoAtomicPush):
            verdict = PushVerdict.UNKNOWN
        if verdict is not PushVerdict.ACCEPTED:
            self._notify(f"branch {name} exists only here: it could not be pushed")
        return name


class StoreWorkspace(GitWorkspace):
    """A checkout whose code the run's store fetches and pushes together with the state."""

    def __init__(
        self, store: GitStore, settings: Settings, run: str | None, redaction: Redaction
    ) -> None:
        """Let *store* move the code of *run*."""
        branch = store.branch
        tree = WorkTree(list_folders(settings, settings.state_file), branch.objects)
        super().__init__(
            tree,
            branch.remote,
            store.state_path,
            run=run,
            work=settings.store.work,
            commit=settings.commit,
            redaction=redaction,
            notify=branch.replica.notices.append,
        )
        self._store = store
        branch.code_refs = lambda: self.refs

    def ensure_ready(self, head: Head) -> None:
        """Fetch the newest code and state; check that a step may start on them.

        Raises: see `Workspace.ensure_ready`.
        """
        self._store.branch.carried = self.refs
        self._store.pull()
        super().ensure_ready(self._store.view().head or head)

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """Commit the declared files; they are pushed with the next state that names the commit."""
        work = super().collect(claim, step, head)
        self._store.branch.code_move = self.code_move
        return work


def open_store_workspace(request: CodeRequest) -> Workspace | None:
    """Return the checkout for a run in a git store; None: another store, or no code moves."""
    store, settings = request.store, request.settings
    if not isinstance(store, GitStore) or settings.store.work.branch == NONE:
        return None
    return StoreWorkspace(store, settings, request.run, request.redaction)


def list_folders(settings: Settings, state_file: Path) -> Folders:
    """Return the project's files and folders that the program writes for *state_file*'s run."""
    return Folders(
        settings.project_dir,
        state_file,
        settings.logs_dir,
        # Files of the project into which activities are written.
        tuple(
            settings.project_dir / sink.path
            for sink in get_activity_options(settings).sinks.values()
            if sink.path is not None
        ),
    )
