"""The keys of a workflow file: its front matter and the settings of its nodes.

Names are those of the flowchart language (``maxAttempts``, ``onTimeout``); where a setting
is a field of a step and has no name in the language, it is called as it is there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sequencer.model.step import Name, PromptName

MAX_TIMEOUT_MS = 31_536_000_000
"""A year; more is a mistake in the unit."""

Milliseconds = Annotated[int, Field(strict=True, gt=0, le=MAX_TIMEOUT_MS)]
Delay = Annotated[int, Field(strict=True, ge=0, le=86_400_000)]


def _number_as_text(value: object) -> object:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


class Settings(BaseModel):
    """Keys that may stand together; any other is refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class RetrySettings(Settings):
    """``retry``: what is not written is taken from the workflow's, then from the defaults."""

    max_attempts: int | None = Field(default=None, alias="maxAttempts", strict=True, ge=1, le=100)
    """Tries in all, the first included."""
    backoff: Literal["fixed", "linear", "exponential"] | None = None
    initial_delay: Delay | None = Field(default=None, alias="initialDelay")
    """Milliseconds before the second try."""
    max_delay: Delay | None = Field(default=None, alias="maxDelay")
    """Milliseconds that no wait is longer than."""


class FlowConfig(Settings):
    """``config`` of the front matter."""

    timeout: Milliseconds | None = None
    """Of the time in which agents run or wait for their next try."""
    max_iterations: int | None = Field(
        default=None, alias="maxIterations", strict=True, ge=0, le=1_000_000
    )
    """How often edges that lead back may be followed, all together."""
    max_parallel: int | None = Field(default=None, alias="maxParallel", strict=True, ge=1, le=1000)
    """Agents at once."""


class FrontMatter(Settings):
    """What stands between the ``---`` lines at the top of the file."""

    id: Name | None = None
    name: str | None = Field(default=None, max_length=200)
    version: Annotated[str | None, BeforeValidator(_number_as_text)] = None
    description: str | None = None
    entrypoint: str | None = None
    """The node, or the group of nodes, where a run begins; the chart's first node if not given."""
    state: dict[str, Any] | None = None
    """What the state is at the start."""
    config: FlowConfig | None = None
    retry: RetrySettings | None = None
    """For every agent of the workflow."""
    on_error: str | None = Field(default=None, alias="onError")
    """The node that a failure for good jumps to, once a run."""


class OptionSettings(Settings):
    """One of a person's answers; a text alone is its label."""

    label: str = Field(min_length=1, max_length=200)
    value: str | None = Field(default=None, min_length=1, max_length=200)
    """What the node's output is; the label if not given."""
    description: str = Field(default="", max_length=2000)


def _option(value: object) -> object:
    return {"label": value} if isinstance(value, str) else value


OutputFormat = Literal["text", "json"]
StateKey = Annotated[str, Field(min_length=1, max_length=200)]


class OutputSettings(Settings):
    """``output``: what an answer has to be, and where in the state it goes."""

    key: StateKey | None = None
    """Dots make nested maps."""
    format: OutputFormat | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class NodeConfig(Settings):
    """``config`` of a node."""

    timeout: Milliseconds | None = None
    retry: RetrySettings | None = None
    """Lies over the workflow's, field by field."""
    on_timeout: str | None = Field(default=None, alias="onTimeout")
    allow_custom_input: bool | None = Field(default=None, alias="allowCustomInput")


