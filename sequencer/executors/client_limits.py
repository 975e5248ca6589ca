"""Classifies a client's errors: a limit, an outage, a refusal, or unknown.

Written for the texts and error bodies of claude, codex, gemini and opencode and of their
services: Anthropic, OpenAI, Google, Amazon Bedrock, Azure, z.ai. Only `classify` decides; the
table of real messages with their sources is tests/data/client_wordings.json. Pure: the clock is
an argument, and a clock time without a zone is in the clock's time zone.

Not promised: that future messages are understood. Then `default_wait_s` decides, so that a run
asks again instead of waiting forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo

Clock = Callable[[], datetime]
"""Returns the current time with a time zone."""

DEFAULT_WAIT_S = 300.0
TOO_MANY_REQUESTS = 429
_LONGEST = timedelta(days=32)
"""A reset that is more than a month away is a misread number, not a date."""
_FURTHEST = timedelta(days=8)
"""A subscription's longest window is a week. For later dates the run asks again after this time:
an agent could imitate its client and write one, to keep its run waiting."""
_JUST_OVER = timedelta(hours=1)
"""A time of day that passed this recently means today's reset, not tomorrow's: a message may be
late, and clocks differ."""


class ErrorKind(StrEnum):
    """The meaning of a client's error for the step."""

    LIMIT = "limit"
    """A subscription, quota or rate limit is reached: try again after the reset."""
    OUTAGE = "outage"
    """The service is overloaded, failing or out of reach: it may recover by itself."""
    REFUSAL = "refusal"
    """The request, the account or the entry is wrong: another try would fail the same way."""
    UNKNOWN = "unknown"


