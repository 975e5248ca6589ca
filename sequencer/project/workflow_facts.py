"""What the workflows of a project may do, and how that goes beyond what a person has trusted.

The code that runs workflows also reads them here: `Schema` and `Composition` for
orchestration.yaml, the registry for flowcharts and lists of tasks. If its reader refuses a file,
any change of it counts. A file with a trusted digest is not read again.

Steps are compared by name within their workflow. A step with a new name may have the rights of a
trusted step of the same agent. A removed step does not matter, unless it had a gate.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from sequencer import __version__, extensions
from sequencer.errors import ConfigurationError
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import compute_digest, expand_home, is_linked_outside
from sequencer.files.yamlfile import format_key_path
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Step
from sequencer.model.workflow import OWN_WORKFLOW, Workflow
from sequencer.project.inline_graphs import inline_graphs
from sequencer.project.schema import OLD_ROLES, Schema, WorkflowChoice
from sequencer.project.sections import LocatedError, SectionSteps, section, section_value
from sequencer.project.sources import OWN_STEPS, Layers
from sequencer.project.step_facts import (
    PERSON,
    WHOLE,
    Complete,
    StepFacts,
    WiderPermission,
    escape_non_ascii,
    facts_of_step,
    facts_of_steps,
    facts_of_workflow,
    find_removed_gates,
    find_widenings,
    lost_gates,
    to_json_line,
)
from sequencer.workflows.definitions import Composition
from sequencer.workflows.finding import FLOW_FOLDERS, MAX_CHARS
from sequencer.workflows.registry import (
    BuiltinPrompts,
    BuiltinWorkflows,
    Registry,
    with_defaults,
)

_SECTIONS = ("workflows", "step_defaults", "retry", "workflow", "agent", "worktree")
"""Keys of orchestration.yaml that decide what steps do; for plug-ins, see `SectionSteps`."""
_MAX_FLOW_BYTES = 4 * MAX_CHARS
"""A character has up to four bytes."""
_MAX_READ_BYTES = MAX_CHARS // 2
"""Limit for all files together; in later files, any change counts."""
_IN_FILE = "orchestration.yaml"
_WORKFLOWS, _FILE = "workflows.", "file "
_DEFAULTS = "step_defaults"
_CADENCE = "review_every_n"
_RUNS = "runs"
_SHOWN_STEPS = 3
_WHOLE_CONTENT = "whole content"

_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "limits.cost_usd": ("max_cost_usd", "budget.max_cost_usd"),
    "limits.attempts": ("retry.max_attempts", "validation.max_attempts"),
    "limits.seconds": ("timeout_s", "idle_timeout_s"),
    "limits.steps": ("max_iterations",),
}
"""A run's cap -> the caps of its steps that it bounds."""
_SHARE = 0.5
"""A step's cap may rise to this fraction of the run's trusted cap."""


class Recorded(Struct, frozen=True):
    """What the workflows of a project could do when a person trusted it."""

    workflow: str
    """The default workflow."""
    files: dict[str, str] = field(default_factory=dict)
    """Workflow -> the key of its file."""
    digests: dict[str, str] = field(default_factory=dict)
    """Key of a file -> digest of its content."""
    steps: dict[str, dict[str, StepFacts]] = field(default_factory=dict)
    """Key of a workflow -> its steps' facts, by name."""

    @property
    def granting_files(self) -> set[str]:
        """Return the workflow files, as written in the project, that grant an agent something.

        They include files that no reader accepts.
        """
        return {
            key.removeprefix(_FILE)
            for key, steps in self.steps.items()
            if key.startswith(_FILE)
            and any(facts.grants or facts.others for facts in steps.values())
        }


class _Change(Struct, frozen=True):
    key: str
    step: str
    widening: WiderPermission


