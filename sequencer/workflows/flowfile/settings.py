"""Front matter and node settings: reads YAML into checked values that know their lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from msgspec import Struct, field

from sequencer.errors import ConfigurationError
from sequencer.files.keys import find_problems
from sequencer.files.yamlfile import Document, KeyPath, format_key_path, parse_text
from sequencer.frozen.base import Frozen, validate_value
from sequencer.frozen.fields import BeforeValidator, Field, ValidationError, ensure_mapping
from sequencer.model.step import (
    ContinuedSession,
    Expects,
    ModelName,
    Name,
    Output,
    PromptName,
    Retry,
    Stagnation,
    Step,
    ToolName,
    parse_session,
)
from sequencer.workflows.flowfile.markdown import Excerpt, NodeSection
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.mermaid.text import Position

MAX_TIMEOUT_MS = 31_536_000_000
"""A year; a larger value is a mistake in the unit."""

_Keys = TypeVar("_Keys", bound="FlowKeys")
_Value = TypeVar("_Value")
Milliseconds = Annotated[int, Field(strict=True, gt=0, le=MAX_TIMEOUT_MS)]
Delay = Annotated[int, Field(strict=True, ge=0, le=86_400_000)]


def _number_as_text(value: object) -> object:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


class FlowKeys(Frozen, allow_inf_nan=False):
    """Base class of mappings; unknown keys are refused."""


class RetrySettings(FlowKeys):
    """``retry``; missing keys come from the workflow's ``retry``, then from the defaults."""

    max_attempts: int | None = Field(default=None, alias="maxAttempts", strict=True, ge=1, le=100)
    """Number of tries, including the first."""
    backoff: Literal["fixed", "linear", "exponential"] | None = None
    initial_delay: Delay | None = Field(default=None, alias="initialDelay")
    """Milliseconds before the second try."""
    max_delay: Delay | None = Field(default=None, alias="maxDelay")
    """Longest wait in milliseconds."""


class FlowConfig(FlowKeys):
    """``config`` of the front matter."""

    timeout: Milliseconds | None = None
    """Limit for the time in which agents run or wait for their next try."""
    max_iterations: int | None = Field(
        default=None, alias="maxIterations", strict=True, ge=0, le=1_000_000
    )
    """How many times a run may follow back edges, counted together."""
    max_parallel: int | None = Field(default=None, alias="maxParallel", strict=True, ge=1, le=1000)
    """How many agents may run at once."""


class FrontMatter(FlowKeys):
    """The keys between the ``---`` lines at the top of the file."""

    id: Name | None = None
    name: str | None = Field(default=None, max_length=200)
    version: Annotated[str | None, BeforeValidator(_number_as_text)] = None
    description: str | None = None
    entrypoint: str | None = None
    """The node or group of nodes where a run starts; default: the chart's first node."""
    state: dict[str, Any] | None = None
    """The state at the start."""
    config: FlowConfig | None = None
    retry: RetrySettings | None = None
    """For every agent of the workflow."""
    on_error: str | None = Field(default=None, alias="onError")
    """The node that a run jumps to after a final failure, once per run."""


class OptionSettings(FlowKeys):
    """One of a person's answers; a single text is its label."""

    label: str = Field(min_length=1, max_length=200)
    value: str | None = Field(default=None, min_length=1, max_length=200)
    """The output of the node; default: the label."""
    description: str = Field(default="", max_length=2000)


def _expand_option(value: object) -> object:
    if isinstance(value, str):
        return {"label": value}
    return ensure_mapping(value, "text")


OutputFormat = Literal["text", "json"]
StateKey = Annotated[str, Field(min_length=1, max_length=200)]


class OutputSettings(FlowKeys):
    """``output``: the form of an answer, and its key in the state."""

    key: StateKey | None = None
    """A dot in the key makes a nested map."""
    format: OutputFormat | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class NodeConfig(FlowKeys):
    """``config`` of a node."""

    timeout: Milliseconds | None = None
    retry: RetrySettings | None = None
    """Overrides the workflow's ``retry``, field by field."""
    on_timeout: str | None = Field(default=None, alias="onTimeout")
    allow_custom_input: bool | None = Field(default=None, alias="allowCustomInput")


