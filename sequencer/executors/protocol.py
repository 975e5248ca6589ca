"""The protocol between the engine and an executor.

An executor makes one attempt at one step. It knows nothing about runs, claims or heads:
it gets a request, reports output and usage to a listener, obeys a cancellation, and
returns an outcome. It does not raise for an agent's failure; an exception from it is a
bug or a deliberate `SequencerError` about its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.wall import Wall
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Step
from sequencer.store.identity import INSIDE_AGENT


def split_words(text: str) -> frozenset[str]:
    """Return the set of words in *text*, so that long lists of names stay short in the code."""
    return frozenset(text.split())


class Piece(StrEnum):
    """The kind of a piece of output, so that a terminal can choose what to show."""

    OUTPUT = "output"
    """Bytes from a program that has no event stream."""
    THOUGHT = "thought"
    ACTION = "action"
    """A tool call or its result."""
    RESPONSE = "response"
    ERROR = "error"
    NOTICE = "notice"
    """From the sequencer, not from the agent."""


class Listener(Protocol):
    """Receives output and usage while a step runs; called from one thread at a time."""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Accept bytes unchanged; the log stores all of them, a terminal what it shows."""

    def report_usage(self, usage: Usage) -> None:
        """Accept the attempt's usage so far (a total, not a difference)."""


class Identity(Struct, frozen=True, kw_only=True):
    """Which step of which run an agent performs; all processes of the attempt get it as variables.

    `launch.marked_environment` adds these variables when a process starts, after all others, so
    no caller can forget them and no entry of ``agents`` can replace them.
    """

    step: str
    token: int
    """The claim's token; 0 if there is no claim."""
    run_id: str | None = None
    """None: the agent works for no run, and gets only *step* and *token*."""
    run_name: str | None = None
    workflow: str = ""
    position: str = ""
    step_index: int = 0
    attempt: int = 0
    result_path: Path | None = None
    """Where the agent may write its JSON result."""
    state_path: Path | None = None

    def variables(self) -> dict[str, str]:
        """Return the variables by name; `INSIDE_AGENT`, the mark of an agent, is never empty.

        Run id, step index and token together are an idempotency key: an agent that runs
        again after a crash sees the same first two and a larger third.
        """
        variables = {"SEQUENCER_STEP": self.step, INSIDE_AGENT: str(self.token)}
        if self.run_id is None:
            return variables
        return variables | {
            "SEQUENCER_RUN_ID": self.run_id,
            "SEQUENCER_RUN_NAME": self.run_name or "",
            "SEQUENCER_WORKFLOW": self.workflow,
            "SEQUENCER_POSITION": self.position,
            "SEQUENCER_STEP_INDEX": str(self.step_index),
            "SEQUENCER_ITERATION": str(self.step_index + 1),
            "SEQUENCER_ATTEMPT": str(self.attempt),
            "SEQUENCER_RESULT": str(self.result_path or ""),
            "SEQUENCER_STATE": str(self.state_path or ""),
        }


class StepRequest(Struct, frozen=True, kw_only=True):
    """Everything that one attempt needs; prompts are texts that were read and checked before."""

    identity: Identity
    step: Step
    prompt: str
    cwd: Path
    """The project's folder, where the agent works."""
    result_path: Path
    """Where the agent may write its JSON result. Neither the file nor its folder exists:
    an executor that starts an agent makes the folder, see `result_file.make_folder`."""
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    resume_session: str | None = None
    """Session id of the previous step, if this step continues it."""
    timeout_s: float | None = None
    """For the whole attempt; None: no limit."""
    is_node: bool = False
    """The step is a node of a flowchart, where the limit is called ``timeout``."""
    idle_timeout_s: float | None = None
    grace_s: float | None = None
    """Maximum seconds between TERM and KILL; None: the value of the agent's entry."""
    lock: AttemptLock | None = None
    """For the attempt's processes; None if there is no claim."""
    decides: bool = False
    """The answer decides which way the run goes: only the client's own output is used, not the
    result file, because other agents of this user can write that."""
    label: str | None = None
    """For an answer that decides where the run goes: the label that goes forward, which a
    rehearsal answers."""
    max_cost_usd: float | None = None
    """The cost that is left for this attempt under the limits of step, invocation and run."""

    def __post_init__(self) -> None:
        """Refuse a request without an identity: its processes would look like a person's.

        Raises:
            TypeError: *identity* is not an `Identity`.
        """
        if type(self.identity) is not Identity:
            raise TypeError(f"a request needs an Identity, not {self.identity!r}")

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the identity's variables, for an executor that starts its processes itself."""
        return self.identity.variables()

    def file_path(self, name: str) -> Path:
        """Return the path of this attempt's file called *name*, which its agent reads.

        A system prompt goes into a file and not into an argument: an argument can have at most
        128 KiB, and every user of the machine can read it.
        """
        return self.result_path.parent / name


