"""Front matter and node settings: from YAML to checked values that know their lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from sequencer.documents.keys import dotted, problems_of
from sequencer.documents.reader import Document, KeyPath, parse_text
from sequencer.errors import ConfigurationError
from sequencer.model.step import ModelName, Name, Output, PromptName, Retry, Step, ToolName
from sequencer.workflows.flowfile.markdown import Part, Parts, Section
from sequencer.workflows.flowfile.problems import Findings
from sequencer.workflows.mermaid.text import Position

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


_Model = TypeVar("_Model", bound=Settings)
_CODES: dict[str | int, str] = {
    "retry": "E-RETRY",
    "timeout": "E-TIMEOUT",
    "onTimeout": "E-TIMEOUT",
    "options": "E-OPTION",
    "tools": "E-TOOLS",
    "model": "E-MODEL",
    "state": "E-STATE",
    "entrypoint": "E-ENTRY",
    "onError": "E-ONERROR",
}
"""By the key that is wrong, or one above it; any other key is the section's own code."""


@dataclass(frozen=True, slots=True)
class Front:
    """The front matter."""

    values: FrontMatter
    document: Document

    def at(self, *path: str | int) -> Position | None:
        """Return where *path* is written."""
        return self.document.position(path)


@dataclass(frozen=True, slots=True)
class NodeSource:
    """What the file says about one node, apart from the chart."""

    values: NodeSettings
    document: Document
    section: Section | None
    """None: the node is in the chart alone."""

    @property
    def prompt(self) -> str:
        """Return the text that follows the settings."""
        return self.section.prompt.text if self.section else ""

    def at(self, *path: str | int) -> Position | None:
        """Return where *path* is written, else the section's heading."""
        return self.document.position(path) or (
            (self.section.line, 1) if self.section is not None else None
        )

    def written(self, *path: str) -> bool:
        """Return whether the key *path* is there and has a value."""
        here: Any = self.document.data
        for key in path:
            if not isinstance(here, Mapping) or here.get(key) is None:
                return False
            here = here[key]
        return True

    def path_of(self, key: str) -> tuple[str, ...]:
        """Return where *key* is written that may stand in ``config`` as well."""
        return (key,) if self.written(key) else ("config", key)


def read_front(parts: Parts, overrides: Mapping[str, Any], findings: Findings) -> Front:
    """Return the front matter of *parts* with *overrides* laid over it."""
    subject = findings.file.name
    document = _document(parts.front, "E-FRONT", subject, findings)
    data = dict(document.data)
    for key, value in overrides.items():
        below = data.get(key)
        is_laid_over = key == "config" and isinstance(below, dict)
        data[key] = {**below, **value} if is_laid_over and below is not None else value
    document = Document(document.file, data, document.positions)
    values = _checked(FrontMatter, document, ("E-FRONT", subject), None, findings)
    return Front(values or FrontMatter(), document)


def read_sections(
    sections: Iterable[Section], timeouts: Mapping[str, int], findings: Findings
) -> dict[str, NodeSource]:
    """Return what *sections* say about each node; *timeouts* replace what is written.

    Of two sections of one id the first counts, and the second is a problem.
    """
    found: dict[str, NodeSource] = {}
    for section in sections:
        first = found.get(section.id)
        if first is None:
            found[section.id] = _node_source(section, timeouts.get(section.id), findings)
        elif first.section is not None:
            detail = f"a second section of this id; the first one is in line {first.section.line}"
            findings.error("E-SECTION", section.id or "###", detail, (section.line, 1))
    return found


def without_section(node: str, timeouts: Mapping[str, int], findings: Findings) -> NodeSource:
    """Return what is said about a node that has no section."""
    return _checked_source(
        Document(findings.file, {}, {}), node, None, timeouts.get(node), findings
    )


def _node_source(section: Section, timeout: int | None, findings: Findings) -> NodeSource:
    document = _document(section.settings, "E-NODE", section.id or "###", findings)
    return _checked_source(document, section.id, section, timeout, findings)


def _checked_source(
    document: Document,
    node: str,
    section: Section | None,
    timeout: int | None,
    findings: Findings,
) -> NodeSource:
    if timeout is not None:
        data = {**document.data, "timeout": timeout}
        if isinstance(config := data.get("config"), dict):
            data["config"] = {key: config[key] for key in config if key != "timeout"}
        document = Document(document.file, data, document.positions)
    at = (section.line, 1) if section is not None else None
    values = None
    if document.data:
        values = _checked(NodeSettings, document, ("E-NODE", node or "###"), at, findings)
    source = NodeSource(values or NodeSettings(), document, section)
    for one, other in TWINS:
        if source.written(*one) and source.written(*other):
            detail = f"{'.'.join(one)} and {'.'.join(other)} say the same thing; keep one of them"
            findings.error("E-NODE", node or "###", detail, source.at(*other))
    return source


