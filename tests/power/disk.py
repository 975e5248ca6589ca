"""What a disk may hold after the power failed, from the calls that came before.

No more is assumed than POSIX promises: the content of a file is certain after its own fsync
or fdatasync, an entry of a folder after an fsync of the folder. Everything later may be there
or not, each entry by itself and in any order; only a rename happens whole or not at all.
Content that was not synced may be missing, be there, end early, or be zeros in part.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = 0
"""The folder that everything is in; it is there, whatever happens."""


class Enter(NamedTuple):
    """An entry of a folder for a node: a new file or folder, or a link."""

    folder: int
    name: str
    node: int
    is_folder: bool = False


class Remove(NamedTuple):
    """An entry is taken away."""

    folder: int
    name: str


class Rename(NamedTuple):
    """An entry gets another name in the same folder."""

    folder: int
    old: str
    new: str
    node: int


class Write(NamedTuple):
    """Bytes of a file."""

    node: int
    offset: int
    data: bytes


class Resize(NamedTuple):
    """A file is cut off, or gets room."""

    node: int
    size: int


class Sync(NamedTuple):
    """fsync or fdatasync of a file or a folder."""

    node: int


class Told(NamedTuple):
    """A transition was acknowledged: from here on *revision* has to survive."""

    revision: int


Entry = Enter | Remove | Rename
Content = Write | Resize
Op = Entry | Content | Sync | Told


@dataclass
class Tree:
    """A root folder and everything in it; two entries may be one node."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)

    def copy(self) -> Tree:
        return Tree({node: dict(names) for node, names in self.folders.items()}, dict(self.files))

    def enter(self, op: Entry) -> None:
        names = self.folders.setdefault(op.folder, {})
        if isinstance(op, Remove):
            names.pop(op.name, None)
        elif isinstance(op, Rename):
            if names.get(op.old) == op.node:
                del names[op.old]
            names[op.new] = op.node
        else:
            names[op.name] = op.node
            if op.is_folder:
                self.folders.setdefault(op.node, {})

    def change(self, op: Content) -> None:
        self.files[op.node] = changed(self.files.get(op.node, b""), op)

    def paths(self, node: int = ROOT, at: str = "") -> Iterator[tuple[str, int]]:
        """Yield path and node of everything that can be reached, folders before their content."""
        for name, found in sorted(self.folders[node].items()):
            path = f"{at}{name}"
            yield path, found
            if found in self.folders:
                yield from self.paths(found, f"{path}/")

    def write_to(self, folder: Path) -> dict[str, int]:
        """Make this tree in *folder*, links included; return the node of each path."""
        folder.mkdir(parents=True)
        first: dict[int, Path] = {}
        nodes = {}
        for name, node in self.paths():
            path, nodes[name] = folder / name, node
            if node in self.folders:
                path.mkdir()
            elif node in first:
                os.link(first[node], path)
            else:
                path.write_bytes(self.files.get(node, b""))
                first[node] = path
        return nodes

    def key(self) -> tuple[tuple[str, str, bytes], ...]:
        """Return the same for trees that differ in nothing but temporary files, never read."""
        first: dict[int, str] = {}
        shown = []
        for name, node in self.paths():
            if name.endswith(".tmp"):
                continue
            is_folder = node in self.folders
            content = b"" if is_folder else self.files.get(node, b"")
            shown.append((name, "/" if is_folder else first.setdefault(node, name), content))
        return tuple(shown)


def changed(content: bytes, op: Content) -> bytes:
    """Return *content* after *op*."""
    if isinstance(op, Resize):
        return content[: op.size].ljust(op.size, b"\0")
    before = content[: op.offset].ljust(op.offset, b"\0")
    return before + op.data + content[op.offset + len(op.data) :]


def halved(op: Content) -> list[Content]:
    """Return what there may be of *op* beside all and nothing."""
    if isinstance(op, Resize) or not op.data:
        return []
    half, zeros = len(op.data) // 2, b"\0" * len(op.data)
    return [
        op._replace(data=zeros),
        op._replace(data=op.data[:half]),
        op._replace(data=op.data[:half] + zeros[half:]),
        op._replace(data=zeros[:half] + op.data[half:]),
        op._replace(data=op.data[:-1]),
        op._replace(data=op.data[:1]),
    ]


