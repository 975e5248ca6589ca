"""A child's side of `bench.child`; standard library only, for interpreters of peers.

Answers go to the descriptor that was standard output; whatever else prints lands in the
log, so that a chatty library can't break the protocol.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def serve(begin: Callable[[], tuple[dict[str, Any], Answer]]) -> None:
    """Call *begin* for a greeting and a function, and answer requests until input ends."""
    channel = os.dup(1)
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        os.write(channel, json.dumps(answer).encode() + b"\n")

    try:
        greeting, answer = begin()
    except Exception as error:  # noqa: BLE001 (whatever a peer raises is the reason)
        say({"absent": f"{type(error).__name__}: {error}"})
        return
    say(greeting)
    for line in sys.stdin:
        try:
            say(answer(json.loads(line)))
        except Exception as error:  # noqa: BLE001 (same)
            say({"absent": f"{type(error).__name__}: {error}"})
            return
