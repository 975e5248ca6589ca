"""Facts about a client's session that have to be known when a later step continues it.

Some clients count tokens or cost over the whole session. What was counted so far travels
with the session id, because an executor keeps no state and the next step may run on
another machine: ``ID;cost_usd=1.25;version=2.1.330``. An id without facts is valid too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
_FACT = re.compile(r"([a-z_]{1,30})=([A-Za-z0-9.+-]{1,40})")


def marked(session_id: str, facts: Mapping[str, float | int | str]) -> str:
    """Return *session_id* with its *facts*.

    >>> marked("0199", {"cost_usd": 0.5, "version": "2.1.330"})
    '0199;cost_usd=0.5;version=2.1.330'
    """
    return ";".join([session_id, *(f"{name}={value}" for name, value in facts.items())])


def split_mark(mark: str) -> tuple[str, dict[str, str]]:
    """Return the id and the facts of a *mark*; facts that can't be read are left out.

    Raises:
        ValueError: the id is none that a client would give. It becomes a program argument,
            and state.json, from which it comes, may have been edited by anyone.
    """
    session_id, *rest = mark.split(";")
    if not _ID.fullmatch(session_id):
        message = f"{session_id[:60]!r} is no session id"
        raise ValueError(message)
    facts = (_FACT.fullmatch(part) for part in rest)
    return session_id, {fact[1]: fact[2] for fact in facts if fact}


def number(facts: Mapping[str, str], name: str) -> float:
    """Return a numeric fact; 0 if it is absent or no number.

    >>> number({"cost_usd": "0.5", "version": "x"}, "cost_usd")
    0.5
    """
    try:
        return max(float(facts.get(name, 0)), 0.0)
    except ValueError:
        return 0.0
