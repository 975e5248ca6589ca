"""Collects the data of each page for its template.

A page consists of parts, the blocks of its template. A part is sent again when it has changed, so
nothing here may depend on the reader or on the current time: browsers work out themselves how
long ago something was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer import extensions
from sequencer.cli.context import show_message
from sequencer.cli.views.next_command import list_holders, next_command, read_situation
from sequencer.cli.views.readiness import describe_holder
from sequencer.cli.views.runs import Open
from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import RemoteUnreachable, SequencerError, UnknownName
from sequencer.files.textfile import slug
from sequencer.history.story import StepAttempts
from sequencer.model.head import Head
from sequencer.model.kind import ReadinessKind
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage, format_count, format_duration
from sequencer.packages import ensure_fields
from sequencer.plugins.schedules.dates import Schedule
from sequencer.plugins.schedules.section import get_schedules
from sequencer.plugins.web.site import Changed, RunRow, ShownProject, Site
from sequencer.project.project import Project
from sequencer.project.scheduler import load_scheduler

Query = Mapping[str, str]
RUNS_A_PAGE = 50
MAX_HITS = 100
MAX_SHOWN = 600
"""Characters of a long text that are shown until the reader asks for all of it."""


class Page(Struct):
    """The data of one page."""

    template: str
    title: str
    context: dict[str, Any]
    folders: tuple[Path, ...] = ()
    """Folders of the runs on the page: a change in one of them may change the page."""
    tab: str = ""
    lists: tuple[Path, ...] = field(default=())
    """Folders in which new runs may appear."""
    is_remote: bool = False
    """Whether the page may change without a change in any folder."""


class AddedPage(Struct, frozen=True):
    """A page from a package, at /more/NAME: one table for each project."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Project], Iterable[Sequence[str]]]
    """Returns the texts of the cells; they are shown as plain text, never as HTML."""

    def __post_init__(self) -> None:
        """Refuse fields of a wrong type where the package creates the page."""
        ensure_fields(self, title=str, columns=(tuple, list), rows=Callable)


def added_pages(site: Site) -> list[tuple[str, str]]:
    """Return (name, title) for each page of an enabled package; none if no project is trusted.

    An untrusted project must not make code run by enabling a package.
    """
    if not (extensions.has_enabled_packages() and _list_trusted_projects(site)):
        return []
    added = extensions.load_from_enabled_packages(
        extensions.PAGES, lambda error: show_message(f"notice: {error.in_one_line}")
    )
    return [(point.name, page.title) for point, page in added]


def _list_trusted_projects(site: Site) -> list[ShownProject]:
    """Return the projects of *site* that a person has trusted in their present form."""
    return [project for project in site.projects.values() if project.distrust() is None]


def build_added_page(site: Site, _: Query, name: str) -> Page:
    """Return the page that a package added as *name*; untrusted projects have no rows in it.

    Raises:
        UnknownName: no package added it, or no project is trusted.
    """
    if not _list_trusted_projects(site):
        raise UnknownName("page", name, ())
    added: AddedPage = extensions.require(extensions.PAGES, name, "page")
    tables: list[tuple[str, list[Sequence[str]], str]] = []
    for project in site.projects.values():
        if (refusal := project.distrust()) is not None:
            tables.append((project.title, [], refusal.message))
            continue
        try:
            with extensions.package_code(extensions.PAGES, name):
                rows: list[Sequence[str]] = [
                    [str(cell) for cell in row] for row in added.rows(project.project)
                ]
            tables.append((project.title, rows, ""))
        except SequencerError as error:
            tables.append((project.title, [], error.in_one_line))
    context = {"title": added.title, "columns": added.columns, "tables": tables}
    return Page("more.html", added.title, context, **collect_folders(site), tab=f"more/{name}")