@runtime_checkable
class Executor(Protocol):
    """Performs steps. Instances keep no state between two calls of `perform`."""

    kind: ClassVar[str]
    """The word in ``agents: {NAME: {kind: …}}``."""

    @property
    def supported_fields(self) -> frozenset[str]:
        """Return the names of the `Step` fields that this executor supports.

        Loading refuses any other field that is set; `EVERY_EXECUTOR` fields need not be
        listed. A class attribute is enough if all entries of the kind support the same fields.
        """

    def problems(self) -> list[str]:
        """Return what is missing before a step could run (program, key), for `check`."""

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt and return how it ended, also if it was canceled."""


@runtime_checkable
class ChecksInstallation(Protocol):
    """Optional: an executor that needs a program or a key before it can start."""

    def find_missing(self, folder: Path | None) -> str | None:
        """Return which program or key is missing, and what to do; None: nothing is missing.

        Called before a step is claimed. Agents work in *folder*; None: it is not known yet.
        """


def timeout_message(request: StepRequest, consequence: str) -> str:
    """Return why an attempt that took too long failed, with the unit that its author used.

    *consequence* says what happened to the attempt.
    """
    seconds, name = request.timeout_s or 0.0, request.step.name
    duration, key = f"{seconds:g} s", f"timeout_s of step {name!r}"
    if request.is_node:
        duration, key = f"{seconds * 1000:.0f} ms", f"timeout (in milliseconds) of node {name!r}"
    return f"timed out after {duration}; {consequence}\nraise {key}, or give it less to do"


def repetition_message(request: StepRequest) -> str:
    """Return why an attempt that made the same tool call over and over was ended."""
    return (
        f"the same tool call had the same result {request.step.most_equal_calls} times in a row "
        f"(stagnation.tool_calls of step {request.step.name!r})"
    )


class Objection(Struct, frozen=True):
    """Why an executor can't support what a step says, and what to write instead."""

    reason: str
    hint: str


@runtime_checkable
class ValidatesSteps(Protocol):
    """Optional: an executor that supports only some values of a field."""

    providers: ClassVar[frozenset[str] | None]
    """The providers whose models it can use; None: all."""

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection for each value of *step* that it can't support.

        All fields that *step* sets are supported.
        """


class Permissions(Struct, frozen=True):
    """What a client lets its agent do when no person is there to ask."""

    summary: str
    """One line for people, in the client's own words."""
    to_edit: tuple[str, ...] = ()
    """Lines for the agent's entry that let it edit files; empty if the entry itself says
    what the agent may do, even if that is only to read."""
    can_write: bool = True
    """False: it can't change any file, unless the step itself grants it a tool."""