def compute_bounds(caps: Mapping[str, float]) -> dict[str, float]:
    """Return how far the caps of steps may rise under the run's *caps*."""
    return {
        name: caps[cap] * _SHARE
        for cap, names in _BOUNDS.items()
        if not math.isinf(caps.get(cap, math.inf))
        for name in names
    }


class Workflows:
    """The current workflows of a project."""

    def __init__(self, written: Mapping[str, Any], root: Path, flows: Iterable[Path] = ()) -> None:
        """Take the values of orchestration.yaml, and find the workflow files, including *flows*."""
        self._written = {name: written[name] for name in _SECTIONS if name in written}
        for name in written.keys() & extensions.OURS[extensions.SECTIONS].keys():
            steps, values = section(name).steps, written[name]
            if steps is not None and isinstance(values, dict) and steps.key in values:
                self._written[name] = {steps.key: values[steps.key]}
        if isinstance(router := written.get("router"), dict) and _CADENCE in router:
            # An older spelling: `workflow` has this key now, and wins.
            choice = self._written.get("workflow")
            workflow_choice = choice if isinstance(choice, dict) else {}
            self._written["workflow"] = {_CADENCE: router[_CADENCE], **workflow_choice}
        self._root = root
        text = json.dumps([__version__, self._written], sort_keys=True, default=str)
        self._digests = {_IN_FILE: compute_digest(text.encode())}
        # These settings change what a flow does, so its digest covers them too.
        shared_values = [__version__, *(self._written.get(name) for name in ("agent", "workflow"))]
        self._shared = json.dumps(shared_values, sort_keys=True, default=str).encode()
        self._data: dict[str, tuple[Path, bytes]] = {}
        self._size = 0
        self._steps: dict[str, dict[str, StepFacts]] = {}
        self._files: dict[str, str] = {}
        """Workflow -> key of its file."""
        for path, names in self._find_files(flows).items():
            self._add(Path(path), names)

    @cached_property
    def recorded(self) -> Recorded:
        """Return all facts, for a record."""
        steps = {key: self.find_steps(key) or {} for key in self._iter_keys()}
        return Recorded(self._chosen, self._files, self._digests, steps)

    @property
    def texts(self) -> Iterator[bytes]:
        """Yield the content of each workflow file."""
        # A backslash stands for a file that is not read: it may name any agent.
        yield from (data or b"\\" for _, data in self._data.values())

    @property
    def lines(self) -> Iterator[str]:
        """Yield what the workflows may do, for people."""
        facts_as_changes = [
            _Change(key, step, WiderPermission(None, line))
            for key, steps in self.recorded.steps.items()
            for step, facts in steps.items()
            for line in facts.lines
        ]
        yield from (line for _, line in _format_changes(facts_as_changes) if line is not None)

    @property
    def grouped(self) -> Iterator[str]:
        """Yield one line per workflow: its grants and its gates.

        Limits and refusals are left out: they only take rights away.
        """
        defaults = self.recorded.steps.get(_DEFAULTS, {}).values()
        default_grants = {grant for facts in defaults for grant in facts.grants}
        for key, steps in self.recorded.steps.items():
            known_grants = set() if key == _DEFAULTS else default_grants
            # In the order of the steps, without repetitions.
            powers = dict.fromkeys(line for facts in steps.values() for line in facts.powers)
            text = "; ".join(escape_non_ascii(line) for line in powers if line not in known_grants)
            count = 0 if key == _DEFAULTS else len(steps.keys() - {WHOLE})
            if count:
                yield f"{key}, {count} step{'s' * (count > 1)}: {text or 'nothing is granted'}"
            elif text:
                yield f"{key}: {text}"

    def changes(
        self, trusted: Recorded | None, caps: Mapping[str, float]
    ) -> Iterator[tuple[str | None, str | None]]:
        """Yield (line before, line now) for each right beyond *trusted* under a run's *caps*.

        *trusted* is None in a record that was written before steps were compared. Then every
        fact is new.
        """
        if trusted is None:
            yield from ((None, line) for line in self.lines)
            return
        comparison = _Comparison(self, trusted, compute_bounds(caps))
        changes: dict[_Change, None] = {}
        for key, trusted_key in self._pairs(trusted):
            changes |= dict.fromkeys(comparison.changes(key, trusted_key))
        yield from _format_changes(changes)

    def _pairs(self, record: Recorded) -> Iterator[tuple[str, str]]:
        """Yield (current key, key in *record*) for each pair of workflows to compare."""
        for key in (*self._iter_keys(record), *record.steps):
            source = key if key in self._data else _IN_FILE
            if self._digests[source] != record.digests.get(source):
                yield key, key
        for name in sorted({*record.files, *self._files}):
            old_key, new_key = _key(name, record.files), _key(name, self._files)
            if old_key != new_key:
                yield new_key, old_key
        if self._chosen != record.workflow:
            yield _key(self._chosen, self._files), _key(record.workflow, record.files)

    def _iter_keys(self, record: Recorded | None = None) -> Iterator[str]:
        """Yield the keys of all workflows: in orchestration.yaml, then in files of their own.

        With *record*, skip those in orchestration.yaml if that has not changed since.
        """
        if record is None or self._digests[_IN_FILE] != record.digests.get(_IN_FILE):
            yield from self._steps_in_file
        yield from self._data

    def find_steps(self, key: str) -> dict[str, StepFacts] | None:
        """Return the facts of the workflow with *key*, or of the built-in one with that name."""
        if key not in self._steps:
            if key not in self._data:
                steps = self._steps_in_file.get(key)
                return self.find_builtin_steps(key) if steps is None else steps
            path, data = self._data[key]
            try:
                registry = Registry(sections=partial(section_value, self._schema))
                workflow = registry.parse_graph(path, data).workflow
                self._steps[key] = self._build_facts(workflow)
            except (ConfigurationError, ValidationError):
                self._steps[key] = _opaque_facts(self._digests[key])
        return self._steps[key]

    def find_builtin_steps(self, key: str) -> dict[str, StepFacts] | None:
        """Return the facts of the built-in workflow or section steps with *key*, or None."""
        if (section_steps := _find_section_steps(key)) is not None:
            name, steps = section_steps
            return self._facts_of_section(steps, section(name).default(), None)
        name = key.removeprefix(_WORKFLOWS)
        workflows = BuiltinWorkflows(BuiltinPrompts())
        if name == key or name not in workflows:
            return None
        return self._build_facts(workflows[name])

    def _build_facts(self, workflow: Workflow) -> dict[str, StepFacts]:
        """Return the facts of *workflow* as the project runs it."""
        with suppress(ValidationError):
            interval = self._schema.workflow.review_every_n
            if interval is not None and workflow.review is not None:
                workflow = workflow.with_review_every(interval)
        return self._with_agents(facts_of_workflow(workflow, self._complete))

    def _with_agents(self, steps: Mapping[str, StepFacts]) -> dict[str, StepFacts]:
        """Return *steps* with the agent of each step, and the fallback agents after it."""
        section = self._written.get("agent")
        names = section.get("fallback") if isinstance(section, dict) else None
        names = map(str, names) if isinstance(names, list) else ()
        fallbacks = "".join(f"\n{name}" for name in names)
        return {
            name: facts
            if name == WHOLE or PERSON in facts.gates
            else msgspec.structs.replace(
                facts, agent=f"{facts.agent or self._get_agent(name)}{fallbacks}"
            )
            for name, facts in steps.items()
        }

    def _get_agent(self, step: str) -> str:
        section = self._written.get("agent")
        selection = section if isinstance(section, dict) else {"default": section}
        name, _, inner_name = step.partition("\n")
        roles = raw_roles if isinstance(raw_roles := selection.get("roles"), dict) else {}
        prompt_agents = selection.get("prompts")
        old_name = next(
            (
                old_name
                for old_name, new_name in OLD_ROLES.items()
                if new_name == name and old_name in roles
            ),
            name,
        )
        agent = str(roles.get(name) or roles.get(old_name) or selection.get("default") or "auto")
        # A review's position is not its name, and its prompt may choose the agent.
        tables = [prompt_agents] if prompt_agents else []
        tables += [roles] if inner_name and roles else []
        return " ".join([agent, *map(to_json_line, tables)])

    def _find_files(self, flows: Iterable[Path]) -> dict[str, list[str]]:
        """Return the paths of the workflow files, with the names of their workflows."""
        files: dict[str, list[str]] = {}
        entries = self._written.get("workflows")
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            file = entry.get("file") if isinstance(entry, dict) else entry
            if isinstance(file, str) and file:
                path = os.path.normpath(self._root / expand_home(file))
                files.setdefault(path, []).append(name)
        paths = [os.path.realpath(flow) for flow in flows]
        for folder in (self._root / name for name in FLOW_FOLDERS):
            if is_linked_outside(folder, self._root):
                continue  # none of its files is ever run
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not entries
            except OSError:
                continue
            paths += [str(folder / name) for name in names if _is_workflow_file(name)]
        for path in paths:
            # The stem is also a name for the workflow: `run NAME` finds the file by it.
            files.setdefault(path, []).append(f"flow\n{escape_non_ascii(Path(path).stem)}")
        return dict(sorted(files.items()))

    def _add(self, path: Path, names: Iterable[str]) -> None:
        try:
            if is_linked_outside(path, self._root):
                return  # it is never run
            data = read_bytes(path, _MAX_FLOW_BYTES)
        except ConfigurationError:
            # Not a file, or too large: no reader accepts it.
            return
        key = _FILE + escape_non_ascii(format_path(path, self._root))
        self._digests[key] = compute_digest(self._shared + b"\n" + data)
        self._size += len(data)
        self._data[key] = path, data
        if self._size > _MAX_READ_BYTES:
            self._data[key] = path, b""
            self._steps[key] = _opaque_facts(self._digests[key])
        for name in names:
            self._files.setdefault(name, key)

    @property
    def _chosen(self) -> str:
        """Return the name of the default workflow."""
        section, entries = self._written.get("workflow"), self._written.get("workflows")
        name = section.get("name") if isinstance(section, dict) else None
        if isinstance(name, str):
            return name
        own_entry = entries.get(OWN_WORKFLOW) if isinstance(entries, dict) else None
        has_own = isinstance(own_entry, dict) and {"steps", "review"} & own_entry.keys()
        return OWN_WORKFLOW if has_own else WorkflowChoice().name

    @cached_property
    def _schema(self) -> Schema:
        """Return the sections with steps, as the file alone sets them.

        Raises:
            ValidationError: the file is valid only together with variables or options.
        """
        values, entries = dict(self._written), self._written.get("workflows")
        own_entry = entries.get(OWN_WORKFLOW) if isinstance(entries, dict) else None
        if isinstance(entries, dict) and isinstance(own_entry, dict) and "review" in own_entry:
            default_steps = {} if "extends" in own_entry else {"steps": list(OWN_STEPS)}
            values["workflows"] = {**entries, OWN_WORKFLOW: {**default_steps, **own_entry}}
        return Schema.model_validate(values)

    @cached_property
    def _complete(self) -> Complete:
        """Return the function that adds the project's defaults to a step."""
        try:
            return partial(with_defaults, defaults=self._schema.default_fields)
        except ValidationError:
            return partial(with_defaults, defaults={})

    @cached_property
    def _steps_in_file(self) -> dict[str, dict[str, StepFacts]]:
        """Return the facts of the workflows, defaults and roles that are in orchestration.yaml."""
        try:
            return self._read_steps_in_file(self._schema)
        except (ValidationError, ConfigurationError):
            return {_IN_FILE: _opaque_facts(self._digests[_IN_FILE])}

    def _read_steps_in_file(self, schema: Schema) -> dict[str, dict[str, StepFacts]]:
        own_entries = {
            name: entry for name, entry in schema.workflows.items() if entry.file is None
        }
        step_entries = {name: entry for name, entry in own_entries.items() if entry.inline is None}
        composition = Composition(step_entries, BuiltinWorkflows(BuiltinPrompts()), format_key_path)
        workflows = dict(composition.workflows)
        layers, problems = Layers(values=self._written), list[LocatedError]()
        sections = partial(section_value, schema)
        lists = inline_graphs(schema, sections, layers, self._root, problems)
        workflows |= {name: graph.workflow for name, graph in lists.items()}
        facts = {
            _WORKFLOWS + escape_non_ascii(name): self._build_facts(workflows[name])
            if name in workflows
            else _opaque_facts(self._digests[_IN_FILE])
            for name in own_entries
        }
        facts[_DEFAULTS] = {WHOLE: facts_of_step(self._complete(Step(name=_DEFAULTS)))}
        for name in self._written.keys() & extensions.OURS[extensions.SECTIONS].keys():
            if (steps := section(name).steps) is not None:
                names = self._written[name][steps.key]
                facts[f"{name}.{steps.key}"] = self._facts_of_section(steps, sections(name), names)
        facts[_RUNS] = {WHOLE: StepFacts(refusals=("worktree: true",) if schema.worktree else ())}
        return facts

    def _facts_of_section(
        self, steps: SectionSteps, value: Any, names: Collection[str] | None
    ) -> dict[str, StepFacts]:
        """Return the facts of *steps* in a section with *value*; *names*: only these, None: all."""
        facts: dict[str, StepFacts] = {}
        for name, (step, traits) in steps.every(value).items():
            if names is None or name in names:
                facts |= facts_of_steps(name, step, self._complete, traits)
        return self._with_agents(facts)


