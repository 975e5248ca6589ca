"""What is done for a delivery: a run is started, answered, told something or stopped.

One thread a project takes them in their order. Before a change it notes on the delivery at which
revision the run is, so that after a crash the same change is recognized and not made again. A
run is worked on by a process of its own that outlives this server; which runs those are is kept
on disk too.

Not promised: an answer to who wrote what was refused; the page about health says so.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property

from msgspec.structs import replace

from sequencer.cli.views.runs import open_at
from sequencer.engine.logs import current_branch
from sequencer.engine.run import Run
from sequencer.errors import (
    Interrupted,
    NotTrusted,
    RemoteRefused,
    SequencerError,
    StorageFailed,
    TransitionRefused,
)
from sequencer.history.facts import read as recorded
from sequencer.model.commands import (
    Resume,
    RetryNow,
    RunCommand,
    Stop,
    Tell,
)
from sequencer.model.head import Head, Status
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage
from sequencer.model.request import Route
from sequencer.plugins.posting.trackers import activity_id
from sequencer.plugins.requests.issues import as_request, free_name, issue_of
from sequencer.plugins.requests.project_requests import starter_of
from sequencer.plugins.requests.starting import lost_words
from sequencer.plugins.web.actions import decide, decision_of
from sequencer.plugins.web.section import webhooks_of
from sequencer.plugins.web.site import ShownProject
from sequencer.plugins.web.webhook_settings import AnyHook
from sequencer.plugins.web.webhooks.box import Delivery, DeliveryBox
from sequencer.plugins.web.webhooks.reading import (
    Ask,
    Document,
    TrackerEvent,
    Unwanted,
    decision,
    is_one,
    read,
)
from sequencer.project.project import Project
from sequencer.store.strictjson import parse_object
from sequencer.store.watch import watch

Say = Callable[[str], None]
OLDEST = timedelta(days=3, hours=1)
"""GitHub signs no time of sending, and sends again what is up to three days old."""
SKEW = timedelta(seconds=5)
"""A tracker's clock is another, and tells whole seconds."""
AHEAD = timedelta(days=1)
"""A time of ours that is further ahead is of a clock that was wrong."""
TRIES, PAUSE_S = 20, 30.0
"""Of a delivery for which the disk or a remote is in the way."""
RECHECK_S = 600.0
HELD_S = 600
"""How long a run that somebody else works on is waited for."""
MOST_OWN, OWN_EACH = 500, 4
"""Revisions whose results a comment may be, and results of one."""
_LATER = (StorageFailed, RemoteRefused, OSError, sqlite3.Error)
_IS_REST = frozenset({"reject", "tell", "stop"})
"""What leaves nothing more to work on than before."""


def ensure_allowed(event: TrackerEvent, options: AnyHook) -> None:
    """Return if *options* allow *event*, by who and where.

    Raises:
        Unwanted: they do not, or it is too old to be believed.
    """
    if not is_one(event.places, options.places):
        raise Unwanted("the repository or team is not on the list")
    ensure_may(event.ask, event, options)
    if datetime.now(UTC) - event.at > OLDEST:
        raise Unwanted("it is older than three days")


def is_later(at: datetime, ended: str, now: datetime) -> bool:
    """Return whether an event *at* is about another start than that of the run that *ended*.

    An end more than a day ahead of *now* was written by a clock that was wrong: until then, for
    years perhaps, each event would be taken for an old one.
    """
    end = parse_time(ended) or now
    return end > now + AHEAD or at > end + SKEW


def ensure_may(ask: Ask, event: TrackerEvent, options: AnyHook) -> None:
    """Return if *options* let who sent *event* ask for *ask*.

    Raises:
        Unwanted: they do not.
    """
    listed = getattr(options, f"may_{ask}")
    if not is_one(event.who, options.people if listed is None else listed):
        raise Unwanted(f"the sender is not on the list of people who may {ask}")


