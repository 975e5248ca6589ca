"""How much a request would gain from a team: 0 to 100, with the reasons, and the decision.

Pure: the same request and settings have the same score on every machine, and no model is
asked. The points of the reasons add up to the score.

Not promised: that a team is worth its cost. The score counts what people write when a
request is a large one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sequencer.model.request import Request, Route
from sequencer.resolution.classification import WORDS, Word
from sequencer.resolution.routing_settings import RoutingSettings
from sequencer.resolution.teams.options import (
    CLASSIFICATIONS,
    KEYWORDS,
    LABELS,
    MAX_SCORE,
    Count,
    ScoreSettings,
    TeamOptions,
)
from sequencer.resolution.teams.signals import Signals, phrases_in, signals_of

MAX_NAMED = 6
"""Words that one reason lists."""
_WHY: Mapping[str, str] = {
    "orchestrator": "its sub-issues can be worked on at once",
    "debugger": "several hypotheses can be tried at once",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """Points, and what they are for: one line."""

    points: int
    text: str


@dataclass(frozen=True, slots=True)
class Score:
    """What `score` found."""

    score: int
    """0 to 100."""
    uses_team: bool
    """Whether it reaches the threshold; not whether teams are switched on, see `decide`."""
    reasons: tuple[Reason, ...]
    team_size: int
    """Members that the score speaks for; 1: no team."""


@dataclass(frozen=True, slots=True)
class TeamChoice:
    """Whether a request is given to a team."""

    uses_team: bool
    why: str
    """One line."""
    score: Score
    size: int
    """Members of the team, if one is used."""


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
    counting = _Counting(settings, classification, signals_of(title, text))
    reasons = [reason for reason in counting.reasons(labels, procedure) if reason.points]
    total = sum(reason.points for reason in reasons)
    within = min(MAX_SCORE, max(0, total))
    if within != total:
        reasons.append(Reason(within - total, f"a score is within 0 to {MAX_SCORE}"))
    return Score(
        score=within,
        uses_team=within >= threshold,
        reasons=tuple(reasons) or (Reason(0, "nothing speaks for more than one agent"),),
        team_size=settings.min_size + sum(within >= least for least in settings.size_from),
    )


def score_request(
    request: Request, route: Route, routing: RoutingSettings, options: TeamOptions
) -> Score:
    """Return the score of *request*, which *route* has given its procedure."""
    return score(
        classification=classification_of(request, route, routing),
        title=request.title,
        text=request.text,
        labels=request.labels,
        procedure=route.procedure,
        settings=options.score,
        threshold=options.threshold,
    )


def classification_of(request: Request, route: Route, routing: RoutingSettings) -> Word | None:
    """Return which kind of request has the procedure that *route* chose.

    A label or a person chooses a procedure without saying a word; what it is the procedure
    of counts as said. None: it is nobody's, or a request of no kind goes there.
    """
    words = [word for word in WORDS if routing.procedure_for(word) == route.procedure]
    said = next((word for word in WORDS if word == route.classification), None)
    if said in words or not words:
        return said
    by_label: tuple[tuple[Word, tuple[str, ...]], ...] = (
        ("debugger", routing.labels.debugger),
        ("orchestrator", routing.labels.orchestrator),
    )
    for word, labels in by_label:
        if word in words and request.has_label(labels) is not None:
            return word
    return words[0]


def decide(
    found: Score,
    options: TeamOptions,
    classification: Word | None,
    asked: bool | None = None,
) -> TeamChoice:
    """Return whether a request with the score *found* is given to a team.

    *asked* is what a person said: ``--team``, ``--no-team``, or None for neither.
    """
    uses_team, why = _decision(found, options, classification, asked)
    size = min(options.max_size, max(found.team_size, options.score.min_size))
    return TeamChoice(uses_team, why, found, size)


def _decision(
    found: Score, options: TeamOptions, classification: Word | None, asked: bool | None
) -> tuple[bool, str]:
    if asked is not None:
        return asked, "--team was given" if asked else "--no-team was given"
    obstacle = _obstacle(found, options, classification)
    reached = f"the score {found.score} reaches teams.threshold ({options.threshold})"
    return obstacle is None, obstacle or reached


def _obstacle(found: Score, options: TeamOptions, classification: Word | None) -> str | None:
    """Return the first thing that stands against a team."""
    if not options.enabled:
        return "teams.enabled is false"
    if classification is None:
        return "its kind is not known, and teams.classifications lists kinds"
    if classification not in options.classifications:
        return f"{classification!r} is not in teams.classifications"
    if classification in options.score.never:
        return f"{classification!r} is in teams.score.never"
    if not found.uses_team:
        return f"the score {found.score} is below teams.threshold ({options.threshold})"
    return None


@dataclass(frozen=True, slots=True)
class _Counting:
    """The points of one request, signal by signal."""

    settings: ScoreSettings
    classification: Word | None
    signals: Signals

    def reasons(self, labels: Iterable[str], procedure: str | None) -> Iterator[Reason]:
        yield from self._kind(procedure)
        yield from self._length()
        yield from self._keywords()
        yield from self._labels(labels)
        yield from self._counts()

    def _kind(self, procedure: str | None) -> Iterator[Reason]:
        word = self.classification
        if word is not None:
            points = self.settings.classifications.get(word, CLASSIFICATIONS.get(word, 0))
            yield Reason(points, f"{word}: {_WHY[word]}" if word in _WHY else f"{word}")
        if procedure is not None:
            points = self.settings.procedures.get(procedure, 0)
            yield Reason(points, f"procedure {procedure}")

    def _length(self) -> Iterator[Reason]:
        settings, chars = self.settings, self.signals.chars
        if chars > settings.long_chars:
            yield Reason(
                settings.long_points, f"a long text: more than {settings.long_chars} characters"
            )
        elif chars > settings.medium_chars:
            text = f"a text of more than {settings.medium_chars} characters"
            yield Reason(settings.medium_points, text)

    def _keywords(self) -> Iterator[Reason]:
        written = {**KEYWORDS, **self.settings.keywords}
        points = {word: value for word, value in written.items() if value}
        found = phrases_in(self.signals.tokens, points)
        for is_for in (True, False):
            words = [word for word in found if (points[word] > 0) is is_for]
            yield Reason(sum(points[word] for word in words), f"keywords: {_listed(words)}")

    def _labels(self, labels: Iterable[str]) -> Iterator[Reason]:
        written = {**LABELS, **self.settings.labels}
        points = {_folded(label): value for label, value in written.items()}
        for label in dict.fromkeys(_folded(label) for label in labels):
            yield Reason(points.get(label, 0), f"label {label}")

    def _counts(self) -> Iterator[Reason]:
        settings, signals = self.settings, self.signals
        components = phrases_in(signals.tokens, settings.component_names)
        yield _counted(settings.subtasks, signals.subtasks, "listed sub-tasks")
        yield _counted(settings.files, len(signals.paths), "files", sorted(signals.paths))
        yield _counted(settings.components, len(components), "components", components)
        if self.classification == "debugger":
            yield _counted(settings.trace_lines, signals.trace_lines, "lines of stack traces")
            steps = signals.reproduction_steps
            yield _counted(settings.reproduction_steps, steps, "steps to reproduce it")


def _counted(rule: Count, count: int, what: str, names: Collection[str] = ()) -> Reason:
    points = min(rule.max, rule.each * max(0, count - rule.free))
    return Reason(points, f"{what}: {count}{f' ({_listed(names)})' if names else ''}")


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:MAX_NAMED])
    more = len(names) - MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _folded(label: str) -> str:
    """Return *label* as it is compared: people write size/XL, size: XL and Size-XL."""
    return re.sub(r"[\s_:/-]+", "-", label.casefold()).strip("-")
