"""The projects and runs that the pages show, each with its address; it caches what was read.

An address is looked up among the existing ones and never becomes a path. A run is read again
only when its state file has changed, so a page with hundreds of runs costs one stat call per run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.cli.views.facts import find_since, read_newest_facts
from sequencer.cli.views.next_command import read_situation, run_state
from sequencer.cli.views.runs import Open, find_open_item, read_gate_output, run_facts, unread_facts
from sequencer.cli.views.states import STATE_DISPLAYS, StateDisplay, get_state_display
from sequencer.engine.graph_changes import load_as_started
from sequencer.engine.run import Run
from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    NotTrusted,
    RemoteUnreachable,
    SequencerError,
    StepsMissing,
    UnknownName,
)
from sequencer.files.textfile import slug
from sequencer.model.commands import Adopt
from sequencer.model.graph.source import describe_differences
from sequencer.model.head import Head
from sequencer.model.kind import CommandContext
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.plugins.schedules.timers import TickPace, find_tick_pace
from sequencer.plugins.web.records import RunStory
from sequencer.project.diagnostics import Diagnostic
from sequencer.project.project import Project, open_project
from sequencer.project.settings import Settings
from sequencer.store import folder as folders

DEFAULT_RUN = "-"
"""The address of the default run. No named run can have it: a slug is never a single dash."""
MAX_DIFFERENCES = 8
"""Maximum lines about a changed workflow on a card."""
FIRST_S = 2.0
"""How long a page waits for the first answer of a server."""
PAUSE_S = 1.0
"""Seconds between two requests to a server."""
MERGES_S = 3.0
"""How long git's answer about merged branches stays valid."""
UNSEEN_S = 30.0
"""After this time without a request for the rows, the server is no longer asked."""


class Changed(Struct, frozen=True):
    """How a run's workflow in the project differs from the one that the run started with."""

    why: str
    command: str
    """The command that fixes it, ready to paste."""
    may_adopt: bool
    """Whether the run would accept `adopt` now."""


class RunRow(Struct, dict=True):
    """One run, as of the last time its head was read."""

    project: ShownProject
    run: Run
    address: str
    facts: dict[str, Any]
    """As ``runs --json`` prints them, or with ``error`` if the run can't be read."""
    head: Head | None
    lost: StepsMissing | None = None
    """The result of `Project.find_lost_steps`; not looked for after the run's end."""

    @property
    def url(self) -> str:
        """Return the address of its page."""
        return f"/p/{self.project.address}/{self.address}"

    @property
    def name(self) -> str:
        """Return the name that people know."""
        return self.run.name or "default run"

    @cached_property
    def since(self) -> str:
        """Return the time that `status` shows as "since"; empty: the run has no head."""
        head = self.head
        return "" if head is None else find_since(head, read_newest_facts(self.run, head))

    @cached_property
    def ask(self) -> Open | None:
        """Return the run's open gate or questions, read once; None: it asks nothing."""
        head = self.head
        if head is None or head.exit or not (head.is_at_gate or head.asks):
            return None
        with suppress(SequencerError):
            return find_open_item(self.run, head)
        return None

    @property
    def is_answered(self) -> bool:
        """Return whether a person has answered it on these pages and nothing happened since."""
        head = self.head
        return head is not None and self.project.answered.get(self.run.name) == head.revision

    @property
    def unmerged(self) -> list[UnmergedWork]:
        """Return its work that is not merged yet."""
        return [work for work in self.project.unmerged if work.run == self.run.name]

    @cached_property
    def shown_at_gate(self) -> str:
        """Return the text to decide on at its gate, read once; empty without a gate."""
        return (
            ""
            if self.ask is None or self.ask.gate is None
            else read_gate_output(self.run, self.ask.gate)
        )

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """Return the titles of nodes from the run's chart, by node id; only those it has."""
        head = self.head
        if head is None:
            return {}
        with suppress(SequencerError):
            nodes = load_as_started(self.run.store, head).workflow.nodes
            return {node.id: node.title for node in nodes if node.title and node.task is None}
        return {}

    def named(self, step: str) -> str:
        """Return *step* with its title, if the chart has one."""
        title = self.titles.get(step)
        return f"{step} ({title})" if title else step

    @property
    def changed(self) -> Changed | None:
        """Return how its workflow was changed; None: it was not, or the run is complete.

        This is not cached: the workflow's file may change while the run does not.
        """
        head = self.head
        if head is None or head.status == "complete":
            return None
        option = Open(self.run).option
        try:
            workflow = self.run.workflow_for(head)
            ensure_definition(head, workflow)
        except DefinitionChanged as error:
            reason = "\n".join([error.message, *self._differences(head, workflow)])
        except ConfigurationError as error:
            return Changed(str(error), "sequencer check", may_adopt=False)
        else:
            return None
        try:
            self.run.commands.kind.apply(head, Adopt(), CommandContext(at=datetime.now(UTC)))
        except SequencerError as error:
            reason = f"{reason}\n{error.message}"
            return Changed(reason, f"sequencer {option}reset", may_adopt=False)
        return Changed(reason, f"sequencer {option}adopt", may_adopt=True)

    def _differences(self, head: Head, workflow: Workflow) -> Sequence[str]:
        """Return the differences of *workflow* from the run's own workflow, a line each."""
        with suppress(SequencerError):
            return describe_differences(load_as_started(self.run.store, head).workflow, workflow)[
                :MAX_DIFFERENCES
            ]
        return ()

    @property
    def look(self) -> StateDisplay:
        """Return the run's state now; not cached: a process may die and change no file."""
        if "error" in self.facts:
            return STATE_DISPLAYS["unreadable"]
        head = self.head
        return (
            STATE_DISPLAYS["pending"]
            if head is None
            else get_state_display(run_state(read_situation(self.run, head)))
        )

    @property
    def is_stale(self) -> bool:
        """Return whether a claim's holder is gone, or its lease has expired."""
        claims = () if self.head is None else self.head.claims
        return any(self.run.store.liveness(claim).allows_take_over for claim in claims)

    @property
    def pace(self) -> TickPace | None:
        """Return the pace of the ticks that the run waits for; None: it waits for none."""
        head = self.head
        if head is None or head.claims or head.exit or head.status in ("complete", "paused"):
            return None
        return find_tick_pace(self.project.settings, self.run.name)


