"""The projects and runs that are shown, each with its address; what was read is kept.

An address is looked up in what there is and never becomes a path. A run is looked at again
when one of its files has changed, so that a page over hundreds of runs costs a stat each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from itertools import dropwhile
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from sequencer.cli.views.next_command import run_state, situation_of
from sequencer.cli.views.runs import Open, asked_at, open_at, run_facts, unread_facts
from sequencer.cli.views.states import LOOKS, StateLook, look_of
from sequencer.engine.graph_changes import as_begun
from sequencer.engine.run import Run
from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    NotTrusted,
    RemoteUnreachable,
    SequencerError,
    UnknownName,
)
from sequencer.files.textfile import slug
from sequencer.history.facts import RecordedFact, read
from sequencer.history.story import StepTries, Story
from sequencer.model.commands import Adopt
from sequencer.model.graph.source import differences
from sequencer.model.head import Head
from sequencer.model.kind import CommandContext
from sequencer.model.outcome import Quota
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.plugins.schedules.timers import TickPace, pace_of
from sequencer.plugins.web.records import Spent, spent_in
from sequencer.project.diagnostics import Diagnostic
from sequencer.project.project import Project, open_project
from sequencer.store import folder as folders
from sequencer.store.journal import JournalFile, facts_of

DEFAULT_RUN = "-"
"""The address of the default run, which no name has: a slug never is a lone dash."""
END_BYTES = (64 * 1024, 512 * 1024)
"""Of a journal, in which the newest facts are looked for first."""
LONG, ENOUGH = 1000, 200
"""Revisions of a long line, and of its end, which is all that most of its pages show."""
MOST_DIFFERENCES = 8
"""Of a workflow that was changed, on a card."""
KEPT_CHARS = 600
"""Of an answer, as far as lists show it; its step's page reads it whole."""
FIRST_S = 2.0
"""A page waits so long for a server that was never asked."""
PAUSE_S = 1.0
"""Between two looks."""
MERGES_S = 3.0
"""How long an answer of git about merged branches is believed."""
UNSEEN_S = 30.0
"""After which nobody looks any more, and nothing is asked."""

Fact = dict[str, Any]


class Changed(NamedTuple):
    """What the project says of a run's workflow, where the run was started with something else."""

    why: str
    command: str
    """What helps; to be pasted."""
    may_adopt: bool
    """Whether `adopt` would be accepted now."""


class RunRow(Struct, dict=True):
    """One run, as it was found when its head was read last."""

    project: ShownProject
    run: Run
    address: str
    facts: dict[str, Any]
    """As ``runs --json`` prints them, or with ``error``."""
    head: Head | None

    @property
    def url(self) -> str:
        """Return the address of its page."""
        return f"/p/{self.project.address}/{self.address}"

    @property
    def name(self) -> str:
        """Return what people call it."""
        return self.run.name or "default run"

    @cached_property
    def ask(self) -> Open | None:
        """Return what its run asks people, looked up once; None: nothing."""
        head = self.head
        if head is None or head.exit or not (head.is_at_gate or head.asks):
            return None
        with suppress(SequencerError):
            return open_at(self.run, head)
        return None

    @property
    def is_answered(self) -> bool:
        """Return whether somebody has answered it here, and nothing has happened since."""
        head = self.head
        return head is not None and self.project.answered.get(self.run.name) == head.revision

    @property
    def unmerged(self) -> list[UnmergedWork]:
        """Return what it has done that nobody has merged."""
        return [one for one in self.project.unmerged if one.run == self.run.name]

    @cached_property
    def shown_at_gate(self) -> str:
        """Return what is to be decided about at its gate, looked up once."""
        return (
            "" if self.ask is None or self.ask.gate is None else asked_at(self.run, self.ask.gate)
        )

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """Return what the chart of its run calls each node, where that says more than its id."""
        head = self.head
        if head is None:
            return {}
        with suppress(SequencerError):
            nodes = as_begun(self.run.store, head).workflow.nodes
            return {one.id: one.title for one in nodes if one.title and one.task is None}
        return {}

    def named(self, step: str) -> str:
        """Return *step* with its title, where the chart has one."""
        title = self.titles.get(step)
        return f"{step} ({title})" if title else step

    @property
    def changed(self) -> Changed | None:
        """Return what has become of its workflow; None: it is as the run has it, or over.

        It is looked at each time: a file may change while its run does not.
        """
        head = self.head
        if head is None or head.status == "complete":
            return None
        option = Open(self.run).option
        try:
            workflow = self.run.workflow_for(head)
            ensure_definition(head, workflow)
        except DefinitionChanged as error:
            why = "\n".join([error.message, *self._differences(head, workflow)])
        except ConfigurationError as error:
            return Changed(str(error), "sequencer check", may_adopt=False)
        else:
            return None
        try:
            self.run.commands.kind.apply(head, Adopt(), CommandContext(at=datetime.now(UTC)))
        except SequencerError as error:
            why = f"{why}\n{error.message}"
            return Changed(why, f"sequencer {option}reset", may_adopt=False)
        return Changed(why, f"sequencer {option}adopt", may_adopt=True)

    def _differences(self, head: Head, workflow: Workflow) -> Sequence[str]:
        """Return what differs in *workflow* from what the run of *head* has, line by line."""
        with suppress(SequencerError):
            return differences(as_begun(self.run.store, head).workflow, workflow)[:MOST_DIFFERENCES]
        return ()

    @property
    def look(self) -> StateLook:
        """Return what its run is doing; a process may go while its files stay the same."""
        if "error" in self.facts:
            return LOOKS["unreadable"]
        head = self.head
        return (
            LOOKS["pending"] if head is None else look_of(run_state(situation_of(self.run, head)))
        )

    @property
    def is_stale(self) -> bool:
        """Return whether a claim's holder is gone, or its lease has run out."""
        claims = () if self.head is None else self.head.claims
        return any(self.run.store.liveness(claim).allows_take_over for claim in claims)

    @property
    def pace(self) -> TickPace | None:
        """Return how the ticks came that the run waits for; None: it waits for none."""
        head = self.head
        if head is None or head.claims or head.exit or head.status in ("complete", "paused"):
            return None
        return pace_of(self.project.project.settings, self.run.name)


