"""Graph runs in this process, with an executor that does what a test says."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from bench.project import Fixed
from sequencer.engine.events import Emit, NoticeGiven, ignore
from sequencer.engine.graph_budget import GraphBudget
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.graph_worker import GraphWorker, Slots
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.logs import StepLogs
from sequencer.engine.performing import Performer
from sequencer.engine.prompts import PromptFolder
from sequencer.engine.run import Run
from sequencer.engine.run_commands import RunCommands
from sequencer.engine.workspace import Workspace
from sequencer.errors import ConfigurationError, SequencerError
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Executor, Listener, StepRequest
from sequencer.history.trace import trace_line
from sequencer.model.commands import AnswerQuestion
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.store.protocol import Store
from tests.flows import workflow
from tests.played import PlayedRun, PlayedStore

LIMIT_S = 15.0
Act = Callable[[StepRequest, Cancellation], Outcome]
Said = str | Outcome | BaseException | Act
FREE = InvocationLimits(max_steps=None)


def said(output: str = "", **more: Any) -> Outcome:
    return Outcome(status=OutcomeStatus.OK, output=output, **more)


def failed(error: str = "boom", **more: Any) -> Outcome:
    return Outcome(status=OutcomeStatus.FAILED, error=error, **more)


def interrupted() -> Outcome:
    return Outcome(status=OutcomeStatus.INTERRUPTED)


def limited(not_before: str | None = None) -> Outcome:
    return Outcome(status=OutcomeStatus.LIMITED, error="limit", not_before=not_before)


class Hold:
    """An agent that works until the test lets it go, or somebody stops it."""

    def __init__(self, then: str | Outcome = "") -> None:
        self._then = then
        self.began = threading.Event()
        self.go = threading.Event()
        self.was_stopped = False

    def __call__(self, request: StepRequest, cancellation: Cancellation) -> Outcome:
        del request
        self.began.set()
        end = time.monotonic() + LIMIT_S
        while not self.go.is_set():
            assert time.monotonic() < end, "nobody has let it go"
            if cancellation.wait(0.002):
                self.was_stopped = True
                return interrupted()
        return said(self._then) if isinstance(self._then, str) else self._then

    def wait(self) -> None:
        assert self.began.wait(LIMIT_S), "it was never begun"


def slots_of(worker: GraphWorker, steps: int | None = None) -> Slots:
    """Return how many attempts *worker* may start in an invocation for so many *steps*."""
    limits = InvocationLimits(max_steps=steps)
    head = worker.store.view().head
    assert head is not None
    return GraphBudget(Mode.COMBINED, limits, worker.limits, head, places=worker.places).slots


@dataclass
class Actor:
    """Answers for each node what it was given, one after the other, the last again and again."""

    says: dict[str, list[Said]] = field(default_factory=dict)
    kind: ClassVar[str] = "actor"
    supported_fields: ClassVar[frozenset[str]] = frozenset(Step.model_fields)
    asked: list[StepRequest] = field(default_factory=list)
    tells: dict[str, Usage] = field(default_factory=dict)
    """What a node has used, as it is told while it works."""
    most: int = 0
    """Nodes at once, at most."""
    _now: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def problems(self) -> list[str]:
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        name = request.step.name
        if name in self.tells:
            listener.report_usage(self.tells[name])
        with self._lock:
            self.asked.append(request)
            count = self._counts.get(name, 0)
            self._counts[name] = count + 1
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            given = self.says.get(name) or [""]
            answer = given[min(count, len(given) - 1)]
            if isinstance(answer, BaseException):
                raise answer
            if callable(answer):
                return answer(request, cancellation)
            return said(answer) if isinstance(answer, str) else answer
        finally:
            with self._lock:
                self._now -= 1

    @property
    def names(self) -> list[str]:
        """Return the nodes that were asked, in order."""
        return [request.step.name for request in self.asked]

    def prompts_of(self, name: str) -> list[str]:
        return [request.prompt for request in self.asked if request.step.name == name]


@dataclass
class Cast:
    """The agents of a test: one actor for all."""

    actor: Executor

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        assert step.name == position
        return "actor", self.actor

    def choose_installed(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        return *self.choose(step, position), None

    has_fallback = False

    def choose_fallback(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        """Return nobody."""

    def list_unfit_fallbacks(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        """Return nobody."""
        del step, agent
        return []

    def ensure_folder(self, agent: str, folder: Path) -> None:
        """Do nothing."""

    def warm_up(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Texts(PromptFolder):
    """Prompts by their nodes and from no files; those that are missing are empty."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(Path("no-prompts"))
        self.texts = texts

    def read(self, name: str) -> str:
        return self.texts[name]

    def read_for(self, step: Step, executor: Executor) -> str:
        del executor
        return self.texts.get(step.name, "")


