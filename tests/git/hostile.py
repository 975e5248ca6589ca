"""Commits that nobody should have put on a state branch, written object by object."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

from tests.clones import git

STATE = "refs/heads/sequencer/default"
FILE, LINK, SUBMODULE, FOLDER = "100644", "120000", "160000", "40000"


class Forge:
    """Writes objects into a bare repository as they are, and moves its refs by hand."""

    def __init__(self, bare: Path, ref: str = STATE) -> None:
        self.bare, self.ref = bare, ref

    def put(self, kind: str, data: bytes) -> str:
        """Write an object that git itself might refuse to make, and return its name."""
        whole = b"%s %d\0%s" % (kind.encode(), len(data), data)
        oid = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        path = self.bare / "objects" / oid[:2] / oid[2:]
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(zlib.compress(whole, 1))
        return oid

    def blob(self, data: bytes) -> str:
        """Write a file."""
        return self.put("blob", data)

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """Write a tree of (mode, name, object), sorted as git wants it."""

        def place(entry: tuple[str, str, str]) -> bytes:
            return entry[1].encode() + (b"/" if entry[0] == FOLDER else b"")

        return self.put(
            "tree",
            b"".join(
                f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid)
                for mode, name, oid in sorted(entries, key=place)
            ),
        )

    def commit(self, tree: str, parent: str | None) -> str:
        """Write a commit of *tree*."""
        lines = [f"tree {tree}", *([f"parent {parent}"] if parent else [])]
        lines += [f"{who} X <x@x> 0 +0000" for who in ("author", "committer")]
        return self.put("commit", "\n".join([*lines, "", "x"]).encode())

    def tip(self) -> str:
        """Return where the branch is."""
        return git(self.bare, "rev-parse", self.ref)

    def entries(self) -> list[tuple[str, str, str]]:
        """Return what the branch holds at its top."""
        found = []
        for line in git(self.bare, "ls-tree", self.ref).splitlines():
            what, name = line.split("\t")
            mode, _, oid = what.split()
            found.append((mode.lstrip("0"), name, oid))
        return found

    def move(self, oid: str) -> None:
        """Put the branch on *oid*, whatever it was on."""
        path = self.bare / self.ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{oid}\n")

    def lay_over(self, *entries: tuple[str, str, str]) -> str:
        """Move the branch on to a commit with *entries* in place of those of the same names."""
        names = {name for _, name, _ in entries}
        kept = [entry for entry in self.entries() if entry[1] not in names]
        oid = self.commit(self.tree(*kept, *entries), self.tip())
        self.move(oid)
        return oid