# Messages about a subscription or an account apply even if the client reports another status.
_LIMIT = re.compile(
    r"""usage[ _-]limit[ _-]reached | usage[ ]limit[ ]has[ ]been[ ]reached
      | (?:hit|reached)[ ](?:your|the)[ ](?:\S+[ ]){0,3}limit\b
      | (?:\d[ -]hour|daily|weekly|monthly|session|usage)[ ]limit[ ](?:reached|exhausted)
      | exceeded[ ]your[ ](?:current[ ])?quota | RESOURCE[ _]EXHAUSTED
      | resource[ ]has[ ]been[ ]exhausted
      | exhausted[ ]your[ ](?:\S+[ ]){0,3}(?:capacity|quota)
      | out[ ]of[ ](?:extra[ ])?usage | FreeUsageLimitError
      | ThrottlingException | TooManyRequestsException | getting[ ]throttled
      | too[ ]many[ ](?:tokens|requests)(?:[ ]per[ ]day)?,[ ]please[ ]wait
      | (?:call|token)[ ]rate[ ]limit[ ]of[ ]your | ["\[]13(?:08|10)["\]]
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A busy server also uses these words, so they apply only without a status.
_RATE = re.compile(r"rate[ _-]?limit|too many requests|quota exceeded|\b429\b", re.IGNORECASE)

_REFUSED_FROM = 400
_SERVER_ERROR = 500
_REQUEST_TIMEOUT = 408
# Names of errors that a proxy may return with the status of a bad request.
_AWAY = re.compile(r"ServiceUnavailableException|ModelNotReadyException", re.IGNORECASE)
# Messages of clients whose service can't be reached, dropped the connection, or is busy.
_TEMPORARY = re.compile(
    r"""unable[ ]to[ ]connect | can(?:'|\u2019)?(?:not|t)[ ]connect
      | connection[ ](?:error|refused|reset|closed|timed[ ]out|terminated)
      | request[ ]timed[ ]out | (?:gateway|connect(?:ion)?|read)[ ]time-?out
      | stream[ ](?:disconnected|closed)[ ]before(?!.*\bincomplete[ ]response\b)
      | error[ ]sending[ ]request
      | fetch[ ]failed | socket[ ]hang[ ]up | network[ ]error | premature[ ]close
      | \bE(?:CONNREFUSED|CONNRESET|CONNABORTED|HOSTUNREACH|NETUNREACH|NOTFOUND|PIPE|TIMEDOUT)\b
      | \bEAI_AGAIN\b | ConnectionRefused
      | overloaded(?:_error)?\b | \bUNAVAILABLE\b | (?:service|temporarily)[ ]unavailable
      | internal[ ]server[ ]error | bad[ ]gateway | high[ ]demand
      | (?:at|out[ ]of|no)[ ]capacity | server[ _](?:is[ ])?busy | unable[ ]to[ ]process[ ]your
      | \breconnecting\b | slow[ _]down\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Errors that a retry would not fix, for clients that report no status.
_REFUSED = re.compile(
    r"""authenticat | unauthorized | forbidden | api[ _-]?key | not[ ]logged[ ]in | /login\b
      | credit[ ]balance | billing | permission[ _]denied | access[ ]?denied | not[ ]supported
      | invalid[ _](?:request|argument|api|model|value|option|session)
      | unknown[ ](?:option|argument|flag|command|model|agent|provider) | unrecognized
      | unexpected[ ]argument | cannot[ ]be[ ]used | malformed | not[ ]found
      | no[ ]such | usage: | too[ ]long
      | context[ ](?:window|length|limit) | reached[ ]max | ValidationException
      | incomplete[ ]response[ ]returned
    """,
    re.IGNORECASE | re.VERBOSE,
)
_STATUS = re.compile(
    r"""(?:^|\bAPI[ ]Error:?[ ]\(?|\bError:?[ ](?:code:?[ ]?)?\(?|\bHTTP:?[ ](?:status[ ])?\(?
      |\bstatus(?:[ _-]?code)?["']?\W{0,3}|\bcode["']?\s?[:=]\s?["']?|\brejected[ ]\()
      ([45]\d\d)\b
    """,
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)

_EPOCH = re.compile(r"(?:\||resets?_?at\W{1,4}|resetsAt\W{1,4})(\d{10})(?:\d{3})?\b", re.IGNORECASE)
_ISO = re.compile(
    r"\b(20\d\d-\d\d-\d\d)[T ]+(\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)"
    r"(?:\d*(?: ?(Z\b|[+-]\d\d:?\d\d\b)| (UTC|GMT)\b)|(?!\d))",
    re.IGNORECASE,
)
_BEIJING = timezone(timedelta(hours=8))
_IN_BEIJING = re.compile(r"\b13(?:08|10)\b")
"""z.ai's codes for a limit: its dates have no zone and are in Beijing time."""
_IN = (
    r"(?:\b(?:again|retry(?:ing)?|resets?|available|wait)\s+"
    r"(?:in|after|for)?:?\s*(?:about\s+)?"
)
_UNIT = r"(?:ms|milliseconds?|d|days?|h|hrs?|hours?|m|mins?|minutes?|s|secs?|seconds?)"
_AMOUNT = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNIT})(?![a-z])", re.IGNORECASE)
_DURATION = re.compile(
    rf"{_IN}|retryDelay\W{{1,5}})((?:\d+(?:\.\d+)?\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?)+)",
    re.IGNORECASE,
)
_BARE_SECONDS = re.compile(
    r"(?:retry[-_ ]after(?:_seconds)?|resets_in_seconds)\W{1,4}(\d+(?:\.\d+)?)\b", re.IGNORECASE
)
_UNIT_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(
    rf"""\b(?:resets?|again)[ ]*(?:at|on|after)?[ ]*
      (?P<tomorrow>tomorrow,?[ ]+(?:at[ ]+)?)?
      (?:(?P<weekday>{"|".join(_DAYS)})[a-z]*,?[ ]+(?:at[ ]+)?)?
      (?:(?P<month>{"|".join(_MONTHS)})[a-z]*\.?[ ]+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?
         (?:,?[ ]+(?P<year>20\d\d))?,?[ ]+(?:at[ ]+)?)?
      (?:(?P<word>midnight|noon)\b
        |(?P<hour>\d{{1,2}})(?::(?P<minute>\d\d))?(?:[ ]*(?P<half>[ap]\.?m\b))?)
      (?:[ ]*\((?P<zone>[A-Za-z0-9_+/-]+)\)|[ ]+(?P<utc>UTC|GMT)\b)?
    """,
    re.IGNORECASE | re.VERBOSE,
)


def local_clock() -> datetime:
    """Return the current time in this machine's zone."""
    return datetime.now(UTC).astimezone()


def format_utc(when: datetime) -> str:
    """Return *when* as ISO 8601 in UTC, rounded up to the second.

    >>> format_utc(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))
    '2026-01-02T03:04:06Z'
    """
    rounded_time = when.astimezone(UTC)
    if rounded_time.microsecond:
        # Rounded down, the next attempt would start a moment before the reset.
        rounded_time = rounded_time.replace(microsecond=0) + timedelta(seconds=1)
    return rounded_time.strftime("%Y-%m-%dT%H:%M:%SZ")


