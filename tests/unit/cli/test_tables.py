from __future__ import annotations

from sequencer.cli.views.text import file_size, format_clock
from sequencer.model.outcome import Usage, format_duration, format_usage


def test_amounts() -> None:
    assert [format_duration(s) for s in (0, 59.94, 60, 3599, 3600, 86_400)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "1 d 0 h",
    ]
    assert [format_clock(s) for s in (0, 59, 60, 3600)] == ["0:00", "0:59", "1:00", "1:00:00"]
    assert [file_size(n) for n in (0, 1023, 1024, 5 * 1024**3, 7 * 1024**4)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "5.0 GiB",
        "7168.0 GiB",
    ]
    assert format_usage(Usage(output_tokens=5)) == "0 + 5 tokens"
    assert format_usage(Usage(cost_usd=0.00001)) == "0.0000 USD"
