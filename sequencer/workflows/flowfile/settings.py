"""Front matter and node settings: from YAML to checked values that know their lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from msgspec import Struct, field

from sequencer.errors import ConfigurationError
from sequencer.files.keys import problems_of
from sequencer.files.yamlfile import Document, KeyPath, dotted, parse_text
from sequencer.frozen.base import Frozen, checked
from sequencer.frozen.fields import BeforeValidator, Field, ValidationError
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
    continued,
)
from sequencer.workflows.flowfile.markdown import Excerpt, NodeSection
from sequencer.workflows.flowfile.problems import Diagnostics
from sequencer.workflows.mermaid.text import Position

MAX_TIMEOUT_MS = 31_536_000_000
"""A year; more is a mistake in the unit."""

_Keys = TypeVar("_Keys", bound="FlowKeys")
_Value = TypeVar("_Value")
Milliseconds = Annotated[int, Field(strict=True, gt=0, le=MAX_TIMEOUT_MS)]
Delay = Annotated[int, Field(strict=True, ge=0, le=86_400_000)]


def _number_as_text(value: object) -> object:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number else value


class FlowKeys(Frozen, allow_inf_nan=False):
    """Keys that may stand together; any other is refused."""


class RetrySettings(FlowKeys):
    """``retry``: what is not written is taken from the workflow's, then from the defaults."""

    max_attempts: int | None = Field(default=None, alias="maxAttempts", strict=True, ge=1, le=100)
    """Tries in all, the first included."""
    backoff: Literal["fixed", "linear", "exponential"] | None = None
    initial_delay: Delay | None = Field(default=None, alias="initialDelay")
    """Milliseconds before the second try."""
    max_delay: Delay | None = Field(default=None, alias="maxDelay")
    """Milliseconds that no wait is longer than."""


class FlowConfig(FlowKeys):
    """``config`` of the front matter."""

    timeout: Milliseconds | None = None
    """Of the time in which agents run or wait for their next try."""
    max_iterations: int | None = Field(
        default=None, alias="maxIterations", strict=True, ge=0, le=1_000_000
    )
    """How often edges that lead back may be followed, all together."""
    max_parallel: int | None = Field(default=None, alias="maxParallel", strict=True, ge=1, le=1000)
    """Agents at once."""


class FrontMatter(FlowKeys):
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


class OptionSettings(FlowKeys):
    """One of a person's answers; a text alone is its label."""

    label: str = Field(min_length=1, max_length=200)
    value: str | None = Field(default=None, min_length=1, max_length=200)
    """What the node's output is; the label if not given."""
    description: str = Field(default="", max_length=2000)


def _option(value: object) -> object:
    return {"label": value} if isinstance(value, str) else value


OutputFormat = Literal["text", "json"]
StateKey = Annotated[str, Field(min_length=1, max_length=200)]


class OutputSettings(FlowKeys):
    """``output``: what an answer has to be, and where in the state it goes."""

    key: StateKey | None = None
    """Dots make nested maps."""
    format: OutputFormat | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class NodeConfig(FlowKeys):
    """``config`` of a node."""

    timeout: Milliseconds | None = None
    retry: RetrySettings | None = None
    """Lies over the workflow's, field by field."""
    on_timeout: str | None = Field(default=None, alias="onTimeout")
    allow_custom_input: bool | None = Field(default=None, alias="allowCustomInput")