def _document(part: Part | None, code: str, subject: str, findings: Findings) -> Document:
    if part is not None:
        try:
            return parse_text(part.text, findings.file, part.line)
        except ConfigurationError as error:
            if error.hint is None and "{{" in part.text and "expected" not in error.message:
                error.hint = 'a text with {{…}} has to be in double quotes: "{{state.x}}"'
            findings.of(code, subject, error)
    return Document(findings.file, {}, {})


def _checked(
    model: type[_Model],
    document: Document,
    code_and_subject: tuple[str, str],
    at: Position | None,
    findings: Findings,
) -> _Model | None:
    """Return the values of *document*; without those that are wrong, which are told."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = problems_of(error, model, document.where)
    code, subject = code_and_subject
    wrong: set[str | int] = set()
    for problem in found:
        path = problem.path
        if not problem.is_missing:
            path = _as_written(path, document)
        wrong.add(path[0] if path else "")
        is_unknown_key = problem.error.message.startswith("unknown key")
        shown = path[:-1] if is_unknown_key else path
        message = f"{dotted(shown)}: {problem.error.message}" if shown else problem.error.message
        own = next((_CODES[key] for key in path if key in _CODES), code)
        findings.error(own, subject, message, document.position(path) or at, problem.error.hint)
    rest = {key: value for key, value in document.data.items() if key not in wrong}
    try:
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
DEFAULT_INITIAL_DELAY_MS = 1000
DEFAULT_MAX_DELAY_MS = 60_000
_SECOND_MS = 1000
_PROVIDER: TypeAdapter[str] = TypeAdapter(Name)
_MODEL: TypeAdapter[str] = TypeAdapter(ModelName)


def step_of(name: str, source: NodeSource, retry: RetrySettings | None, findings: Findings) -> Step:
    """Return what the agent *name* runs; *retry* is what the front matter says.

    What can't be a step's field is told and left out.
    """
    values = source.values
    fields: dict[str, Any] = {field: getattr(values, field) for field in STEP_FIELDS}
    limit_ms = values.limit_ms
    fields |= {
        "text": source.prompt or None,
        "executor": values.agent or values.executor,
        "tools": _tools(name, source, findings),
        "timeout_s": None if limit_ms is None else limit_ms / _SECOND_MS,
        "retry": retry_of(retry, values.own_retry),
        "continue_session": values.continues or None,
        "output": _output(source),
    }
    fields |= _model(name, source, findings)
    # What nobody wrote is left to the defaults that a project has for its steps.
    written = {field: value for field, value in fields.items() if value is not None}
    try:
        return Step(name=name, **written)
    except ValidationError as refused:
        first = refused.errors()[0]
        at = source.section.prompt.line if source.section else 1
        detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        findings.error("E-NODE", name, detail, (at, 1))
        return Step.model_construct(name=name)


def retry_of(flow: RetrySettings | None, own: RetrySettings) -> Retry | None:
    """Return *own* laid over *flow*, field by field; None if neither says anything."""
    if flow is None and own == RetrySettings():
        return None
    base = flow or RetrySettings()

    def either(field: str, default: Any) -> Any:
        value = getattr(own, field)
        value = getattr(base, field) if value is None else value
        return default if value is None else value

    return Retry(
        max_attempts=either("max_attempts", 1),
        backoff=either("backoff", "fixed"),
        initial_delay_s=either("initial_delay", DEFAULT_INITIAL_DELAY_MS) / _SECOND_MS,
        max_delay_s=either("max_delay", DEFAULT_MAX_DELAY_MS) / _SECOND_MS,
    )


def _output(source: NodeSource) -> Output | None:
    written = source.values.whole_output
    if written.key is None and written.format is None and written.json_schema is None:
        return None
    return Output.model_validate(
        {"key": written.key, "format": written.format or "text", "schema": written.json_schema}
    )


def _tools(name: str, source: NodeSource, findings: Findings) -> dict[str, bool] | None:
    tools = source.values.tools
    for tool in tools or ():
        if tool not in TOOLS:
            at, hint = source.at("tools", tool), findings.known(tool, TOOLS)
            findings.error("E-TOOLS", name, f"there is no tool {tool!r}", at, hint)
    return None if tools is None else {tool: tools[tool] for tool in tools if tool in TOOLS}


def _model(name: str, source: NodeSource, findings: Findings) -> dict[str, str]:
    """Return provider and model of ``provider/name``, or the model alone."""
    written = source.values.model
    if written is None:
        return {}
    provider, slash, model = written.partition("/")
    try:
        if not slash:
            return {"model": _MODEL.validate_python(written)}
        return {
            "provider": _PROVIDER.validate_python(provider),
            "model": _MODEL.validate_python(model),
        }
    except ValidationError as refused:
        text = refused.errors()[0]["msg"].removeprefix("Value error, ")
        detail = f"{written!r} is no model: {text[:1].lower()}{text[1:]}"
        hint = "write provider/name, anthropic/claude-sonnet-4 for example"
        findings.error("E-MODEL", name, detail, source.at("model"), hint)
        return {}
