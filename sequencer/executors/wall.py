"""The wall between the agents of one user: the option, and what this system has of it.

The guard builds it, see `guard.Domain`. Linux has it from 6.12 on (Landlock ABI 6), unless the
kernel was built or started without Landlock or a seccomp filter of a container refuses it;
other systems have nothing like it.

Not promised: anything between agents and files. As root the environment of other processes
stays readable inside the wall. Processes outside the wall can reach in.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import cache

from sequencer.executors.guard import Domain, Prctl

NEEDS_PRIVILEGES = "sudo, setgid programs like crontab, setuid bwrap, rootless podman and snaps"
"""What does not work inside the wall, because it needs new privileges."""
PRIVILEGED = frozenset(("sudo", "doas", "pkexec", "crontab", "podman"))
"""Programs of that kind that a command line shows."""
WITHOUT_WALL = (
    "agents of this user can signal each other, and read each other's environment and write to "
    "each other's output through /proc"
)
"""What stands where there is no wall."""


class Wall(StrEnum):
    """What keeps an agent away from the other processes of its user."""

    SCOPES = "scopes"
    """A Landlock domain, where the system has one: no signals to processes outside, no look
    into them, no abstract Unix sockets; no new privileges inside."""
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
        # Short of descriptors or memory for the moment: the guard would have to wait as well.
        return None
    if not domain.is_there:
        return (
            "the kernel has no Landlock scopes (Linux 6.12 or later), or a container refuses them"
        )
    domain.close()
    return None