class NodeSettings(FlowKeys):
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
    expects: Expects | None = None
    """What an attempt has to show."""
    stagnation: Stagnation | None = None
    suppress_thoughts: bool | None = None
    continue_session: Annotated[bool | ContinuedSession | None, BeforeValidator(continued)] = None
    """The same as ``mode: primary``."""

    @property
    def limit_ms(self) -> int | None:
        """Return the time limit, wherever it is written."""
        return _either(self.timeout, self.config.timeout if self.config else None)

    @property
    def timeout_target(self) -> str | None:
        """Return where the run goes when the time is over, wherever it is written."""
        return _either(self.on_timeout, self.config.on_timeout if self.config else None)

    @property
    def allows_custom_input(self) -> bool:
        """Return whether a person may answer with any text."""
        below = self.config.allow_custom_input if self.config else None
        return bool(_either(self.allow_custom_input, below))

    @property
    def whole_output(self) -> OutputSettings:
        """Return what is written about the output, flat keys included."""
        below = self.output or OutputSettings()
        return OutputSettings(
            key=_either(self.output_key, below.key),
            format=_either(self.output_format, below.format),
            schema=_either(self.output_schema, below.json_schema),
        )


def _either(own: _Value | None, below: _Value | None) -> _Value | None:
    return below if own is None else own


KEYS = tuple(field.alias or name for name, field in NodeSettings.model_fields.items())
"""Of a node's settings."""

STEP_FIELDS = (
    "temperature", "system_prompt", "append_system_prompt", "single_turn", "max_turns",
    "allowed_tools", "disallowed_tools", "disallow_all_tools", "no_comment", "idle_timeout_s",
    "max_cost_usd", "suppress_thoughts", "expects", "stagnation",
)  # fmt: skip
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
    ("options",), ("onTimeout",), ("config", "onTimeout"), ("allowCustomInput",),
    ("config", "allowCustomInput"),
)  # fmt: skip
"""Only where a person is asked."""
_COMMON_KEYS = {"description", "input", "output", "output.key", "timeout", "config"}
AGENT_KEYS: tuple[tuple[str, ...], ...] = (
    *((key,) for key in KEYS if key not in _COMMON_KEYS and (key,) not in PERSON_KEYS),
    *(("config", "retry"), ("output", "format"), ("output", "schema")),
)
"""Only where an agent runs."""


_CODES: dict[str | int, str] = {
    "retry": "E-RETRY", "timeout": "E-TIMEOUT", "onTimeout": "E-TIMEOUT", "options": "E-OPTION",
    "tools": "E-TOOLS", "model": "E-MODEL", "state": "E-STATE", "entrypoint": "E-ENTRY",
    "onError": "E-ONERROR",
}  # fmt: skip
"""By the key that is wrong, or one above it; any other key is the section's own code."""


class Overrides(Struct, frozen=True):
    """What somebody else than the file says: a script for a simulation, for example."""

    entry: str | None = None
    on_error: str | None = None
    retry: Mapping[str, Any] | None = None
    max_iterations: int | None = None
    timeout: int | None = None
    timeouts: Mapping[str, int] = field(default_factory=dict)
    """Milliseconds by node."""
    agents: frozenset[str] = frozenset()
    """Decisions that work like an agent's node, though they have no section."""

    def as_front_matter(self) -> dict[str, Any]:
        """Return the same in the keys of the front matter."""
        config = {"maxIterations": self.max_iterations, "timeout": self.timeout}
        written = {
            "entrypoint": self.entry,
            "onError": self.on_error,
            "retry": None if self.retry is None else dict(self.retry),
            "config": {key: value for key, value in config.items() if value is not None} or None,
        }
        return {key: value for key, value in written.items() if value is not None}


class Front(Struct, frozen=True):
    """The front matter."""

    values: FrontMatter
    document: Document

    def at(self, *path: str | int) -> Position | None:
        """Return where *path* is written."""
        return self.document.position(path)


class NodeSource(Struct, frozen=True):
    """What the file says about one node, apart from the chart."""

    values: NodeSettings
    document: Document
    section: NodeSection | None
    """None: the node is in the chart alone."""

    @property
    def prompt(self) -> str:
        """Return the text that follows the settings."""
        return self.section.prompt.text if self.section else ""

    def at(self, *path: str | int) -> Position | None:
        """Return where *path* is written, else the section's heading."""
        return self.document.position(path) or ((self.section.line, 1) if self.section else None)

    def written(self, *path: str) -> bool:
        """Return whether the key *path* is there and has a value."""
        here: Any = self.document.data
        for key in path:
            here = here.get(key) if isinstance(here, Mapping) else None
        return here is not None

    def path_of(self, key: str) -> tuple[str, ...]:
        """Return where *key* is written that may stand in ``config`` as well."""
        return (key,) if self.written(key) else ("config", key)