def collect_folders(site: Site, rows: Iterable[RunRow] | None = None) -> dict[str, Any]:
    """Return the fields `folders`, `lists` and `is_remote` of a `Page` about *rows*; None: all."""
    row_folders = tuple(
        row.run.store.state_path.parent for row in (site.rows() if rows is None else rows)
    )
    lists, is_remote = list[Path](), False
    for project in site.projects.values():
        try:
            state = project.project.settings.state_file.parent
            is_remote = is_remote or project.is_remote
        except SequencerError:
            continue
        lists += [state, state / "runs"]
    return {"folders": row_folders, "lists": tuple(lists), "is_remote": is_remote}


# --- needs you ---------------------------------------------------------------------


class NeedCard(Struct):
    """One thing that waits for a person."""

    kind: str
    row: RunRow | None
    since: str
    title: str
    text: str = ""
    ask: Open | None = None
    command: str = ""
    others: Sequence[str] = ()
    """Commands for the other decisions."""
    token: int = 0
    """The token of the attempt that asks."""
    act: str = ""
    """The verb of its button; empty: it has no button."""


def build_needs_page(site: Site, _: Query) -> Page:
    """Return the page of everything that waits for a person, oldest first."""
    cards = sorted(every_need(site), key=lambda card: _to_timestamp(card.since))
    context = {"needs": cards, "answered": [*_list_answered_runs(site)]}
    return Page("needs.html", "Needs you", context, **collect_folders(site), tab="needs")


def _list_answered_runs(site: Site) -> Iterator[tuple[RunRow, str]]:
    """Yield (run, command) for each run that was answered here and waits to be continued."""
    for row in site.rows():
        head = row.head
        if head is None or not row.is_answered:
            continue
        situation = read_situation(row.run, head)
        if situation.readiness is not None and situation.readiness.kind is ReadinessKind.READY:
            yield row, next_command(situation).line


def _to_timestamp(time_text: str) -> float:
    """Return the ISO time *time_text* as a number, to sort by: not all times have milliseconds."""
    moment = parse_time(time_text) if time_text else None
    return 0.0 if moment is None else moment.timestamp()


def every_need(site: Site) -> Iterator[NeedCard]:
    """Yield a card for each thing in any run that waits for a person."""
    for project in site.projects.values():
        try:
            rows = [*project.rows()]
        except SequencerError as error:
            verb = "reached" if isinstance(error, RemoteUnreachable) else "opened"
            yield NeedCard("broken", None, "", f"{project.title} can't be {verb}", str(error))
            continue
        for row in rows:
            yield from list_need_cards(row)
        known_names = {row.run.name for row in rows}
        yield from (
            _make_merge_card(None, work) for work in project.unmerged if work.run not in known_names
        )


def list_need_cards(row: RunRow) -> Iterator[NeedCard]:
    """Yield a card for each thing in the run of *row* that waits for a person."""
    head = row.head
    if head is None:
        if message := row.facts.get("error"):
            command = f"sequencer {Open(row.run).option}repair"
            yield NeedCard("broken", row, "", "The run can't be read", message, None, command)
        return
    change = row.changed
    if row.ask is not None:
        for card in _questions(row, row.ask):
            if change is None:
                yield card
            else:
                # Until the change is adopted, the run refuses answers, so offer no buttons.
                yield NeedCard(card.kind, row, card.since, card.title, card.text)
    if row.is_stale:
        holders = list_holders(row.run, head)
        stale = (
            describe_holder([claim], liveness)
            for claim, liveness in holders
            if liveness.allows_take_over
        )
        command = next_command(read_situation(row.run, head)).line
        title, text = "The process that worked on it is gone", "\n".join(stale)
        yield NeedCard("stale", row, row.since, title, text, None, command)
    yield from _list_problem_cards(row, head, change)
    if (pace := row.pace) is not None and pace.is_missed:
        title, since = "The timer has stopped", iso(pace.last)
        command = f"sequencer {Open(row.run).option}tick"
        yield NeedCard("missed", row, since, title, MISSED, None, command)
    yield from (_make_merge_card(row, work) for work in row.unmerged)
    for post in row.facts.get("posts", ()):
        if post["error"]:
            title = f"{post['sink']} has not accepted {post['pending']} posts"
            yield NeedCard("posts", row, row.since, title, str(post["error"]), None)