class NodeSettings(Settings):
    """What stands between the ``---`` lines below a node's heading."""

    description: str | None = None
    mode: Literal["subagent", "primary", "all"] | None = None
    """``primary`` continues the conversation of the node before; the others begin their own."""
    model: str | None = Field(default=None, max_length=300)
    """``provider/name``, or the name alone."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    tools: dict[str, bool] | None = None
    input: dict[str, Any] | None = None
    """What ``{{input.…}}`` means in the prompt."""
    output: OutputSettings | None = None
    output_key: StateKey | None = Field(default=None, alias="output.key")
    """The same as ``key`` below ``output``; so are the next two."""
    output_format: OutputFormat | None = Field(default=None, alias="output.format")
    output_schema: dict[str, Any] | None = Field(default=None, alias="output.schema")
    timeout: Milliseconds | None = None
    """Of one try of an agent, or of the wait for a person."""
    config: NodeConfig | None = None
    options: list[Annotated[OptionSettings, BeforeValidator(_option)]] | None = Field(
        default=None, max_length=100
    )
    """A person's answers; the labels of the edges if not given."""
    allow_custom_input: bool | None = Field(default=None, alias="allowCustomInput")
    """Any text is an answer."""
    on_timeout: str | None = Field(default=None, alias="onTimeout")
    """The node that follows when nobody has answered in time."""
    agent: Name | None = None
    """Who performs it: built in, or a key of ``agents`` in orchestration.yaml."""
    executor: Name | None = None
    """The same as ``agent``."""
    system_prompt: str | None = Field(default=None, min_length=1, max_length=300)
    append_system_prompt: PromptName | tuple[PromptName, ...] | None = None
    single_turn: bool | None = None
    max_turns: int | None = Field(default=None, ge=1)
    allowed_tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] | None = None
    disallow_all_tools: bool | None = None
    no_comment: bool | None = None
    idle_timeout_s: float | None = Field(default=None, gt=0)
    max_cost_usd: float | None = Field(default=None, gt=0)
    suppress_thoughts: bool | None = None
    continue_session: bool | None = None
    """The same as ``mode: primary``."""

    @property
    def limit_ms(self) -> int | None:
        """Return the time limit, wherever it is written."""
        below = self.config.timeout if self.config else None
        return below if self.timeout is None else self.timeout

    @property
    def timeout_target(self) -> str | None:
        """Return where the run goes when the time is over, wherever it is written."""
        below = self.config.on_timeout if self.config else None
        return below if self.on_timeout is None else self.on_timeout

    @property
    def allows_custom_input(self) -> bool:
        """Return whether a person may answer with any text."""
        below = self.config.allow_custom_input if self.config else None
        return bool(below if self.allow_custom_input is None else self.allow_custom_input)

    @property
    def own_retry(self) -> RetrySettings:
        """Return what is written about retries here."""
        return (self.config.retry if self.config else None) or RetrySettings()

    @property
    def whole_output(self) -> OutputSettings:
        """Return what is written about the output, flat keys included."""
        below = self.output or OutputSettings()
        found = {
            "key": below.key if self.output_key is None else self.output_key,
            "format": below.format if self.output_format is None else self.output_format,
            "schema": below.json_schema if self.output_schema is None else self.output_schema,
        }
        return OutputSettings.model_validate(found)

    @property
    def continues(self) -> bool:
        """Return whether the conversation of the node before goes on."""
        return self.mode == "primary" or bool(self.continue_session)


KEYS = frozenset(field.alias or name for name, field in NodeSettings.model_fields.items())
"""Of a node's settings."""

STEP_FIELDS = (
    "temperature",
    "system_prompt",
    "append_system_prompt",
    "single_turn",
    "max_turns",
    "allowed_tools",
    "disallowed_tools",
    "disallow_all_tools",
    "no_comment",
    "idle_timeout_s",
    "max_cost_usd",
    "suppress_thoughts",
)
"""Settings that are a step's fields of the same name, as they are."""

TWINS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("timeout",), ("config", "timeout")),
    (("onTimeout",), ("config", "onTimeout")),
    (("allowCustomInput",), ("config", "allowCustomInput")),
    (("output.key",), ("output", "key")),
    (("output.format",), ("output", "format")),
    (("output.schema",), ("output", "schema")),
    (("agent",), ("executor",)),
    (("mode",), ("continue_session",)),
)
"""Keys that say the same thing; only one of each two may be there."""

PERSON_KEYS = (
    ("options",),
    ("onTimeout",),
    ("config", "onTimeout"),
    ("allowCustomInput",),
    ("config", "allowCustomInput"),
)
"""Only where a person is asked."""
_COMMON_KEYS = ("description", "input", "output", "output.key", "timeout", "config")
AGENT_KEYS: tuple[tuple[str, ...], ...] = (
    *(
        (key,)
        for key in (field.alias or name for name, field in NodeSettings.model_fields.items())
        if key not in _COMMON_KEYS and (key,) not in PERSON_KEYS
    ),
    ("config", "retry"),
    ("output", "format"),
    ("output", "schema"),
)
"""Only where an agent runs."""