def _find_section_steps(key: str) -> tuple[str, SectionSteps] | None:
    """Return (section name, its steps) for the section whose steps have *key*, or None."""
    name, _, steps_key = key.partition(".")
    if name not in extensions.OURS[extensions.SECTIONS]:
        return None
    steps = section(name).steps
    return None if steps is None or steps.key != steps_key else (name, steps)


class _Comparison:
    """Compares the current steps with the trusted steps."""

    def __init__(self, workflows: Workflows, record: Recorded, bounds: Mapping[str, float]) -> None:
        """Compare *workflows* with *record*; caps of steps may rise up to *bounds*."""
        self._now, self._trusted, self._bounds = workflows, record, bounds

    def changes(self, key: str, trusted_key: str) -> Iterator[_Change]:
        """Yield what the workflow *key* may do beyond the trusted one with *trusted_key*."""
        steps, trusted_steps = self._now.find_steps(key), self._find_own_steps(trusted_key)
        if steps is None:
            return  # it was removed
        if trusted_steps is not None and _find_section_steps(key) is not None:
            builtin = self._now.find_builtin_steps(key) or {}
            steps, trusted_steps = builtin | steps, builtin | trusted_steps
        for name, facts in steps.items():
            trusted_facts = None if trusted_steps is None else trusted_steps.get(name)
            yield from (
                _Change(key, name, widening)
                for widening in self._compare_step(name, facts, trusted_facts)
            )
        if trusted_steps is not None:
            new_steps = {name: facts for name, facts in steps.items() if name not in trusted_steps}
            removed_steps = {
                name: facts for name, facts in trusted_steps.items() if name not in steps
            }
            yield from (
                _Change(key, name, widening)
                for name, widening in find_removed_gates(removed_steps, new_steps)
            )

    def _find_own_steps(self, key: str) -> dict[str, StepFacts] | None:
        steps = self._trusted.steps.get(key)
        return self._now.find_builtin_steps(key) if steps is None else steps

    def _compare_step(
        self, name: str, step_facts: StepFacts, trusted_facts: StepFacts | None
    ) -> Iterator[WiderPermission]:
        if trusted_facts is not None:
            yield from find_widenings(
                step_facts,
                trusted_facts,
                self._bounds,
                self._given.get(step_facts.agent, frozenset()),
            )
            yield from lost_gates(step_facts, trusted_facts)
        elif name == WHOLE:
            # A new workflow has no older cap that this one could exceed.
            yield from find_widenings(step_facts, StepFacts(caps=step_facts.caps), self._bounds)
        else:
            yield from self._compare_new_step(step_facts)

    def _compare_new_step(self, step_facts: StepFacts) -> list[WiderPermission]:
        """Return what a step with a new name may do beyond the nearest trusted step."""
        same_agent = [facts for facts in self._known if facts.agent == step_facts.agent]
        # An agent without a trusted step gets none of the grants of other agents.
        candidates = same_agent or [
            msgspec.structs.replace(facts, grants=()) for facts in self._known
        ]
        differences = [
            list(find_widenings(step_facts, facts, self._bounds))
            for facts in candidates or [StepFacts()]
        ]
        smallest_difference = min(differences, key=len)
        return [
            WiderPermission(None, widening.after or f"no {widening.before}")
            for widening in smallest_difference
        ]

    @cached_property
    def _known(self) -> list[StepFacts]:
        """Return the facts of the trusted steps, without repetitions."""
        record = self._trusted
        chosen_key = _key(record.workflow, record.files)
        all_steps = {chosen_key: self._find_own_steps(chosen_key) or {}, **record.steps}
        unique_facts = {
            repr(facts): facts
            for key, steps in all_steps.items()
            for name, facts in steps.items()
            if name != WHOLE and _find_section_steps(key) is None and PERSON not in facts.gates
        }
        return list(unique_facts.values())

    @cached_property
    def _given(self) -> dict[str | None, frozenset[str]]:
        """Return the grants that each agent has in any trusted step."""
        grants: dict[str | None, frozenset[str]] = {}
        for facts in self._known:
            grants[facts.agent] = grants.get(facts.agent, frozenset()) | {*facts.grants}
        return grants