class RemoteRuns:
    """A server's newest answer about a project's runs; it is asked only while pages need it.

    Pages do not wait long for a server that does not answer: they say so, and it is asked again.

    Not promised: a change on the server before it is asked again, about a second later.
    """

    def __init__(self, ask: Callable[[], Mapping[str, RunRow]]) -> None:
        """Get the rows from *ask*, which may be slow or raise."""
        self._ask = ask
        self._rows: Mapping[str, RunRow] = {}
        self._error: SequencerError | None = None
        self._asked = threading.Lock()
        self._has_answer = threading.Event()
        self._wanted = 0.0
        self._thread: threading.Thread | None = None

    def rows(self) -> Mapping[str, RunRow]:
        """Return the rows of the newest answer, by address.

        Raises:
            SequencerError: the server can't be reached, or has not answered yet.
        """
        self._wanted = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()
        if not self._has_answer.wait(FIRST_S):
            raise RemoteUnreachable("the server has not answered yet")
        if self._error is not None:
            raise self._error
        return self._rows

    def refresh(self) -> None:
        """Ask the server now."""
        with self._asked:
            try:
                self._rows, self._error = self._ask(), None
            except SequencerError as error:
                self._error = error
        self._has_answer.set()

    def _poll(self) -> None:
        while time.monotonic() - self._wanted < UNSEEN_S:
            self.refresh()
            time.sleep(PAUSE_S)
        # The next request must not get this answer: it will be old by then.
        self._has_answer.clear()


