"""Moves the code of a run whose state is not in git: each attempt pushes to its own ref.

The head names the accepted commit, so a push decides nothing. The branch that people see is
fast-forwarded to that commit later by compare-and-swap: before the next attempt and at the end of
an invocation. Commits that people have pushed on top of it are included. If they have pushed
commits that diverge, an error says so, and no step starts before a person has merged both.

Not promised: that the branch is at the head's commit at every moment, or that the ref of an attempt
that was not accepted stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from shlex import quote

from sequencer.engine.events import NoticeGiven
from sequencer.errors import RemoteUnreachable, SequencerError, WorkTreeRefused
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import is_branch_name, ref_part, slug
from sequencer.model.head import Claim, Head, Work
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.plugins.git.code.tree import WorkTree, format_paths
from sequencer.plugins.git.code.workspace import GitWorkspace, list_folders
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.branch import MOVED_MEANWHILE
from sequencer.plugins.git.state.objects import Objects
from sequencer.plugins.git.state.remote import NoAtomicPush, Pushed, PushVerdict, RefMove, Remote
from sequencer.project.schema import NONE
from sequencer.project.settings import Settings
from sequencer.project.store_requests import CodeRequest

ATTEMPTS = "refs/heads/sequencer-attempts"
SWEPT = 100
"""Maximum number of refs that one push removes."""
_LOOKS = 3


class AttemptWorkspace(GitWorkspace):
    """A checkout in which each attempt pushes to its own ref."""

    def __init__(
        self,
        git: Git,
        settings: Settings,
        run: str | None,
        redaction: Redaction,
        notify: Callable[[str], None],
    ) -> None:
        """Move the code of *run* between the work tree around the project and its remote."""
        state = settings.state_file
        remote = Remote(git, settings.store.remote)
        super().__init__(
            WorkTree(list_folders(settings, state), Objects(git)),
            remote,
            state,
            run=run,
            work=settings.store.work,
            commit=settings.commit,
            redaction=redaction,
            notify=notify,
        )
        self._tips: Mapping[str, str] = {}
        """Ref -> commit on the remote, for the branch and the attempts, at the last look."""
        self._accepted: str | None = None
        """The remote's ref with the accepted commit."""
        self._is_denied = False

    # --- names ---------------------------------------------------------------------

    def _attempt_ref_prefix(self, head: Head) -> str:
        return f"{ATTEMPTS}/{ref_part(slug(self._run or 'default'))}/{ref_part(slug(head.run_id))}/"

    def _accepted_ref(self, head: Head) -> str | None:
        """Return the ref that *head* names, if it belongs to an attempt of this run."""
        ref, folder = "" if head.work is None else head.work.ref, self._attempt_ref_prefix(head)
        return ref if ref.startswith(folder) and ref.removeprefix(folder).isdecimal() else None

    @property
    def _visible(self) -> str:
        return f"refs/heads/{self.branch}"

    @property
    def refs(self) -> dict[str, str]:
        """Return ref -> local ref for the branch and the accepted code, if the remote has them."""
        refs = {self._visible: self._local}
        if self._accepted is not None:
            prefix = f"refs/worktree/sequencer-work/accepted/{slug(self._remote.name)}"
            refs[self._accepted] = f"{prefix}/{self.branch}"
        return {ref: local_ref for ref, local_ref in refs.items() if ref in self._tips}

    def _remote_commit(self, head: Head) -> str | None:
        """Return the accepted commit, or the remote's branch if that contains it."""
        visible, work = self._tips.get(self._visible), head.work
        if work is None or work.branch != self.branch or self._tree.resolve(work.commit) is None:
            return visible
        if visible is None or self._tree.contains(work.commit, visible):
            return work.commit
        return visible

    # --- before an attempt ---------------------------------------------------------

    def ensure_ready(self, head: Head) -> None:
        """Check that a step may start on the accepted code, and move the visible branch to it.

        Raises: see `Workspace.ensure_ready`.
        """
        self._finish_commit()
        self._ensure_branch(self._tree.read_status(), head)
        self._fetch_tips(head)
        super().ensure_ready(head)
        self._forward_branch(head)

    def _fetch_tips(self, head: Head) -> None:
        """Fetch the branch and the accepted code as they are on the remote."""
        self._accepted = self._accepted_ref(head)
        for _ in range(_LOOKS):
            self._tips = self._remote.list_tips(
                [self._visible, f"{self._attempt_ref_prefix(head)}*"]
            )
            missing_refs = {
                ref: local_ref
                for ref, local_ref in self.refs.items()
                if not self._is_here(ref, local_ref)
            }
            # A failed fetch means that one of them was removed meanwhile: look again.
            if not missing_refs or self._remote.fetch(missing_refs):
                break
        visible, work = self._tips.get(self._visible), head.work
        if work is None or visible is None or self._tree.resolve(work.commit) is None:
            return
        contains = self._tree.contains
        if not (contains(work.commit, visible) or contains(visible, work.commit)):
            raise self._accepted_divergence_error(work, visible)

    def _is_here(self, ref: str, local_ref: str) -> bool:
        tip = self._tips[ref]
        return self._tree.resolve(local_ref) == tip or self._was_used_here(tip)

    def _accepted_divergence_error(self, work: Work, visible: str) -> WorkTreeRefused:
        remote, branch = quote(self._remote.name), quote(str(self.branch))
        return self._tree.make_refusal(
            f"someone has moved branch {self.branch} of {self._remote.name!r} to {visible[:12]}, "
            f"which does not have {work.commit[:12]}, the run's accepted code",
            f"bring both together: 'git switch {branch}', 'git pull {remote} {branch}', "
            f"'git fetch {remote} {quote(self._accepted or work.commit)}', "
            f"'git merge {work.commit}' and 'git push {remote} {branch}'; then start again",
        )

    # --- after an attempt ----------------------------------------------------------

    def collect(self, claim: Claim, step: str, head: Head) -> Work | None:
        """Commit the declared files, push them to the attempt's ref, and return the work.

        Raises:
            RemoteUnreachable: it is not known whether the remote has it; call this again.
        """
        work = super().collect(claim, step, head)
        if work is None:
            return None
        base = None if head.work is None else head.work.commit
        if self.code_move is None:
            return Work.model_validate({**work.model_dump(), "base": base})
        folder = self._attempt_ref_prefix(head)
        ref = f"{folder}{claim.token}"
        tips = self._remote.list_tips([self._visible, f"{folder}*"])
        visible = tips.pop(self._visible, None)
        # The run itself moves the branch to accepted commits while other attempts still work.
        is_own_move = visible == self._tips.get(self._visible) or visible in tips.values()
        if not is_own_move and not (
            visible is not None
            and self._tree.resolve(visible) is not None
            and self._tree.contains(work.commit, visible)
        ):
            raise self._tree.make_refusal(
                f"branch {self.branch} {MOVED_MEANWHILE}",
                "the next attempt starts from what the branch has then",
            )
        if tips.get(ref) != work.commit:
            self._ensure_accepted(self._push([RefMove(ref, None, work.commit)]), ref)
        return Work.model_validate({**work.model_dump(), "ref": ref, "base": base})

    def _push(self, moves: list[RefMove]) -> Pushed:
        try:
            return self._remote.push(moves)
        except NoAtomicPush:
            return Pushed(PushVerdict.REFUSED, "it can't update several branches at once")

    def _ensure_accepted(self, push: Pushed, ref: str) -> None:
        remote = f"remote {self._remote.name!r}"
        if push.failure is not None:
            raise push.failure
        if push.is_denied:
            hint = "use a key or token that may push there"
            message = f"does not accept pushes: {push.reason}"
            raise RemoteUnreachable(message, where=remote, hint=hint, is_denied=True)
        if push.verdict is not PushVerdict.ACCEPTED:
            details = f" ({push.hook_output})" if push.hook_output else ""
            raise self._tree.make_refusal(
                f"{remote} refused {ref}: {self._hide(push.reason + details)}",
                f"allow workers to create branches below {ATTEMPTS}/",
            )

    def merge_work(self, claim: Claim, head: Head, work: Work) -> Work | str:
        """Return *work* merged with the code that *head* has accepted since, or a conflict message.

        It needs no work tree. Raises: see `Workspace.merge_work`.
        """
        folder, accepted = self._attempt_ref_prefix(head), head.work
        ref, accepted_ref = f"{folder}{claim.token}", self._accepted_ref(head)
        visible = f"refs/heads/{work.branch}"
        tips = self._remote.list_tips([visible, f"{folder}*"])
        head_ref = accepted_ref if accepted_ref in tips else visible
        prefix = f"refs/worktree/sequencer-work/merging/{claim.token}"
        local_refs = {
            name: f"{prefix}-{i}" for i, name in enumerate({ref, head_ref}) if name in tips
        }
        try:
            self._remote.fetch(local_refs)
            commit = self._tree.resolve(local_refs.get(ref, "")) or work.commit
            contains = self._tree.contains
            if accepted is None or contains(accepted.commit, commit):
                return accepted or work
            if not contains(commit, work.commit):
                raise self._tree.make_refusal(
                    f"{self._remote.name!r} does not have {work.commit[:12]}"
                )
            if contains(commit, accepted.commit):
                return work.replace(commit=commit)
            merge = self._merge(claim, accepted.commit, commit)
            if isinstance(merge, str):
                self._ensure_accepted(self._push([RefMove(ref, tips.get(ref), merge)]), ref)
                return Work.model_validate({"branch": work.branch, "commit": merge, "ref": ref})
            branch = self._work_tree_lock.kept_branch_name(claim)
            self._push([RefMove(f"refs/heads/{branch}", None, commit)])
            return (
                f"its changes conflict with what was accepted meanwhile in "
                f"{format_paths(merge, self._hide)}; they are on branch {branch} of "
                f"{self._remote.name!r}"
            )
        finally:
            with contextlib.suppress(GitFailed):
                for local_ref in local_refs.values():
                    self._tree.git.run("update-ref", "-d", local_ref)

    def _merge(self, claim: Claim, accepted: str, commit: str) -> str | list[str]:
        """Return a merge of *accepted* and *commit*, or the files in which they conflict."""
        flags = ("--write-tree", "--name-only", "--no-messages", "-z")
        try:
            result = self._tree.git.run("merge-tree", *flags, accepted, commit, accepts=(0, 1))
            tree, *files = os.fsdecode(result.stdout).rstrip("\0").split("\0")
            if result.code:
                return files
            message = self._commit_message(claim, claim.step)
            return self._committer.write_merge_commit(tree, (accepted, commit), message)
        except GitFailed as failed:
            hint = "install git 2.38 or newer"
            message = f"an attempt's changes can't be merged: {failed.reason}"
            raise self._tree.make_refusal(message, hint) from failed

    # --- the branch that people see ------------------------------------------------

    def publish(self, head: Head) -> None:
        work = head.work
        if work is None or not is_branch_name(work.branch):
            return
        self.branch = work.branch
        try:
            self._fetch_tips(head)
            self._forward_branch(head)
        except SequencerError as error:
            self._notify(f"{error.message}: {error.hint}" if error.hint else error.message)

    def _forward_branch(self, head: Head) -> None:
        """Move the branch to the accepted commit, and remove refs of ended attempts."""
        visible, work, moves = self._tips.get(self._visible), head.work, list[RefMove]()
        drops = [RefMove(ref, self._tips[ref], None) for ref in self._find_stale_refs(head)][:SWEPT]
        contains = self._tree.contains
        if work is not None and work.branch == self.branch and self._has_accepted(work, visible):
            moves.append(RefMove(self._visible, visible, work.commit))
        if not (moves or drops):
            return
        push = self._push([*moves, *drops])
        if push.verdict is not PushVerdict.ACCEPTED and moves:
            # Another process may have removed a stale ref; try the branch alone.
            push = self._push(moves)
        if push.verdict is PushVerdict.ACCEPTED and work is not None and moves:
            self._tips = {**self._tips, self._visible: work.commit}
        elif push.verdict is PushVerdict.REFUSED and moves:
            self._fetch_tips(head)
            tip = self._tips.get(self._visible)
            has_work = work is not None and tip is not None and contains(tip, work.commit)
            if not has_work and not self._is_denied:
                self._is_denied = True
                self._notify(
                    f"branch {self.branch} of {self._remote.name!r} can't be moved to the "
                    f"accepted code, which is on {self._accepted}: {self._hide(push.reason)}"
                )

    def _has_accepted(self, work: Work, visible: str | None) -> bool:
        """Return whether the accepted commit is here and *visible* is older."""
        if self._tree.resolve(work.commit) is None or visible == work.commit:
            return False
        return visible is None or self._tree.contains(work.commit, visible)

    def _find_stale_refs(self, head: Head) -> list[str]:
        """Return the refs of ended attempts, except the one that was accepted last."""
        folder, stale_refs = self._attempt_ref_prefix(head), list[str]()
        for ref in self._tips:
            token = parse_whole_number(ref.removeprefix(folder)) if ref.startswith(folder) else None
            # A higher token was granted after this head, so its attempt may still work.
            if token is not None and token <= head.token and ref != self._accepted:
                stale_refs += [] if head.find_claim(token) else [ref]
        return stale_refs


def open_attempt_workspace(request: CodeRequest) -> AttemptWorkspace | None:
    """Return the checkout of a run whose state is not in git.

    None: no branch should move, or the project is not in a clone of ``store.remote``.
    """
    settings, store = request.settings, request.settings.store
    if store.work.branch == NONE:
        return None
    git = Git(settings.project_dir, timeout_s=store.timeout_s, allowed=request.allowed())
    try:
        git.run("rev-parse", "--show-toplevel")
        if {"/", ":"}.isdisjoint(store.remote):
            git.run("remote", "get-url", "--", store.remote)
    except (GitFailed, OSError):
        return None
    notify = lambda text: request.emit(NoticeGiven(text))  # noqa: E731
    return AttemptWorkspace(git, settings, request.run, request.redaction, notify)
