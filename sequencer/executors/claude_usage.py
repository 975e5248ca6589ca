"""Reads the usage of Claude Code: call by call, and the sums in its results."""

from __future__ import annotations

from collections.abc import Mapping

from sequencer.executors.client_events import ClientEvent, sum_of_costs
from sequencer.executors.prices import ModelPrice, Tokens, find_price
from sequencer.model.outcome import Usage

_MODEL_CHARS = 200
"""No model has a longer name; prices are looked up by name."""


class ClaudeCalls:
    """The tokens of each API call; a call reports several times, and the last report wins."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, Tokens]] = {}

    def count(self, key: str, message: ClientEvent) -> bool:
        """Count what *message* reports about the call with *key*; return whether it reports."""
        usage = message.get_object("usage")
        if not usage:
            return False
        model = message.get_text("model")[:_MODEL_CHARS]
        model, old_tokens = self._calls.get(key, (model, Tokens()))
        hour = usage.get_object("cache_creation").sum_counts("ephemeral_1h_input_tokens")
        hour = max(hour, old_tokens.cache_write_1h)
        cache_write = usage.sum_counts("cache_creation_input_tokens")
        tokens = Tokens(
            input=max(usage.sum_counts("input_tokens"), old_tokens.input),
            output=max(usage.sum_counts("output_tokens"), old_tokens.output),
            cache_read=max(usage.sum_counts("cache_read_input_tokens"), old_tokens.cache_read),
            cache_write=max(cache_write - hour, old_tokens.cache_write),
            cache_write_1h=hour,
        )
        self._calls[key] = (model, tokens)
        return True

    def sent_tokens(self, key: str) -> int:
        """Return how many tokens the call with *key* sent; 0 if it has not reported."""
        return self._calls[key][1].sent if key in self._calls else 0

    def usage(self, own_prices: Mapping[str, ModelPrice]) -> Usage:
        """Return the usage of all calls; their cost is an estimate from prices."""
        calls = self._calls.values()
        prices = [(find_price(name, own_prices), tokens) for name, tokens in calls]
        cost = round(sum(price.cost_usd(tokens) for price, tokens in prices if price), 9)
        return Usage(
            cost_usd=cost,
            estimated_usd=cost,
            unpriced=int(any(price is None for price, _ in prices)),
            input_tokens=sum(tokens.sent for _, tokens in calls),
            cache_read_tokens=sum(tokens.cache_read for _, tokens in calls),
            output_tokens=sum(tokens.output for _, tokens in calls),
        )


def sum_model_usage(models: ClientEvent) -> Usage:
    """Return the usage of all *models* together."""
    shares = [models.get_object(name) for name in models]
    names = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    return sum_of_costs(share.get("costUSD") for share in shares).replace(
        input_tokens=sum(share.sum_counts(*names) for share in shares),
        cache_read_tokens=sum(share.sum_counts("cacheReadInputTokens") for share in shares),
        output_tokens=sum(share.sum_counts("outputTokens") for share in shares),
    )


def read_result_usage(result: ClientEvent) -> Usage:
    """Return the usage of a result that does not list its models."""
    usage = result.get_object("usage")
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum_of_costs([result.get("total_cost_usd")]).replace(
        input_tokens=usage.sum_counts(*names),
        cache_read_tokens=usage.sum_counts("cache_read_input_tokens"),
        output_tokens=usage.sum_counts("output_tokens"),
    )