class RunStory(Struct):
    """The accepted facts of one run, read once; long answers are cut to their ends."""

    run_id: str = ""
    revision: int = 0
    facts: list[Fact] = field(default_factory=list)
    story: Story = field(default_factory=Story)
    by_node: bool = False
    spent: list[Spent] = field(default_factory=list)
    quotas: dict[str, tuple[str, Quota]] = field(default_factory=dict)
    """Of each agent: when it last told of its quota, and what."""
    judged: list[RecordedFact] = field(default_factory=list)
    """Those that tell of a verdict."""
    is_whole: bool = True
    """Whether it starts where the run does, as far as the journal goes back."""

    def follow(self, run: Run, head: Head, *, is_whole: bool = True) -> None:
        """Take the facts of *run* up to *head*, or somewhat newer ones.

        The newest of a long line will do unless it has to be whole: they are read at once.
        """
        is_same = (head.run_id, head.revision >= self.revision) == (self.run_id, True)
        if not is_same or (is_whole and not self.is_whole):
            self.run_id, self.revision, self.is_whole = head.run_id, 0, True
            self.facts, self.spent, self.judged, self.quotas = [], [], [], {}
            self.story, self.by_node = Story(), head.begun_at is not None
            if not is_whole and head.begun_at is None and head.revision > LONG:
                self.is_whole = False
        if head.revision > self.revision:
            after = self.revision or (0 if self.is_whole else head.revision - ENOUGH)
            found = facts_after(run, after)
            if not self.is_whole and not self.facts:
                # Of the step that the cut goes through only a part would be told.
                cut = next(found)
                found = dropwhile(lambda fact: fact["step_index"] == cut["step_index"], found)
            for fact in found:
                self._keep(_short(fact))

    @property
    def steps(self) -> dict[str, StepTries]:
        """Return the steps that were begun, in their order, by their keys in addresses."""
        return self.story.steps(by_name=self.by_node)

    def _keep(self, raw: Fact) -> None:
        self.revision = raw["revision"]
        self.facts.append(raw)
        (fact,) = read([raw])
        usage, details = self.story.keep(fact), fact.details
        if usage is not None:
            self.spent.append(spent_in(fact, usage))
        if quota := details.get("quota"):
            self.quotas[str(details.get("agent"))] = fact.at, Quota.model_validate(quota)
        if details.get("verdict"):
            self.judged.append(fact)


def facts_after(run: Run, revision: int) -> Iterator[Fact]:
    """Yield the facts of *run* after *revision*; of newest ones no more than these is read."""
    if run.dispatch is None:
        journal = JournalFile(run.store.state_path.parent, 0, 0)
        for size in END_BYTES if revision else ():
            records = journal.newest(size)
            if records and records[0].revision <= revision + 1:
                for record in records:
                    if record.revision > revision:
                        yield from facts_of(record.data)
                return
    yield from run.store.history(revision)


def _short(fact: Fact) -> Fact:
    outcome = fact.get("outcome")
    if not isinstance(outcome, dict) or len(str(outcome.get("output", ""))) <= KEPT_CHARS:
        return fact
    return {**fact, "outcome": {**outcome, "output": f"…{outcome['output'][-KEPT_CHARS:]}"}}