def _list_problem_cards(row: RunRow, head: Head, change: Changed | None) -> Iterator[NeedCard]:
    """Yield a card if the run has failed, and one if its workflow was changed."""
    if row.lost is not None:
        command = f"sequencer {Open(row.run).option}repair"
        title = "Accepted steps may be missing"
        yield NeedCard("broken", row, row.since, title, row.lost.message, None, command)
    if head.status == "failed":
        title = f"{row.named(head.expected_step) if head.expected_step else 'The run'} failed"
        command, act = f"sequencer {Open(row.run).option}retry", "retry"
        if change is not None:
            command, act = "", ""
        yield NeedCard("failed", row, row.since, title, _failure(row), None, command, act=act)
    if change is not None:
        act, title = "adopt" if change.may_adopt else "", "Its workflow was changed"
        yield NeedCard("changed", row, row.since, title, change.why, None, change.command, act=act)


MISSED = (
    "Ticks came before, but at least two were missed since. Check whether the timer still runs."
)


def _make_merge_card(row: RunRow | None, work: UnmergedWork) -> NeedCard:
    since = "" if row is None else row.since
    command, *other_commands = work.commands
    return NeedCard(
        "unmerged", row, since, "Work is not merged", work.words, None, command, other_commands
    )


def _questions(row: RunRow, open_item: Open) -> Iterator[NeedCard]:
    if (gate := open_item.gate) is not None:
        command, *other_commands = open_item.commands()
        timeout_text, since = open_item.describe_timeout(), gate.opened_at
        title, form = timeout_text or f"Approve {gate.step}?", None if timeout_text else open_item
        yield NeedCard(
            "gate", row, since, title, row.shown_at_gate, form, command, other_commands, gate.token
        )
    for question in open_item.questions:
        command, *other_commands = open_item.commands(question)
        title = question.node.label or question.node.id
        # Without a title of its own, its title is its question: do not show it twice.
        text = "" if question.text.split() == title.split() else question.text
        timeout_text, since, token = (
            open_item.describe_timeout(question),
            question.asked_at,
            question.token,
        )
        form = None if timeout_text else replace(open_item, questions=(question,))
        yield NeedCard(
            "question",
            row,
            since,
            timeout_text or title,
            text,
            form,
            command,
            other_commands,
            token,
        )


def _failure(row: RunRow) -> str:
    attempts = [step.last for step in tried_steps(row).values() if step.last.state == "failed"]
    return max(attempts, key=lambda attempt: attempt.revision).answer_text if attempts else ""


def tried_steps(row: RunRow, *, is_whole: bool = False) -> dict[str, StepAttempts]:
    """Return the steps of the run of *row* that were started; see `ShownProject.story`."""
    return row.project.story(row, is_whole=is_whole).steps


# --- runs --------------------------------------------------------------------------


def build_runs_page(site: Site, query: Query) -> Page:
    """Return the page that lists the runs, last updated first."""
    state, search = query.get("state", ""), query.get("q", "").casefold()
    rows = sorted(site.rows(), key=_update_time, reverse=True)
    counts: dict[str, int] = {}
    looks = [(row, row.look) for row in rows]
    for _, look in looks:
        counts[look.word] = counts.get(look.word, 0) + 1
    matches = [
        (row, look)
        for row, look in looks
        if state in ("", look.word)
        and search in f"{row.name} {row.project.title} {row.facts.get('workflow')}".casefold()
    ]
    first_index, journal_search = parse_number(query.get("from")), "journal" in query and search
    context = {
        "rows": [
            (row, look, format_step_number(row))
            for row, look in matches[first_index:][:RUNS_A_PAGE]
        ],
        "counts": counts,
        "state": state,
        "search": query.get("q", ""),
        "first": first_index,
        "total": len(matches),
        "hits": [*islice(_hits(rows, search), MAX_HITS)] if journal_search else None,
        "size": RUNS_A_PAGE,
        "schedules": [*_schedules(site)] if not (state or search) else [],
    }
    return Page("runs.html", "Runs", context, **collect_folders(site, rows), tab="runs")


