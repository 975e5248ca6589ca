"""One step: a prompt, and how an agent performs it.

The fields are the same in orchestration.yaml, in the library and in the executors. At load time,
each executor says which fields it supports (``Executor.supported_fields``); a field that it does
not support is never ignored silently.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import (
    AfterValidator,
    BeforeValidator,
    Field,
    ensure_mapping,
    model_validator,
)

Name = Annotated[
    str,
    Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f\u2028\u2029]+$"),
]
"""A name of a step, workflow or agent: one line, 1 to 100 characters."""


MAX_PURPOSE = 500
Purpose = Annotated[str, Field(max_length=MAX_PURPOSE)]
"""What something is for; lists show it to people."""


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
"""Words for an agent's tools that mean the same for every client, in this order: read a file, write
a whole file, change parts of one; run programs; find files by name, or by content; list folders;
fetch a web page, search the web; give work to another agent; read and write a to-do list."""


PromptName = Annotated[str, Field(min_length=1, max_length=300)]
"""A file under prompts_dir."""


MAX_TRIES = 100


class Retry(Frozen, allow_inf_nan=False):
    """How often and after which delay a failed step is tried again without a person."""

    max_attempts: int = Field(default=1, ge=1, le=MAX_TRIES)
    """The total number of tries, including the first."""
    backoff: Literal["fixed", "linear", "exponential"] = "fixed"
    initial_delay_s: float = Field(default=0.0, ge=0, le=86_400)
    max_delay_s: float = Field(default=3_600.0, ge=0, le=604_800)

    @model_validator(mode="before")
    @classmethod
    def _ensure_mapping(cls, value: object) -> object:
        return ensure_mapping(value, "a number of tries")

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after *failures* (1 or more) in a row.

        >>> retry = Retry(max_attempts=5, backoff="exponential", initial_delay_s=2, max_delay_s=9)
        >>> [retry.delay_s(n) for n in (1, 2, 3, 4)]
        [2.0, 4.0, 8.0, 9.0]
        """
        growth = 2.0 ** min(failures - 1, 40)
        factor = {"fixed": 1.0, "linear": float(failures), "exponential": growth}
        return min(self.initial_delay_s * factor[self.backoff], self.max_delay_s)


def parse_retry(value: object) -> Any:
    """Return *value* as fields of a `Retry`: a plain number is the total of tries, with pauses."""
    if isinstance(value, (int, str)):
        return {"max_attempts": value, "backoff": "exponential", "initial_delay_s": 60}
    return value


class Output(Frozen):
    """The required form of a step's answer."""

    key: str | None = Field(default=None, min_length=1, max_length=200)
    """The key for the answer in the state of a graph workflow; dots nest."""
    format: Literal["text", "json"] = "text"
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    """JSON Schema of the answer; it is sent to clients that support it, and always checked."""


SubagentName = Annotated[
    str, Field(max_length=64, pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?$")
]
"""The name of a subagent for clients; they also use it in their rules about tools."""


class Subagent(Frozen):
    """An agent that the step's agent may give work to; both run in one process."""

    description: str = Field(min_length=1, max_length=10_000)
    """When to use it; the step's agent reads this."""
    prompt: str = Field(min_length=1, max_length=100_000)
    """Its system prompt."""
    tools: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Tool names of the client; None: the tools of the step's agent."""
    model: ModelName | None = None
    """None: the model of the step's agent."""


def _ensure_within(value: str) -> str:
    parts = value.split("/")
    if not value.isprintable() or {"", ".", ".."} & set(parts):
        raise ValueError(f"{value!a} is not the path of a file below the project's folder")
    return value


class FileMark(Frozen):
    """A file whose appearance completes the step; its agent is then stopped."""

    file: Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_ensure_within)]
    """A path under the folder in which the agent works."""


_MAX_MARK_CHARS = 500


def _parse_mark(value: object) -> object:
    """Return *value* in one of its two forms; a union would report an error for each form."""
    if isinstance(value, dict):
        return FileMark.model_validate(value)
    if isinstance(value, str) and not 1 <= len(value) <= _MAX_MARK_CHARS:
        raise ValueError(f"a text has 1 to {_MAX_MARK_CHARS} characters")
    if value is not None and not isinstance(value, (str, FileMark)):
        raise ValueError("should be text of the answer, or {file: PATH}")
    return value


Expects = Literal["change", "text", "nothing"]
"""The evidence that an attempt needs to count as done."""


def _ensure_repeats(attempts: int) -> int:
    if attempts == 1:
        raise ValueError("one attempt repeats nothing: write 0 (never stop) or at least 2")
    return attempts


class Stagnation(Frozen):
    """When an agent that repeats itself is stopped; 0: never."""

    attempts: Annotated[int, Field(ge=0, le=1000), AfterValidator(_ensure_repeats)] = 5
    """The run is paused after this many attempts in a row with the same answer and no change."""
    tool_calls: int = Field(default=0, ge=0, le=10_000)
    """The attempt is ended after this many equal tool calls in a row with equal results."""


class ContinuedSession(Frozen, allow_inf_nan=False):
    """How long a conversation is continued; after that, the step starts a new one."""

    max_steps: int | None = Field(default=None, ge=1)
    """Accepted steps of one conversation."""
    max_context: int | None = Field(default=None, ge=1)
    """Tokens that its last call has sent, or its last attempt if the client doesn't report
    calls."""
    max_idle_s: float | None = Field(default=None, gt=0)
    """Seconds since its last accepted step."""


_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def parse_session(value: object) -> object:
    """Return *value* in one of its two forms; a union would report an error for each form."""
    if isinstance(value, dict):
        return ContinuedSession.model_validate(value)
    if isinstance(value, (bool, ContinuedSession)):
        return value
    if isinstance(value, str) and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    raise ValueError("should be true, false, or {max_steps, max_context, max_idle_s}")


