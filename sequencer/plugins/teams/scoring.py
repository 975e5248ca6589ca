"""How much a request would gain from a team: a score from 0 to 100, its reasons, and the decision.

Pure: the same request and settings have the same score on every machine, and no model is asked.
The points of the reasons add up to the score. One pass over the lines and one over the words of
the text: the time is linear in its length. Words in code, addresses and HTML comments don't count.
English only.

Not promised: that a team is worth its cost. The score counts signals that large requests
usually have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import TypeVar

from msgspec import Struct, field

from sequencer.model.request import Request, Route
from sequencer.plugins.requests.routing import WORDS, RoutingSettings, Word
from sequencer.plugins.teams.options import (
    BUILTIN,
    MAX_SCORE,
    Count,
    ScoreSettings,
    TeamOptions,
)

_POINTS = json.loads(BUILTIN.read_bytes())
CLASSIFICATIONS: Mapping[Word, int] = _POINTS["classifications"]
"""Kind of request -> points; other kinds have none."""
KEYWORDS: Mapping[str, int] = dict.fromkeys(_POINTS["keywords"], _POINTS["keyword_points"])
LABELS: Mapping[str, int] = _POINTS["labels"]

MAX_NAMED = 6
"""Maximum number of words that one reason lists."""
_WHY: Mapping[Word | None, str] = {
    "orchestrator": "its sub-issues can be worked on at once",
    "debugger": "several hypotheses can be tried at once",
}


class Reason(Struct, frozen=True):
    """Points and the reason for them, in one line."""

    points: int
    text: str


class Score(Struct, frozen=True):
    """The result of `score`."""

    score: int
    """0 to 100."""
    uses_team: bool
    """Whether the score reaches the threshold; `decide` also checks whether teams are enabled."""
    reasons: tuple[Reason, ...]
    team_size: int
    """The number of members for this score; 1: no team."""


class TeamChoice(Struct, frozen=True):
    """The decision whether a team works on a request."""

    uses_team: bool
    why: str
    """One line."""
    score: Score
    size: int
    """Number of members, if a team is used."""


def score(
    *,
    classification: Word | None,
    title: str,
    text: str = "",
    labels: Iterable[str] = (),
    procedure: str | None = None,
    settings: ScoreSettings | None = None,
    threshold: int = 60,
) -> Score:
    """Return how much a request would gain from a team.

    >>> found = score(classification="debugger", title="Login hangs: a race condition?")
    >>> found.score, found.uses_team, [reason.points for reason in found.reasons]
    (60, True, [50, 10])
    """
    settings = settings or ScoreSettings()
    if classification in settings.never:
        text = f"{classification}: nothing in it that a team could share out"
        return Score(0, uses_team=False, reasons=(Reason(0, text),), team_size=1)
    signals = find_signals(title, text)
    table = _score_signals(settings, classification, procedure, labels, signals)
    reasons = [reason for reason in table if reason.points]
    total = sum(reason.points for reason in reasons)
    final_score = min(MAX_SCORE, max(0, total))
    if final_score != total:
        reasons.append(Reason(final_score - total, f"a score is within 0 to {MAX_SCORE}"))
    return Score(
        score=final_score,
        uses_team=final_score >= threshold,
        reasons=tuple(reasons) or (Reason(0, "nothing speaks for more than one agent"),),
        team_size=settings.min_size + sum(final_score >= minimum for minimum in settings.size_from),
    )


def score_request(
    request: Request, route: Route, routing: RoutingSettings, options: TeamOptions
) -> Score:
    """Return the score of *request*, whose procedure *route* has chosen."""
    return score(
        classification=find_classification(request, route, routing),
        title=request.title,
        text=request.text,
        labels=request.labels,
        procedure=route.procedure,
        settings=options.score,
        threshold=options.threshold,
    )


def find_classification(request: Request, route: Route, routing: RoutingSettings) -> Word | None:
    """Return the kind of request that belongs to the procedure that *route* chose.

    A label or a person chooses a procedure directly. Then it is the kind that leads to this
    procedure. None: no kind leads to it, and *route* has none.
    """
    words = [word for word in WORDS if routing.procedure_for(word) == route.procedure]
    classification = next((word for word in WORDS if word == route.classification), None)
    if classification in words or not words:
        return classification
    by_label = (word for word, _ in routing.find_word_labels(request) if word in words)
    return next(by_label, words[0])


def decide(
    found: Score,
    options: TeamOptions,
    classification: Word | None,
    asked: bool | None = None,
) -> TeamChoice:
    """Return whether a team works on a request with the score *found*.

    *asked* is the person's choice: ``--team``, ``--no-team``, or None for neither.
    """
    if asked is not None:
        uses_team, reason = asked, "--team was given" if asked else "--no-team was given"
    else:
        obstacle = _obstacle(found, options, classification)
        score_text = f"the score {found.score} reaches teams.threshold ({options.threshold})"
        uses_team, reason = obstacle is None, obstacle or score_text
    size = min(options.max_size, max(found.team_size, options.score.min_size))
    return TeamChoice(uses_team, reason, found, size)


def _obstacle(team_score: Score, options: TeamOptions, classification: Word | None) -> str | None:
    """Return the first reason against a team, or None."""
    if not options.enabled:
        return "teams.enabled is false"
    if classification is None:
        return "its kind is not known, and teams.classifications lists kinds"
    if classification not in options.classifications:
        return f"{classification!r} is not in teams.classifications"
    if classification in options.score.never:
        return f"{classification!r} is in teams.score.never"
    if not team_score.uses_team:
        return f"the score {team_score.score} is below teams.threshold ({options.threshold})"
    return None


Text = TypeVar("Text", bound=str)


def _score_signals(
    settings: ScoreSettings,
    kind: Word | None,
    procedure: str | None,
    labels: Iterable[str],
    signals: Signals,
) -> tuple[Reason, ...]:
    """Return one reason for each signal; those with 0 points are left out later."""
    kinds = {**CLASSIFICATIONS, **settings.classifications}
    keywords = {**KEYWORDS, **settings.keywords}
    phrases = find_phrases(signals.tokens, keywords)
    label_points = {
        _fold_label(name): points for name, points in {**LABELS, **settings.labels}.items()
    }
    components = find_phrases(signals.tokens, settings.component_names)
    traces, steps = signals.trace_lines, signals.reproduction_steps
    if kind != "debugger":
        traces = steps = 0
    return (
        _sum_points(f"{{}}: {_WHY[kind]}" if kind in _WHY else "{}", [kind] if kind else (), kinds),
        _sum_points("procedure {}", [procedure] if procedure else (), settings.procedures),
        _score_length(settings, signals.chars),
        _sum_points("keywords: {}", [word for word in phrases if keywords[word] > 0], keywords),
        _sum_points("keywords: {}", [word for word in phrases if keywords[word] < 0], keywords),
        *(
            _sum_points("label {}", (label,), label_points)
            for label in dict.fromkeys(map(_fold_label, labels))
        ),
        _score_count("listed sub-tasks", signals.subtasks, settings.subtasks),
        _score_count("files", len(signals.paths), settings.files, sorted(signals.paths)),
        _score_count("components", len(components), settings.components, components),
        _score_count("lines of stack traces", traces, settings.trace_lines),
        _score_count("steps to reproduce it", steps, settings.reproduction_steps),
    )


def _score_length(settings: ScoreSettings, chars: int) -> Reason:
    if chars > settings.long_chars:
        text = f"a long text: more than {settings.long_chars} characters"
        return Reason(settings.long_points, text)
    points = settings.medium_points if chars > settings.medium_chars else 0
    return Reason(points, f"a text of more than {settings.medium_chars} characters")


def _sum_points(text: str, names: Collection[Text], points: Mapping[Text, int]) -> Reason:
    """Return the sum of the points of *names*, with the names in place of ``{}`` in *text*."""
    return Reason(sum(points.get(name, 0) for name in names), text.format(_join_names(names)))


def _score_count(subject: str, count: int, rule: Count, names: Collection[str] = ()) -> Reason:
    points = min(rule.max, rule.each * max(0, count - rule.free))
    return Reason(points, f"{subject}: {count}{f' ({_join_names(names)})' if names else ''}")


def _join_names(names: Collection[str]) -> str:
    list_text = ", ".join(list(names)[:MAX_NAMED])
    rest_count = len(names) - MAX_NAMED
    return f"{list_text} and {rest_count} more" if rest_count > 0 else list_text


def _fold_label(label: str) -> str:
    """Return *label* in the form for comparison: people write size/XL, size: XL and Size-XL."""
    return re.sub(r"[\s_:/-]+", "-", label.casefold()).strip("-")


BREAK = "|"
"""Separates words that are not neighbors; never a token of a keyword."""
MAX_PATH_CHARS = 300
MAX_LINE_CHARS = 500
"""Maximum length of a line that may belong to a stack trace."""
MAX_LINES = 20_000
"""Maximum number of lines that are read; later ones are ignored."""
MIN_INFLECTED_CHARS = 3
_VOWELS = "aeiou"

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CODE_SPAN = re.compile(r"`([^`\n]{1,300})`")
_ADDRESS = re.compile(
    r"(?:\b(?:https?|ftps?|file|git|ssh)://|\bwww\.|\bmailto:)[^\s<>\"`]*", re.IGNORECASE
)
_ITEM = re.compile(r"(\s{0,12})(?:[-*+]|\d{1,3}[.)])\s+(\[[ xX]\]\s+)?(?=\S)")
_TITLE = re.compile(r"\s{0,3}#{1,6}\s+\S|\s{0,3}\*\*[^*]{1,100}\*\*:?\s*$|.{1,100}:\s*$")
_REPRODUCTION = re.compile(r"\brepro|\bsteps\s+to\b|\bhow\s+to\s+(?:trigger|get)\b", re.IGNORECASE)
_ASIDE = re.compile(
    r"[\W_]{0,20}(?:your\s+|my\s+)?(?:environment|versions?|links?|references?|related|resources"
    r"|see\s+also|out\s+of\s+scope|non-?goals?|expected|actual|observed|screenshots?)\b",
    re.IGNORECASE,
)
_TRACE = re.compile(
    r"""\s{0,40}(?: File\s"[^"]{1,300}",\sline\s\d
        | at\s(?:async\s|new\s)?[^\s(]{1,200}\s?
          \((?:[^()]{0,300}:\d{1,7}|Native\sMethod|Unknown\sSource|<anonymous>)\)
        | at\s\S{1,300}:\d{1,7}\s*$ | at\s[^\s(]{1,200}\([^()]{0,300}\)\sin\s
        | \#\d{1,4}\s+(?:0x[0-9a-f]|\S{1,200}\s?\() | \d{1,4}:\s{1,8}0x[0-9a-f]
        | Traceback\s\(most | Caused\sby:\s | goroutine\s\d+\s\[ | thread\s'[^']{1,80}'\spanicked
        | /\S{1,300}\.go:\d+ )""",
    re.VERBOSE,
)
# A hyphen separates words. An apostrophe or a dot before a letter is inside a word.
_TOKEN = re.compile(r"\w+(?:[.@']\w+)*(?:\(\))?|[^\w\s-]")
_COMPOUND = re.compile(r"\b(?:(?:front|back)[ -]end|full[ -]stack|(?:code|data)[ -]base)\b")
_BEGINS, _ENDS = "\"'([{<*|", "\"')]}>,;:.!?*|"
_PLACE = re.compile(r"(?::\d{1,7}){1,2}$")
_PATH = re.compile(r"(?:[a-zA-Z]:/)?[\w.@+/~*-]+")
_ROOTS = re.compile(r"(?:src|lib|apps?|packages|pkg|cmd|internal|tests?|docs)/|\.\./|~/")
_PRODUCTS = re.compile(
    r"(?:node|next|nuxt|vue|react|express|three|chart|d3|socket)\.js", re.IGNORECASE
)
_EXTENSIONS = re.compile(
    r"""bash|bat|c|cc|cfg|cjs|clj|cmake|conf|cpp|cs|css|csv|cu|dart|ex|exs|f90|go|gradle|
    graphql|h|hpp|hs|html|ini|ipynb|java|jl|js|json|jsx|kt|less|lock|lua|m|md|mdx|mjs|ml|mm|
    php|pl|po|proto|ps1|py|pyi|pyx|r|rb|rs|rst|sass|scala|scss|sh|sol|sql|svelte|swift|tex|
    tf|toml|ts|tsx|txt|vb|vue|xml|yaml|yml|zig|zsh""",
    re.VERBOSE | re.IGNORECASE,
)


class _Section(Enum):
    """The meaning of list items, decided by the title above the list."""

    WORK = auto()
    REPRODUCTION = auto()
    ASIDE = auto()


class Signals(Struct):
    """The signals in a request."""

    tokens: list[str] = field(default_factory=list)
    """Words in lower case, in order, with `BREAK` and punctuation between unrelated words."""
    paths: set[str] = field(default_factory=set)
    chars: int = 0
    """Length of the prose, without white space around lines."""
    subtasks: int = 0
    trace_lines: int = 0
    reproduction_steps: int = 0


def find_signals(title: str, text: str) -> Signals:
    """Return the signals in *title* and *text*; the length counts only the text."""
    signals = Signals()
    prose = "\n".join(_extract_prose(_strip_comments(text), signals))
    _add_words(f"{_strip_comments(title)} {BREAK} {prose}", signals)
    return signals


def split_into_tokens(phrase: str) -> list[str]:
    """Return the words of *phrase* in the form of `Signals.tokens`.

    >>> split_into_tokens("End-to-end, full stack")
    ['end', 'to', 'end', ',', 'fullstack']
    """
    folded = phrase.casefold().replace("\u2019", "'")
    return _TOKEN.findall(_COMPOUND.sub(lambda match: re.sub("[ -]", "", match[0]), folded))


def list_word_forms(word: str) -> Iterator[str]:
    """Yield *word* and its inflected English forms.

    >>> list(list_word_forms("migrate"))
    ['migrate', 'migrates', 'migrated', 'migrating', 'migration', 'migrations']
    """
    yield word
    if len(word) < MIN_INFLECTED_CHARS or not word.isalpha():
        return
    stem = word[:-1]
    if word.endswith("e"):
        yield from (f"{word}s", f"{word}d", f"{stem}ing")
        if word.endswith("ate"):
            yield from (f"{stem}ion", f"{stem}ions")
        return
    if word.endswith("y") and word[-2] not in _VOWELS:
        yield from (f"{stem}ies", f"{stem}ied", f"{word}ing")
        return
    is_sibilant = word.endswith(("s", "x", "z", "ch", "sh"))
    yield from (f"{word}{'es' if is_sibilant else 's'}", f"{word}ed", f"{word}ing")
    if word[-1] not in "aeiouwxy" and word[-2] in _VOWELS:
        yield from (f"{word}{word[-1]}ed", f"{word}{word[-1]}ing")


def find_phrases(tokens: list[str], phrases: Collection[str]) -> list[str]:
    """Return each of *phrases* that occurs in *tokens*, with each word in any of its forms."""
    # First word of a phrase, in any form -> (phrase, forms of each word after the first).
    candidates: dict[str, list[tuple[str, list[frozenset[str]]]]] = {}
    for phrase in phrases:
        words = [frozenset(list_word_forms(word)) for word in split_into_tokens(phrase)]
        for first_word in words[0] if words else ():
            candidates.setdefault(first_word, []).append((phrase, words[1:]))
    matches: set[str] = set()
    for next_index, token in enumerate(tokens, 1):
        for phrase, later_words in candidates.get(token, ()):
            if phrase not in matches and _matches_at(next_index, tokens, later_words):
                matches.add(phrase)
    return [phrase for phrase in phrases if phrase in matches]


def _matches_at(index: int, tokens: list[str], words: list[frozenset[str]]) -> bool:
    """Return whether *tokens* has one form of each of *words* in a row, from *index* on."""
    # A plain loop for speed: this runs for each word of a text.
    for token_index, forms in enumerate(words, index):
        if token_index >= len(tokens) or tokens[token_index] not in forms:
            return False
    return True


def _strip_comments(text: str) -> str:
    """Return *text* without ``<!-- … -->``: these are instructions of an issue template."""
    parts, end = [], 0
    while (start := text.find("<!--", end)) >= 0 and (close := text.find("-->", start)) >= 0:
        parts.append(text[end:start])
        end = close + len("-->")
    return "".join((*parts, text[end:]))


def _extract_prose(text: str, signals: Signals) -> Iterator[str]:
    """Yield the lines that are not code, and count the signals of whole lines."""
    fence, section = "", _Section.WORK
    for line in text.splitlines()[:MAX_LINES]:
        if not line or line.isspace():
            yield "" if fence else BREAK
            continue
        if _TRACE.match(line, 0, MAX_LINE_CHARS):
            signals.trace_lines += 1
            continue
        mark = _FENCE.match(line)
        if fence or mark:
            fence = _update_fence(line, mark, fence)
            continue
        signals.chars += len(line.strip())
        item = _ITEM.match(line)
        if item is not None:
            _count_item(item, section, signals)
            yield f"{BREAK} {line[item.end() :]}"
        elif _TITLE.match(line):
            section = _parse_section(line)
            yield f"{line} {BREAK}"
        else:
            yield line


def _update_fence(line: str, mark: re.Match[str] | None, fence: str) -> str:
    """Return the code fence that is open after *line*; empty: none."""
    if mark is None or not fence:
        return fence or (mark[1] if mark else "")
    is_end = mark[1].startswith(fence) and not line[mark.end() :].strip()
    return "" if is_end else fence


def _parse_section(title: str) -> _Section:
    if _REPRODUCTION.search(title):
        return _Section.REPRODUCTION
    return _Section.ASIDE if _ASIDE.match(title) else _Section.WORK


def _count_item(item: re.Match[str], section: _Section, signals: Signals) -> None:
    """Count a list item, unless it is nested, is done, or is not work."""
    indent, box = item[1], item[2]
    if (len(indent) > 1 and box is None) or (box is not None and box[1] != " "):
        return
    if section is _Section.REPRODUCTION:
        signals.reproduction_steps += 1
    elif section is _Section.WORK:
        signals.subtasks += 1


def _add_words(prose: str, signals: Signals) -> None:
    """Add the words and the paths of *prose* to *signals*."""
    for span in _CODE_SPAN.findall(prose):
        signals.paths.update(path for path in map(_path_in, span.split()) if path is not None)
    plain_text = _ADDRESS.sub(f" {BREAK} ", _CODE_SPAN.sub(f" {BREAK} ", prose))
    words = []
    for chunk in plain_text.split():
        path = _path_in(chunk)
        if path is not None:
            signals.paths.add(path)
        words.append(chunk if path is None else BREAK)
    signals.tokens = split_into_tokens(" ".join(words))


def _path_in(chunk: str) -> str | None:
    """Return the path in *chunk*, a text without white space; None: it is not a path."""
    # Check the cheap conditions first: most chunks are words, some with punctuation at the end.
    core = chunk.rstrip(_ENDS)
    if not ("." in core or "/" in core or "\\" in core) or len(core) > MAX_PATH_CHARS:
        return None
    bare = _PLACE.sub("", core.lstrip(_BEGINS).replace("\\", "/")).removeprefix("./")
    if _PATH.fullmatch(bare) is None or _PRODUCTS.fullmatch(bare) is not None:
        return None
    stem, dot, extension = bare.rpartition("/")[2].rpartition(".")
    has_extension = bool(dot) and bool(stem) and _EXTENSIONS.fullmatch(extension) is not None
    is_folder = "/" in bare and (bare.endswith("/") or _ROOTS.match(bare) is not None)
    return bare if has_extension or is_folder else None