def find_status(text: str) -> int | None:
    """Return the HTTP status in an error *text*; None: there is none.

    >>> [find_status(text) for text in ("API Error: 529 Overloaded", "last status: 429", "at 500")]
    [529, 429, None]
    """
    match = _STATUS.search(text)
    return int(match[1]) if match else None


def classify(text: str, status: int | None = None) -> ErrorKind:
    """Return the kind of an error *text*; default for *status*: the HTTP status in the text.

    If there is a status, it decides: the text of a bad request may contain any word.

    >>> [str(classify(text)) for text in ("You've hit your limit", "API Error: 529 Overloaded")]
    ['limit', 'outage']
    >>> str(classify("overloaded", 400)), str(classify("", 429)), str(classify("it ended"))
    ('refusal', 'limit', 'unknown')
    """
    status = find_status(text) if status is None else status
    if status is not None and status >= _REFUSED_FROM:
        if status >= _SERVER_ERROR or status == _REQUEST_TIMEOUT:
            return ErrorKind.OUTAGE
        if status == TOO_MANY_REQUESTS or _LIMIT.search(text):
            return ErrorKind.LIMIT
        return ErrorKind.OUTAGE if _AWAY.search(text) else ErrorKind.REFUSAL
    if _LIMIT.search(text) or _RATE.search(text):
        return ErrorKind.LIMIT
    if _TEMPORARY.search(text) or _AWAY.search(text):
        return ErrorKind.OUTAGE
    return ErrorKind.REFUSAL if _REFUSED.search(text) else ErrorKind.UNKNOWN


_NOTICE_CHARS = 2_000
_NOTICE = re.compile(
    r"""(?:(?:Failed[ ]to[ ]authenticate\.[ ])?API[ ]Error(?::[ ]|[ ]\()[^\n]*
      | API[ ]Error:[ ][45]\d\d[ ]\{.*\}
      | Not[ ]logged[ ]in[ ]\u00b7[ ]Please[ ]run[ ]/login\.?
      | (?:\u2715[ ])?\[API[ ]Error:.*\]
      | Claude[ ](?:\w+[ ])?usage[ ]limit[ ]reached\b[^\n]*
      | You(?:'|\u2019)ve[ ](?:hit|reached)[ ]your[ ][\w -]{0,30}limit(?:[ ]for[ ][\w ]{1,30})?
        (?:[ ][\u00b7\u2219][ ][^\n]*|\.[ ](?:Upgrade|Visit|Try|To|Your|Limits)\b[^\n]*)?\.?
      | You(?:'|\u2019)re[ ]out[ ]of[ ](?:extra[ ])?usage\b(?:[ ][\u00b7\u2219][ ][^\n]*)?
      | (?:\d+[ -]hour|daily|weekly|monthly|session|usage)[ ]limit[ ]reached
        (?:[ ]?[\u00b7\u2219|][^\n]*)?
      | Credit[ ]balance[ ](?:is[ ])?too[ ]low(?:[ ][\u00b7\u2219][ ][^\n]*)?
      | Invalid[ ]API[ ]key[ ][\u00b7\u2219][ ][^\n]*
      | Prompt[ ]is[ ]too[ ]long
    )(?:\s*\n\s*(?:\u2022\s*)?/(?:upgrade|usage|extra-usage|rate-limit-options|login|model)\b[^\n]*)*
    """,
    re.VERBOSE | re.DOTALL,
)
"""Clients' messages in place of an answer. The whole answer has to match: an agent may well write
about limits."""


def is_notice(answer: str) -> bool:
    """Return whether an *answer* is the client's message about why there is no answer.

    >>> is_notice("You've hit your limit \u00b7 resets 3pm"), is_notice("Limits now reset at 3pm.")
    (True, False)
    """
    text = answer.strip()
    is_one = len(text) <= _NOTICE_CHARS and _NOTICE.fullmatch(text) is not None
    return is_one and classify(text) is not ErrorKind.UNKNOWN