def read_front(part: Excerpt | None, overrides: Mapping[str, Any], findings: Diagnostics) -> Front:
    """Return the front matter that *part* is, with *overrides* laid over it."""
    subject = findings.file.name
    document = _document(part, "E-FRONT", subject, findings)
    data = dict(document.data)
    for key, value in overrides.items():
        below = data.get(key)
        data[key] = {**below, **value} if key == "config" and isinstance(below, dict) else value
    document = Document(document.file, data, document.positions)
    values = _checked(FrontMatter, document, ("E-FRONT", subject), None, findings)
    return Front(values or FrontMatter(), document)


def read_node(
    node: str, section: NodeSection | None, timeouts: Mapping[str, int], findings: Diagnostics
) -> NodeSource:
    """Return what *section* says about *node*; a limit of *timeouts* replaces what is written."""
    subject = node or "###"
    document = _document(section.settings if section else None, "E-NODE", subject, findings)
    if node in timeouts:
        data = {**document.data, "timeout": timeouts[node]}
        if isinstance(config := data.get("config"), dict):
            data["config"] = {key: config[key] for key in config if key != "timeout"}
        document = Document(document.file, data, document.positions)
    values, at = None, (section.line, 1) if section else None
    if document.data:
        values = _checked(NodeSettings, document, ("E-NODE", subject), at, findings)
    source = NodeSource(values or NodeSettings(), document, section)
    for one, other in TWINS:
        if source.written(*one) and source.written(*other):
            detail = f"{'.'.join(one)} and {'.'.join(other)} say the same thing; keep one of them"
            findings.tell("E-NODE", subject, detail, source.at(*other))
    return source


ELSEWHERE: Mapping[str, str] = {
    "maxSteps": "write max_turns: how often the model may answer",
    "permission": "write in tools what the agent may use (edit: false); "
    "what its client may do at all is in its entry below agents:",
    "hidden": "leave it out: there is no menu from which nodes are chosen",
    "disable": "leave it out, or take the node out of the chart",
    "prompt": "write the prompt itself below the settings",
}
"""Keys of a node that Flowchestra takes over from OpenCode's agents -> what to write here."""


def _document(part: Excerpt | None, code: str, subject: str, findings: Diagnostics) -> Document:
    if part is not None:
        try:
            return parse_text(part.text, findings.file, part.line)
        except ConfigurationError as error:
            if error.hint is None and "{{" in part.text and "expected" not in error.message:
                error.hint = 'put text with {{…}} in double quotes: "{{state.x}}"'
            findings.of(code, subject, error)
    return Document(findings.file, {}, {})


def _checked(
    model: type[_Keys],
    document: Document,
    code_and_subject: tuple[str, str],
    at: Position | None,
    findings: Diagnostics,
) -> _Keys | None:
    """Return the values of *document*; without those that are wrong, which are told."""
    code, subject = code_and_subject
    wrong: set[str | int] = set()
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = problems_of(error, model, document.where)
    for problem in found:
        path = problem.path if problem.is_missing else _as_written(problem.path, document)
        wrong.add(path[0] if path else "")
        is_unknown = problem.error.message.startswith("unknown key")
        shown, hint = path[:-1] if is_unknown else path, problem.error.hint
        if is_unknown and model is NodeSettings and len(path) == 1:
            hint = ELSEWHERE.get(str(path[0]), hint)
        message = f"{dotted(shown)}: {problem.error.message}" if shown else problem.error.message
        own = next((_CODES[key] for key in path if key in _CODES), code)
        findings.tell(own, subject, message, document.position(path) or at, hint)
    try:
        rest = {key: value for key, value in document.data.items() if key not in wrong}
        return model.model_validate(rest)
    except ValidationError:
        return None