class NodeSettings(FlowKeys):
    """The keys between the ``---`` lines below a node's heading."""

    description: str | None = None
    mode: Literal["subagent", "primary", "all"] | None = None
    """``primary`` continues the previous node's conversation; the others start a new one."""
    model: str | None = Field(default=None, max_length=300)
    """``provider/name``, or the name alone."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    tools: dict[str, bool] | None = None
    input: dict[str, Any] | None = None
    """The values of ``{{input.…}}`` in the prompt."""
    output: OutputSettings | None = None
    output_key: StateKey | None = Field(default=None, alias="output.key")
    """The same as ``key`` below ``output``; the next two fields are similar."""
    output_format: OutputFormat | None = Field(default=None, alias="output.format")
    output_schema: dict[str, Any] | None = Field(default=None, alias="output.schema")
    timeout: Milliseconds | None = None
    """Limit for one try of an agent, or for the wait for a person."""
    config: NodeConfig | None = None
    options: list[Annotated[OptionSettings, BeforeValidator(_expand_option)]] | None = Field(
        default=None, max_length=100
    )
    """A person's answers; default: the labels of the edges."""
    allow_custom_input: bool | None = Field(default=None, alias="allowCustomInput")
    """True: any text is a valid answer."""
    on_timeout: str | None = Field(default=None, alias="onTimeout")
    """The next node if no one answers in time."""
    agent: Name | None = None
    """The agent: a built-in one, or a key of ``agents`` in orchestration.yaml."""
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
    expects: Expects | None = None
    """The evidence that an attempt needs."""
    stagnation: Stagnation | None = None
    suppress_thoughts: bool | None = None
    continue_session: Annotated[bool | ContinuedSession | None, BeforeValidator(parse_session)] = (
        None
    )
    """The same as ``mode: primary``."""

    @property
    def limit_ms(self) -> int | None:
        """Return the time limit from either of its keys."""
        return _prefer_flat(self.timeout, self.config.timeout if self.config else None)

    @property
    def timeout_target(self) -> str | None:
        """Return the node that follows the time limit, from either of its keys."""
        return _prefer_flat(self.on_timeout, self.config.on_timeout if self.config else None)

    @property
    def allows_custom_input(self) -> bool:
        """Return whether a person may answer with any text."""
        nested_value = self.config.allow_custom_input if self.config else None
        return bool(_prefer_flat(self.allow_custom_input, nested_value))

    @property
    def whole_output(self) -> OutputSettings:
        """Return the output settings, including those in flat keys."""
        output = self.output or OutputSettings()
        return OutputSettings(
            key=_prefer_flat(self.output_key, output.key),
            format=_prefer_flat(self.output_format, output.format),
            schema=_prefer_flat(self.output_schema, output.json_schema),
        )


def _prefer_flat(flat_value: _Value | None, nested_value: _Value | None) -> _Value | None:
    return nested_value if flat_value is None else flat_value


KEYS = tuple(field.alias or name for name, field in NodeSettings.model_fields.items())
"""The keys of a node's settings."""

STEP_FIELDS = (
    "temperature", "system_prompt", "append_system_prompt", "single_turn", "max_turns",
    "allowed_tools", "disallowed_tools", "disallow_all_tools", "no_comment", "idle_timeout_s",
    "max_cost_usd", "suppress_thoughts", "expects", "stagnation",
)  # fmt: skip
"""Settings that are copied to the step's fields of the same name."""

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
"""Pairs of keys with the same meaning; only one of each pair may be set."""

PERSON_KEYS = (
    ("options",), ("onTimeout",), ("config", "onTimeout"), ("allowCustomInput",),
    ("config", "allowCustomInput"),
)  # fmt: skip
"""Keys only for nodes that ask a person."""
_COMMON_KEYS = {"description", "input", "output", "output.key", "timeout", "config"}
AGENT_KEYS: tuple[tuple[str, ...], ...] = (
    *((key,) for key in KEYS if key not in _COMMON_KEYS and (key,) not in PERSON_KEYS),
    *(("config", "retry"), ("output", "format"), ("output", "schema")),
)
"""Keys only for nodes that run an agent."""


_CODES: dict[str | int, str] = {
    "retry": "E-RETRY", "timeout": "E-TIMEOUT", "onTimeout": "E-TIMEOUT", "options": "E-OPTION",
    "tools": "E-TOOLS", "model": "E-MODEL", "state": "E-STATE", "entrypoint": "E-ENTRY",
    "onError": "E-ONERROR",
}  # fmt: skip
"""Wrong key, or a key above it -> code; other keys have the code of their section."""


class Overrides(Struct, frozen=True):
    """Settings from outside the file, for example from a script for a simulation."""

    entry: str | None = None
    on_error: str | None = None
    retry: Mapping[str, Any] | None = None
    max_iterations: int | None = None
    timeout: int | None = None
    timeouts: Mapping[str, int] = field(default_factory=dict)
    """Node -> milliseconds."""
    agents: frozenset[str] = frozenset()
    """Decisions that work like agents although they have no section."""

    def as_front_matter(self) -> dict[str, Any]:
        """Return the overrides as keys of the front matter."""
        config = {"maxIterations": self.max_iterations, "timeout": self.timeout}
        values = {
            "entrypoint": self.entry,
            "onError": self.on_error,
            "retry": None if self.retry is None else dict(self.retry),
            "config": {key: value for key, value in config.items() if value is not None} or None,
        }
        return {key: value for key, value in values.items() if value is not None}