class RemoteRuns:
    """The newest answer of a server about a project's runs, asked only while somebody looks.

    A page never waits for a server that does not answer: it shows that, and asks again.

    Not promised: a change on the server before it is asked again, which takes a second.
    """

    def __init__(self, ask: Callable[[], Mapping[str, RunRow]]) -> None:
        """Get rows by *ask*, which may take long or raise."""
        self._ask = ask
        self._rows: Mapping[str, RunRow] = {}
        self._error: SequencerError | None = None
        self._asked = threading.Lock()
        self._has_answer = threading.Event()
        self._wanted = 0.0
        self._thread: threading.Thread | None = None

    def rows(self) -> Mapping[str, RunRow]:
        """Return the rows by their addresses, as they were told last.

        Raises:
            SequencerError: the server can't be reached, or has not answered yet.
        """
        self._wanted = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        if not self._has_answer.wait(FIRST_S):
            raise RemoteUnreachable("the server has not answered yet")
        if self._error is not None:
            raise self._error
        return self._rows

    def look(self) -> None:
        """Ask now."""
        with self._asked:
            try:
                self._rows, self._error = self._ask(), None
            except SequencerError as error:
                self._error = error
        self._has_answer.set()

    def _follow(self) -> None:
        while time.monotonic() - self._wanted < UNSEEN_S:
            self.look()
            time.sleep(PAUSE_S)
        # What is known is old when somebody looks again.
        self._has_answer.clear()


class ShownProject:
    """One project that a person has named on the command line."""

    def __init__(self, folder: Path, address: str, config: Path | None = None) -> None:
        """Show the project in *folder* at *address*; it is opened when it is looked at.

        *config* is its configuration file, if that is not to be searched.
        """
        self.folder, self.address, self._config = folder, address, config
        self._looks: object = None
        self._project: Project | None = None
        self._rows: dict[str, tuple[object, RunRow]] = {}
        self._stories: dict[str, RunStory] = {}
        self._listed: list[str] = []
        self._names: dict[str, str | None] | None = None
        self._remote = RemoteRuns(self._ask)
        self._told: dict[str, RunRow] = {}
        self.answered: dict[str | None, int] = {}
        """Runs that these pages have let go on, by name, with the revision that they had then."""
        self.diagnostics: tuple[float, list[Diagnostic]] = (0.0, [])
        """What the page of the checks has found, and until when it believes that."""
        self._unmerged: tuple[float, list[UnmergedWork]] = (0.0, [])

    @property
    def title(self) -> str:
        """Return what people call it."""
        return self.folder.name or str(self.folder)

    @property
    def project(self) -> Project:
        """Return it for looking only; opened again when its settings have changed.

        Raises:
            ConfigurationError: see `open_project`.
        """
        if self._project is None or self._looks != self._seen(self._project):
            self._project = open_project(self.folder, config=self._config, acts=False, reads=True)
            self._looks = self._seen(self._project)
            self._rows.clear()
            self._names, self._told, self.diagnostics = None, {}, (0.0, [])
        return self._project

    def _seen(self, project: Project) -> object:
        """Return what changes with its settings, and with the charts that they name."""
        settings = project.settings
        config = settings.config_path or self.folder / "orchestration.yaml"
        return [_looks(path) for path in (config, *settings.registry.flows.values())]

    @property
    def is_remote(self) -> bool:
        """Return whether its runs are on a server, which tells of no change by itself."""
        return not self.project.settings.store_kind.has_files

    @property
    def unmerged(self) -> list[UnmergedWork]:
        """Return the work of its runs that nobody has merged, as git said it a moment ago."""
        until, found = self._unmerged
        if time.monotonic() >= until:
            # No file of a run changes when somebody merges it.
            found = [] if self.is_remote else [*self.project.unmerged()]
            self._unmerged = time.monotonic() + MERGES_S, found
        return found

    def acting(self) -> Project:
        """Return it for a change by hand.

        Raises:
            NotTrusted: nobody has said that it may act on this machine.
        """
        project = open_project(self.folder, config=self._config)
        project.trust.ensure(may_ask=False)
        return project

    def distrust(self) -> NotTrusted | None:
        """Return why nothing of it may be changed here; None: it may."""
        return self.project.trust.refusal()

    def names(self) -> dict[str, str | None]:
        """Return the names of its runs by their addresses.

        A name stands in a run's head, so heads are read again only when a run has appeared, or
        while one has none yet.
        """
        project = self.project
        listed = folders.names(project.settings.state_file.parent / "runs")
        has_all = all(
            row.head or row.facts for name, (_, row) in self._rows.items() if name != DEFAULT_RUN
        )
        if self._names is None or listed != self._listed or not has_all:
            named = {slug(name): name for name in project.run_names()}
            self._listed, self._names = listed, {DEFAULT_RUN: None, **named}
        return self._names

    def rows(self) -> Iterator[RunRow]:
        """Yield the runs that have begun."""
        found = self._remote.rows() if self.is_remote else self.names()
        for address in found:
            row = self.row(address)
            if row.head is not None or "error" in row.facts:
                yield row

    def _ask(self) -> dict[str, RunRow]:
        """Return all runs of a project on a server, begun or not.

        Raises:
            RemoteUnreachable: the server does not answer.
        """
        project = self.project
        found = {DEFAULT_RUN: None, **{slug(name): name for name in project.run_names()}}
        rows = {}
        for address, name in found.items():
            before = self._told.get(address)
            run = project.run(name) if before is None else before.run
            rows[address] = self._look(run, address, before)
        self._told = rows
        return rows

    def changed(self) -> None:
        """Look again now: something here was just changed."""
        if self.is_remote:
            self._remote.look()

    def row(self, address: str) -> RunRow:
        """Return the run at *address*, looked at again if its state has changed.

        Raises:
            UnknownName: there is none.
            RemoteUnreachable: it is on a server that does not answer.
        """
        # Each look at the project is one at its settings, and a page has hundreds of rows.
        project, known = self.project, self._rows.get(address)
        if not project.settings.store_kind.has_files:
            rows = self._remote.rows()
            if address not in rows:
                raise UnknownName("run", address, rows)
            return rows[address]
        if known is not None:
            run = known[1].run
        else:
            names = self._names or {}
            if address not in names and address not in (names := self.names()):
                raise UnknownName("run", address, names)
            run = project.run(names[address])
        looks = _looks(run.store.state_path)
        if known is None or known[0] != looks:
            known = looks, self._look(run, address, known and known[1])
            self._rows[address] = known
        return known[1]

    def _look(self, run: Run, address: str, before: RunRow | None) -> RunRow:
        """Return *run* as it is now; when it began is read once, as that is far back."""
        facts: dict[str, Any] = {}
        try:
            head = run.head
            if head is not None:
                known = None
                if before is not None and before.head and before.head.run_id == head.run_id:
                    known = before.facts["began_at"], before.facts["title"]
                elif self.is_remote and run.definition is None:
                    # Its first fact is as far away as all of its history.
                    known = None, None
                facts = run_facts(self.project, run, head, known)
        except RemoteUnreachable:
            raise
        except SequencerError as error:
            return RunRow(self, run, address, unread_facts(run, error), None)
        return RunRow(self, run, address, facts, head)

    def lacks(self, row: RunRow) -> bool:
        """Return whether what the run of *row* tells was not read from its beginning yet."""
        story, head = self._stories.get(row.address, RunStory()), row.head
        return head is not None and (story.run_id, story.is_whole) != (head.run_id, True)

    def keep(self, row: RunRow, story: RunStory) -> None:
        """Keep what the run of *row* tells, read elsewhere."""
        self._stories[row.address] = story

    def story(self, row: RunRow, *, is_whole: bool = True) -> RunStory:
        """Return what the run of *row* tells; of a long line the newest unless it *is_whole*."""
        story = self._stories.setdefault(row.address, RunStory())
        if row.head is not None:
            story.follow(row.run, row.head, is_whole=is_whole)
        return story


