"""Acts on deliveries: starts a run, answers it, gives it guidance, or stops it.

One thread per project handles its deliveries in order. Before a change it notes the run's
revision on the delivery, so that after a crash the same change is recognized and not made again.
A separate process works on each run and outlives this server; the list of these runs is on disk.

Not promised: a reply to the author of a refused delivery; only the health page shows it.
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

from sequencer.cli.views.runs import find_open_item, is_single_word
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
from sequencer.history.facts import read_facts as recorded
from sequencer.model.commands import (
    Resume,
    RetryNow,
    RunCommand,
    Stop,
    Tell,
)
from sequencer.model.head import Gate, Head, Status
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage
from sequencer.model.request import Route
from sequencer.plugins.posting.trackers import activity_id
from sequencer.plugins.requests.issues import find_free_name, parse_issue, to_request
from sequencer.plugins.requests.project_requests import build_starter
from sequencer.plugins.requests.starting import describe_lost_cost
from sequencer.plugins.web.actions import decide, make_command
from sequencer.plugins.web.section import get_webhook_options
from sequencer.plugins.web.site import ShownProject
from sequencer.plugins.web.webhook_settings import AnyHook
from sequencer.plugins.web.webhooks.deliveries import Delivery, DeliveryStore
from sequencer.plugins.web.webhooks.reading import (
    Ask,
    DeliveryIgnored,
    Document,
    TrackerEvent,
    is_any_known,
    parse_decision,
    read_event,
)
from sequencer.project.project import Project
from sequencer.store.strictjson import parse_object
from sequencer.store.watch import watch

Say = Callable[[str], None]
OLDEST = timedelta(days=3, hours=1)
"""Age limit of an event: GitHub signs no sending time, and redelivers for up to three days."""
SKEW = timedelta(seconds=5)
"""Allowed difference from a tracker's clock, which also rounds to whole seconds."""
AHEAD = timedelta(days=1)
"""A recorded time further ahead than this came from a wrong clock on this machine."""
TRIES, PAUSE_S = 20, 30.0
"""Attempts at a delivery while the disk or a remote fails, and the pause between them."""
RECHECK_S = 600.0
HELD_S = 600
"""How long to wait for a run that another process works on."""
MAX_OWN, OWN_EACH = 500, 4
"""How many of a run's newest revisions may have posted comments, and results per revision."""
_RETRIED = (StorageFailed, RemoteRefused, OSError, sqlite3.Error)
_STARTS_NO_WORK = frozenset({"reject", "tell", "stop"})
"""Commands that cause no new work."""


def ensure_allowed(event: TrackerEvent, options: AnyHook) -> None:
    """Check that *options* allow *event*: its sender, and its repository or team.

    Raises:
        DeliveryIgnored: they do not, or the event is too old; it could be a replay.
    """
    if not is_any_known(event.places, options.places):
        raise DeliveryIgnored("the repository or team is not on the list")
    ensure_may_ask(event.ask, event, options)
    if datetime.now(UTC) - event.at > OLDEST:
        raise DeliveryIgnored("it is older than three days")


def is_later(at: datetime, ended: str, now: datetime) -> bool:
    """Return whether an event *at* this time came after the run *ended*, so asks for a new run.

    An end more than a day ahead of *now* came from a wrong clock and is ignored. Otherwise every
    event until then, perhaps for years, would look old.
    """
    end = parse_time(ended) or now
    return end > now + AHEAD or at > end + SKEW


def ensure_may_ask(ask: Ask, event: TrackerEvent, options: AnyHook) -> None:
    """Check that *options* let the sender of *event* ask for *ask*.

    Raises:
        DeliveryIgnored: they do not.
    """
    people = getattr(options, f"may_{ask}")
    if not is_any_known(event.who, options.people if people is None else people):
        raise DeliveryIgnored(f"the sender is not on the list of people who may {ask}")


