"""One step: a prompt and how it is to be performed.

The fields are the same in orchestration.yaml, in the library and in the executors. Which
of them a given executor can honour is decided at load time by the executor itself
(``Executor.supported_fields``), never by ignoring one.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, BeforeValidator, Field, model_validator

Name = Annotated[
    str,
    Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]+$"),
]
"""A name of a step, workflow or agent: one line, 1 to 100 characters."""


Purpose = Annotated[str, Field(max_length=500)]
"""What something is for, said to people where it is listed."""


def _refuse_an_option(name: str) -> str:
    if name.startswith("-") or not name.isprintable():
        # A client would take it for one of its options, or cut it at the line's end.
        raise ValueError("a model's name is one printable line and does not start with '-'")
    return name


ModelName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_refuse_an_option)]
"""A model in a client's own words; it reaches command lines, so it can't be an option."""


ToolName = Literal[
    "read",
    "write",
    "edit",
    "bash",
    "glob",
    "grep",
    "list",
    "webfetch",
    "websearch",
    "task",
    "todoread",
    "todowrite",
]
"""Words for an agent's tools that mean the same for every client: files are read, written as a
whole, changed in places; programs run; files found by name or by content; folders listed; pages
fetched and searched for; work given to another agent; a list of things to do read and kept."""


PromptName = Annotated[str, Field(min_length=1, max_length=300)]
"""A file below prompts_dir."""


MOST_TRIES = 100


class Retry(Frozen, allow_inf_nan=False):
    """How often and after which delay a failed step is tried again without a person."""

    max_attempts: int = Field(default=1, ge=1, le=MOST_TRIES)
    """Tries in all, the first included."""
    backoff: Literal["fixed", "linear", "exponential"] = "fixed"
    initial_delay_s: float = Field(default=0.0, ge=0, le=86_400)
    max_delay_s: float = Field(default=3_600.0, ge=0, le=604_800)

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after the *failures*-th failure in a row, from 1.

        >>> retry = Retry(max_attempts=5, backoff="exponential", initial_delay_s=2, max_delay_s=9)
        >>> [retry.delay_s(n) for n in (1, 2, 3, 4)]
        [2.0, 4.0, 8.0, 9.0]
        """
        growth = 2.0 ** min(failures - 1, 40)
        factor = {"fixed": 1.0, "linear": float(failures), "exponential": growth}
        return min(self.initial_delay_s * factor[self.backoff], self.max_delay_s)


def tries(value: object) -> Any:
    """Return what *value* means as a `Retry`: a number alone is tries in all, with pauses."""
    if isinstance(value, (int, str)):
        return {"max_attempts": value, "backoff": "exponential", "initial_delay_s": 60}
    return value


class Output(Frozen):
    """What a step's answer has to be."""

    key: str | None = Field(default=None, min_length=1, max_length=200)
    """Where a graph workflow keeps the answer in its state; dots make nested maps."""
    format: Literal["text", "json"] = "text"
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON Schema of the answer; clients that can are told, and the answer is checked."""


SubagentName = Annotated[
    str, Field(max_length=64, pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?$")
]
"""A name that clients know a subagent by; it stands in their own rules about tools."""


class Subagent(Frozen):
    """An agent that the step's own agent may give work to; both live in one process."""

    description: str = Field(min_length=1, max_length=10_000)
    """When it is to be used; the step's agent reads it."""
    prompt: str = Field(min_length=1, max_length=100_000)
    """Its system prompt."""
    tools: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """In the client's own words; None: those of the step's agent."""
    model: ModelName | None = None
    """None: that of the step's agent."""


def _is_within(value: str) -> str:
    parts = value.split("/")
    if not value.isprintable() or {"", ".", ".."} & set(parts):
        raise ValueError(f"{value!a} is not the path of a file below the project's folder")
    return value


class FileMark(Frozen):
    """A file by whose appearance the step is done; its agent is ended then."""

    file: Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_is_within)]
    """A path below the folder in which the agent works."""


