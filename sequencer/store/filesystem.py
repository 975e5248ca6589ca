"""Whether a folder is on a file system whose locks and renames reach only this machine."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sequencer.errors import NetworkFileSystem

NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs"),
    )
)

_OCTAL = re.compile(r"\\([0-7]{3})")
"""How mountinfo writes blanks, line ends and backslashes in paths."""


def type_of(folder: Path) -> str:
    """Return the type of the file system that holds *folder*; empty if it can't be told."""
    resolved = os.path.realpath(folder)
    below = f"{resolved.rstrip('/')}/"
    longest, found = -1, ""
    for mount_point, kind in _mounts():
        # Of several mounts on one point the last is the one that is seen.
        if below.startswith(f"{mount_point.rstrip('/')}/") and len(mount_point) >= longest:
            longest, found = len(mount_point), kind
    return found


def _mounts() -> list[tuple[str, str]]:
    """Return each mount's folder and type; as texts, because each store looks at them all."""
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 (only where there is no /proc)

        return [(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)]
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ", 5)[4]
        if "\\" in point:
            point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), point)
        mounts.append((point, after.split(" ", 1)[0]))
    return mounts


def is_network(kind: str) -> bool:
    """Return whether file system type *kind* is shared between machines.

    ``fuseblk`` is a local disk driver in user space; every other fuse is not trusted.
    """
    return kind in NETWORK_TYPES or (kind.startswith("fuse") and kind != "fuseblk")


def ensure_local(folder: Path) -> None:
    """Return if *folder* is on a local file system.

    Raises:
        NetworkFileSystem: it is not, so that two machines could both believe to hold the lock.
    """
    kind = type_of(folder)
    if is_network(kind):
        raise NetworkFileSystem(
            f"the file system is {kind}, where locks and renames need not reach other machines",
            where=str(folder),
            hint="use a local folder, or set store.allow_network_fs: true if only one machine "
            "uses it",
        )
