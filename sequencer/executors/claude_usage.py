"""Reads the usage in a result of Claude Code: per model, or in total if no models are listed."""

from __future__ import annotations

from sequencer.executors.client_events import ClientEvent, sum_of_costs
from sequencer.model.outcome import Usage


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
