"""What is done for a delivery: a run is started, answered, told something or stopped.

One thread a project takes them in their order. Before a change it notes on the delivery which
question it is about, and drops it afterwards: after a crash in between the same change is tried
again and refused, so nothing is decided or started twice. A run is worked on by a process of
its own that outlives this server; which runs those are is kept on disk too.

Not promised: an answer to who wrote what was refused; the server says so where it runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta

from sequencer.cli.views.runs import Open, open_at
from sequencer.engine.run import Run
from sequencer.errors import (
    Interrupted,
    RemoteRefused,
    SequencerError,
    StorageFailed,
    TransitionRefused,
)
from sequencer.logs import current_branch
from sequencer.model.head import Head, Status
from sequencer.model.limits import parse_time
from sequencer.posting.trackers import activity_id
from sequencer.project import Project
from sequencer.settings.webhooks import GithubHook, LinearHook
from sequencer.store.strictjson import parse_object
from sequencer.store.watch import notifier
from sequencer.web.hooks.box import Delivery, DeliveryBox
from sequencer.web.hooks.reading import (
    READERS,
    Ask,
    Document,
    TrackerEvent,
    Unwanted,
    decision,
    is_one,
)
from sequencer.web.site import ShownProject
from sequencer.workflows.requests.issues import as_request, free_name, issue_of

Say = Callable[[str], None]
OLDEST = timedelta(days=3, hours=1)
"""GitHub signs no time of sending, and sends again what is up to three days old."""
SKEW = timedelta(seconds=5)
"""A tracker's clock is another, and tells whole seconds."""
TRIES, PAUSE_S = 20, 30.0
"""Of a delivery for which the disk or a remote is in the way."""
RECHECK_S = 600.0
HELD_S = 600
"""How long a run that somebody else works on is waited for."""
MOST_OWN, OWN_EACH = 500, 4
"""Revisions whose results a comment may be, and results of one."""
_LATER = (StorageFailed, RemoteRefused, OSError)


def options_of(project: Project, tracker: str) -> GithubHook | LinearHook:
    """Return what *project* takes from *tracker*."""
    hooks = project.settings.webhooks
    return hooks.github if tracker == "github" else hooks.linear


def ensure_allowed(event: TrackerEvent, options: GithubHook | LinearHook) -> None:
    """Return if *options* allow *event*, by who and where.

    Raises:
        Unwanted: they do not, or it is too old to be believed.
    """
    if not is_one(event.places, options.places):
        raise Unwanted("the repository or team is not on the list")
    if not may(event.ask, event, options):
        raise Unwanted(f"who asks is not on the list of those who may {event.ask}")
    if datetime.now(UTC) - event.at > OLDEST:
        raise Unwanted("it is older than three days")


def may(ask: Ask, event: TrackerEvent, options: GithubHook | LinearHook) -> bool:
    """Return whether *options* let who sent *event* ask for *ask*."""
    lists = {
        Ask.START: options.may_start,
        Ask.SAY: options.may_answer,
        Ask.STOP: options.may_stop,
    }
    listed = lists[ask]
    return is_one(event.who, options.people if listed is None else listed)


class Desk:
    """Works on the deliveries of all projects."""

    def __init__(self, say: Say) -> None:
        """Tell people what was done by *say*."""
        self._say = say
        self._guard = threading.Lock()
        self._boxes: dict[str, DeliveryBox] = {}
        self._working: set[str] = set()

    def box(self, project: Project) -> DeliveryBox:
        """Return where the deliveries of *project* wait."""
        with self._guard:
            return self._boxes.setdefault(project.trust.key, DeliveryBox(project.trust.key))

    def begin(self, shown: ShownProject) -> None:
        """Work on what earlier servers have left, and say what *shown* takes."""
        try:
            project = shown.acting()
        except SequencerError as error:
            self._say(f"{shown.title} takes no deliveries: {error.message.partition(chr(10))[0]}")
            return
        hooks = project.settings.webhooks
        for name, one in (("github", hooks.github), ("linear", hooks.linear)):
            if one.places and not os.environ.get(one.secret_env):
                self._say(f"nothing is taken from {name}: {one.secret_env} is not set")
            elif one.places:
                self._say(f"{shown.title} takes deliveries at /hooks/{name}")
        box = self.box(project)
        if box.waiting() or box.wanted():
            self.work_on(shown, project)

    def work_on(self, shown: ShownProject, project: Project) -> None:
        """See that somebody works on the box of *project*."""
        key, box = project.trust.key, self.box(project)
        with self._guard:
            if key in self._working:
                return
            self._working.add(key)
        clerk = Clerk(shown, box, self._say)
        threading.Thread(target=clerk.work, name="deliveries", daemon=True).start()


