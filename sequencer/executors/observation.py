"""What an attempt shows while it runs, gathered as facts: text, tool calls, why its turn ended.

Every executor gathers them here; `engine.evidence` decides what they are worth. Of tool calls
and their results only digests are kept, and those only until the next ones come.

Not promised: that a result which nobody could read is missed. A line that is too large to be
read, or broken, may hold one, so no call counts as open after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from msgspec import Struct, field

from sequencer.executors.answers import digest_of
from sequencer.executors.protocol import words
from sequencer.model.evidence import Evidence, TurnEnd

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_NO_WORD = "no-word"
"""Stands for a reason of another form than clients give; no table has it."""
_MOST_OPEN = 10_000
"""Calls that wait for their results; what comes beyond that is counted only."""


_CLEAN_ANYWHERE = words("end_turn stop stop_sequence")
_CUT_OFF_ANYWHERE = words(
    "blocklist cancelled content_filter content_filtered error function_call incomplete length "
    "guardrail_intervened malformed_function_call max_output_tokens max_tokens model_length "
    "pause_turn prohibited_content recitation refusal safety tool_call tool_calls tool_use "
    "unexpected_tool_call"
)
"""Words of the services behind the clients (Anthropic, OpenAI, Google, Mistral, Amazon Bedrock),
which a gateway may pass on to any of them. A client's own table comes first."""


class TurnTable(Struct, frozen=True):
    """The reasons by which one client says how a turn ended."""

    clean: frozenset[str]
    cut_off: Mapping[str, str] = {}
    """By reason: what to do about it; may be empty."""

    def turn_end(self, reason: str | None) -> TurnEnd:
        """Return how a turn ended that its client calls done for *reason*; None: it gave none."""
        if reason is None or reason in self.clean:
            return TurnEnd.CLEAN
        word = reason.lower().replace("-", "_")
        if reason in self.cut_off or word in _CUT_OFF_ANYWHERE:
            return TurnEnd.CUT_OFF
        return TurnEnd.CLEAN if word in _CLEAN_ANYWHERE else TurnEnd.UNKNOWN


def reason_of(value: object) -> str | None:
    """Return *value*, which a client gave as a reason, as it is kept; None: it gave none.

    >>> reason_of("end_turn"), reason_of(None), reason_of(""), reason_of("rm -rf /"), reason_of(7)
    ('end_turn', None, None, 'no-word', 'no-word')
    """
    if value is None or value == "":
        return None
    is_word = isinstance(value, str) and _REASON.fullmatch(value) is not None
    return str(value) if is_word else _NO_WORD


def richer(final: str, said: str) -> str:
    r"""Return what was *said* last where it ends with the *final* answer, else that one.

    >>> richer("", "All tests pass."), richer("pass.", "All tests\npass."), richer("42", "Hm.")
    ('All tests pass.', 'All tests\npass.', '42')
    """
    return said if said.rstrip().endswith(final.strip()) else final


class Observation(Struct):
    """One attempt as it is seen; one instance for one attempt."""

    table: TurnTable
    separator: str = "\n"
    """Between the pieces of one message."""
    reason: str | None = None
    """The client's last word for why a turn ended, as `reason_of` returns it."""
    has_text: bool = False
    tool_calls: int = 0
    repeated_calls: int = 0
    _said: list[str] = field(default_factory=list)
    _said_before: str = ""
    _open: dict[str, str] = field(default_factory=dict)
    """By the client's id: digests of the calls that a turn has to wait for."""
    _waiting: dict[str, str] = field(default_factory=dict)
    """The same of those that it need not wait for."""
    _last_pair: tuple[str, str] | None = None
    _row: int = 0

    def say(self, text: str) -> None:
        """Take a piece of what the agent itself says."""
        if text:
            self._said.append(text)
            self.has_text = self.has_text or not text.isspace()

    def next_message(self) -> None:
        """Begin another message: what was said so far counts only if nothing follows."""
        if text := self._message():
            self._said_before = text
        self._said.clear()

    @property
    def said_last(self) -> str:
        """Return the last message that has text."""
        return self._message() or self._said_before

    def _message(self) -> str:
        text = self.separator.join(self._said)
        return "" if text.isspace() else text

    def call(self, key: str, given: object, *, may_wait: bool = False) -> None:
        """Take a tool call: *key* is the client's id of it, *given* all that it was asked.

        With *may_wait* the turn can end before the call does: it runs in the background.
        """
        if key in self._open or key in self._waiting:
            return
        self.tool_calls += 1
        calls = self._waiting if may_wait else self._open
        if len(calls) < _MOST_OPEN:
            calls[key] = _digest_or_none(given)

    def let_wait(self, key: str) -> None:
        """Take it that the call with *key* runs in the background."""
        if (call := self._open.pop(key, None)) is not None:
            self._waiting[key] = call

    def result(self, key: str, given: object) -> None:
        """Take the result of the call with *key*; one that nobody has seen called is left out."""
        call = self._open.pop(key, None) or self._waiting.pop(key, None)
        if call is None:
            return
        pair = (call, _digest_or_none(given))
        self._row = self._row + 1 if pair == self._last_pair and all(pair) else 1
        self._last_pair = pair
        if self._row > 1:
            self.repeated_calls = max(self.repeated_calls, self._row)

    def settle(self) -> None:
        """Take it that every call has its result: the client went on, or nobody can read it."""
        self._waiting |= dict(list(self._open.items())[: _MOST_OPEN - len(self._waiting)])
        self._open.clear()

    def evidence(self, *, is_over: bool) -> Evidence:
        """Return the facts; *is_over*: the client itself says that its turn is done."""
        end = self.table.turn_end(self.reason) if is_over else TurnEnd.CUT_OFF
        if self._open and end is TurnEnd.CLEAN:
            end = TurnEnd.CUT_OFF
        return Evidence(
            turn_end=end,
            reason=self.reason,
            has_text=self.has_text,
            tool_calls=self.tool_calls,
            open_calls=len(self._open),
            repeated_calls=self.repeated_calls,
        )

    @property
    def advice(self) -> str | None:
        """Return what the table says about the reason; None: nothing."""
        return self.table.cut_off.get(self.reason or "") or None


def _digest_or_none(value: object) -> str:
    """Return the digest of *value*; empty where it can't be had, which equals nothing."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        return digest_of(text)
    except (ValueError, RecursionError):
        return ""