class ShownProject:
    """One project that a person named on the command line."""

    def __init__(self, folder: Path, address: str, config: Path | None = None) -> None:
        """Show the project in *folder* at *address*; the first use opens it.

        *config* is its configuration file; None: search for it.
        """
        self.folder, self.address, self._config = folder, address, config
        self._settings_fingerprint: object = None
        self._project: Project | None = None
        self._rows: dict[str, tuple[object, RunRow]] = {}
        self._stories: dict[str, RunStory] = {}
        self._listed: list[str] = []
        self._names: dict[str, str | None] | None = None
        self._remote = RemoteRuns(self._read_remote_rows)
        self._remote_rows: dict[str, RunRow] = {}
        self.answered: dict[str | None, int] = {}
        """Runs that were continued on these pages: name -> revision after that."""
        self.diagnostics: tuple[float, list[Diagnostic]] = (0.0, [])
        """The health page's findings, after the time until which they are valid."""
        self._unmerged: tuple[float, list[UnmergedWork]] = (0.0, [])

    @property
    def title(self) -> str:
        """Return the name that people know."""
        return self.folder.name or str(self.folder)

    @property
    def project(self) -> Project:
        """Return the project for reading; it is opened again when its settings have changed.

        Raises:
            ConfigurationError: see `open_project`.
        """
        open_now = partial(open_project, self.folder, config=self._config, acts=False, reads=True)
        if self._project is None:
            self._project = open_now()  # names the files to look at
        if self._settings_fingerprint != (fingerprint := self._fingerprint_settings(self._project)):
            # Looked at before reading: a file that changes in between is read again next time.
            self._project, self._settings_fingerprint = open_now(), fingerprint
            self._rows.clear()
            self._names, self._remote_rows, self.diagnostics = None, {}, (0.0, [])
        return self._project

    @property
    def settings(self) -> Settings:
        """Return its settings as they were when `project` was last asked for.

        Each use of `project` checks the settings' files, and a page has hundreds of rows.
        """
        return (self._project or self.project).settings

    def _fingerprint_settings(self, project: Project) -> object:
        """Return a value that changes with its settings file and the charts in the settings."""
        settings = project.settings
        config = settings.config_path or self.folder / "orchestration.yaml"
        return [_fingerprint(path) for path in (config, *settings.registry.flows.values())]

    @property
    def is_remote(self) -> bool:
        """Return whether its runs are on a server, which does not report changes."""
        return not self.project.settings.store_kind.has_files

    @property
    def unmerged(self) -> list[UnmergedWork]:
        """Return the work of its runs that is not merged; git's answer may be `MERGES_S` old."""
        deadline, works = self._unmerged
        if time.monotonic() >= deadline:
            # A merge changes no file of the run, so git has to be asked again.
            works = [] if self.is_remote else [*self.project.find_unmerged_work()]
            self._unmerged = time.monotonic() + MERGES_S, works
        return works

    def open_for_change(self) -> Project:
        """Return the project, opened again, for a command that changes a run.

        Raises:
            NotTrusted: no person has trusted it on this machine.
        """
        project = open_project(self.folder, config=self._config)
        project.trust.ensure(may_ask=False)
        return project

    def distrust(self) -> NotTrusted | None:
        """Return why nothing in it may be changed from here; None if it is trusted."""
        return self.project.trust.refusal()

    def names(self) -> dict[str, str | None]:
        """Return the names of its runs by their addresses.

        A run's name is in its head, so heads are read again only when there is a new run, or
        while a run has no head yet.
        """
        project = self.project
        folder_names = folders.list_names(project.settings.state_file.parent / "runs")
        has_all = all(
            row.head or row.facts for name, (_, row) in self._rows.items() if name != DEFAULT_RUN
        )
        if self._names is None or folder_names != self._listed or not has_all:
            run_names = {slug(name): name for name in project.run_names()}
            self._listed, self._names = folder_names, {DEFAULT_RUN: None, **run_names}
        return self._names

    def rows(self) -> Iterator[RunRow]:
        """Yield the runs that were started, and those that can't be read."""
        addresses = self._remote.rows() if self.is_remote else self.names()
        for address in addresses:
            row = self._row(self.settings, address)
            if row.head is not None or "error" in row.facts:
                yield row

    def _read_remote_rows(self) -> dict[str, RunRow]:
        """Return all runs of a project on a server, by address, started or not.

        Raises:
            RemoteUnreachable: the server does not answer.
        """
        project = self.project
        names = {DEFAULT_RUN: None, **{slug(name): name for name in project.run_names()}}
        rows = {}
        for address, name in names.items():
            old_row = self._remote_rows.get(address)
            run = project.run(name) if old_row is None else old_row.run
            rows[address] = self._read_row(run, address, old_row)
        self._remote_rows = rows
        return rows

    def refresh_runs(self) -> None:
        """Read the runs again now, after a change from these pages."""
        if self.is_remote:
            self._remote.refresh()

    def row(self, address: str) -> RunRow:
        """Return the row of the run at *address*, read again if its state file has changed.

        Raises:
            UnknownName: there is none.
            RemoteUnreachable: its server is not responding.
        """
        return self._row(self.project.settings, address)

    def _row(self, settings: Settings, address: str) -> RunRow:
        entry, opened = self._rows.get(address), self._project
        if not settings.store_kind.has_files:
            rows = self._remote.rows()
            if address not in rows:
                raise UnknownName("run", address, rows)
            return rows[address]
        if entry is not None:
            run = entry[1].run
        else:
            names = self._names or {}
            if address not in names and address not in (names := self.names()):
                raise UnknownName("run", address, names)
            run = self.project.run(names[address])
        fingerprint = _fingerprint(run.store.state_path)
        if entry is None or entry[0] != fingerprint:
            entry = fingerprint, self._read_row(run, address, entry[1] if entry else None)
            if self._project is not opened:
                # Its settings changed meanwhile, and this row still has the old ones.
                return self._row(self.settings, address)
            self._rows[address] = entry
        return entry[1]

    def _read_row(self, run: Run, address: str, old_row: RunRow | None) -> RunRow:
        """Return *run* as it is now; its start is read only once, as it is far back."""
        facts, lost = dict[str, Any](), None
        try:
            if (head := run.head) is not None:
                start_facts = None
                if old_row is not None and old_row.head and old_row.head.run_id == head.run_id:
                    start_facts = old_row.facts["began_at"], old_row.facts["title"]
                elif self.is_remote and run.definition is None:
                    # Finding its first fact would mean reading the whole history.
                    start_facts = None, None
                facts = run_facts(self.project, run, head, start_facts)
                lost = None if facts["ended"] else self.project.find_lost_steps(run, head)
        except RemoteUnreachable:
            raise
        except SequencerError as error:
            return RunRow(self, run, address, unread_facts(run, error), None)
        return RunRow(self, run, address, facts, head, lost)

    def has_unread_story(self, row: RunRow) -> bool:
        """Return whether the story of *row* has not been read from its start yet."""
        story, head = self._stories.get(row.address, RunStory()), row.head
        return head is not None and (story.run_id, story.is_whole) != (head.run_id, True)

    def store_story(self, row: RunRow, story: RunStory) -> None:
        """Store the *story* of *row*, which another thread has read."""
        self._stories[row.address] = story

    def story(self, row: RunRow, *, is_whole: bool = True) -> RunStory:
        """Return the story of *row*; for a long run only its newest part, unless *is_whole*."""
        story = self._stories.setdefault(row.address, RunStory())
        if row.head is not None:
            story.read_facts(row.run, row.head, is_whole=is_whole)
        return story