class Approval(Frozen, allow_inf_nan=False):
    """What happens at a gate if no one decides, and where feedback goes."""

    timeout_s: float | None = Field(default=None, gt=0, le=31_536_000)
    """Seconds after which ``on_timeout`` decides; None: the gate waits forever."""
    on_timeout: Literal["approve", "reject"] = "reject"
    feedback_to: Name | None = None
    """The step that runs again on feedback; None: the one before the gate."""


class Validation(Frozen):
    """For a step that judges: after a "no", its fixer runs, and then the step again."""

    fixer: Step | None = None
    """The step that runs after each "no"; None: the step that judges is repeated."""
    max_attempts: int = Field(default=4, ge=1, le=100)
    """The total number of judgments."""
    on_exhausted: Literal["fail", "continue"] = "fail"

    @model_validator(mode="after")
    def _ensure_plain_fixer(self) -> Validation:
        fixer = self.fixer
        if fixer is not None and (fixer.validation is not None or fixer.requires_approval):
            raise ValueError("a fixer has neither a validation nor a gate of its own")
        return self


FORMER_AGENT = "executor"
"""The former name of a step's key `agent`."""


def rename_agent_key(value: Any) -> Any:
    """Return *value*, fields of a step, with the key `agent` if a journal has its former name."""
    if isinstance(value, dict) and FORMER_AGENT in value and "agent" not in value:
        return {"agent" if key == FORMER_AGENT else key: item for key, item in value.items()}
    return value


class Step(Frozen, allow_inf_nan=False):
    """A prompt that an executor runs; frozen, compared by value."""

    name: Name
    description: Purpose = ""
    """What it does, in a line; for people only."""
    prompt: str | None = Field(default=None, min_length=1, max_length=300)
    """File under prompts_dir; ``<name>.md`` if not given."""
    text: str | None = Field(default=None, min_length=1, max_length=1_048_576)
    """The prompt itself, if the workflow's file contains it; then no prompt file is read."""
    agent: Name | None = None
    """Name of an agent: built in, or a key of ``agents``."""
    model: ModelName | None = None
    provider: Name | None = None
    """The provider of the model, such as ``anthropic``; an agent of another one is refused."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    tools: dict[ToolName, bool] | None = None
    """Which tools the agent may use, in words that mean the same for every client; for tools that
    are not named, the client's default applies."""
    system_prompt: str | None = Field(default=None, min_length=1, max_length=300)
    """File under prompts_dir whose text replaces the client's own system prompt."""
    append_system_prompt: PromptName | tuple[PromptName, ...] | None = None
    """Files under prompts_dir whose texts are added to the client's system prompt."""
    system_from_labels: bool = False
    """`start` adds the system prompt that the labels of the request select."""
    single_turn: bool = False
    """One answer, no tools."""
    max_turns: int | None = Field(default=None, ge=1)
    allowed_tools: tuple[str, ...] | None = None
    """Tool names of the client."""
    disallowed_tools: tuple[str, ...] | None = None
    disallow_all_tools: bool = False
    """Several turns, but no tools."""
    agents: dict[SubagentName, Subagent] | None = Field(default=None, min_length=1, max_length=100)
    """Experimental: subagents of the client, by name."""
    no_comment: bool = False
    """The agent may not post comments: it does not get the ``activity.comment_tools``."""
    timeout_s: float | None = Field(default=None, gt=0)
    idle_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds without progress after which the attempt counts as hung. Progress is text, a tool
    call or its result if the client's events are understood; for a command, any output."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    retry: Annotated[Retry | None, BeforeValidator(parse_retry)] = None
    expects: Expects | None = None
    """The evidence that an attempt needs. None: text, a tool's result or a change."""
    stagnation: Stagnation | None = None
    """When an agent that repeats itself is stopped. None: the defaults of `Stagnation`."""
    suppress_thoughts: bool = False
    """The terminal shows results only; the step log keeps everything."""
    complete_when: Annotated[str | FileMark | None, BeforeValidator(_parse_mark)] = None
    """A text: the run is complete when a line of the agent's final answer is this text. A file: the
    step is done, and its agent is stopped, when the file appears or changes."""
    continue_session: Annotated[bool | ContinuedSession, BeforeValidator(parse_session)] = False
    """Continue the conversation of the previous step, if the agent is the same."""
    requires_approval: bool = False
    """A gate: the run continues after this step once a person has approved."""
    approval: Approval | None = None
    validation: Validation | None = None
    output: Output | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_former_agent(cls, value: object) -> object:
        return rename_agent_key(value)

    @model_validator(mode="after")
    def _ensure_approval_gate(self) -> Step:
        if self.approval is not None and not self.requires_approval:
            raise ValueError("approval is for a step with requires_approval: true")
        return self

    @model_validator(mode="after")
    def _ensure_one_prompt(self) -> Step:
        if self.prompt is not None and self.text is not None:
            raise ValueError("a step has a prompt, which is a file, or a text, but not both")
        return self

    @property
    def most_equal_calls(self) -> int:
        """Return the number of equal tool calls in a row that ends an attempt; 0: none does."""
        return 0 if self.stagnation is None else self.stagnation.tool_calls

    @property
    def added_system_prompts(self) -> tuple[str, ...]:
        """Return the files that are added to the client's system prompt, in order."""
        prompt_names = self.append_system_prompt
        return (prompt_names,) if isinstance(prompt_names, str) else prompt_names or ()

    @cached_property
    def prompt_name(self) -> str:
        """Return the prompt's file name under prompts_dir, or the step's name if it has a text."""
        return self.prompt or (self.name if self.text is not None else f"{self.name}.md")