@dataclass
class Lab:
    """One graph run; each `run` is another process for all that the run's files know."""

    folder: Path
    workflow: Workflow
    actor: Actor = field(default_factory=Actor)
    prompts: dict[str, str] = field(default_factory=dict)
    limits: RunLimits = field(default_factory=RunLimits)
    gone: set[str] = field(default_factory=set)
    """Processes that were killed."""
    ttl_s: float = 60.0
    workspace: Workspace | None = None
    """Of every process, as if each had a work tree of its own; None: the folder."""

    def store(self) -> PlayedStore:
        return PlayedStore(PlayedRun(self.folder / "sync", self.gone), ttl_s=self.ttl_s)

    def run(self) -> Run:
        resolved = Fixed(self.workflow, self.performer)
        return Run(None, self.store(), self.limits, lambda _: resolved)

    def performer(self, made: Workflow, emit: Emit) -> Performer:
        return Performer(
            workflow=made,
            agents=Cast(self.actor),
            prompts=Texts(self.prompts),
            logs=StepLogs(
                self.folder / "logs", self.folder, warn=lambda text: emit(NoticeGiven(text))
            ),
            emit=emit,
            project=self.folder,
            workspace=self.workspace or Workspace(self.folder),
            with_defaults=lambda step: step,
            redact=lambda text: text.replace("s3cret", "***"),
            own_folders=(self.folder / "sync", self.folder / "logs"),
        )

    def work(self, mode: Mode = Mode.COMBINED, **options: Any) -> Summary:
        """Work as one more process would."""
        limits = InvocationLimits(max_steps=None).replace(**options.pop("limits", {}))
        return self.run().work(mode, limits, **options)

    def refused(self, mode: Mode = Mode.COMBINED, **options: Any) -> SequencerError:
        """Work, and return the error that it ends with."""
        try:
            self.work(mode, **options)
        except SequencerError as error:
            return error
        raise AssertionError("it ended well")

    def works(self, mode: Mode = Mode.COMBINED, **options: Any) -> Working:
        """Work in a thread."""
        return Working(self, mode, options)

    def worker(self, store: Store | None = None, places: int = 8) -> GraphWorker:
        """Return one more process, which does nothing by itself."""
        performer = self.performer(self.workflow, ignore)
        expander = None if performer.tasks is None else performer.tasks.expander
        control = GraphChanges(store or self.store(), self.workflow, expander)
        return GraphWorker(control, performer, self.limits, places)

    def begun(self) -> Head:
        return RunCommands(self.store(), self.workflow).begin()

    def claimed(self, slots: int = 8) -> PlayedStore:
        """Let a process claim what it can, and return its store; nothing is performed."""
        store = self.store()
        worker = self.worker(store)
        head, most = self.begun(), slots_of(worker, slots)
        worker.changes.update(None, lambda now: worker.capacity(now, most), run_id=head.run_id)
        worker.attempts.close()
        return store

    def died(self) -> None:
        """Let a process claim what it can, and be killed."""
        self.claimed().leave()

    def changed(self, made: Workflow) -> Lab:
        """Return the same run under another workflow."""
        return replace(self, workflow=made)

    @property
    def head(self) -> Head:
        head = self.run().head
        assert head is not None
        return head

    @property
    def status(self) -> str:
        flow = self.head.flow
        assert flow is not None
        return flow.status

    def answer(self, node: str, text: str) -> Head:
        return self.run().do(AnswerQuestion(node, text), by="ann").head

    def facts(self, *events: str) -> list[dict[str, Any]]:
        return [f for f in self.run().history() if not events or f["event"] in events]

    def trace(self) -> list[str]:
        """Return the lines that `history` shows."""
        found = self.facts()
        lines = (trace_line(f["event"], f["step"], f.get("outcome") or {}) for f in found)
        return [line for line in lines if line is not None]

    def accepted(self) -> list[str]:
        return [fact["step"] for fact in self.facts("succeeded")]


class Working:
    """A process at work; a thread, in truth."""

    def __init__(self, lab: Lab, mode: Mode, options: dict[str, Any]) -> None:
        self.interrupt: Callable[[], None] = lambda: None
        self._ready = threading.Event()
        self._answer: Summary | BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(lab, mode, options), daemon=True)
        self._thread.start()

    def _work(self, lab: Lab, mode: Mode, options: dict[str, Any]) -> None:
        try:
            self._answer = lab.work(mode, on_ready=self._is_ready, **options)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self._answer = error

    def _is_ready(self, interrupt: Callable[[], None]) -> None:
        self.interrupt = interrupt
        self._ready.set()

    def ready(self) -> None:
        assert self._ready.wait(LIMIT_S)

    @property
    def is_on(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Summary | BaseException | None:
        """Wait for the end; return the summary, or what was raised."""
        self._thread.join(LIMIT_S)
        if self._thread.is_alive():
            faulthandler.dump_traceback(2)
        assert not self._thread.is_alive(), "it works for ever"
        return self._answer

    def summary(self) -> Summary:
        ended = self.end()
        assert isinstance(ended, Summary), repr(ended)
        return ended

    def error(self) -> BaseException:
        ended = self.end()
        assert isinstance(ended, BaseException), repr(ended)
        return ended


def lab(
    folder: Path,
    text: str,
    says: Mapping[str, Said | list[Said]] | None = None,
    *,
    prompts: Mapping[str, str] | None = None,
    limits: RunLimits | None = None,
    ttl_s: float = 60.0,
    **settings: Any,
) -> Lab:
    """Return the lab of a flow that `tests.flows.workflow` makes of *text* and *settings*."""
    given = {n: one if isinstance(one, list) else [one] for n, one in (says or {}).items()}
    return Lab(
        folder,
        workflow(text, **settings),
        Actor(given),
        dict(prompts or {}),
        limits or RunLimits(),
        ttl_s=ttl_s,
    )


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until *condition* holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


@contextmanager
def let_go(*holds: Hold) -> Iterator[None]:
    """Let all *holds* go at the end, so that no thread is left behind by a test that fails."""
    try:
        yield
    finally:
        for hold in holds:
            hold.go.set()
