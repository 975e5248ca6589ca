"""Text of agents made fit to be posted: no secrets, no control characters, not too long.

Control characters go first, because the halves of a secret may meet where one was. A text
is cut before it is searched for secrets, so that what may be the beginning of one stays
behind at the cut.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sequencer.activity.protocol import Activity
from sequencer.errors import CorruptState, SequencerError
from sequencer.executors.redaction import Redaction, without_sequences
from sequencer.history.metrics import Metrics
from sequencer.store import results
from sequencer.store.folder import read_regular

MAX_NAMES = 100
MAX_SHORT_CHARS = 2_000
"""Of everything but the body."""


def without_controls(text: str) -> str:
    r"""Return *text* without terminal sequences and other control characters.

    >>> without_controls("\x1b]0;owned\x07red: \x1b[31mno\x1b[0m\x08\r\n\tyes")
    'red: no\n\tyes'
    """
    return without_sequences(text.replace("\r\n", "\n").replace("\r", "\n"))


def hidden(text: str, redaction: Redaction, *, is_cut: bool = False) -> str:
    """Return *text* without control characters and secrets, nor the half of one at a cut."""
    stream = redaction.stream()
    plain = without_controls(text).encode("utf-8", "replace")
    settled = stream.feed(plain) if is_cut else stream.feed(plain) + stream.finish()
    return settled.decode("utf-8", "replace")


def polished(activity: Activity, redaction: Redaction, folder: Path, max_chars: int) -> Activity:
    """Return *activity* as it may leave the machine, its body from *folder* if it is kept there."""
    body, is_cut, note = activity.body, False, ""
    if activity.output_file is not None:
        body, is_cut, note = _kept(folder, activity.output_file, max_chars)
    if len(body) > max_chars:
        body, is_cut = body[:max_chars], True
    if is_cut and not note:
        where = f"; all of it is in `{activity.output_file}`" if activity.output_file else ""
        note = f"[cut after {max_chars} characters{where}]"
    body = hidden(body, redaction, is_cut=is_cut)
    # Hiding may make a text longer: eight letters become the word for a secret.
    body = body[:max_chars]

    def short(text: str | None) -> str | None:
        if text is None:
            return None
        is_long = len(text) > MAX_SHORT_CHARS
        return hidden(text[:MAX_SHORT_CHARS], redaction, is_cut=is_long)

    return replace(
        activity,
        step=short(activity.step) or "",
        title=short(activity.title) or "",
        body=f"{body.rstrip()}\n\n{note}".strip() if note else body,
        action=short(activity.action),
        parameter=short(activity.parameter),
        result=short(activity.result),
        metrics=_without_secrets(activity.metrics, redaction),
    )


def _without_secrets(metrics: Metrics | None, redaction: Redaction) -> Metrics | None:
    """Return *metrics* with names that show nothing; somebody may have put a secret into one."""
    if metrics is None:
        return None

    def shown(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(hidden(name, redaction) for name in names[:MAX_NAMES])

    return replace(
        metrics, agents=shown(metrics.agents), critical_path=shown(metrics.critical_path)
    )


def _kept(folder: Path, name: str, max_chars: int) -> tuple[str, bool, str]:
    """Return how the output file *name* begins, whether it was cut, and a note if it is gone."""
    try:
        path = results.output_path(folder, name)
    except CorruptState:
        return "", True, f"[what the record names is no output of a step: `{name}`]"
    # Four bytes are the longest character of UTF-8.
    max_bytes = 4 * max_chars
    try:
        data = read_regular(path, max_bytes=max_bytes)
    except (OSError, SequencerError):
        return "", True, f"[the output can't be read any more: `{name}`]"
    return data[:max_bytes].decode("utf-8", "replace"), len(data) > max_bytes, ""
