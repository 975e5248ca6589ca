"""What a person types about a run, as hints say it."""

from __future__ import annotations

import shlex


def command(run_name: str | None, words: str) -> str:
    """Return ``sequencer WORDS`` about the run called *run_name*, to be typed as it stands."""
    if run_name is None:
        return f"'sequencer {words}'"
    quoted = shlex.quote(run_name)
    typed = f"sequencer --run {quoted} {words}"
    # Quotes around quotes would have to be taken apart by hand.
    return typed if quoted != run_name else f"'{typed}'"