@runtime_checkable
class HasPermissions(Protocol):
    """Optional: an executor whose client decides what its agent may do."""

    def permissions(self) -> Permissions:
        """Return what the agent may do in a step that says nothing about it."""

    def withheld_variables(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables of model providers in *environ* that the agent does not get."""


@runtime_checkable
class RemovesTools(Protocol):
    """Optional: an executor whose entry may give its agent tools or permissions."""

    def without_tools(self, project: Path) -> Executor | Objection:
        """Return a copy of this executor that only answers; see the function `without_tools`."""


WITHOUT_TOOLS = ("single_turn", "disallow_all_tools")
"""Step fields that each take all tools away."""


def without_tools(executor: Executor, project: Path) -> Executor | Objection:
    """Return a copy of *executor* that only answers, or the reason why there can't be one.

    The copy works in another folder: if its program is a path, it is relative to *project*.
    What its entry allows is ignored. Its step has to set one of `WITHOUT_TOOLS` that the executor
    supports.
    """
    if isinstance(executor, RemovesTools):
        return executor.without_tools(project)
    return tools_objection(executor) or executor


def tools_objection(executor: Executor, extra_args: Sequence[str] = ()) -> Objection | None:
    """Return why no step can take all tools from the agent of *executor*; None: a step can.

    Any *extra_args* of its entry are refused, because their effect is unknown.
    """
    if executor.supported_fields.isdisjoint(WITHOUT_TOOLS):
        reason = f"kind {executor.kind} can't be started without tools (it has no single_turn)"
        return Objection(reason, "name an agent of another kind, for example claude")
    if extra_args:
        reason = "its extra_args may give it tools"
        return Objection(reason, "name an agent without extra_args")
    return None


@runtime_checkable
class HasWall(Protocol):
    """Optional: an executor whose entry says which wall its processes get."""

    @property
    def wall(self) -> Wall:
        """Return the wall between its processes and other processes of their user."""


_PROVIDERS = ("ANTHROPIC_", "AWS_", "AZURE_", "GOOGLE_", "OPENAI_")


def is_provider_variable(name: str) -> bool:
    """Return whether the variable *name* may give access to a model provider.

    >>> [is_provider_variable(name) for name in ("AWS_PROFILE", "GROQ_API_KEY", "HOME")]
    [True, True, False]
    """
    return name.startswith(_PROVIDERS) or name.endswith("_API_KEY")


EVERY_EXECUTOR = frozenset(
    split_words(
        "name prompt text agent timeout_s retry complete_when suppress_thoughts "
        "requires_approval append_system_prompt approval validation output system_from_labels "
        "no_comment description expects stagnation"
    )
)
"""Step fields that the engine or the process core supports for every executor."""


def qualified_model(step: Step) -> str | None:
    """Return the step's model, with ``PROVIDER/`` in front if the step names a provider.

    >>> qualified_model(Step(name="a", model="gpt-5", provider="openai"))
    'openai/gpt-5'
    >>> qualified_model(Step(name="a", model="gpt-5"))
    'gpt-5'
    """
    if step.model is None or step.provider is None:
        return step.model
    return f"{step.provider}/{step.model}"


def is_free(executor: Executor | None) -> bool:
    """Return whether attempts of *executor* cost nothing, however they end.

    An executor of a package says so with ``is_free = True``.
    """
    if executor is None:
        return False
    options = getattr(executor, "options", None)
    is_fake_agent = executor.kind in ("rehearsal", "scripted")
    is_free_command = executor.kind == "command" and getattr(options, "free", False)
    return is_fake_agent or is_free_command or getattr(executor, "is_free", False) is True


def make_checked_perform(executor: Executor) -> Callable[..., Any]:
    """Return `perform` of a package's *executor* with a check of each outcome.

    The outcome is validated; if it has no cost, the cost is unknown.
    """
    perform = getattr(executor.perform, "unchecked", executor.perform)

    def call(*args: Any, **options: Any) -> Any:
        outcome = perform(*args, **options)
        if not isinstance(outcome, Outcome):
            return outcome
        outcome = outcome.revalidate()
        usage = outcome.usage
        has_worked = outcome.status not in (OutcomeStatus.UNAVAILABLE, OutcomeStatus.LIMITED)
        if has_worked and not (usage.cost_usd or usage.unpriced or is_free(executor)):
            return outcome.replace(usage=usage.replace(unpriced=1))
        return outcome

    call.unchecked = perform  # type: ignore[attr-defined] # it may be the object of two agents
    return call
