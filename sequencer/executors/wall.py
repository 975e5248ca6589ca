"""The wall between the agents of one user: the option, and whether this system supports it.

The guard builds it, see `guard.Domain`. It needs Linux 6.12 (Landlock ABI 6), a kernel that was
built and started with Landlock, and a container whose seccomp filter allows it. Other systems
have nothing similar.

Not promised: protection of files. Root can read the environment of other processes from inside
the wall. Processes outside the wall can reach in.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import cache

from sequencer.executors.guard import Domain, Prctl

NEEDS_PRIVILEGES = "sudo, setgid programs like crontab, setuid bwrap, rootless podman and snaps"
"""What does not work inside the wall, because it needs new privileges."""
PRIVILEGED = frozenset(("sudo", "doas", "pkexec", "crontab", "podman"))
"""Programs that need new privileges and that a command line shows."""
WITHOUT_WALL = (
    "agents of this user can signal each other, and read each other's environment and write to "
    "each other's output through /proc"
)
"""What agents can do without a wall."""


class Wall(StrEnum):
    """The kinds of walls between an agent and the other processes of its user."""

    SCOPES = "scopes"
    """A Landlock domain, if the system supports it: no signals to processes outside, no access
    to their memory or environment, no abstract Unix sockets; no new privileges inside."""
    NONE = "none"
    """Nothing, for an agent that needs new privileges."""


@cache
def unavailable_reason() -> str | None:
    """Return why this system can't build the wall; None: it can."""
    if sys.platform != "linux":
        return "only Linux has such a wall"
    try:
        domain = Domain(Prctl())
    except OSError:
        # This machine is short of descriptors or memory right now; the guard tries again.
        return None
    if not domain.is_there:
        return (
            "the kernel has no Landlock scopes (Linux 6.12 or later), or a container refuses them"
        )
    domain.close()
    return None
