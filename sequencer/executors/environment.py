"""Which environment variables an agent gets.

A fixed list, what its client needs, what its entry names, and nothing else: a variable
that nobody listed (another service's key, the state of an outer agent session) does not
reach a program that runs with a model's hand on it. Nothing is read or changed but the
mapping.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import StringConstraints

from sequencer.executors.protocol import words

Pattern = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", min_length=2, max_length=200)
]
"""``NAME``, or ``PREFIX_*`` for all that begin so; ``*`` alone is refused."""
VariableName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)
]
VariableValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]

# Among them where keys are asked for (they stay in their agents), the only way out of a network
# with a proxy and a certificate of its own, and through what programs are found and linked.
EVERY_AGENT = words(
    "COLORTERM HOME LANG LANGUAGE LC_* LOGNAME NO_COLOR PATH SHELL TERM TERMINFO TMPDIR TZ TZDIR "
    "USER XDG_* DBUS_SESSION_BUS_ADDRESS GPG_TTY SSH_AGENT_PID SSH_AUTH_SOCK ALL_PROXY "
    "HTTPS_PROXY HTTP_PROXY NO_PROXY all_proxy https_proxy http_proxy no_proxy CURL_CA_BUNDLE "
    "GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_DIR SSL_CERT_FILE "
    "CONDA_PREFIX DYLD_LIBRARY_PATH LD_LIBRARY_PATH NVM_DIR PYENV_ROOT VIRTUAL_ENV"
)
"""Names and prefixes that every agent gets where they are set."""
TRUST = "SEQUENCER_TRUST"
"""Says whose code may run on this machine: never said to an agent, whatever its entry names."""


def agent_environment(
    identity: Mapping[str, str],
    *,
    passed: Iterable[str] = (),
    extra: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return an agent's whole environment.

    From *base* (this process's, if not given) come `EVERY_AGENT` and what *passed* names:
    the client's own variables and the entry's ``pass_env``. Then *extra*, the entry's
    ``env``; last *identity*, the request's SEQUENCER_* variables, which nothing may forge.

    >>> base = {"PATH": "/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "…", "CI": "1"}
    >>> own = {"SEQUENCER_STEP": "main"}
    >>> agent_environment(own, passed=["CI"], extra={"A": "b"}, base=base)
    {'PATH': '/bin', 'LC_ALL': 'C', 'CI': '1', 'A': 'b', 'SEQUENCER_STEP': 'main'}
    """
    source = os.environ if base is None else base
    patterns = (*EVERY_AGENT, *passed)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    chosen = {
        name: value for name, value in source.items() if name in exact or name.startswith(prefixes)
    }
    chosen |= extra or {}
    chosen.pop(TRUST, None)
    return {**chosen, **identity}
