"""The keys of orchestration.yaml, their types and their defaults.

The models decide whether a single value is valid. `checks` compares values with each other: a
workflow's name with the definitions, an agent's name with the entries.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from sequencer import extensions
from sequencer.errors import ConfigurationError
from sequencer.executors.prices import ModelPrice
from sequencer.files.textfile import DEFAULT_STATE_FILE, is_branch_name
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import (
    AfterValidator,
    BeforeValidator,
    Field,
    LazySpec,
    Refusal,
    describe_value,
    ensure_mapping,
    model_validator,
)
from sequencer.model.limits import RunLimits
from sequencer.model.step import Approval, ModelName, Name, Retry, Step, Validation
from sequencer.project.enabled_plugins import OFF, ON
from sequencer.project.sections import section_spec
from sequencer.workflows.definitions import ReviewDefinition, StepEntry, WorkflowDefinition
from sequencer.workflows.router import RouterSettings

MIB = 1024 * 1024
CURRENT, NONE = "current", "none"
MESSAGE = "{step}: iteration {iteration} (run {run})"
PLACEHOLDERS = ("step", "iteration", "step_index", "run", "token")
"""Words in braces that a message may contain."""

_WORD = re.compile(r"\{([^{}]*)\}")
_PASSWORD = re.compile(r"://[^/@:]*:[^/@]+@|^https?://[^/@]+@")

BUILTIN_AGENTS = ("auto", "claude", "codex", "gemini", "opencode", "anthropic", "rehearsal")
"""Names that you can use for an agent anywhere, without an entry in ``agents``."""
AGENT_KINDS = (*BUILTIN_AGENTS, "command", "scripted")
"""What ``kind`` of an entry in ``agents`` may be without a package."""

OLD_ROLES = {"galph": "supervisor", "ralph": "main", "loop": "main"}
"""Words for positions in ``agent.roles`` -> what they mean."""

PathText = Annotated[str, Field(min_length=1, max_length=4096)]
"""A path as written in the file; it is resolved against the project's folder."""
FileMode = Annotated[str, Field(pattern=r"^0?6[046][046]$")]
"""Octal, as for `chmod`; the owner can always read and write."""
PromptName = Annotated[str, Field(min_length=1, max_length=300)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _ensure_mapping(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Refusal("plugins_type", {}, "expected a mapping, such as {web: off}")
    return value


def _ensure_switch(value: Any) -> Any:
    if str(value).lower() not in ON | OFF:
        raise Refusal("switch_type", {}, "expected on or off")
    return value


Switch = Annotated[bool | Literal["on", "off"], BeforeValidator(_ensure_switch)]
"""Whether a plug-in or a package is enabled."""


class Section(Frozen):
    """A mapping of orchestration.yaml: frozen, and unknown keys are errors."""


class WorkflowChoice(Section):
    """``workflow:``, the order of the steps."""

    name: Name = "standard"
    review_every_n: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    """A review replaces every Nth cycle; 0 or less: never."""

    @model_validator(mode="before")
    @classmethod
    def _ensure_mapping(cls, value: object) -> object:
        return ensure_mapping(value, "the name of a workflow")


class AgentSelection(Section):
    """``agent:``, the agent for steps that don't name one."""

    default: Name = "auto"
    roles: dict[Name, Name] = Field(default_factory=dict)
    """By position or step name; galph, ralph and loop mean supervisor, main and main."""
    prompts: dict[PromptName, Name] = Field(default_factory=dict)
    fallback: tuple[Name, ...] = ()
    """Agents that perform a step, in this order, while its own agent is unavailable."""

    @model_validator(mode="before")
    @classmethod
    def _ensure_mapping(cls, value: object) -> object:
        return ensure_mapping(value, "the name of an agent")


class AgentEntry(Frozen, extra="allow"):
    """One of ``agents:``; the executor of its kind validates the options."""

    kind: Name | None = None
    """The kind of executor; optional if the entry has the name of a built-in agent."""

    @model_validator(mode="before")
    @classmethod
    def _ensure_mapping(cls, value: object) -> object:
        if not isinstance(value, (dict, AgentEntry)):
            raise ValueError(f"an agent must be a mapping with 'kind', not {describe_value(value)}")  # noqa: TRY004 - pydantic collects ValueErrors
        return value

    @property
    def options(self) -> dict[str, Any]:
        """Return everything but the kind, as written in the file."""
        return dict(self.model_extra or {})


def _refuse_identity(_value: object) -> object:
    raise ValueError("belongs to a single step and can't be a default")


def _refuse_agent(_value: object) -> object:
    raise ValueError("can't be a default of steps; use 'agent' at the top level for all steps")


class StepDefaults(Step):
    """``step_defaults:``, fields for every step that doesn't set them."""

    name: Annotated[Name, BeforeValidator(_refuse_identity)] = Field(
        default="step_defaults", exclude=True
    )
    description: Annotated[str, BeforeValidator(_refuse_identity)] = Field(default="", exclude=True)
    prompt: Annotated[str | None, BeforeValidator(_refuse_identity)] = Field(
        default=None, exclude=True
    )
    text: Annotated[str | None, BeforeValidator(_refuse_identity)] = Field(
        default=None, exclude=True
    )
    agent: Annotated[Name | None, BeforeValidator(_refuse_agent)] = Field(
        default=None, exclude=True
    )
    retry: Annotated[Retry | None, BeforeValidator(_refuse_identity)] = Field(
        default=None, exclude=True
    )
    requires_approval: Annotated[bool, BeforeValidator(_refuse_identity)] = Field(
        default=False, exclude=True
    )
    approval: Annotated[Approval | None, BeforeValidator(_refuse_identity)] = Field(
        default=None, exclude=True
    )
    validation: Annotated[Validation | None, BeforeValidator(_refuse_identity)] = Field(
        default=None, exclude=True
    )

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields that the file sets, by name."""
        return {field: getattr(self, field) for field in sorted(self.model_fields_set)}


class JournalOptions(Section):
    """``store.journal:``, how much of the journal to keep."""

    rotate_bytes: int = Field(default=4 * MIB, ge=64 * 1024, le=1024 * MIB)
    """At this size, a journal file is closed and a new one starts."""
    keep: int = Field(default=8, ge=1, le=10_000)
    """Number of closed journal files to keep."""


def _ensure_branch(text: str) -> str:
    if not is_branch_name(text):
        raise ValueError("is not a valid branch name")
    return text


def _ensure_pattern(text: str) -> str:
    parts = text.split("/")
    if "\0" in text or ".." in parts or not text.strip("/"):
        raise ValueError("a pattern is a path below the project's folder, with *, ? and **")
    return text


def _normalize_extension(text: str) -> str:
    if not text.startswith(".") or "/" in text or len(text) == 1:
        raise ValueError("an extension must start with a dot, for example .md")
    return text.lower()


def _ensure_message(text: str) -> str:
    unknown_words = [word for word in _WORD.findall(text) if word not in PLACEHOLDERS]
    if unknown_words:
        placeholders = ", ".join(f"{{{word}}}" for word in PLACEHOLDERS)
        raise ValueError(f"{{{unknown_words[0]}}} is unknown here; known: {placeholders}")
    return text


_TEXT = Field(min_length=1, max_length=1000)
BranchName = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_ensure_branch)]
Pattern = Annotated[str, _TEXT, AfterValidator(_ensure_pattern)]
Extension = Annotated[str, Field(max_length=100), AfterValidator(_normalize_extension)]
Message = Annotated[
    str,
    Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$"),
    AfterValidator(_ensure_message),
]
Bytes = Annotated[int, Field(ge=0, le=1024 * MIB)]


class WorkOptions(Frozen):
    """``store.work:``, the code that moves with the state."""

    branch: BranchName = CURRENT
    """``current``: the branch that is checked out when the first step starts. ``none``: code is
    not moved. Or the name of a branch, which also becomes the guard of a run in files.
    """
    tolerated: tuple[Pattern, ...] = ()
    """Paths that may have uncommitted changes when a step starts."""


class CommitOptions(Frozen):
    """``commit:``, what to commit after a step."""

    paths: tuple[Pattern, ...] = ()
    """Commit all changes there, including removed files."""
    docs: bool = True
    """Whether `doc_whitelist` is used."""
    doc_whitelist: tuple[Pattern, ...] = ()
    """Same as `paths`, for documents."""
    reports: bool = True
    """Whether the keys that start with ``report_`` are used."""
    report_extensions: tuple[Extension, ...] = ()
    """New and changed files with one of these extensions."""
    report_path_globs: tuple[Pattern, ...] = ()
    """Only in these places; without extensions: everything new or changed there."""
    tracked_outputs: bool = True
    """Whether the keys that start with ``tracked_output_`` are used."""
    tracked_output_extensions: tuple[Extension, ...] = ()
    """Changed files with one of these extensions that git already tracks."""
    tracked_output_globs: tuple[Pattern, ...] = ()
    """Only in these places; without extensions: everything changed there."""
    exclude: tuple[Pattern, ...] = ()
    """Never commit these, even if other keys include them."""
    max_file_bytes: Bytes = MIB
    """Limit for one file in `paths` or `doc_whitelist`."""
    max_report_file_bytes: Bytes = 5 * MIB
    max_report_total_bytes: Bytes = 20 * MIB
    max_tracked_output_file_bytes: Bytes = 32 * MIB
    max_tracked_output_total_bytes: Bytes = 100 * MIB
    max_total_bytes: Bytes = 128 * MIB
    """Limit for one commit."""
    message: Message = MESSAGE
    """First line of the commit message."""

    @property
    def is_open(self) -> bool:
        """Return whether anything may be committed."""
        return bool(
            self.paths
            or (self.docs and self.doc_whitelist)
            or (self.reports and (self.report_extensions or self.report_path_globs))
            or (
                self.tracked_outputs
                and (self.tracked_output_extensions or self.tracked_output_globs)
            )
        )

    def first_line(self, facts: dict[str, str]) -> str:
        """Return the message with the words in braces replaced by *facts*, in one pass."""
        return _WORD.sub(lambda match: facts[match[1]], self.message)


def _ensure_branch_pattern(value: str) -> str:
    """Return *value* if git accepts it as a branch name, for any value of ``{run}``."""
    name = value.replace("{run}", "run")
    if not is_branch_name(name) or "{" in name or "}" in name:
        raise ValueError(f"{value!r} is not a valid branch name; {{run}} means the run's name")
    return value


def _ensure_remote(value: str) -> str:
    """Return *value* if it may appear in files and messages."""
    if _PASSWORD.search(value):
        raise ValueError(
            "contains a password, which messages would show: name a remote ('git remote add'), "
            "and let a credential helper or ssh keep the key"
        )
    return value


RemoteName = Annotated[
    str, Field(pattern=r"^[^-\s][^\s]*$", max_length=4096), AfterValidator(_ensure_remote)
]
BranchPattern = Annotated[str, Field(max_length=150), AfterValidator(_ensure_branch_pattern)]


class PollOptions(Section):
    """``store.poll:``, how often a waiting process polls the remote (kind git)."""

    fast_s: float = Field(default=0.5, ge=0.05, le=3600, allow_inf_nan=False)
    """Seconds between polls right after something happened."""
    slow_s: float = Field(default=15.0, ge=0.05, le=86_400, allow_inf_nan=False)
    """Seconds between polls when nothing has happened for a long time."""

    @model_validator(mode="after")
    def _ensure_ordered(self) -> PollOptions:
        if self.slow_s < self.fast_s:
            raise ValueError("slow_s is less than fast_s")
        return self


class TlsOptions(Section):
    """``store.tls:``, files in PEM format."""

    ca: str | None = None
    """Certificate of the authority that signed the server's certificate; absent: the authorities
    that this machine trusts."""
    cert: str | None = None
    """The client's certificate."""
    key: str | None = None
    """The private key of the client's certificate."""


SHARED = "shared"
"""The queue that every worker of a project serves."""


class StoreOptions(Section):
    """``store:``, where the state of a run is kept."""

    kind: Name = "file"
    ttl_s: float = Field(default=60.0, ge=1, le=86_400, allow_inf_nan=False)
    """Seconds that a claim is valid without a heartbeat."""
    allow_network_fs: bool = False
    """Accept nfs, cifs and fuse, although locks and renames are not reliable there."""
    journal: JournalOptions = JournalOptions()
    remote: RemoteName = "origin"
    """Name or address of the remote that machines share (kind git)."""
    branch: BranchPattern = "sequencer/{run}"
    """The branch on the remote for the state; ``{run}`` is the run's name, or ``default``."""
    work: WorkOptions = WorkOptions()
    timeout_s: float = Field(default=60.0, ge=1, le=3600, allow_inf_nan=False)
    """Time limit for one git process that reaches the remote."""
    retry_for_s: float = Field(default=1800.0, ge=0, le=31_536_000, allow_inf_nan=False)
    """How long `run` waits for a remote that does not answer."""
    poll: PollOptions = PollOptions()
    max_commits: int = Field(default=2000, ge=0, le=10_000_000)
    """Number of commits after which the state branch starts over with the same files; 0: never."""
    address: Annotated[str, Field(pattern=r"^[^\s/@]+:[0-9]+$", max_length=300)] = "127.0.0.1:7233"
    """Host and port of the server (kind temporal)."""
    namespace: Name = "default"
    """Namespace on the server (kind temporal)."""
    project: Name | None = None
    """Name of the project's runs and workers on the server; absent: the folder's name."""
    queue: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = None
    """Queue of the workers for runs started here (kind temporal): a name that you choose, or
    ``shared``; absent: shared in a project with git, else this machine's name."""
    tls: TlsOptions | None = None
    """Certificate files, if the server needs them (kind temporal)."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Name of the variable with the key for the server (kind temporal)."""


def _split(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


SetupCommand = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...],
    BeforeValidator(_split),
    Field(min_length=1),
]
"""A program and its arguments; text is split at spaces as in a shell, but no shell is used."""


class LogOptions(Section):
    """``logs:``, limits of step logs."""

    max_bytes: int = Field(default=64 * MIB, ge=4096, le=1024 * 1024 * MIB)
    """Limit for one step's log; a marker replaces the rest."""


class RunDefaults(Section):
    """``run:``, defaults for the options of `run` and `tick`."""

    mode: Literal["combined", "sync", "async"] = "combined"
    max_steps: int = Field(default=20, ge=1)
    """Maximum number of steps in one invocation."""
    max_cycles: int | None = Field(default=None, ge=1)
    max_cost_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Limit for one invocation; ``limits.cost_usd`` is the limit for the run."""
    max_wait_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds to wait for a turn; absent: none in mode combined, no limit in mode sync."""
    step_timeout_s: PositiveSeconds | None = None
    """Time limit for steps without timeout_s."""
    max_parallel: int = Field(default=4, ge=1, le=1000)
    """Maximum number of graph nodes that one process runs at the same time."""


DecidingVerb = Literal[
    "answer",
    "stop",
    "retry",
    "skip",
    "set",
    "rewind",
    "reset",
    "adopt",
    "takeover",
    "repair",
    "resume",
    "run",
    "start",
    "sync",
    "clean",
]
"""Commands for decisions by people: also `run` with --start-at, and `sync` with --to. `trust` is
not among them, because you can't delegate it."""


class Schema(Section):
    """The whole file."""

    agent: AgentSelection = AgentSelection()
    steps: tuple[StepEntry, ...] = ()
    """The default cycle, ``workflows.default``: it runs if you name no other workflow."""
    review: ReviewDefinition | None = None
    """The review of those steps; without steps, of a supervisor and a main step."""
    limits: RunLimits = RunLimits()
    retry: Retry = Retry()
    """For steps without their own ``retry``. A number alone means that many tries, with pauses
    that grow."""
    workflow: WorkflowChoice = WorkflowChoice()
    prompts_dir: PathText = "prompts"
    supervisor_prompt: PromptName = "supervisor.md"
    main_prompt: PromptName = "main.md"
    reviewer_prompt: PromptName = "reviewer.md"
    state_file: PathText = DEFAULT_STATE_FILE
    logs_dir: PathText = "logs"
    file_mode: FileMode = "0600"
    """Mode of a run's new files; users who may read them may also enter their folders."""
    router: RouterSettings = RouterSettings()
    agents: dict[Name, AgentEntry] = Field(default_factory=dict)
    workflows: dict[Name, WorkflowDefinition] = Field(default_factory=dict)
    hooks: tuple[PathText, ...] = ()
    """Python files of the project with hooks, in the order in which they are called."""
    prices: dict[ModelName, ModelPrice] = Field(default_factory=dict)
    """By model, in USD per million tokens, for clients that report only tokens."""
    step_defaults: StepDefaults = StepDefaults()
    store: StoreOptions = StoreOptions()
    commit: CommitOptions = CommitOptions()
    worktree: bool = False
    """A run works in its own git worktree and branch, which is merged at the end."""
    setup: tuple[SetupCommand, ...] = ()
    """Commands that run once in a new worktree of a run, before its first step."""
    setup_timeout_s: PositiveSeconds = 1800.0
    """Time limit for one setup command."""
    logs: LogOptions = LogOptions()
    plugins: Annotated[dict[Name, Switch], BeforeValidator(_ensure_mapping)] = Field(
        default_factory=dict
    )
    """Plug-ins and packages, by name, that are disabled or enabled."""
    run: RunDefaults = RunDefaults()
    agents_may_decide: tuple[DecidingVerb, ...] = ()
    """Commands for people that an agent may also use during its step."""

    @classmethod
    def sections(cls) -> list[str]:
        """Return the keys that are sections of plug-ins."""
        return [name for name, spec in cls.model_fields.items() if isinstance(spec, LazySpec)]

    @property
    def default_fields(self) -> dict[str, Any]:
        """Return the defaults for fields that steps don't set."""
        retry = {"retry": self.retry} if self.retry.model_fields_set else {}
        return self.step_defaults.fields | retry


for _name in extensions.OURS[extensions.SECTIONS]:
    Schema.add_field(section_spec(_name))


TAKEN = frozenset((*Schema.model_fields, *dir(Schema)))
"""Names that a package can't use for its section."""


def schema_with(keys: Iterable[str]) -> type[Schema]:
    """Return the schema for a file with *keys*, including those that are sections of packages."""
    unknown_names = set(keys) - Schema.model_fields.keys()
    entries = extensions.entries(extensions.SECTIONS) if unknown_names else ()
    section_names = {entry.name for entry in entries}
    if reserved_names := sorted(section_names & unknown_names & TAKEN):
        message = f"a package can't have a section called {reserved_names[0]!r}"
        raise ConfigurationError(message, where=extensions.SECTIONS, hint="choose another name")
    # An unknown key is an error, and its message lists the sections of all packages.
    new_names = section_names & unknown_names if unknown_names <= section_names else section_names
    new_names = new_names - TAKEN
    if not new_names:
        return Schema
    schema: type[Schema] = type(
        "Schema", (Schema,), {"__annotations__": {}, "__doc__": Schema.__doc__}
    )
    for name in sorted(new_names):
        # A section that the file doesn't have is needed only by name: its package stays unloaded.
        schema.add_field(
            section_spec(name) if name in unknown_names else LazySpec(name, lambda: Any)
        )
    return schema