_MAX_MARK_CHARS = 500


def _mark(value: object) -> object:
    """Return *value* as one of its two forms; a union would tell a mistake in both."""
    if isinstance(value, dict):
        return FileMark.model_validate(value)
    if isinstance(value, str) and not 1 <= len(value) <= _MAX_MARK_CHARS:
        raise ValueError(f"a text has 1 to {_MAX_MARK_CHARS} characters")
    if value is not None and not isinstance(value, (str, FileMark)):
        raise ValueError("should be text of the answer, or {file: PATH}")
    return value


Expects = Literal["change", "text", "nothing"]
"""What an attempt has to show to count as done."""


def _has_a_row(attempts: int) -> int:
    if attempts == 1:
        raise ValueError("one attempt repeats nothing: write 0 (never stop) or at least 2")
    return attempts


class Stagnation(Frozen):
    """When an agent that repeats itself is stopped; 0 is never."""

    attempts: Annotated[int, Field(ge=0, le=1000), AfterValidator(_has_a_row)] = 5
    """Attempts in a row with the same answer and no change, after which the run is paused."""
    tool_calls: int = Field(default=0, ge=0, le=10_000)
    """Equal tool calls with equal results in a row, after which the attempt is ended."""


class ContinuedSession(Frozen, allow_inf_nan=False):
    """How long a conversation is continued; after that the step starts a new one."""

    max_steps: int | None = Field(default=None, ge=1)
    """Accepted steps of one conversation."""
    max_context: int | None = Field(default=None, ge=1)
    """Tokens that its last call, or where the client doesn't tell calls apart its last attempt,
    has sent."""
    max_idle_s: float | None = Field(default=None, gt=0)
    """Seconds since a step was accepted in it."""


_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def continued(value: object) -> object:
    """Return *value* as one of its two forms; a union would tell a mistake in both."""
    if isinstance(value, dict):
        return ContinuedSession.model_validate(value)
    if isinstance(value, (bool, ContinuedSession)):
        return value
    if isinstance(value, str) and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    raise ValueError("should be true, false, or {max_steps, max_context, max_idle_s}")


class Approval(Frozen, allow_inf_nan=False):
    """What happens at a gate when nobody decides, and where feedback goes."""

    timeout_s: float | None = Field(default=None, gt=0, le=31_536_000)
    """Seconds after which ``on_timeout`` decides; None: the gate waits for ever."""
    on_timeout: Literal["approve", "reject"] = "reject"
    feedback_to: Name | None = None
    """The step that runs again on feedback; None: the one before the gate."""


class Validation(Frozen):
    """A step that judges: on "no" its fixer runs, and then the step again."""

    fixer: Step | None = None
    """Runs after each "no"; None: the step itself is repeated."""
    max_attempts: int = Field(default=4, ge=1, le=100)
    """Judgements in all."""
    on_exhausted: Literal["fail", "continue"] = "fail"

    @model_validator(mode="after")
    def _fixer_is_plain(self) -> Validation:
        fixer = self.fixer
        if fixer is not None and (fixer.validation is not None or fixer.requires_approval):
            raise ValueError("a fixer has neither a validation nor a gate of its own")
        return self


FORMER_AGENT = "executor"
"""What the key `agent` of a step was called before."""


def with_agent(value: Any) -> Any:
    """Return *value*, fields of a step, with its agent where journals have another name for it."""
    if isinstance(value, dict) and FORMER_AGENT in value and "agent" not in value:
        return {"agent" if key == FORMER_AGENT else key: one for key, one in value.items()}
    return value


