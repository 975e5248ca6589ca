"""From a transition to the commit that holds it: which files have changed since the last one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sequencer.store import results
from sequencer.store.git.objects import Draft as CommitDraft
from sequencer.store.git.objects import Objects, blob_name
from sequencer.store.git.replica import (
    HEAD,
    JOURNAL,
    MAX_JOURNAL_BYTES,
    MAX_OUTPUT_BYTES,
    Replica,
    Tree,
)
from sequencer.store.headfile import signature
from sequencer.store.peer import Draft

_DEPTH = "Depth: "


@dataclass(frozen=True, slots=True)
class Stand:
    """A commit of the branch, and what it holds."""

    commit: str
    tree: Tree | None
    """None: it is not in this repository any more."""
    revision: int
    depth: int
    """Commits since the history began."""


class Drafting:
    """Writes the commits of one run; under the lock of its folder."""

    def __init__(self, replica: Replica, objects: Objects, ref: str, max_commits: int) -> None:
        """Write to *objects*; *ref* is what keeps the last commit there.

        After *max_commits* the history begins anew, with the same files; 0: never.
        """
        self._replica = replica
        self._objects = objects
        self._ref = ref
        self.max_commits = max_commits
        self.notices: list[str] = []
        self._hashed: dict[str, tuple[object, str]] = {}

    def write(self, draft: Draft, stand: Stand | None) -> Stand:
        """Write the commit of *draft* on top of *stand*; return where it is.

        Raises:
            GitFailed: nothing can be written here.
        """
        before = stand.tree if stand is not None and stand.tree is not None else Tree({})
        files = self._files(draft, before, stand)
        depth = 0 if stand is None else stand.depth + 1
        if stand is not None and self.max_commits and depth >= self.max_commits:
            depth = 0
        old = None if stand is None else stand.commit
        commit = self._objects.write(
            CommitDraft(
                _message(draft, depth),
                parent=old if depth else None,
                base=None if depth else old,
                files=files,
                at=_epoch(draft.head.last_update),
            ),
            self._ref,
        )
        entries = {name: oid for name, oid in before.entries.items() if name not in files}
        chars = len(commit)
        entries |= {n: blob_name(data, chars) for n, data in files.items() if data is not None}
        return Stand(commit, Tree(entries), draft.head.revision, depth)

    def _files(self, draft: Draft, before: Tree, stand: Stand | None) -> dict[str, bytes | None]:
        """Return what differs from the commit *before*: paths and contents, None for removed."""
        replica = self._replica
        journal = replica.journal() + draft.closing + draft.line
        files: dict[str, bytes | None] = {HEAD: draft.content, JOURNAL: journal}
        aside, here = replica.aside(), replica.documents()
        for name in sorted(aside - before.aside()):
            files[name] = replica.read(name, MAX_JOURNAL_BYTES)
        for name in sorted(here):
            if stand is None or self._differs(name, before, len(stand.commit)):
                files[name] = replica.read(name)
        here_results = replica.folder / results.NAME
        for fact in draft.transition.facts:
            attempt = results.folder(here_results, fact.step_index, fact.token).name
            name = f"{results.NAME}/{attempt}/{results.OUTPUT}"
            if name not in before.entries and (data := self._output(name)):
                files[name] = data
        removed = (before.aside() - aside) | (before.documents() - here)
        if aside - before.aside():
            # With the records of a journal that was put aside long ago, outputs go as well.
            removed |= before.outputs() - replica.outputs()
        return files | dict.fromkeys(sorted(removed))

    def _output(self, name: str) -> bytes | None:
        data = self._replica.read(name, MAX_OUTPUT_BYTES)
        if data is None and signature(self._replica.folder / name):
            self.notices.append(
                f"{self._replica.folder / name} has more than {MAX_OUTPUT_BYTES} bytes: other "
                "machines do not get it"
            )
        return data

    def _differs(self, name: str, before: Tree, chars: int) -> bool:
        """Return whether the document *name* is another one here than in *before*."""
        mark = signature(self._replica.folder / name)
        known = self._hashed.get(name)
        if known is None or known[0] != mark:
            data = self._replica.read(name)
            known = (mark, "" if data is None else blob_name(data, chars))
            self._hashed[name] = known
        return bool(known[1]) and known[1] != before.entries.get(name)


def depth_of(objects: Objects, commit: str) -> int:
    """Return how many commits of a run's history are behind *commit*, as its message says."""
    data = objects.read(commit, "commit") or b""
    for line in data.decode("utf-8", "replace").splitlines():
        if line.startswith(_DEPTH) and line[len(_DEPTH) :].isdecimal():
            return int(line[len(_DEPTH) :])
    return 0


def _message(draft: Draft, depth: int) -> str:
    told = ", ".join(str(fact.event) for fact in draft.transition.facts)
    fact, head = draft.transition.facts[0], draft.head
    lines = [
        f"{told}: {fact.step} (step_index {fact.step_index}, token {fact.token})",
        "",
        f"Run: {head.run_name or 'default'} {head.run_id}",
        f"Revision: {head.revision}",
        f"{_DEPTH}{depth}",
    ]
    return "\n".join(lines) + "\n"


def _epoch(at: str) -> int:
    try:
        return max(0, int(datetime.fromisoformat(at).timestamp()))
    except ValueError:
        return 0