class Clerk:
    """Does what the deliveries of one project ask for, one by one."""

    def __init__(self, shown: ShownProject, say: Say) -> None:
        """Work for the project *shown*, and tell people what was done by *say*."""
        self.shown, self._say = shown, say
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: set[int] = set()
        """Numbers of the wishes for work on a run that were met."""
        self._going: dict[str, subprocess.Popen[bytes]] = {}
        """What works on runs, each in a process of its own that outlives this one."""
        self._route: Route | None = None
        """Of the delivery that is tried; its request is classified and paid once."""
        self._paid: list[Usage] = []
        """For that, and counted in no run so far."""

    @cached_property
    def box(self) -> DeliveryBox:
        """Return where its deliveries wait."""
        return DeliveryBox(self.shown.project.trust.key)

    def begin(self) -> None:
        """Say what is taken, and work on what earlier servers have left."""
        try:
            hooks = webhooks_of(self.shown.acting().settings)
            is_left = self.box.next() or self.box.wanted()
        except NotTrusted:
            if any(webhooks_of(self.shown.project.settings).taken()):
                text = "takes no deliveries: it is not trusted, or has changed since"
                self._say(f"{self.shown.title} {text}; 'sequencer trust' asks you")
            return
        except (SequencerError, sqlite3.Error) as error:
            text = str(error).partition("\n")[0]
            self._say(f"{self.shown.title} takes no deliveries: {text}")
            return
        for name, one in hooks.taken():
            text = f"{self.shown.title} takes deliveries at /hooks/{name}"
            lack = one.lack(os.environ)
            self._say(text if lack is None else f"nothing is taken from {name}: {lack}")
        if is_left:
            self.wake()

    def wake(self) -> None:
        """See that somebody works on the box."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="deliveries", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                with self.box.work(), closing(watch(self.box.path, None)) as news:
                    self._begin_runs()
                    while True:
                        while self._handle_next():
                            pass
                        news.wait(RECHECK_S, ())
            except (OSError, sqlite3.Error, SequencerError) as error:
                # Nobody else works on what was taken, so this goes on until it can.
                self._say(f"deliveries wait: {error}")
                time.sleep(PAUSE_S)

    def _handle_next(self) -> bool:
        """Act on the oldest delivery; return whether there was one."""
        self._route, self._paid = None, []
        for left in range(TRIES - 1, -1, -1):
            delivery = self.box.next()
            if delivery is None:
                return False
            try:
                done = self._act(delivery)
            except Unwanted as error:
                done = f"nothing to do: {error}"
            except _LATER as error:
                if left:
                    time.sleep(PAUSE_S)
                    continue
                done = f"given up: {error}{self._lost}"
            except SequencerError as error:
                done = f"refused: {error.message}{self._lost}"
            except Exception as error:  # noqa: BLE001 - the next deliveries are to be acted on
                done = f"a delivery was dropped: {error!r}{self._lost}"
            self._say(f"{delivery.tracker}: {done}")
            self.box.finish(delivery, done)
            break
        return True

    @property
    def _lost(self) -> str:
        """Return what was paid for a run that was not made; empty: nothing was."""
        lost = lost_words(self._paid)
        return f"; {lost}" if lost else ""

    def _act(self, delivery: Delivery) -> str:
        """Do what *delivery* asks for; return what was done.

        Raises:
            Unwanted: nothing, as it turns out.
            SequencerError: the project or its run refuses it.
        """
        project, tracker = self.shown.acting(), delivery.tracker
        # What was allowed at the door may not be any more.
        options = webhooks_of(project.settings).of(tracker)
        document = parse_object(delivery.body.encode())
        event = read(tracker, delivery.kind, document, options)
        ensure_allowed(event, options)
        if event.ask is Ask.START:
            done = self._start(project, event, document, options)
        else:
            done = self._change(project, event, options, delivery)
        return f"{event.identifier}: {done}"

    def _start(
        self, project: Project, event: TrackerEvent, document: Document, options: AnyHook
    ) -> str:
        """Make a run of the issue and have it worked on, unless one is there already."""
        run = run_of(project, event.identifier)
        head = None if run is None else run.head
        if run is not None and head is not None:
            if head.status is not Status.COMPLETE:
                if head.exit:
                    run.do(Resume())
                self._want(run.name or "")
                return f"run {run.name} already exists and continues"
            if not is_later(event.at, head.last_update, datetime.now(UTC)):
                raise Unwanted(f"run {run.name} has already done it")
        folder, starter = project.settings.project_dir, starter_of(project)
        starter = replace(starter, paid=self._paid)
        request = as_request(
            issue_of(document, "the delivery"),
            project.redaction.hide_text,
            "the delivery",
            repository=folder.name,
            base_branch=current_branch(folder) or "",
        )
        if self._route is None:
            self._route = starter.route(request, options.procedure)
        definition = starter.define(request, route=self._route)
        starter.ensure_installed(definition)
        name = free_name(event.identifier, project.run_names())
        project.run(name, definition).commands.start(definition)
        self._paid.clear()
        self._want(name)
        return f"run {name} of {definition.route.get('procedure')} starts, for {event.who[0]}"

    def _change(
        self, project: Project, event: TrackerEvent, options: AnyHook, delivery: Delivery
    ) -> str:
        """Do what was said about the run of the issue, once."""
        run = run_of(project, event.identifier)
        head = None if run is None else run.head
        if run is None or head is None:
            raise Unwanted(f"{event.identifier} has no run")
        if event.id in own_comments(head):
            raise Unwanted("a run posted it")
        by = f"{delivery.tracker}:{event.who[0]}"
        if event.ask is Ask.STOP or decision(event.text)[0] == "stop":
            reason = stop_reason(run, event, options, by)
            decide(project, run.name, Stop(reason), by)
            # The running step ends too.
            self._end(run.name or "")
            return f"run {run.name} is stopped: {reason}"
        commands = commands_of(run, head, event, by)
        if delivery.revision is None:
            self.box.note(delivery, head.revision)
        elif is_done(run, delivery.revision, commands[0], by):
            raise Unwanted("this was already done")
        for command in commands:
            decide(project, run.name, command, by)
        verb = commands[0].verb
        if verb not in _IS_REST:
            self._want(run.name or "")
        return f"{'guidance' if verb == 'tell' else verb} by {by}"

    def _want(self, run: str) -> None:
        """Have *run* worked on: now, or as soon as others are done."""
        self.box.want(run)
        self._begin_runs()

    def _end(self, run: str) -> None:
        """Tell who works on *run* to end, and nobody to begin."""
        self.box.unwant(run)
        with self._guard:
            going = self._going.get(run)
        if going is not None:
            going.terminate()

    def _begin_runs(self) -> None:
        """Work on what is wanted, as far as the project allows at the same time."""
        try:
            project = self.shown.acting()
            with self._guard:
                for number, run in self.box.wanted():
                    if len(self._going) >= webhooks_of(project.settings).max_runs:
                        return
                    # One whose process was ended from outside is for the next server.
                    if run in self._going or number in self._started:
                        continue
                    if project.run(run).head is None:
                        # It would be begun, with another workflow.
                        self.box.unwant(run)
                        continue
                    self._started.add(number)
                    self._going[run] = process = _process(project, run)
                    args = (number, run, process)
                    threading.Thread(target=self._wait, args=args, daemon=True).start()
        except (SequencerError, sqlite3.Error, OSError) as error:
            self._say(f"runs are not worked on: {error}")

    def _wait(self, number: int, run: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._guard:
            del self._going[run]
        # What was ended from outside, perhaps with the machine, is begun again by the next server.
        if code >= 0 and code != Interrupted.exit_code:
            with suppress(OSError, sqlite3.Error, SequencerError):
                self.box.unwant(run, number)
        self._say(f"work on run {run} ended with exit code {code}")
        self._begin_runs()


def commands_of(run: Run, head: Head, event: TrackerEvent, by: str) -> list[RunCommand]:
    """Return the commands that *event* asks for, one or more.

    Raises:
        Unwanted: it decides nothing here, or was written before the question.
        TransitionRefused: nobody could read it.
    """
    verb, note = decision(event.text)
    ask = None if head.exit else open_at(run, head)
    if ask is None:
        if verb == "retry" and head.status is Status.FAILED:
            return [RetryNow()]
        if verb:
            raise Unwanted(f"no question is waiting that {verb!r} could answer")
        text = f"{by}{f' ({event.url})' if event.url else ''} wrote:\n\n{note}"
        nodes = [None] if run.kind.has_one_place else [claim.step for claim in head.claims]
        if not nodes:
            raise TransitionRefused("tell: no agent is at work that could read it")
        return [Tell(text, node) for node in nodes]
    if ask.gate is not None:
        if verb == "retry":
            raise Unwanted("'retry' can't answer what is waiting")
        # Without a word it is feedback.
        command = decision_of(verb or "feedback", note, ask.gate.token)
        asked_at = ask.gate.opened_at
    else:
        if len(ask.questions) > 1:
            raise Unwanted("several questions are waiting; answer them with 'sequencer answer'")
        question = ask.questions[0]
        # An option is named as the chart has it, whatever its case in the comment.
        first = _folded(event.text.partition("\n")[0])
        names = (name for one in question.options for name in (one.value, one.label))
        said = next((one for one in names if one and _folded(one) == first), event.text)
        command = decision_of("answer", said, question.token, question.node.id)
        asked_at = question.asked_at
    asked = parse_time(asked_at)
    if asked is not None and asked > datetime.now(UTC) + AHEAD:
        # It could be an answer to an earlier question, and that opens no gate.
        raise Unwanted("this machine's clock was wrong when it asked; answer on the run's page")
    if asked is None or event.at + SKEW < asked:
        raise Unwanted("it was written before the question")
    return [command]


def _folded(text: str) -> str:
    return text.strip().rstrip(".!").casefold()


def is_done(run: Run, revision: int, command: RunCommand, by: str) -> bool:
    """Return whether *command* was done in *run* since *revision*, or was about another question.

    *by* decides through one thread, so that what they have done since is this.
    """
    return any(
        isinstance(command, RetryNow)
        or fact.details.get("by") == by
        or fact.token == getattr(command, "token", None)
        for fact in recorded(run.store.history(revision))
    )


def own_comments(head: Head) -> set[str]:
    """Return the ids of the comments in Linear by which the run of *head* has told its newest.

    They are made from the keys of results, so that nobody has to remember them.
    """
    newest = range(max(0, head.revision - MOST_OWN), head.revision + 1)
    keys = (f"{head.run_id}:{revision}:{n}" for revision in newest for n in range(OWN_EACH))
    return {activity_id(key) for key in keys}


def run_of(project: Project, identifier: str) -> Run | None:
    """Return the newest run of *project* that was made from the issue *identifier*."""
    pattern = re.compile(re.escape(free_name(identifier, ())) + r"(-\d+)?")
    names = (name for name in project.run_names() if pattern.fullmatch(name))
    for name in sorted(names, key=lambda one: (len(one), one), reverse=True):
        run = project.run(name)
        definition = run.definition
        if definition is not None and definition.request.identifier == identifier:
            return run
    return None


def stop_reason(run: Run, event: TrackerEvent, options: AnyHook, by: str) -> str:
    """Return why *run* is stopped.

    Raises:
        Unwanted: it is not, as nothing of it was taken away, or who says so may not.
    """
    if event.ask is not Ask.STOP:
        ensure_may(Ask.STOP, event, options)
        return f"{by} said so"
    definition = run.definition
    if event.only_if_labeled and not (definition and definition.request.has_label(options.labels)):
        raise Unwanted("the run was not started by a label")
    return f"{by} took the issue away"


def _process(project: Project, run: str) -> subprocess.Popen[bytes]:
    """Start what works on *run*, as a person would who types it."""
    settings = project.settings
    secrets = {webhooks_of(settings).github.secret_env, webhooks_of(settings).linear.secret_env}
    environment = {name: value for name, value in os.environ.items() if name not in secrets}
    argv = [sys.executable, "-P", "-m", "sequencer", "--quiet", f"--run={run}"]
    if settings.config_path is not None:
        argv.append(f"--config={settings.config_path}")
    return subprocess.Popen(  # noqa: S603 - our own program
        [*argv, "run", f"--max-wait={HELD_S}"],
        cwd=settings.project_dir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