class Clerk:
    """Does what the deliveries of one project ask for, one by one."""

    def __init__(self, shown: ShownProject, box: DeliveryBox, say: Say) -> None:
        """Work on *box*, which is that of *shown*."""
        self._shown, self._box, self._say = shown, box, say
        self._runs = RunProcesses(box, say)

    def work(self) -> None:
        """Work as long as this process lives."""
        with self._box.work(), closing(notifier(self._box.path, None)) as news:
            self._resume()
            while True:
                for name in self._box.waiting():
                    self._handle(name)
                news.wait(RECHECK_S, ())

    def _resume(self) -> None:
        """Work on the runs that an earlier server has left."""
        for run in self._box.wanted():
            try:
                project = self._shown.acting()
                if project.run(run).head is not None:
                    self._runs.want(project, run)
                    continue
                # It would be begun, with another workflow.
                self._box.unwant(run)
            except SequencerError as error:
                self._say(f"run {run} is not worked on: {error.message}")

    def _handle(self, name: str) -> None:
        """Act on the delivery called *name*, and drop it."""
        for left in range(TRIES - 1, -1, -1):
            try:
                delivery = self._box.read(name)
                done = f"{delivery.tracker}: {self._act(delivery)}"
            except Unwanted as error:
                done = f"nothing to do: {error}"
            except _LATER as error:
                done = f"given up: {error}"
                if left:
                    time.sleep(PAUSE_S)
                    continue
            except SequencerError as error:
                done = f"refused: {error.message}"
            except Exception as error:  # noqa: BLE001 - the next deliveries are to be acted on
                done = f"a delivery was dropped: {error!r}"
            self._say(done)
            self._box.drop(name)
            return

    def _act(self, delivery: Delivery) -> str:
        """Do what *delivery* asks for; return what was done.

        Raises:
            Unwanted: nothing, as it turns out.
            SequencerError: the project or its run refuses it.
        """
        project, tracker = self._shown.acting(), delivery.tracker
        # What was allowed at the door may not be any more.
        options = options_of(project, tracker)
        document = parse_object(delivery.body.encode())
        event = READERS[tracker](delivery.kind, document, options)
        ensure_allowed(event, options)
        about, run = f"{event.identifier}: ", run_of(project, event.identifier)
        if event.ask is Ask.START:
            return about + self._start(project, event, document, options, run)
        if run is None or run.head is None:
            raise Unwanted(f"{event.identifier} has no run")
        if event.id and event.id in own_comments(run.head):
            raise Unwanted("a run has posted it")
        by = f"{tracker}:{event.who[0]}"
        if event.ask is Ask.STOP:
            if event.only_if_labeled and not _has_label(run, options):
                raise Unwanted("the run was not started by a label")
            return about + self._stop(project, run, f"{by} took the issue away")
        said = decision(project.redaction.hide_text(event.text))
        if said[0] == "stop":
            if not may(Ask.STOP, event, options):
                raise Unwanted("who asks is not on the list of those who may stop")
            return about + self._stop(project, run, f"{by} said so")
        verb, done = CommentDecision(run, event, by, self._box, delivery).make(*said)
        if verb in ("approve", "feedback", "answer", "retry"):
            self._runs.want(project, run.name or "")
        elif verb == "reject":
            self._post(project, run)
        return about + done

    def _start(
        self,
        project: Project,
        event: TrackerEvent,
        document: Document,
        options: GithubHook | LinearHook,
        run: Run | None,
    ) -> str:
        """Make a run of the issue and have it worked on, unless one is there already."""
        head = None if run is None else run.head
        if run is not None and head is not None:
            if head.status is not Status.COMPLETE:
                if head.exit:
                    run.control.resume()
                self._runs.want(project, run.name or "")
                return f"run {run.name} is there already, and continues"
            if event.at <= (parse_time(head.last_update) or datetime.now(UTC)) + SKEW:
                raise Unwanted(f"run {run.name} has done it since")
        settings, hide = project.settings, project.redaction.hide_text
        request = as_request(
            issue_of(document, "the delivery"),
            hide,
            "the delivery",
            repository=settings.project_dir.name,
            base_branch=current_branch(settings.project_dir) or "",
        )
        starter = project.starter
        definition = starter.define(request, options.procedure)
        starter.ensure_installed(definition)
        name = free_name(event.identifier, project.run_names())
        project.run(name, definition).control.start(definition)
        self._runs.want(project, name)
        return f"run {name} of {definition.route.get('procedure')} begins, for {event.who[0]}"

    def _stop(self, project: Project, run: Run, reason: str) -> str:
        run.control.stop(reason)
        # The step that runs ends now: its agent is told to.
        self._runs.end(run.name or "")
        self._post(project, run)
        return f"run {run.name} is stopped: {reason}"

    def _post(self, project: Project, run: Run) -> None:
        """Tell the sinks what was decided; what they do not take waits."""
        try:
            if project.posting is not None:
                project.posting.deliver(run.name, self._say)
        except SequencerError as error:
            self._say(f"it was not posted: {error.message}")


