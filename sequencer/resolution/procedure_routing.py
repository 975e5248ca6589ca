"""Which procedure does what a request asks for, and why that one.

The order: who names one is obeyed; then labels; then a classification by an agent, or by
rules where no agent is asked; then the fallback. Pure but for the classifier, which the
caller gives; everything that was tried is told with the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sequencer.errors import UnknownName
from sequencer.model.request import Considered, Request, Route, Source
from sequencer.resolution.classification import (
    ClassificationFailed,
    Word,
    parse_classification,
)
from sequencer.resolution.classification_rules import classify_by_rules
from sequencer.resolution.routing_settings import RoutingSettings

ATTEMPTS = 2
"""How often a classifier is asked about one request."""
MAX_REASON_CHARS = 300


def route(
    request: Request,
    *,
    explicit: str | None,
    settings: RoutingSettings,
    known: Collection[str],
    classify: Callable[[Request], str] | None,
) -> Route:
    """Return the procedure for *request*: one of *known*.

    *classify* answers one of the seven words or raises `ClassificationFailed`, after which
    it is asked once more; None: the rules decide.

    Raises:
        UnknownName: the procedure that was named, or that the settings have for what was
            found, is none of *known*. Another one in its place would hide the mistake.
    """
    routing = _Routing(request, settings, known)
    found = routing.explicit(explicit) or routing.label()
    if found is None:
        found = routing.rules() if classify is None else routing.classification(classify)
    return found or routing.fallback()


class _Routing:
    """One request on its way; each method answers or notes why it can't."""

    def __init__(self, request: Request, settings: RoutingSettings, known: Collection[str]) -> None:
        self._request = request
        self._settings = settings
        self._known = known
        self._considered: list[Considered] = []

    def explicit(self, name: str | None) -> Route | None:
        if name is None:
            self._note("explicit", "no procedure was named")
            return None
        return self._chosen("explicit", name, "it was named")

    def label(self) -> Route | None:
        labels = self._settings.labels
        found: Route | None = None
        words: tuple[tuple[Word, tuple[str, ...]], ...] = (
            ("debugger", labels.debugger),
            ("orchestrator", labels.orchestrator),
        )
        for word, wanted in words:
            label = self._request.has_label(wanted)
            if label is None:
                continue
            reason = f"label {label!r} is one of routing.labels.{word}"
            name = self._settings.procedure_for(word)
            if found is not None:
                beaten = Considered(
                    source="label", result=name, why=f"{reason}, which are looked at last"
                )
                return found.model_copy(update={"considered": (*found.considered, beaten)})
            found = self._chosen("label", name, reason, key=f"routing.procedures.{word}")
        if found is None:
            self._note("label", "no label decides")
        return found

    def classification(self, classify: Callable[[Request], str]) -> Route | None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                word = parse_classification(classify(self._request))
            except ClassificationFailed as error:
                self._note("classification", f"attempt {attempt}: {_one_line(error.message)}")
            else:
                return self._classified("classification", word, f"it was classified as {word!r}")
        return None

    def rules(self) -> Route | None:
        guess = classify_by_rules(self._request)
        if guess.word is None:
            self._note("rules", guess.reason)
            return None
        return self._classified("rules", guess.word, guess.reason)

    def fallback(self) -> Route:
        reason = "nothing else decided (routing.fallback)"
        return self._chosen("fallback", self._settings.fallback, reason, key="routing.fallback")

    def _classified(self, source: Source, word: Word, reason: str) -> Route:
        name = self._settings.procedure_for(word)
        return self._chosen(source, name, reason, word=word, key=f"routing.procedures.{word}")

    def _chosen(
        self, source: Source, name: str, reason: str, *, word: str | None = None, key: str = ""
    ) -> Route:
        if name not in self._known:
            raise UnknownName("procedure", name, self._known, where=key or None)
        self._considered.append(Considered(source=source, result=name, why=reason))
        return Route(
            procedure=name,
            source=source,
            classification=word,
            reason=reason,
            considered=tuple(self._considered),
        )

    def _note(self, source: Source, why: str) -> None:
        self._considered.append(Considered(source=source, why=why))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON_CHARS]
