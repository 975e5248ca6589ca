"""What the engine asks of an executor, and what an executor may tell while it works.

An executor performs one attempt at one step. It knows nothing of runs, claims or heads:
it gets a request, reports output and usage to a listener, obeys a cancellation, and
returns an outcome. It does not raise for an agent's failure; an exception from it is a
bug or a deliberate `SequencerError` about its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.wall import Wall
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step
from sequencer.store.identity import INSIDE_AGENT


def words(text: str) -> frozenset[str]:
    """Return the words of *text*: names of fields, variables or options, many on a line."""
    return frozenset(text.split())


class Piece(StrEnum):
    """What a piece of output is, so that a terminal can choose what to show."""

    OUTPUT = "output"
    """Bytes of a program that has no event stream."""
    THOUGHT = "thought"
    ACTION = "action"
    """A tool call or its result."""
    RESPONSE = "response"
    ERROR = "error"
    NOTICE = "notice"
    """Said by the sequencer, not by the agent."""


class Listener(Protocol):
    """Who hears what a step does while it does it; called from one thread at a time."""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Take bytes as they are; the log keeps all, a terminal what it wants."""

    def used(self, usage: Usage) -> None:
        """Take the attempt's usage so far (a total, not a difference)."""


class Identity(Struct, frozen=True, kw_only=True):
    """Which step of which run an agent performs; every process that is started for it is told.

    `pump.record_of` adds these variables where a process is launched, after everything else, so
    no caller can forget them and no entry of ``agents`` can replace them.
    """

    step: str
    token: int
    """Of the claim. 0, which no claim has: there is none."""
    run_id: str | None = None
    """None: the agent works for no run, and only *step* and *token* are told."""
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

        Run id, step index and token together are an idempotency key: an agent that is run
        again after a crash sees the same first two and a larger third.
        """
        found = {"SEQUENCER_STEP": self.step, INSIDE_AGENT: str(self.token)}
        if self.run_id is None:
            return found
        return found | {
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
    """Everything that one attempt needs; prompts are texts, already read and checked."""

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
    """Session id of the step before, where the step continues it."""
    timeout_s: float | None = None
    """For the whole attempt; None is without limit."""
    is_node: bool = False
    """The step is a node of a flowchart, whose limit is called ``timeout`` there."""
    idle_timeout_s: float | None = None
    grace_s: float | None = None
    """At most so long between TERM and KILL; None: as the agent's entry has it."""
    lock: AttemptLock | None = None
    """For the processes that perform it; None where there is no claim."""
    decides: bool = False
    """The answer decides which way the run goes: only what the client itself says counts, and
    not the result file, which other agents of this user can write."""
    label: str | None = None
    """Of an answer that picks a way: what it may end with to go forward; a rehearsal says it."""
    max_cost_usd: float | None = None
    """What is left for this attempt under the step's, invocation's and run's limits."""

    def __post_init__(self) -> None:
        """Refuse a request that is nobody's: its processes would look like a person's.

        Raises:
            TypeError: *identity* is none.
        """
        if type(self.identity) is not Identity:
            raise TypeError(f"a request needs an Identity, not {self.identity!r}")

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the identity's variables, for an executor that starts its processes itself."""
        return self.identity.variables()

    def file(self, name: str) -> Path:
        """Return where a file called *name* stands for this attempt, for its agent to read.

        A system prompt goes into one and not into an argument: an argument ends at 128 KiB, and
        every user of the machine can read it.
        """
        return self.result_path.parent / name


@runtime_checkable
class Executor(Protocol):
    """Performs steps. Instances keep no state between two calls of `perform`."""

    kind: ClassVar[str]
    """The word in ``agents: {NAME: {kind: …}}``."""

    @property
    def supported_fields(self) -> frozenset[str]:
        """Return the names of the `Step` fields that this executor honours.

        Any other set field is refused at load time; `EVERY_EXECUTOR` fields need not be
        listed. A class attribute will do where every entry of the kind honours the same.
        """

    def problems(self) -> list[str]:
        """Return what is missing before a step could run (program, key), for `check`."""

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt and return how it ended, cancelled ones included."""


@runtime_checkable
class Installed(Protocol):
    """What an executor has beside `Executor` if something has to be there for it to start."""

    def missing(self, folder: Path | None) -> str | None:
        """Return which program or key is not there, and what to do; None: nothing is missing.

        Asked before a step is claimed. Agents work in *folder*; None: where is not known yet.
        """


def time_is_over(request: StepRequest, became: str) -> str:
    """Return why an attempt that took too long has failed, in the words of its author.

    *became* says what became of it.
    """
    seconds, name = request.timeout_s or 0.0, request.step.name
    took, key = f"{seconds:g} s", f"timeout_s of step {name!r}"
    if request.is_node:
        took, key = f"{seconds * 1000:.0f} ms", f"timeout (in milliseconds) of node {name!r}"
    return f"timed out after {took}; {became}\nraise {key}, or give it less to do"


def repeats_itself(request: StepRequest) -> str:
    """Return why an attempt was ended that made one tool call over and over."""
    return (
        f"the same tool call had the same result {request.step.most_equal_calls} times in a row "
        f"(stagnation.tool_calls of step {request.step.name!r})"
    )


class Objection(NamedTuple):
    """Why an executor can't honour what a step says, and what to write instead."""

    reason: str
    hint: str