def own_comments(head: Head) -> set[str]:
    """Return the ids of the comments in Linear by which the run of *head* has told its newest.

    They are made from the keys of results, so that nobody has to remember them.
    """
    newest = range(max(0, head.revision - MOST_OWN), head.revision + 1)
    keys = (f"{head.run_id}:{revision}:{n}" for revision in newest for n in range(OWN_EACH))
    return {activity_id(key) for key in keys}


def run_of(project: Project, identifier: str) -> Run | None:
    """Return the newest run of *project* that was made from the issue *identifier*."""
    base = free_name(identifier, ())
    pattern = re.compile(re.escape(base) + r"(?:-(\d{1,9}))?")
    found = [
        (int(match[1] or 1), name)
        for name in project.run_names()
        if (match := pattern.fullmatch(name))
    ]
    for _, name in sorted(found, reverse=True):
        run = project.run(name)
        definition = run.definition
        if definition is not None and definition.request.identifier == identifier:
            return run
    return None


def _has_label(run: Run, options: GithubHook | LinearHook) -> bool:
    definition = run.definition
    return definition is not None and bool(definition.request.has_label(options.labels))


class CommentDecision:
    """One comment, and what it decides in its run."""

    def __init__(
        self, run: Run, event: TrackerEvent, by: str, box: DeliveryBox, delivery: Delivery
    ) -> None:
        """Decide in *run* what *event* says, noted on the *delivery* in *box*."""
        self._run, self._event, self._by = run, event, by
        self._box, self._delivery = box, delivery

    def make(self, verb: str, note: str) -> tuple[str, str]:
        """Return which verb it was, and what was done.

        Raises:
            Unwanted: it decides nothing.
            SequencerError: the run refuses it.
        """
        head = self._run.head
        if head is None:
            raise Unwanted("the run has not begun")
        ask = open_at(self._run, head) if not head.exit else None
        if ask is not None:
            return self._answer(ask, verb, note)
        if self._delivery.token is not None:
            raise Unwanted("it was decided before")
        if verb == "retry" and head.status is Status.FAILED:
            self._run.control.retry()
            return "retry", f"run {self._run.name} tries again"
        if verb:
            raise Unwanted(f"nothing waits that could be decided by {verb!r}")
        return self._tell(head, note)

    def _answer(self, ask: Open, verb: str, note: str) -> tuple[str, str]:
        run, by = self._run, self._by
        if ask.gate is not None:
            token = self._about(ask.gate.token, ask.gate.opened_at)
            if verb == "approve":
                run.approve(note or None, by=by, token=token)
            elif verb == "reject":
                run.reject(note or None, by=by, token=token)
            else:
                verb = "feedback"
                run.feedback(note, by=by, token=token)
            return verb, f"{verb} of {ask.gate.step} by {by}"
        if len(ask.questions) > 1:
            raise Unwanted("several questions wait; answer them with 'sequencer answer'")
        question = ask.questions[0]
        token = self._about(question.token, question.asked_at)
        text = "\n".join(filter(None, (verb, note)))
        first = text.partition("\n")[0].strip()
        values = {name for one in question.options for name in (one.value, one.label)}
        said = first if is_one((first,), values) else text
        # An option is named as the chart has it, whatever its case in the comment.
        said = next((one for one in sorted(values) if one.casefold() == said.casefold()), said)
        run.answer(question.node.id, said, by=by, token=token)
        return "answer", f"answer to {question.node.id} by {by}"

    def _about(self, token: int, asked_at: str) -> int:
        """Return the token of the question that the comment answers, noted for after a crash.

        Raises:
            Unwanted: it was written before the question, or has decided another one.
        """
        if self._delivery.token not in (None, token):
            raise Unwanted("it was decided before")
        asked = parse_time(asked_at)
        if asked is None or self._event.at + SKEW < asked:
            raise Unwanted("it was written before the question")
        self._delivery.token = token
        self._box.note(self._delivery)
        return token

    def _tell(self, head: Head, said: str) -> tuple[str, str]:
        """Give the run what was said as guidance, once."""
        since = self._delivery.revision
        if since is None:
            self._delivery.revision = head.revision
            self._box.note(self._delivery)
        else:
            for fact in self._run.store.history(since):
                if fact["event"] == "told" and (fact.get("outcome") or {}).get("by") == self._by:
                    raise Unwanted("it was told before")
        where = f" ({self._event.url})" if self._event.url else ""
        text = f"{self._by}{where} wrote:\n\n{said}"
        one_place = self._run.kind.has_one_place
        nodes = [None] if one_place else [claim.step for claim in head.claims]
        if not nodes:
            raise TransitionRefused("tell: nobody works who could read it")
        for node in nodes:
            self._run.control.tell(node, text, by=self._by)
        return "tell", f"guidance by {self._by}"


