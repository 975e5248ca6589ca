"""Times and sizes in words on a terminal; what is said elsewhere too is `model.wording`'s."""

from __future__ import annotations

from datetime import datetime


def clock(seconds: float) -> str:
    """Return *seconds* as a clock that runs shows them.

    >>> clock(9.9), clock(75), clock(7_260)
    ('0:09', '1:15', '2:01:00')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def moment(at: str, now: datetime | None = None) -> str:
    """Return the ISO time *at* on this machine's clock; of another day than *now* with the date.

    >>> noon = datetime.fromisoformat("2026-11-22T12:00:00").astimezone()
    >>> moment("2026-11-22T14:05:07.250", noon), moment("2026-11-23T08:00:00", noon)[:19]
    ('14:05:07', '2026-11-23 08:00:00')
    """
    try:
        due = datetime.fromisoformat(at).astimezone()
    except ValueError:
        return at
    today = (now or datetime.now().astimezone()).date()
    return f"{due:%H:%M:%S}" if due.date() == today else f"{due:%Y-%m-%d %H:%M:%S %Z}"


def size(count: int) -> str:
    """Return *count* bytes in the largest unit that fits.

    >>> size(900), size(2048), size(3 * 1024 * 1024)
    ('900 bytes', '2.0 KiB', '3.0 MiB')
    """
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":  # noqa: PLR2004 - a binary unit
            return f"{count} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError
