"""Collects facts about a running attempt: text, tool calls, and why its turn ended.

Every executor collects them here; `engine.evidence` judges them. Only digests of tool calls and
their results are stored, and only until the next ones come.

Not promised: that a missing result is noticed after an unreadable line. Such a line may contain
the result, so no call counts as open after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from msgspec import Struct, field

from sequencer.executors.answers import compute_short_digest
from sequencer.executors.protocol import split_words
from sequencer.model.evidence import Evidence, TurnEnd

_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,59}")
_NO_WORD = "no-word"
"""Replaces a reason of an unexpected form; no table has it."""
_MAX_OPEN = 10_000
"""Maximum calls to remember until their results come; further calls are only counted."""


_CLEAN_ANYWHERE = split_words("end_turn stop stop_sequence")
_CUT_OFF_ANYWHERE = split_words(
    "blocklist cancelled content_filter content_filtered error function_call incomplete length "
    "guardrail_intervened malformed_function_call max_output_tokens max_tokens model_length "
    "pause_turn prohibited_content recitation refusal safety tool_call tool_calls tool_use "
    "unexpected_tool_call"
)
"""Reasons of the clients' services (Anthropic, OpenAI, Google, Mistral, Amazon Bedrock), which a
gateway may pass to any client. A client's own table wins."""


class EndReasons(Struct, frozen=True):
    """One client's reasons for the end of a turn."""

    clean: frozenset[str]
    cut_off: Mapping[str, str] = {}
    """Reason -> what to do about it; may be empty."""

    def turn_end(self, reason: str | None) -> TurnEnd:
        """Return how a turn ended for which its client gave *reason*; None: it gave no reason."""
        if reason is None or reason in self.clean:
            return TurnEnd.CLEAN
        word = reason.lower().replace("-", "_")
        if reason in self.cut_off or word in _CUT_OFF_ANYWHERE:
            return TurnEnd.CUT_OFF
        return TurnEnd.CLEAN if word in _CLEAN_ANYWHERE else TurnEnd.UNKNOWN


def normalize_reason(value: object) -> str | None:
    """Return a client's reason *value* in the form that is stored; None: there is no reason.

    >>> [normalize_reason(value) for value in ("end_turn", None, "", "rm -rf /", 7)]
    ['end_turn', None, None, 'no-word', 'no-word']
    """
    if value is None or value == "":
        return None
    is_word = isinstance(value, str) and _REASON.fullmatch(value) is not None
    return str(value) if is_word else _NO_WORD


def choose_answer(final: str, last_message: str) -> str:
    r"""Return *last_message*, the last message, if it ends with the *final* answer, else *final*.

    >>> choose_answer("", "All tests pass."), choose_answer("pass.", "All tests\npass.")
    ('All tests pass.', 'All tests\npass.')
    >>> choose_answer("42", "Hm.")
    '42'
    """
    return last_message if last_message.rstrip().endswith(final.strip()) else final


class Observation(Struct):
    """The facts about one attempt; each attempt has its own instance."""

    table: EndReasons
    separator: str = "\n"
    """Joins the pieces of one message."""
    reason: str | None = None
    """The client's last reason for the end of a turn, from `normalize_reason`."""
    has_text: bool = False
    tool_calls: int = 0
    repeated_calls: int = 0
    _pieces: list[str] = field(default_factory=list)
    _previous_message: str = ""
    _open: dict[str, str] = field(default_factory=dict)
    """The client's id -> digest, for calls that a turn has to wait for."""
    _waiting: dict[str, str] = field(default_factory=dict)
    """The same for calls that a turn need not wait for."""
    _last_pair: tuple[str, str] | None = None
    _row: int = 0

    def add_text(self, text: str) -> None:
        """Add a piece of the agent's own text."""
        if text:
            self._pieces.append(text)
            self.has_text = self.has_text or not text.isspace()

    def start_message(self) -> None:
        """Start another message; the text so far is the answer only if no text follows."""
        if text := self._join_pieces():
            self._previous_message = text
        self._pieces.clear()

    @property
    def said_last(self) -> str:
        """Return the last message that has text."""
        return self._join_pieces() or self._previous_message

    def _join_pieces(self) -> str:
        text = self.separator.join(self._pieces)
        return "" if text.isspace() else text

    def record_call(self, key: str, given: object, *, may_wait: bool = False) -> None:
        """Record a tool call with the client's id *key* and the whole input *given*.

        With *may_wait* the call runs in the background, so the turn can end before it.
        """
        if key in self._open or key in self._waiting:
            return
        self.tool_calls += 1
        calls = self._waiting if may_wait else self._open
        if len(calls) < _MAX_OPEN:
            calls[key] = _digest_or_none(given)

    def mark_background(self, key: str) -> None:
        """Record that the call with *key* runs in the background."""
        if (call := self._open.pop(key, None)) is not None:
            self._waiting[key] = call

    def record_result(self, key: str, given: object) -> None:
        """Record the result *given* of the call with *key*; an unknown call is ignored."""
        call = self._open.pop(key, None) or self._waiting.pop(key, None)
        if call is None:
            return
        pair = (call, _digest_or_none(given))
        self._row = self._row + 1 if pair == self._last_pair and all(pair) else 1
        self._last_pair = pair
        if self._row > 1:
            self.repeated_calls = max(self.repeated_calls, self._row)

    def close_calls(self) -> None:
        """Record that no call is open: the client continued, or a result could not be read."""
        self._waiting |= dict(list(self._open.items())[: _MAX_OPEN - len(self._waiting)])
        self._open.clear()

    def evidence(self, *, is_over: bool) -> Evidence:
        """Return the facts; *is_over*: the client reported that its turn is done."""
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
        """Return what to do about the reason, from the table; None: nothing."""
        return self.table.cut_off.get(self.reason or "") or None


def _digest_or_none(value: object) -> str:
    """Return the digest of *value*, or "" if it has none; "" never counts as equal."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        return compute_short_digest(text)
    except (ValueError, RecursionError):
        return ""