def _fingerprint(path: Path) -> object:
    """Return a value that changes whenever the file at *path* does; None: there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a page has hundreds
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class Site:
    """All projects that the pages show."""

    def __init__(self, folders: Iterable[Path], config: Path | None = None) -> None:
        """Show the projects in *folders*; *config* is the configuration file of a single one."""
        self.lock = threading.RLock()
        """Must be held to read: pages are made in threads, and share what was read."""
        self._reading = threading.Lock()
        self.refused: dict[str, tuple[int, float]] = {}
        """Recently refused deliveries: reason -> (how often, time of the last one)."""
        self.projects: dict[str, ShownProject] = {}
        for folder in dict.fromkeys(path.resolve() for path in folders):
            name = slug(folder.name or "root")
            number = sum(known_address.partition("~")[0] == name for known_address in self.projects)
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
        """Read all stories from their start, outside of `lock`, so other pages need not wait."""
        with self._reading:
            with self.lock:
                rows = [row for row in self.rows() if row.project.has_unread_story(row)]
            for row in rows:
                story = RunStory()
                if row.head is not None:
                    story.read_facts(row.run, row.head)
                with self.lock:
                    row.project.store_story(row, story)

    def rows(self) -> Iterator[RunRow]:
        """Yield every run that was started, of all projects that can be read."""
        for project in self.projects.values():
            try:
                yield from project.rows()
            except SequencerError:
                # The health page says what is wrong with this project.
                continue