def _key(name: str, files: Mapping[str, str]) -> str:
    """Return the key of the workflow called *name*, which may be in one of *files*."""
    return files.get(name, _WORKFLOWS + escape_non_ascii(name))


def _opaque_facts(digest: str) -> dict[str, StepFacts]:
    """Return the facts of a file that can't be parsed: any change of it counts."""
    return {WHOLE: StepFacts(others={_WHOLE_CONTENT: digest})}


def _is_workflow_file(name: str) -> bool:
    path = Path(name)
    return path.suffix.lower() == ".md" and path.stem.lower() != "readme"


def format_path(path: Path, root: Path) -> str:
    """Return *path* as it is written in the project."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _format_changes(changes: Iterable[_Change]) -> Iterator[tuple[str | None, str | None]]:
    """Yield (line before, line now) for *changes*; equal changes of several steps share a line.

    A change of the step defaults is not repeated for each workflow.
    """
    change_list = list(changes)
    default_widenings = {change.widening for change in change_list if change.key == _DEFAULTS}
    steps: dict[tuple[str, WiderPermission], list[str]] = {}
    for change in change_list:
        if change.key == _DEFAULTS or change.widening not in default_widenings:
            steps.setdefault((change.key, change.widening), []).append(change.step)
    for (key, widening), names in steps.items():
        step_names = [name.replace("\n", ".") for name in names[:_SHOWN_STEPS] if name != WHOLE]
        count_texts = [f"{len(names) - _SHOWN_STEPS} more"] if len(names) > _SHOWN_STEPS else []
        prefix = ", ".join([key, *map(escape_non_ascii, step_names), *count_texts])
        old_line, new_line = (
            line and f"{prefix}, {escape_non_ascii(line)}"
            for line in (widening.before, widening.after)
        )
        yield old_line, new_line