class Step(Frozen, allow_inf_nan=False):
    """A prompt that an executor runs; frozen, compared by value."""

    name: Name
    description: Purpose = ""
    """What it does, in a line; for people only."""
    prompt: str | None = Field(default=None, min_length=1, max_length=300)
    """File below prompts_dir; ``<name>.md`` if not given."""
    text: str | None = Field(default=None, min_length=1, max_length=1_048_576)
    """The prompt itself, where the workflow's own file has it; no other file is read then."""
    agent: Name | None = None
    """Name of an agent: built in, or a key of ``agents``."""
    model: ModelName | None = None
    provider: Name | None = None
    """Whose model it is, ``anthropic`` for example; an agent of another one is refused."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    tools: dict[ToolName, bool] | None = None
    """Which tools the agent may use, in words that mean the same for every client; what is
    not named is as the client has it."""
    system_prompt: str | None = Field(default=None, min_length=1, max_length=300)
    """File below prompts_dir whose text replaces the client's own system prompt."""
    append_system_prompt: PromptName | tuple[PromptName, ...] | None = None
    """Files below prompts_dir whose texts are added to the client's system prompt."""
    system_from_labels: bool = False
    """`start` adds the system prompt that the request's labels choose."""
    single_turn: bool = False
    """One answer, no tools."""
    max_turns: int | None = Field(default=None, ge=1)
    allowed_tools: tuple[str, ...] | None = None
    """Tool names in the client's own words."""
    disallowed_tools: tuple[str, ...] | None = None
    disallow_all_tools: bool = False
    """Several turns, but no tools."""
    agents: dict[SubagentName, Subagent] | None = Field(default=None, min_length=1, max_length=100)
    """Experimental: the client's own subagents, by name."""
    no_comment: bool = False
    """The agent may not post comments itself; ``activity.comment_tools`` are taken from it."""
    timeout_s: float | None = Field(default=None, gt=0)
    idle_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds without progress after which the attempt counts as hung: text, tool calls and
    their results where the client's events are understood, any output of a command."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    retry: Annotated[Retry | None, BeforeValidator(tries)] = None
    expects: Expects | None = None
    """What an agent's attempt has to show. None: text, a tool's result or a change."""
    stagnation: Stagnation | None = None
    """When a step that repeats itself is stopped. None: the defaults of its fields."""
    suppress_thoughts: bool = False
    """The terminal shows results only; the step log keeps everything."""
    complete_when: Annotated[str | FileMark | None, BeforeValidator(_mark)] = None
    """A text: the run is complete when it stands alone on a line of the agent's final answer.
    A file: the step is done, and its agent ended, when the file appears or changes."""
    continue_session: Annotated[bool | ContinuedSession, BeforeValidator(continued)] = False
    """Continue the conversation of the step before, where the agent is the same."""
    requires_approval: bool = False
    """A gate: the run continues after this step once a person has approved."""
    approval: Approval | None = None
    validation: Validation | None = None
    output: Output | None = None

    @model_validator(mode="before")
    @classmethod
    def _agent_had_another_name(cls, value: object) -> object:
        return with_agent(value)

    @model_validator(mode="after")
    def _approval_has_a_gate(self) -> Step:
        if self.approval is not None and not self.requires_approval:
            raise ValueError("approval is for a step with requires_approval: true")
        return self

    @model_validator(mode="after")
    def _has_one_prompt(self) -> Step:
        if self.prompt is not None and self.text is not None:
            raise ValueError("a step has a prompt, which is a file, or a text, but not both")
        return self

    @property
    def most_equal_calls(self) -> int:
        """Return after how many equal tool calls in a row an attempt is ended; 0: never."""
        return 0 if self.stagnation is None else self.stagnation.tool_calls

    @property
    def added_system_prompts(self) -> tuple[str, ...]:
        """Return the files that are added to the client's system prompt, in order."""
        added = self.append_system_prompt
        return (added,) if isinstance(added, str) else added or ()

    @cached_property
    def prompt_name(self) -> str:
        """Return the prompt's file name below prompts_dir; of a text of its own the step's name."""
        return self.prompt or (self.name if self.text is not None else f"{self.name}.md")