class RunProcesses:
    """Works on runs, each in a process of its own that outlives this one."""

    def __init__(self, box: DeliveryBox, say: Say) -> None:
        """Keep in *box* which runs those are."""
        self._box, self._say = box, say
        self._guard = threading.Lock()
        self._next: dict[str, Project] = {}
        self._going: dict[str, subprocess.Popen[bytes]] = {}

    def want(self, project: Project, run: str) -> None:
        """Have *run* worked on: now, or as soon as others are done."""
        self._box.want(run)
        with self._guard:
            self._next[run] = project
        self._begin()

    def end(self, run: str) -> None:
        """Tell who works on *run* to end, and nobody to begin."""
        with self._guard:
            self._next.pop(run, None)
            going = self._going.get(run)
        if going is not None:
            going.terminate()
        self._box.unwant(run)

    def _begin(self) -> None:
        with self._guard:
            for run, project in [*self._next.items()]:
                if len(self._going) >= project.settings.webhooks.max_runs:
                    return
                if run in self._going:
                    # It is looked at again when that process has ended.
                    continue
                del self._next[run]
                self._going[run] = process = _process(project, run)
                args = (run, process)
                threading.Thread(target=self._wait, args=args, daemon=True).start()

    def _wait(self, run: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._guard:
            del self._going[run]
            is_wanted = run in self._next
        # What was ended from outside, perhaps with the machine, is begun again by the next server.
        if not is_wanted and code >= 0 and code != Interrupted.exit_code:
            self._box.unwant(run)
        self._say(f"work on run {run} ended with {code}")
        self._begin()


def _process(project: Project, run: str) -> subprocess.Popen[bytes]:
    """Start what works on *run*, as a person would who types it."""
    settings = project.settings
    secrets = {settings.webhooks.github.secret_env, settings.webhooks.linear.secret_env}
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
