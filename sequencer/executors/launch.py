"""The values that start one agent: its arguments, its environment, its limits.

An agent gets a fixed list of environment variables, the variables that its client needs, and the
ones that its entry names. No other variable reaches a program that a model controls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.protocol import Identity, split_words
from sequencer.executors.wall import Wall

GRACE_S = 5.0
"""Seconds between TERM and KILL; claude 2.1 needs about 1.5 to end its tools."""


class Launch(Struct, frozen=True, kw_only=True):
    """Everything that is needed to start one agent, or one command of the project."""

    identity: Identity | None
    """Which agent runs in the process. None: it runs a command that a person wrote (``setup``)."""
    argv: Sequence[str]
    environment: Mapping[str, str]
    """The whole environment except for the identity's variables; nothing is inherited."""
    cwd: Path
    prompt: bytes
    """The agent's whole standard input."""
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    done_file: str | None = None
    """Path below *cwd*: when this file appears, the agent's work is done and it is ended."""
    is_stuck: Callable[[], bool] | None = None
    """Whether the agent only repeats itself and has to be ended; None: not checked."""
    grace_s: float = GRACE_S
    """Seconds between TERM and KILL."""
    wall: Wall = Wall.SCOPES
    """The wall between the agent and other processes of its user."""
    lock: AttemptLock | None = None
    """The attempt's lock; None if it has no claim."""
    hint: str = ""
    """What to do if the program is missing."""


# They include the sockets of key agents such as ssh-agent (the keys stay there), the only way out
# of a network with its own proxy and certificate, and the search paths of programs and libraries.
EVERY_AGENT = split_words(
    "COLORTERM HOME LANG LANGUAGE LC_* LOGNAME NO_COLOR PATH SHELL TERM TERMINFO TMPDIR TZ TZDIR "
    "USER XDG_* DBUS_SESSION_BUS_ADDRESS GPG_TTY SSH_AGENT_PID SSH_AUTH_SOCK ALL_PROXY "
    "HTTPS_PROXY HTTP_PROXY NO_PROXY all_proxy https_proxy http_proxy no_proxy AWS_CA_BUNDLE "
    "CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_DIR "
    "SSL_CERT_FILE CONDA_PREFIX DYLD_LIBRARY_PATH LD_LIBRARY_PATH NVM_DIR PYENV_ROOT VIRTUAL_ENV"
)
"""Names and prefixes of variables that every agent gets if they are set."""
TRUST = "SEQUENCER_TRUST"
"""Says whose code may run on this machine; no agent gets it, whatever its entry names."""
_IDENTIFYING = frozenset(Identity(step="", token=0, run_id="").variables())
"""An agent without a run gets none of these, whatever its entry names."""


def agent_environment(
    *,
    passed: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return an agent's environment, except for its identity; see `Launch`.

    From *base* (default: this process's environment) come `EVERY_AGENT` and the names in
    *passed*: the client's variables and the entry's ``pass_env``. *extra*, the entry's ``env``,
    is added last.

    >>> base = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "…", "CI": "1"}
    >>> agent_environment(passed=["CI"], extra={"A": "b"}, base=base)
    {'PATH': '/bin', 'LC_ALL': 'C', 'CI': '1', 'A': 'b'}
    """
    source = os.environ if base is None else base
    patterns = (*EVERY_AGENT, *passed)
    exact_names = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    variables = {
        name: value
        for name, value in source.items()
        if name in exact_names or name.startswith(prefixes)
    }
    return {**variables, **(extra or {})}


def loader_environment() -> dict[str, str]:
    """Return the variables that an interpreter may need to start; a guard needs no others."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("DYLD_", "FAKETIME", "LD_"))
    }


def marked_environment(launch: Launch) -> dict[str, str]:
    """Return the environment of *launch* with its identity, which an entry can't forge."""
    environment = dict(launch.environment)
    environment.pop(TRUST, None)
    if launch.identity is None:
        return environment
    for name in _IDENTIFYING:
        environment.pop(name, None)
    return environment | launch.identity.variables()