def _looks(path: Path) -> object:
    """Return what changes whenever *path* does."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a page has hundreds
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class Site:
    """Everything that is shown."""

    def __init__(self, folders: Iterable[Path], config: Path | None = None) -> None:
        """Show the projects in *folders*, a single one perhaps with a *config* of its own."""
        self.lock = threading.RLock()
        """Held by who reads: what was read is kept, and pages are made in threads."""
        self._reading = threading.Lock()
        self.refused: dict[str, tuple[int, float]] = {}
        """Why deliveries were refused lately: how often, and when last."""
        self.projects: dict[str, ShownProject] = {}
        for folder in dict.fromkeys(path.resolve() for path in folders):
            name = slug(folder.name or "root")
            number = sum(one.partition("~")[0] == name for one in self.projects)
            address = f"{name}~{number + 1}" if number else name
            self.projects[address] = ShownProject(folder, address, config)

    def project(self, address: str) -> ShownProject:
        """Return the project at *address*.

        Raises:
            UnknownName: there is none.
        """
        if address not in self.projects:
            raise UnknownName("project", address, self.projects)
        return self.projects[address]

    def read_ahead(self) -> None:
        """Read the runs that a page wants as a whole; other pages need not wait for that."""
        with self._reading:
            with self.lock:
                wanted = [row for row in self.rows() if row.project.lacks(row)]
            for row in wanted:
                story = RunStory()
                if row.head is not None:
                    story.follow(row.run, row.head)
                with self.lock:
                    row.project.keep(row, story)

    def rows(self) -> Iterator[RunRow]:
        """Yield every run that has begun, of the projects that can be read."""
        for project in self.projects.values():
            try:
                yield from project.rows()
            except SequencerError:
                # The page of the checks says what is wrong with it.
                continue