@runtime_checkable
class Particular(Protocol):
    """What an executor has beside `Executor` if it honours some values of a field only."""

    providers: ClassVar[frozenset[str] | None]
    """Whose models it has; None is anybody's."""

    def objections(self, step: Step) -> list[Objection]:
        """Return what can't be honoured of *step*, each of whose fields is supported."""


class Permits(NamedTuple):
    """What a client lets its agent do where nobody is there to be asked."""

    says: str
    """In the client's own words."""
    to_edit: tuple[str, ...] = ()
    """Lines for the agent's entry with which it edits files; empty where the entry says
    itself what the agent may do, be it to read only."""
    can_write: bool = True
    """False: nothing lets it change a file, unless the step itself grants it a tool."""


@runtime_checkable
class Permitting(Protocol):
    """What an executor has beside `Executor` if its client decides what its agent may do."""

    def permits(self) -> Permits:
        """Return what the agent may do in a step that says nothing about it."""

    def withheld(self, environ: Mapping[str, str]) -> list[str]:
        """Return the names in *environ* that look like a provider's and that it does not get."""


@runtime_checkable
class Answering(Protocol):
    """What an executor has beside `Executor` if its entry may give its agent tools or rights."""

    def answering(self, project: Path) -> Executor | Objection:
        """Return the same agent as one that only answers; see `without_tools`."""


WITHOUT_TOOLS = ("single_turn", "disallow_all_tools")
"""Step fields each of which takes all tools away."""


def without_tools(executor: Executor, project: Path) -> Executor | Objection:
    """Return *executor* as one that only answers, or why it can't be that.

    It has to work in another folder: its program, if it is a path, is one of *project*. What
    its entry allows does not count; the step that it gets has to set one of `WITHOUT_TOOLS`
    that it supports.
    """
    if isinstance(executor, Answering):
        return executor.answering(project)
    return tools_objection(executor) or executor


def tools_objection(executor: Executor, extra_args: Sequence[str] = ()) -> Objection | None:
    """Return why no step can take all tools from the agent of *executor*; None: one can.

    Nobody knows what *extra_args* of its entry give it.
    """
    if executor.supported_fields.isdisjoint(WITHOUT_TOOLS):
        reason = f"kind {executor.kind} can't be started without tools (it has no single_turn)"
        return Objection(reason, "name an agent of another kind, for example claude")
    if extra_args:
        reason = "its extra_args may give it tools"
        return Objection(reason, "name an agent without extra_args")
    return None


@runtime_checkable
class Walled(Protocol):
    """What an executor has beside `Executor` if its entry says which wall its processes get."""

    @property
    def wall(self) -> Wall:
        """Return what keeps them away from other processes of their user."""


_PROVIDERS = ("ANTHROPIC_", "AWS_", "AZURE_", "GOOGLE_", "OPENAI_")


def is_of_a_provider(name: str) -> bool:
    """Return whether a variable called *name* may be how a model's provider is found.

    >>> is_of_a_provider("AWS_PROFILE"), is_of_a_provider("GROQ_API_KEY"), is_of_a_provider("HOME")
    (True, True, False)
    """
    return name.startswith(_PROVIDERS) or name.endswith("_API_KEY")


EVERY_EXECUTOR = frozenset(
    words(
        "name prompt text agent timeout_s retry complete_when suppress_thoughts "
        "requires_approval append_system_prompt approval validation output system_from_labels "
        "no_comment description expects stagnation"
    )
)
"""Step fields that the engine or the process core honours for every executor."""


def qualified_model(step: Step) -> str | None:
    """Return the step's model with its provider in front, if it names one.

    >>> qualified_model(Step(name="a", model="gpt-5", provider="openai"))
    'openai/gpt-5'
    >>> qualified_model(Step(name="a", model="gpt-5"))
    'gpt-5'
    """
    if step.model is None or step.provider is None:
        return step.model
    return f"{step.provider}/{step.model}"


def is_free(executor: Executor | None) -> bool:
    """Return whether what *executor* does costs nothing, whatever becomes of it."""
    if executor is None:
        return False
    options = getattr(executor, "options", None)
    is_stand_in = executor.kind in ("rehearsal", "scripted")
    return is_stand_in or (executor.kind == "command" and getattr(options, "free", False))