class ParsedFrontMatter(Struct, frozen=True):
    """The front matter: its values and their positions."""

    values: FrontMatter
    document: Document

    def find_position(self, *path: str | int) -> Position | None:
        """Return the position of the key *path*."""
        return self.document.position(path)


class NodeSource(Struct, frozen=True):
    """A node's settings and prompt in the file, without its part of the chart."""

    values: NodeSettings
    document: Document
    section: NodeSection | None
    """None: the node is only in the chart."""

    @property
    def prompt(self) -> str:
        """Return the text after the settings."""
        return self.section.prompt.text if self.section else ""

    def find_position(self, *path: str | int) -> Position | None:
        """Return the position of the key *path*, or else of the section's heading."""
        return self.document.position(path) or ((self.section.line, 1) if self.section else None)

    def has_value(self, *path: str) -> bool:
        """Return whether the key *path* has a value."""
        value: Any = self.document.data
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value is not None

    def find_key_path(self, key: str) -> tuple[str, ...]:
        """Return the path of *key*, which may be at the top or in ``config``."""
        return (key,) if self.has_value(key) else ("config", key)


def read_front(
    part: Excerpt | None, overrides: Mapping[str, Any], diagnostics: Diagnostics
) -> ParsedFrontMatter:
    """Return the front matter in *part*, with *overrides*."""
    subject = diagnostics.file.name
    document = _parse_document(part, "E-FRONT", subject, diagnostics)
    data = dict(document.data)
    for key, value in overrides.items():
        section = data.get(key)
        data[key] = {**section, **value} if key == "config" and isinstance(section, dict) else value
    document = Document(document.file, data, document.positions)
    values = _validate(FrontMatter, document, ("E-FRONT", subject), None, diagnostics)
    return ParsedFrontMatter(values or FrontMatter(), document)


def read_node(
    node: str, section: NodeSection | None, timeouts: Mapping[str, int], diagnostics: Diagnostics
) -> NodeSource:
    """Return the settings of *node* in *section*; a limit in *timeouts* overrides the file's."""
    subject = node or "###"
    document = _parse_document(
        section.settings if section else None, "E-NODE", subject, diagnostics
    )
    if node in timeouts:
        data = {**document.data, "timeout": timeouts[node]}
        if isinstance(config := data.get("config"), dict):
            data["config"] = {key: config[key] for key in config if key != "timeout"}
        document = Document(document.file, data, document.positions)
    values, position = None, (section.line, 1) if section else None
    if document.data:
        values = _validate(NodeSettings, document, ("E-NODE", subject), position, diagnostics)
    source = NodeSource(values or NodeSettings(), document, section)
    for first, second in TWINS:
        if source.has_value(*first) and source.has_value(*second):
            keys = f"{'.'.join(first)} and {'.'.join(second)}"
            detail = f"{keys} say the same thing; keep one of them"
            diagnostics.add("E-NODE", subject, detail, source.find_position(*second))
    return source


ELSEWHERE: Mapping[str, str] = {
    "maxSteps": "write max_turns: how often the model may answer",
    "permission": "write in tools what the agent may use (edit: false); "
    "what its client may do at all is in its entry below agents:",
    "hidden": "leave it out: there is no menu from which nodes are chosen",
    "disable": "leave it out, or take the node out of the chart",
    "prompt": "write the prompt itself below the settings",
}
"""Keys that Flowchestra's nodes have from OpenCode's agents -> what to write here instead."""


def _parse_document(
    part: Excerpt | None, code: str, subject: str, diagnostics: Diagnostics
) -> Document:
    if part is not None:
        try:
            return parse_text(part.text, diagnostics.file, part.line)
        except ConfigurationError as error:
            if error.hint is None and "{{" in part.text and "expected" not in error.message:
                error.hint = 'put text with {{…}} in double quotes: "{{state.x}}"'
            diagnostics.add_error(code, subject, error)
    return Document(diagnostics.file, {}, {})