def contents(durable: bytes, pending: Sequence[Content]) -> list[bytes]:
    """Return what a file may hold that had *durable* when *pending* was not synced.

    The first is all of it, the second none, the third zeros, the fourth a half.
    """
    whole = [durable]
    for op in pending:
        whole.append(changed(whole[-1], op))
    found = [whole[-1], durable]
    for before, op in reversed(list(zip(whole, pending, strict=False))):
        found += [changed(before, part) for part in halved(op)]
    return [*found, *whole[1:-1]]


class Disk:
    """A disk on which calls are made, one after the other."""

    def __init__(self, durable: Tree) -> None:
        """Begin with what is *durable*."""
        self.durable = durable.copy()
        self.present = durable.copy()
        self.entries: list[Entry] = []
        self.contents: dict[int, list[Content]] = {}
        self.told = 0

    def do(self, op: Op) -> None:
        """Let *op* happen, so far in memory only."""
        if isinstance(op, Sync):
            self._sync(op.node)
        elif isinstance(op, Told):
            self.told = max(self.told, op.revision)
        elif isinstance(op, Write | Resize):
            self.contents.setdefault(op.node, []).append(op)
            self.present.change(op)
        else:
            self.entries.append(op)
            self.present.enter(op)

    def _sync(self, node: int) -> None:
        for op in self.contents.pop(node, ()):
            self.durable.change(op)
        for entry in self.entries:
            if entry.folder == node:
                self.durable.enter(entry)
        self.entries = [entry for entry in self.entries if entry.folder != node]

    # --- what a power loss may leave -------------------------------------------------

    def left(self, effort: Effort, chance: random.Random) -> Iterator[Tree]:
        """Yield what may be on the disk if the power fails at this moment."""
        for kept in effort.selections(len(self.entries), chance):
            tree = self.durable.copy()
            for place in kept:
                tree.enter(self.entries[place])
            yield from self._with_contents(tree, effort, chance)

    def _with_contents(self, tree: Tree, effort: Effort, chance: random.Random) -> Iterator[Tree]:
        reachable = {node for _, node in tree.paths()}
        choices = {
            node: contents(tree.files.get(node, b""), pending)
            for node, pending in sorted(self.contents.items())
            if node in reachable
        }
        for chosen in effort.combinations(choices, chance):
            yield Tree(tree.folders, {**tree.files, **chosen})


@dataclass(frozen=True)
class Effort:
    """How many of the possible remains are looked at."""

    all_entries: int
    """Up to so many uncertain entries: every subset of them."""
    random_entries: int
    all_contents: int
    """Up to so many combinations of contents: every one."""
    random_contents: int

    def selections(self, count: int, chance: random.Random) -> list[tuple[int, ...]]:
        """Return which of *count* uncertain entries are there, in some of all cases."""
        everything = range(count)
        if count <= self.all_entries:
            sizes = range(count + 1)
            return [kept for n in sizes for kept in itertools.combinations(everything, n)]
        found = [tuple(range(n)) for n in range(count + 1)]
        found += [(n,) for n in everything]
        found += [tuple(n for n in everything if n != missing) for missing in everything]
        for _ in range(self.random_entries):
            found.append(tuple(n for n in everything if chance.random() < chance.random()))
        return list(dict.fromkeys(found))

    def combinations(
        self, choices: Mapping[int, Sequence[bytes]], chance: random.Random
    ) -> Iterator[dict[int, bytes]]:
        """Yield a content for each node of *choices*, in some of all cases."""
        total = 1
        for versions in choices.values():
            total *= len(versions)
        if total <= self.all_contents:
            for chosen in itertools.product(*choices.values()):
                yield dict(zip(choices, chosen, strict=True))
            return
        for same in range(4):
            yield {node: v[min(same, len(v) - 1)] for node, v in choices.items()}
        for alone, versions in choices.items():
            for version in versions:
                yield {node: v[0] for node, v in choices.items()} | {alone: version}
        for _ in range(self.random_contents):
            yield {node: chance.choice(v) for node, v in choices.items()}
