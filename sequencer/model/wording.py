"""Amounts in words: how much was used, how long it took."""

from __future__ import annotations

from sequencer.model.outcome import Usage, cost_words

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


def duration(seconds: float) -> str:
    """Return *seconds* as a person says them.

    >>> duration(4.25), duration(75), duration(7_260), duration(90_000)
    ('4.2 s', '1 min 15 s', '2 h 1 min', '1 d 1 h')
    """
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{seconds:.1f} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def spent(usage: Usage) -> str:
    """Return tokens and money; empty for an agent that uses neither.

    >>> spent(Usage(input_tokens=1200, output_tokens=34, cost_usd=0.5)), spent(Usage())
    ('1,200 + 34 tokens, 0.5000 USD', '')
    """
    parts = []
    if usage.input_tokens or usage.output_tokens:
        parts.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens")
    parts += [cost] if (cost := cost_words(usage)) else []
    parts += [f"{usage.rehearsed} rehearsed: no agent ran"] if usage.rehearsed else []
    return ", ".join(parts)