def _validate(
    model: type[_Keys],
    document: Document,
    code_and_subject: tuple[str, str],
    position: Position | None,
    diagnostics: Diagnostics,
) -> _Keys | None:
    """Return the values of *document*; wrong values are reported and left out."""
    code, subject = code_and_subject
    wrong_keys: set[str | int] = set()
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = find_problems(error, model, document.locate)
    for problem in problems:
        path = problem.path if problem.is_missing else _drop_type_parts(problem.path, document)
        wrong_keys.add(path[0] if path else "")
        is_unknown = problem.error.message.startswith("unknown key")
        shown_path, hint = path[:-1] if is_unknown else path, problem.error.hint
        if is_unknown and model is NodeSettings and len(path) == 1:
            hint = ELSEWHERE.get(str(path[0]), hint)
        message = (
            f"{format_key_path(shown_path)}: {problem.error.message}"
            if shown_path
            else problem.error.message
        )
        key_code = next((_CODES[key] for key in path if key in _CODES), code)
        diagnostics.add(key_code, subject, message, document.position(path) or position, hint)
    try:
        valid_data = {key: value for key, value in document.data.items() if key not in wrong_keys}
        return model.model_validate(valid_data)
    except ValidationError:
        return None


def _drop_type_parts(path: KeyPath, document: Document) -> KeyPath:
    """Return *path* without the parts that pydantic adds for the types that it tried."""
    value: Any = document.data
    for length, part in enumerate(path):
        has_part = (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        )
        if not has_part:
            return path[:length]
        value = value[part]
    return path


TOOLS: tuple[str, ...] = get_args(ToolName)
_SECOND_MS = 1000
_RETRY_DEFAULTS: dict[str, Any] = {
    "max_attempts": 1, "backoff": "fixed", "initial_delay": 1000, "max_delay": 60_000,
}  # fmt: skip


def build_step(
    name: str, source: NodeSource, retry: RetrySettings | None, diagnostics: Diagnostics
) -> Step:
    """Return the step of the agent *name*; *retry* is from the front matter.

    Invalid fields are reported and left out.
    """
    values = source.values
    fields: dict[str, Any] = {field: getattr(values, field) for field in STEP_FIELDS}
    limit_ms, output = values.limit_ms, values.whole_output
    fields |= {
        "text": source.prompt or None,
        "agent": values.agent or values.executor,
        "tools": _read_tools(name, source, diagnostics),
        "timeout_s": None if limit_ms is None else limit_ms / _SECOND_MS,
        "retry": merge_retry(retry, values.config.retry if values.config else None),
        "continue_session": values.mode == "primary" or values.continue_session or None,
    }
    if output != OutputSettings():
        schema = output.json_schema
        fields["output"] = Output(key=output.key, format=output.format or "text", schema=schema)
    fields |= _read_model(name, source, diagnostics)
    # Fields that the file does not set get the project's step defaults later.
    given_fields = {field: value for field, value in fields.items() if value is not None}
    try:
        return Step(name=name, **given_fields)
    except ValidationError as error:
        line = source.section.prompt.line if source.section else 1
        diagnostics.add("E-NODE", name, error.messages()[0], (line, 1))
        return Step.model_construct(name=name)


def merge_retry(shared: RetrySettings | None, own: RetrySettings | None) -> Retry | None:
    """Return *shared* with the fields of *own* on top; None if both are empty."""
    if shared is None and own in (None, RetrySettings()):
        return None
    fields = dict(_RETRY_DEFAULTS)
    for settings in (shared, own):
        fields |= settings.model_dump(exclude_none=True) if settings else {}
    return Retry(
        max_attempts=fields["max_attempts"],
        backoff=fields["backoff"],
        initial_delay_s=fields["initial_delay"] / _SECOND_MS,
        max_delay_s=fields["max_delay"] / _SECOND_MS,
    )


def _read_tools(name: str, source: NodeSource, diagnostics: Diagnostics) -> dict[str, bool] | None:
    tools = source.values.tools
    for tool in tools or ():
        if tool not in TOOLS:
            position, hint = source.find_position("tools", tool), diagnostics.hint_for(tool, TOOLS)
            diagnostics.add("E-TOOLS", name, f"there is no tool {tool!r}", position, hint)
    return None if tools is None else {tool: tools[tool] for tool in tools if tool in TOOLS}


def _read_model(name: str, source: NodeSource, diagnostics: Diagnostics) -> dict[str, str]:
    """Return provider and model from ``provider/name``, or only the model."""
    model_value = source.values.model
    if model_value is None:
        return {}
    provider, slash, model = model_value.partition("/")
    try:
        if not slash:
            return {"model": validate_value(ModelName, model_value)}
        parts = {"provider": validate_value(Name, provider)}
        return parts | {"model": validate_value(ModelName, model)}
    except ValidationError as error:
        text = error.errors()[0]["msg"]
        detail = f"{model_value!r} is not a model: {text}"
        hint = "write provider/name, for example anthropic/claude-sonnet-4"
        diagnostics.add("E-MODEL", name, detail, source.find_position("model"), hint)
        return {}
