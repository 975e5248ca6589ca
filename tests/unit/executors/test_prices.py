"""What calls cost, checked against the published list."""

from __future__ import annotations

import pytest

from sequencer.executors.prices import ModelPrice, Tokens, list_prices, price_of
from sequencer.model.fields import ValidationError

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("model", "input_usd", "output_usd", "read_usd", "write_usd", "hour_usd"),
    [
        ("claude-opus-4-5", 5, 25, 0.50, 6.25, 10),
        ("claude-opus-4-1", 15, 75, 1.50, 18.75, 30),
        ("claude-opus-5-5", 4, 20, 0.20, 5, 8),
        ("claude-sonnet-4-6", 3, 15, 0.30, 3.75, 6),
        ("claude-sonnet-5-5", 2, 10, 0.10, 2.50, 4),
        ("claude-haiku-4-5", 1, 5, 0.10, 1.25, 2),
        ("claude-fable-5-1", 10, 50, 0.25, 12.50, 20),
    ],
)
def test_each_kind_of_token_has_its_list_price(  # noqa: PLR0917 - a table
    model: str,
    input_usd: float,
    output_usd: float,
    read_usd: float,
    write_usd: float,
    hour_usd: float,
) -> None:
    price = list_prices()[model]
    kinds = {
        "input": input_usd,
        "output": output_usd,
        "cache_read": read_usd,
        "cache_write": write_usd,
        "cache_write_1h": hour_usd,
    }
    for kind, expected in kinds.items():
        assert price.cost_usd(Tokens.model_validate({kind: MILLION})) == pytest.approx(expected)
    everything = Tokens.model_validate(dict.fromkeys(kinds, MILLION))
    assert price.cost_usd(everything) == pytest.approx(sum(kinds.values()))


@pytest.mark.parametrize("model", ["claude-opus-6", "claude-opus", "sonnet", "gpt-6", ""])
def test_a_neighbours_price_is_never_taken(model: str) -> None:
    assert price_of(model) is None


@pytest.mark.parametrize(
    "entry",
    [
        {"input": -1, "output": 1},
        {"input": 1},
        {"input": float("nan"), "output": 1},
        {"input": 1, "output": 1, "typo": 1},
        {"input": 1, "output": 1, "long_from": 10},
        {"input": 1, "output": 1, "long_factor": 2},
    ],
)
def test_a_price_without_meaning_is_refused(entry: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        ModelPrice.model_validate(entry)