def find_retry_time(
    text: str,
    now: datetime,
    *,
    default_wait_s: float = DEFAULT_WAIT_S,
    epoch_s: float | None = None,
) -> str:
    """Return when to try again, as ISO 8601 UTC.

    *epoch_s* is a reset time that the client gave as a number; it wins over the *text*. Times
    in the past or more than a month ahead are ignored; times more than eight days ahead become
    eight days.
    """
    candidates = [_parse_epoch(epoch_s), *_parse_times(text, now)]
    for candidate in candidates:
        if candidate is not None and now < candidate <= now + _LONGEST:
            return format_utc(min(candidate, now + _FURTHEST))
    return format_utc(now + timedelta(seconds=default_wait_s))


def _parse_times(text: str, now: datetime) -> list[datetime | None]:
    """Return the times that *text* may mean, the least ambiguous form first."""
    epoch = _EPOCH.search(text)
    seconds_match = _BARE_SECONDS.search(text)
    duration = _DURATION.search(text)
    return [
        _parse_epoch(float(epoch[1])) if epoch else None,
        *(_parse_date(match, text, now) for match in _ISO.finditer(text)),
        _add_seconds(now, _parse_duration(duration[1])) if duration else None,
        _add_seconds(now, float(seconds_match[1])) if seconds_match else None,
        _parse_clock_time(text, now),
    ]


def _add_seconds(now: datetime, seconds: float) -> datetime | None:
    if seconds > _LONGEST.total_seconds():
        return None
    # In UTC: in local time, the sum would be an hour off across a daylight saving change.
    return now.astimezone(UTC) + timedelta(seconds=seconds)


def _parse_epoch(seconds: float | None) -> datetime | None:
    if seconds is None or not 0 < seconds < 2**33:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _parse_date(match: re.Match[str], text: str, now: datetime) -> datetime | None:
    """Return the time of a date; without a zone it is in z.ai's zone or in this machine's."""
    day, time, offset, utc = match.groups()
    zone = (offset or "").upper().replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(f"{day}T{time}{'+00:00' if utc else zone}")
    except ValueError:
        return None  # no such date or time
    if moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=_BEIJING if _IN_BEIJING.search(text) else now.tzinfo)


def _parse_duration(text: str) -> float:
    """Return the sum of amounts like ``3 days 4 hours 2 minutes`` or ``2h5m``."""
    total = 0.0
    for number, unit in _AMOUNT.findall(text):
        word = unit.lower()
        factor = 0.001 if word == "ms" or word.startswith("milli") else _UNIT_S[word[0]]
        total += float(number) * factor
    return total


def _zone(name: str | None, fallback: tzinfo | None) -> tzinfo | None:
    if name is None:
        return fallback
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # An unknown zone is taken as local time, which is at most a day off.
        return fallback


def _parse_clock_time(text: str, now: datetime) -> datetime | None:
    """Return the time that a clock time in *text* means, for example ``3pm``.

    It is the next such time, or one that has just passed.
    """
    for match in _CLOCK.finditer(text):
        moment = _parse_moment(match, now)
        if moment is not None:
            return moment
    return None


def _parse_moment(match: re.Match[str], now: datetime) -> datetime | None:
    hour, minute, half_of_day = int(match["hour"] or 0), int(match["minute"] or 0), match["half"]
    if match["word"]:
        hour = 12 if match["word"].lower() == "noon" else 0
    elif half_of_day is None and match["minute"] is None:
        return None  # "reset 5 sessions": a number alone is not a time of day
    if half_of_day is not None:
        hour = hour % 12 + (12 if half_of_day.lower().startswith("p") else 0)
    local = now.astimezone(_zone("UTC" if match["utc"] else match["zone"], now.tzinfo))
    try:
        moment = local.replace(hour=hour, minute=minute, second=0, microsecond=0)
        if match["month"]:
            month = _MONTHS.index(match["month"].lower()) + 1
            moment = moment.replace(
                year=int(match["year"] or local.year), month=month, day=int(match["day"])
            )
            is_next_year = match["year"] is None and moment <= local
            return moment.replace(year=moment.year + 1) if is_next_year else moment
    except ValueError:
        return None  # no such date or time
    period = timedelta(days=1)
    if match["tomorrow"]:
        return moment + period
    if match["weekday"]:
        moment += timedelta(days=(_DAYS.index(match["weekday"].lower()) - moment.weekday()) % 7)
        period = timedelta(days=7)
    earliest_time = local - _JUST_OVER
    if moment - period > earliest_time:
        return moment - period
    return moment if moment > earliest_time else moment + period
