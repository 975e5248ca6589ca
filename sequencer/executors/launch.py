"""What starts one agent: its arguments, its environment, its limits.

What an agent gets of the environment is a fixed list, what its client needs, and what its entry
names: a variable that nobody listed does not reach a program that runs with a model's hand on
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.protocol import Identity, words
from sequencer.executors.wall import Wall

GRACE_S = 5.0
"""Seconds between TERM and KILL; claude 2.1 needs about 1.5 to end its tools."""


class Launch(Struct, frozen=True, kw_only=True):
    """Everything that is needed to start one agent, or one command of the project."""

    identity: Identity | None
    """Whose process it is. None: no model's, but a command that the person wrote (``setup``)."""
    argv: Sequence[str]
    environment: Mapping[str, str]
    """The whole environment but for the identity's variables; nothing is inherited."""
    cwd: Path
    prompt: bytes
    """What the agent reads on its standard input, to the end."""
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    done_file: str | None = None
    """Below *cwd*: when it appears, the agent has done its work and is ended."""
    is_stuck: Callable[[], bool] | None = None
    """Whether the agent only repeats itself, and is ended for that; None: nobody looks."""
    grace_s: float = GRACE_S
    """Seconds between TERM and KILL."""
    wall: Wall = Wall.SCOPES
    """What keeps it away from other processes of its user."""
    lock: AttemptLock | None = None
    """Of the attempt; None where it has no claim."""
    hint: str = ""
    """What to do where the program is missing."""


# Among them where keys are asked for (they stay in their agents), the only way out of a network
# with a proxy and a certificate of its own, and through what programs are found and linked.
EVERY_AGENT = words(
    "COLORTERM HOME LANG LANGUAGE LC_* LOGNAME NO_COLOR PATH SHELL TERM TERMINFO TMPDIR TZ TZDIR "
    "USER XDG_* DBUS_SESSION_BUS_ADDRESS GPG_TTY SSH_AGENT_PID SSH_AUTH_SOCK ALL_PROXY "
    "HTTPS_PROXY HTTP_PROXY NO_PROXY all_proxy https_proxy http_proxy no_proxy AWS_CA_BUNDLE "
    "CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_DIR "
    "SSL_CERT_FILE CONDA_PREFIX DYLD_LIBRARY_PATH LD_LIBRARY_PATH NVM_DIR PYENV_ROOT VIRTUAL_ENV"
)
"""Names and prefixes that every agent gets where they are set."""
TRUST = "SEQUENCER_TRUST"
"""Says whose code may run on this machine: never said to an agent, whatever its entry names."""
_IDENTIFYING = frozenset(Identity(step="", token=0, run_id="").variables())
"""Not said to an agent that has no run, whatever its entry names."""


def agent_environment(
    *,
    passed: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return an agent's environment, but for its identity; see `Launch`.

    From *base* (this process's, if not given) come `EVERY_AGENT` and what *passed* names:
    the client's own variables and the entry's ``pass_env``. Then *extra*, the entry's ``env``.

    >>> base = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "…", "CI": "1"}
    >>> agent_environment(passed=["CI"], extra={"A": "b"}, base=base)
    {'PATH': '/bin', 'LC_ALL': 'C', 'CI': '1', 'A': 'b'}
    """
    source = os.environ if base is None else base
    patterns = (*EVERY_AGENT, *passed)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    chosen = {
        name: value for name, value in source.items() if name in exact or name.startswith(prefixes)
    }
    return {**chosen, **(extra or {})}


def loader_environment() -> dict[str, str]:
    """Return the variables without which an interpreter may not start; a guard needs no others."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("DYLD_", "FAKETIME", "LD_"))
    }


def marked_environment(launch: Launch) -> dict[str, str]:
    """Return the environment of *launch* with its identity, which nothing in it can forge."""
    environment = dict(launch.environment)
    environment.pop(TRUST, None)
    if launch.identity is None:
        return environment
    for name in _IDENTIFYING:
        environment.pop(name, None)
    return environment | launch.identity.variables()