def _as_written(path: KeyPath, document: Document) -> KeyPath:
    """Return *path* without what pydantic adds to say which of several types it tried."""
    here: Any = document.data
    for length, part in enumerate(path):
        is_there = (isinstance(here, dict) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        if not is_there:
            return path[:length]
        here = here[part]
    return path


TOOLS: tuple[str, ...] = get_args(ToolName)
_SECOND_MS = 1000
_RETRY_DEFAULTS: dict[str, Any] = {
    "max_attempts": 1, "backoff": "fixed", "initial_delay": 1000, "max_delay": 60_000,
}  # fmt: skip


def step_of(
    name: str, source: NodeSource, retry: RetrySettings | None, findings: Diagnostics
) -> Step:
    """Return what the agent *name* runs; *retry* is what the front matter says.

    What can't be a step's field is told and left out.
    """
    values = source.values
    fields: dict[str, Any] = {field: getattr(values, field) for field in STEP_FIELDS}
    limit_ms, output = values.limit_ms, values.whole_output
    fields |= {
        "text": source.prompt or None,
        "agent": values.agent or values.executor,
        "tools": _tools(name, source, findings),
        "timeout_s": None if limit_ms is None else limit_ms / _SECOND_MS,
        "retry": retry_of(retry, values.config.retry if values.config else None),
        "continue_session": values.mode == "primary" or values.continue_session or None,
    }
    if output != OutputSettings():
        schema = output.json_schema
        fields["output"] = Output(key=output.key, format=output.format or "text", schema=schema)
    fields |= _model(name, source, findings)
    # What nobody wrote is left to the defaults that a project has for its steps.
    written = {field: value for field, value in fields.items() if value is not None}
    try:
        return Step(name=name, **written)
    except ValidationError as refused:
        at = source.section.prompt.line if source.section else 1
        findings.tell("E-NODE", name, refused.messages()[0], (at, 1))
        return Step.model_construct(name=name)


def retry_of(shared: RetrySettings | None, own: RetrySettings | None) -> Retry | None:
    """Return *own* laid over *shared*, field by field; None if neither says anything."""
    if shared is None and own in (None, RetrySettings()):
        return None
    said = dict(_RETRY_DEFAULTS)
    for settings in (shared, own):
        said |= settings.model_dump(exclude_none=True) if settings else {}
    return Retry(
        max_attempts=said["max_attempts"],
        backoff=said["backoff"],
        initial_delay_s=said["initial_delay"] / _SECOND_MS,
        max_delay_s=said["max_delay"] / _SECOND_MS,
    )


def _tools(name: str, source: NodeSource, findings: Diagnostics) -> dict[str, bool] | None:
    tools = source.values.tools
    for tool in tools or ():
        if tool not in TOOLS:
            at, hint = source.at("tools", tool), findings.known(tool, TOOLS)
            findings.tell("E-TOOLS", name, f"there is no tool {tool!r}", at, hint)
    return None if tools is None else {tool: tools[tool] for tool in tools if tool in TOOLS}


def _model(name: str, source: NodeSource, findings: Diagnostics) -> dict[str, str]:
    """Return provider and model of ``provider/name``, or the model alone."""
    written = source.values.model
    if written is None:
        return {}
    provider, slash, model = written.partition("/")
    try:
        if not slash:
            return {"model": checked(ModelName, written)}
        parts = {"provider": checked(Name, provider)}
        return parts | {"model": checked(ModelName, model)}
    except ValidationError as refused:
        text = refused.errors()[0]["msg"]
        detail = f"{written!r} is not a model: {text}"
        hint = "write provider/name, for example anthropic/claude-sonnet-4"
        findings.tell("E-MODEL", name, detail, source.at("model"), hint)
        return {}