class Scheduled(Struct, frozen=True):
    """A run that a schedule starts."""

    project: ShownProject
    name: str
    url: str | None
    """None: it has not started yet."""
    schedule: Schedule
    date: float | None
    """Time of its next start, in seconds since 1970; None: it is under way."""


def _schedules(site: Site) -> Iterator[Scheduled]:
    for project in site.projects.values():
        with suppress(SequencerError):
            for run, date in load_scheduler(project.project).list_scheduled_runs(project.project):
                name = run.name or ""
                url = f"/p/{project.address}/{slug(name)}" if run.head else None
                yield Scheduled(
                    project, name, url, get_schedules(project.project.settings)[name], date
                )


class SearchHit(Struct, frozen=True):
    """An attempt that contains the searched text."""

    row: RunRow
    step: StepAttempts
    place: int
    """Number of the attempt, from 1."""
    text: str


def _hits(rows: Iterable[RunRow], search: str) -> Iterator[SearchHit]:
    """Yield the attempts of *rows* whose step, answer or error contains *search*, in this order."""
    for row in rows:
        for step in reversed(tried_steps(row, is_whole=True).values()):
            for place, attempt in enumerate(step.tries, 1):
                lines = (attempt.step, *attempt.answer_text.splitlines())
                if hit := next((line for line in lines if search in line.casefold()), ""):
                    yield SearchHit(row, step, place, hit[:MAX_SHOWN])


def _update_time(row: RunRow) -> float:
    return 0.0 if row.head is None else _to_timestamp(row.head.last_update)


def parse_number(text: str | None) -> int:
    """Return the number in *text*, which comes from an address; 0: it is not a number."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else 0  # noqa: PLR2004


def format_step_number(row: RunRow) -> str:
    """Return the number of the current step of *row*, and of all steps if that is known."""
    if row.head is None:
        return ""
    facts = row.facts
    total = f" of {facts['steps']}" if facts["steps"] else ""
    return f"{facts['step_index'] + (not facts['ended'])}{total}"


# --- words for templates -----------------------------------------------------------


def money(usage: Usage) -> str:
    """Return the cost of *usage* with two decimals; empty: none. A "?" stands for unknown costs."""
    if not usage.cost_usd:
        return "?" if usage.unpriced else ""
    return f"${usage.cost_usd:,.2f}{'+?' if usage.unpriced else ''}"


def tokens(usage: Usage) -> str:
    """Return the number of input and output tokens; empty: none."""
    total = usage.input_tokens + usage.output_tokens
    return format_count(total) if total else ""


def cached(usage: Usage) -> str:
    """Return the share of input tokens that were read from a cache; empty: none is known.

    >>> cached(Usage(input_tokens=400, cache_read_tokens=301)), cached(Usage(input_tokens=400))
    ('75%', '')
    """
    share = min(usage.cache_read_tokens / usage.input_tokens, 1) if usage.input_tokens else 0
    return f"{share:.0%}" if share else ""


def iso(seconds: float) -> str:
    """Return the time *seconds* since 1970 in ISO 8601 format."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def took(seconds: float) -> str:
    """Return a duration in words; empty: none."""
    return format_duration(seconds) if seconds else ""


def first_lines(text: str, count: int) -> str:
    """Return the first *count* lines of *text*, and an ellipsis."""
    return "\n".join([*text.splitlines()[:count], "…"])[:MAX_SHOWN]


def local(at: str) -> str:
    """Return the ISO time *at* in this machine's time zone."""
    moment = parse_time(at)
    return at if moment is None else moment.astimezone().strftime("%d %b %H:%M %Z")


WORDS: Mapping[str, Callable[..., str]] = {
    word.__name__: word for word in (money, tokens, cached, took, first_lines, local, iso)
}
"""Filters of the templates, by name."""
