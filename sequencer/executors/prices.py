"""Calculates the cost of a model call from list prices in USD per million tokens.

The table is from https://platform.claude.com/docs/en/about-claude/pricing, 2026-11; entries
under ``prices:`` of the project or of an agent replace or extend it.

Not promised: discounts, fast mode, regional surcharges, server tools. A model that is in
neither table has no price, which is None and never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, model_validator
from sequencer.model.outcome import Usage

_MILLION = 1_000_000
_DATED = re.compile(r"(?P<model>.+?)(?:-\d{8}|-latest)?(?:\[1m\])?")


class Tokens(Frozen):
    """Tokens of one call; the four kinds of input do not overlap, and each has its own price."""

    input: int = Field(default=0, ge=0)
    """Input that was neither read from nor written to the cache."""
    output: int = Field(default=0, ge=0)
    cache_read: int = Field(default=0, ge=0)
    cache_write: int = Field(default=0, ge=0)
    """Written for five minutes."""
    cache_write_1h: int = Field(default=0, ge=0)

    @property
    def sent(self) -> int:
        """Return the number of all input tokens, cached or not."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h


class ModelPrice(Frozen):
    """Prices of one model in USD per million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cache_read: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """A tenth of ``input`` if not given."""
    cache_write: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """1.25 times ``input`` if not given; the write for one hour costs 1.6 times as much."""
    long_from: int | None = Field(default=None, ge=1)
    """Calls that send more tokens than this cost ``long_factor`` times as much, answer included."""
    long_factor: float = Field(default=1.0, ge=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_long_call_fields(self) -> ModelPrice:
        if (self.long_from is None) != (self.long_factor == 1.0):
            raise ValueError("long_from and long_factor work only together")
        return self

    def cost_usd(self, tokens: Tokens) -> float:
        """Return the cost of one call with *tokens*.

        >>> ModelPrice(input=3, output=15).cost_usd(Tokens(input=1000, output=200))
        0.006
        """
        read_price = self.input * 0.1 if self.cache_read is None else self.cache_read
        write_price = self.input * 1.25 if self.cache_write is None else self.cache_write
        total = (
            tokens.input * self.input
            + tokens.output * self.output
            + tokens.cache_read * read_price
            + tokens.cache_write * write_price
            # An hour costs 2 times the input price, five minutes cost 1.25 times: 2 / 1.25 = 1.6.
            + tokens.cache_write_1h * write_price * 1.6
        )
        is_long = self.long_from is not None and tokens.sent > self.long_from
        return round(total * (self.long_factor if is_long else 1.0) / _MILLION, 9)


@cache
def list_prices() -> Mapping[str, ModelPrice]:
    """Return model id without date -> price; built only when needed, which is rare."""
    fable, opus = ModelPrice(input=10, output=50), ModelPrice(input=5, output=25)
    fable_cheap_read = ModelPrice(input=10, output=50, cache_read=0.25)
    sonnet_4 = ModelPrice(input=3, output=15)
    return {
        "claude-fable-5": fable,
        "claude-fable-5-1": fable_cheap_read,
        "claude-mythos-5": fable,
        "claude-mythos-5-1": fable_cheap_read,
        "claude-opus-5-5": ModelPrice(input=4, output=20, cache_read=0.2),
        "claude-opus-5": opus,
        "claude-opus-4-8": opus,
        "claude-opus-4-7": opus,
        "claude-opus-4-6": opus,
        "claude-opus-4-5": opus,
        "claude-opus-4-1": ModelPrice(input=15, output=75),
        "claude-sonnet-5-5": ModelPrice(input=2, output=10, cache_read=0.1),
        "claude-sonnet-5": ModelPrice(input=2, output=10),
        "claude-sonnet-4-6": sonnet_4,
        "claude-sonnet-4-5": sonnet_4,
        "claude-haiku-5-5": ModelPrice(
            input=0.1, output=0.5, cache_read=0.01, long_from=100_000, long_factor=5
        ),
        "claude-haiku-4-5": ModelPrice(input=1, output=5),
    }


def find_price(model: str, own: Mapping[str, ModelPrice] | None = None) -> ModelPrice | None:
    """Return the price of *model*, first from *own*; None: it is unknown.

    A date at the end, ``-latest`` or ``[1m]`` is not part of the name. Nothing else is guessed,
    because a cost limit with the price of a similar model would be wrong:

    >>> find_price("claude-haiku-4-5-20251001").output
    5.0
    >>> find_price("claude-haiku-9") is None
    True
    """
    match = _DATED.fullmatch(model)
    undated_model = match["model"] if match else model
    for table in (own or {}, list_prices()):
        for name in (model, undated_model):
            if name in table:
                return table[name]
    return None


def with_estimated_cost(usage: Usage, model: str | None, own: Mapping[str, ModelPrice]) -> Usage:
    """Return *usage* with the cost of its tokens by list prices, marked as an estimate.

    Without tokens, a model or a price, *usage* is returned unchanged, and its cost is unknown.
    """
    price = find_price(model, own) if model else None
    if price is None or not (usage.input_tokens or usage.output_tokens):
        return usage
    cache_read = min(usage.cache_read_tokens, usage.input_tokens)
    tokens = Tokens(
        input=usage.input_tokens - cache_read, output=usage.output_tokens, cache_read=cache_read
    )
    cost = price.cost_usd(tokens)
    return usage.replace(cost_usd=cost, estimated_usd=cost, unpriced=0)


def missing_price_message(model: str, where: str) -> str:
    """Return the message for a model without a price; *where* names the agent's entry."""
    return (
        f"{where}: model {model!r} has no known price, so its cost can't be counted or limited; "
        f"add it: prices: {{{model}: {{input: USD, output: USD}}}} (per million tokens)"
    )