class DeliveryHandler:
    """Does what the deliveries of one project ask for, one at a time."""

    def __init__(self, shown: ShownProject, say: Say) -> None:
        """Work for the project *shown*; *say* gets a line for each thing that was done."""
        self.shown, self._say = shown, say
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: set[int] = set()
        """Numbers from `DeliveryStore.list_wanted_runs` for which this server started a process."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """The processes that work on runs, by run; each outlives this one."""
        self._route: Route | None = None
        """The route of the current delivery; kept for all tries, so that it is classified once."""
        self._paid: list[Usage] = []
        """What that classification cost, until a run counts it."""

    @cached_property
    def deliveries(self) -> DeliveryStore:
        """Return the stored deliveries of the project."""
        return DeliveryStore(self.shown.project.trust.key)

    def begin(self) -> None:
        """Say which deliveries are taken, and continue what earlier servers left."""
        try:
            hooks = get_webhook_options(self.shown.open_for_change().settings)
            is_left = self.deliveries.find_oldest_waiting() or self.deliveries.list_wanted_runs()
        except NotTrusted:
            if any(get_webhook_options(self.shown.project.settings).list_enabled_hooks()):
                text = "takes no deliveries: it is not trusted, or has changed since"
                self._say(f"{self.shown.title} {text}; 'sequencer trust' asks you")
            return
        except (SequencerError, sqlite3.Error) as error:
            text = str(error).partition("\n")[0]
            self._say(f"{self.shown.title} takes no deliveries: {text}")
            return
        for name, hook in hooks.list_enabled_hooks():
            text = f"{self.shown.title} takes deliveries at /hooks/{name}"
            lack = hook.find_secret_problem(os.environ)
            self._say(text if lack is None else f"nothing is taken from {name}: {lack}")
        if is_left:
            self.wake()

    def wake(self) -> None:
        """Start the thread that works on the deliveries, unless it is running."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._handle_deliveries, name="deliveries", daemon=True
                )
                self._thread.start()

    def _handle_deliveries(self) -> None:
        while True:
            try:
                with (
                    self.deliveries.hold_worker_lock(),
                    closing(watch(self.deliveries.path, None)) as news,
                ):
                    self._begin_runs()
                    while True:
                        while self._handle_next():
                            pass
                        news.wait(RECHECK_S, ())
            except (OSError, sqlite3.Error, SequencerError) as error:
                # No other thread handles what was taken, so this one keeps trying.
                self._say(f"deliveries wait: {error}")
                time.sleep(PAUSE_S)

    def _handle_next(self) -> bool:
        """Act on the oldest delivery; return whether there was one."""
        self._route, self._paid = None, []
        for tries_left in range(TRIES - 1, -1, -1):
            delivery = self.deliveries.find_oldest_waiting()
            if delivery is None:
                return False
            try:
                result = self._handle_delivery(delivery)
            except DeliveryIgnored as error:
                result = f"nothing to do: {error}"
            except _RETRIED as error:
                if tries_left:
                    time.sleep(PAUSE_S)
                    continue
                result = f"given up: {error}{self._lost}"
            except SequencerError as error:
                result = f"refused: {error.message}{self._lost}"
            except Exception as error:  # noqa: BLE001 - it must not block the next deliveries
                result = f"a delivery was dropped: {error!r}{self._lost}"
            self._say(f"{delivery.tracker}: {result}")
            self.deliveries.finish(delivery, result)
            break
        return True

    @property
    def _lost(self) -> str:
        """Return a note on what was paid for a run that was not started; empty if nothing was."""
        cost_text = describe_lost_cost(self._paid)
        return f"; {cost_text}" if cost_text else ""

    def _handle_delivery(self, delivery: Delivery) -> str:
        """Do what *delivery* asks for; return what was done.

        Raises:
            DeliveryIgnored: it asks for nothing here.
            SequencerError: the project or its run refuses it.
        """
        project, tracker = self.shown.open_for_change(), delivery.tracker
        # The settings may have changed since the receiver accepted it.
        options = get_webhook_options(project.settings).get_hook(tracker)
        document = parse_object(delivery.body.encode())
        event = read_event(tracker, delivery.kind, document, options)
        ensure_allowed(event, options)
        if event.ask is Ask.START:
            result = self._start(project, event, document, options)
        else:
            result = self._change(project, event, options, delivery)
        return f"{event.identifier}: {result}"

    def _start(
        self, project: Project, event: TrackerEvent, document: Document, options: AnyHook
    ) -> str:
        """Start a run for the issue, or continue the one that it has."""
        run = find_issue_run(project, event.identifier)
        head = None if run is None else run.head
        if run is not None and head is not None:
            if head.status is not Status.COMPLETE:
                if head.exit:
                    run.do(Resume())
                self._request_work(run.name or "")
                return f"run {run.name} already exists and continues"
            if not is_later(event.at, head.last_update, datetime.now(UTC)):
                raise DeliveryIgnored(f"run {run.name} has already done it")
        folder, starter = project.settings.project_dir, build_starter(project)
        starter = replace(starter, paid=self._paid)
        request = to_request(
            parse_issue(document, "the delivery"),
            project.redaction.hide_text,
            "the delivery",
            repository=folder.name,
            base_branch=current_branch(folder) or "",
        )
        if self._route is None:
            self._route = starter.route(request, options.procedure)
        definition = starter.define(request, route=self._route)
        starter.ensure_installed(definition)
        name = find_free_name(event.identifier, project.run_names())
        project.run(name, definition).commands.start(definition)
        self._paid.clear()
        self._request_work(name)
        return f"run {name} of {definition.route.get('procedure')} starts, for {event.who[0]}"

    def _change(
        self, project: Project, event: TrackerEvent, options: AnyHook, delivery: Delivery
    ) -> str:
        """Apply the comment or the stop to the issue's run, once."""
        run = find_issue_run(project, event.identifier)
        head = None if run is None else run.head
        if run is None or head is None:
            raise DeliveryIgnored(f"{event.identifier} has no run")
        if event.id in compute_comment_ids(head):
            raise DeliveryIgnored("a run posted it")
        decider = f"{delivery.tracker}:{event.who[0]}"
        if event.ask is Ask.STOP or parse_decision(event.text)[0] == "stop":
            reason = stop_reason(run, event, options, decider)
            decide(project, run.name, Stop(reason), decider)
            # The step that is running has to end too.
            self._end(run.name or "")
            return f"run {run.name} is stopped: {reason}"
        commands = list_event_commands(run, head, event, decider)
        if delivery.revision is None:
            self.deliveries.note(delivery, head.revision)
        elif is_done(run, delivery.revision, commands[0], decider):
            raise DeliveryIgnored("this was already done")
        for command in commands:
            decide(project, run.name, command, decider)
        verb = commands[0].verb
        if verb not in _STARTS_NO_WORK:
            self._request_work(run.name or "")
        return f"{'guidance' if verb == 'tell' else verb} by {decider}"

    def _request_work(self, run: str) -> None:
        """Have a process work on *run*: now, or when fewer than ``max_runs`` are running."""
        self.deliveries.add_wanted_run(run)
        self._begin_runs()

    def _end(self, run: str) -> None:
        """End the process that works on *run*, and start no other."""
        self.deliveries.remove_wanted_run(run)
        with self._guard:
            process = self._processes.get(run)
        if process is not None:
            process.terminate()

    def _begin_runs(self) -> None:
        """Start processes for the wanted runs, up to the project's ``max_runs``."""
        try:
            project = self.shown.open_for_change()
            with self._guard:
                for number, run in self.deliveries.list_wanted_runs():
                    if len(self._processes) >= get_webhook_options(project.settings).max_runs:
                        return
                    # If something ended its process from outside, the next server starts it again.
                    if run in self._processes or number in self._started:
                        continue
                    if project.run(run).head is None:
                        # The command would start a new run, with another workflow.
                        self.deliveries.remove_wanted_run(run)
                        continue
                    self._started.add(number)
                    self._processes[run] = process = _start_process(project, run)
                    args = (number, run, process)
                    threading.Thread(target=self._wait, args=args, daemon=True).start()
        except (SequencerError, sqlite3.Error, OSError) as error:
            self._say(f"no process can start for the wanted runs: {error}")

    def _wait(self, number: int, run: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._guard:
            del self._processes[run]
        # If the process was ended from outside, perhaps at a shutdown, the run stays wanted.
        if code >= 0 and code != Interrupted.exit_code:
            with suppress(OSError, sqlite3.Error, SequencerError):
                self.deliveries.remove_wanted_run(run, number)
        self._say(f"work on run {run} ended with exit code {code}")
        self._begin_runs()


def list_event_commands(run: Run, head: Head, event: TrackerEvent, by: str) -> list[RunCommand]:
    """Return the commands that *event* asks for, one or more.

    Raises:
        DeliveryIgnored: it decides nothing here, or was written before the question.
        TransitionRefused: it is guidance, and no agent is at work.
    """
    verb, note = parse_decision(event.text)
    open_item = None if head.exit else find_open_item(run, head)
    if open_item is None:
        if verb == "retry" and head.status is Status.FAILED:
            return [RetryNow()]
        if verb:
            raise DeliveryIgnored(f"no question is waiting that {verb!r} could answer")
        text = f"{by}{f' ({event.url})' if event.url else ''} wrote:\n\n{note}"
        nodes = [None] if run.kind.has_one_place else [claim.step for claim in head.claims]
        if not nodes:
            raise TransitionRefused("tell: no agent is at work that could read it")
        return [Tell(text, node) for node in nodes]
    if open_item.gate is not None:
        command = _build_decision(verb, note, open_item.gate)
        asked_at = open_item.gate.opened_at
    else:
        if len(open_item.questions) > 1:
            raise DeliveryIgnored(
                "several questions are waiting; answer them with 'sequencer answer'"
            )
        question = open_item.questions[0]
        # The answer names the option as the chart spells it; the comment's case does not matter.
        first_line = _fold_text(event.text.partition("\n")[0])
        names = (name for option in question.options for name in (option.value, option.label))
        answer = next(
            (name for name in names if name and _fold_text(name) == first_line), event.text
        )
        command = make_command("answer", answer, question.token, question.node.id)
        asked_at = question.asked_at
    question_time = parse_time(asked_at)
    if question_time is not None and question_time > datetime.now(UTC) + AHEAD:
        # The comment may answer an earlier question, and must not open this gate.
        raise DeliveryIgnored(
            "this machine's clock was wrong when it asked; answer on the run's page"
        )
    if question_time is None or event.at + SKEW < question_time:
        raise DeliveryIgnored("it was written before the question")
    return [command]


def _build_decision(verb: str, note: str, gate: Gate) -> RunCommand:
    """Return the decision about *gate* of a comment with *verb* in its first line.

    Raises:
        DeliveryIgnored: it decides nothing.
    """
    if verb == "retry":
        raise DeliveryIgnored("'retry' can't answer what is waiting")
    if not verb and is_single_word(note):
        raise DeliveryIgnored("one word other than 'approve' and 'reject' decides nothing")
    # Another comment without a deciding first line is feedback.
    return make_command(verb or "feedback", note, gate.token)


def _fold_text(text: str) -> str:
    return text.strip().rstrip(".!").casefold()


def is_done(run: Run, revision: int, command: RunCommand, by: str) -> bool:
    """Return whether *command* was done in *run* since *revision*, or its question was answered.

    One thread makes all decisions of *by*, so any that was recorded since is this command.
    """
    return any(
        isinstance(command, RetryNow)
        or fact.details.get("by") == by
        or fact.token == getattr(command, "token", None)
        for fact in recorded(run.store.history(revision))
    )


def compute_comment_ids(head: Head) -> set[str]:
    """Return the ids of the newest comments that the run of *head* may have posted to Linear.

    The ids are computed from the keys of results, so none has to be stored.
    """
    revisions = range(max(0, head.revision - MAX_OWN), head.revision + 1)
    keys = (
        f"{head.run_id}:{revision}:{number}" for revision in revisions for number in range(OWN_EACH)
    )
    return {activity_id(key) for key in keys}


def find_issue_run(project: Project, identifier: str) -> Run | None:
    """Return the newest run of *project* that was made from the issue *identifier*."""
    pattern = re.compile(re.escape(find_free_name(identifier, ())) + r"(-\d+)?")
    names = (name for name in project.run_names() if pattern.fullmatch(name))
    # By length first: name-10 is newer than name-9.
    for name in sorted(names, key=lambda name: (len(name), name), reverse=True):
        run = project.run(name)
        definition = run.definition
        if definition is not None and definition.request.identifier == identifier:
            return run
    return None


def stop_reason(run: Run, event: TrackerEvent, options: AnyHook, by: str) -> str:
    """Return the reason to record for stopping *run*.

    Raises:
        DeliveryIgnored: the sender may not stop runs, or the removed label did not start this run.
    """
    if event.ask is not Ask.STOP:
        ensure_may_ask(Ask.STOP, event, options)
        return f"{by} said so"
    definition = run.definition
    if event.only_if_labeled and not (definition and definition.request.find_label(options.labels)):
        raise DeliveryIgnored("the run was not started by a label")
    return f"{by} took the issue away"


def _start_process(project: Project, run: str) -> subprocess.Popen[bytes]:
    """Start ``sequencer run`` for *run*, without the webhook secrets in its environment."""
    settings = project.settings
    secrets = {
        get_webhook_options(settings).github.secret_env,
        get_webhook_options(settings).linear.secret_env,
    }
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
