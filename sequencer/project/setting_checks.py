"""Checks of settings that depend on each other: references by name, and safe paths.

They run on settings whose single values are valid, and report every problem, not only the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sequencer import extensions
from sequencer.errors import ConfigurationError, PackageFailed, UnknownName, UnsafePath
from sequencer.files.yamlfile import KeyPath
from sequencer.model.sequence.gates import list_feedback_targets
from sequencer.model.step import Step
from sequencer.project.schema import BUILTIN_AGENTS, Schema
from sequencer.project.sections import LocatedError, section
from sequencer.project.sources import Layers
from sequencer.project.store_kinds import STORE_KIND, store_kind
from sequencer.workflows.definitions import WorkflowDefinition
from sequencer.workflows.prompts import relative_name
from sequencer.workflows.registry import Registry
from sequencer.workflows.router import RouterMode
from sequencer.workflows.verdicts import ensure_schema


def _ensure_problem(problem: Any) -> LocatedError:
    """Return *problem*, which a package has found, if it is a path and an error."""
    path, error = problem
    if not isinstance(path, tuple) or not isinstance(error, ConfigurationError):
        raise TypeError("a problem has to be a path (a tuple) and a ConfigurationError")
    return path, error


class Check:
    """One check of all settings together."""

    def __init__(
        self, layers: Layers, schema: Schema, registry: Registry, prompts_dir: Path
    ) -> None:
        """Prepare to check *schema*; *layers* has the places of its values, for messages."""
        self._layers, self._at = layers, layers.format_location
        self._schema = schema
        self._registry = registry
        self._prompts_dir = prompts_dir
        # Refused entries count as known names: a second error would hide the cause.
        self._agents = frozenset(BUILTIN_AGENTS) | self._list_written_names("agents")
        self._definitions = self._list_written_names("workflows")

    def _list_written_names(self, key: str) -> frozenset[str]:
        """Return the names that were written below *key*.

        Entries that were removed because they need an unavailable plug-in are included.
        """
        entries = self._layers.values.get(key)
        unavailable_names = (
            path[1] for path in self._layers.unavailable if len(path) > 1 and path[0] == key
        )
        return frozenset(
            (*(entries if isinstance(entries, dict) else ()), *map(str, unavailable_names))
        )

    def problems(self) -> list[LocatedError]:
        """Return the problems."""
        parts: tuple[Callable[[], Iterator[LocatedError]], ...] = (
            self._check_workflow,
            self._check_sections,
            self._check_store,
            self._check_agent_entries,
            self._check_agent_names,
            self._check_prompt_names,
            self._check_own_steps,
            self._check_gates,
            self._check_router,
        )
        return [problem for part in parts for problem in part()]

    def _check_workflow(self) -> Iterator[LocatedError]:
        path = ("workflow", "name")
        name = self._schema.workflow.name
        names = self._registry.names
        if name not in names:
            if name not in self._definitions:
                yield path, UnknownName("workflow", name, names, where=self._at(path))
            return
        cadence = ("workflow", "review_every_n")
        interval = self._schema.workflow.review_every_n or 0
        source = self._layers.sources.get(cadence)
        # An option is about one run, which may have another workflow.
        is_option = source is not None and source.kind == "flag"
        if interval > 0 and not is_option and self._registry.get(name).review is None:
            message = f"workflow {name!r} has no review step, so review_every_n has no effect"
            self._layers.notices.append(f"{self._at(cadence)}: {message}")

    def _check_sections(self) -> Iterator[LocatedError]:
        """Yield the problems of the plug-in sections that are set."""
        for name in self._schema.model_fields_set & {*self._schema.sections()}:
            value = getattr(self._schema, name)
            problems = None if value is None else section(name).problems
            if problems is not None and extensions.find_plugin(extensions.SECTIONS, name):
                yield from problems(value, self)
            elif problems is not None:
                try:
                    with extensions.package_code(extensions.SECTIONS, name):
                        # A generator of a package fails only when it runs: run it inside the block.
                        findings = [_ensure_problem(problem) for problem in problems(value, self)]
                except PackageFailed as error:
                    findings = [((name,), error)]
                yield from findings

    # --- checks that sections call -----------------------------------------------------

    def format_location(self, path: KeyPath) -> str:
        """Return the place where the value at *path* was set, and the path."""
        return self._layers.format_location(path)

    def check_agent(self, name: str, path: KeyPath) -> Iterator[LocatedError]:
        """Yield an error if the agent *name*, written at *path*, does not exist."""
        if name not in self._agents:
            yield path, UnknownName("agent", name, self._agents, where=self._at(path))

    def check_workflow(self, name: str, path: KeyPath) -> Iterator[LocatedError]:
        """Yield an error if the workflow *name*, written at *path*, does not exist."""
        names = self._registry.names
        if name not in names and name not in self._definitions:
            yield path, UnknownName("workflow", name, names, where=self._at(path))

    def check_procedure(self, name: str, path: KeyPath) -> Iterator[LocatedError]:
        """Yield an error if *name*, written at *path*, is not a procedure.

        A default is not checked: the project may have redefined that workflow as a cycle. A
        refused definition is not checked either: it has been reported.
        """
        is_refused = name in self._definitions - set(self._registry.names)
        if path in self._layers.sources and not is_refused:
            yield from check_procedure_name(name, path, self._registry, self._at(path))

    def check_prompt(self, name: str | None, path: KeyPath) -> Iterator[LocatedError]:
        """Yield an error if the prompt *name*, written at *path*, is outside the prompts folder."""
        if name is None:
            return
        try:
            relative_name(self._prompts_dir, name)
        except UnsafePath as error:
            yield path, UnsafePath(error.message, where=self._at(path), hint=error.hint)

    def check_step(self, step: Step, path: KeyPath) -> Iterator[LocatedError]:
        """Yield the problems of *step*, written at *path*."""
        if step.agent is not None:
            yield from self.check_agent(step.agent, (*path, "agent"))
        yield from self._check_step_prompts(step, path)
        if step.output is not None and step.output.json_schema is not None:
            # An invalid schema would fail every attempt, after the agent was paid.
            schema_path = (*path, "output", "schema")
            try:
                ensure_schema(step.output.json_schema, self._at(schema_path))
            except ConfigurationError as error:
                yield schema_path, error

    def _check_own_steps(self) -> Iterator[LocatedError]:
        for name, definition in self._schema.workflows.items():
            for path, step in _list_steps(definition, ("workflows", name)):
                yield from self.check_step(step, path)

    def _check_store(self) -> Iterator[LocatedError]:
        path = ("store", "journal", "rotate_bytes")
        rotate_bytes, name = self._schema.store.journal.rotate_bytes, self._schema.store.kind
        try:
            kind = store_kind(name, self._at(STORE_KIND))
        except ConfigurationError as error:
            yield STORE_KIND, error
            return
        max_bytes = kind.max_open_journal_bytes
        if max_bytes is not None and path in self._layers.sources and rotate_bytes > max_bytes:
            message = f"must be at most {max_bytes} with kind {name}, not {rotate_bytes}"
            hint = "each transition pushes the whole open journal"
            yield path, ConfigurationError(message, where=self._at(path), hint=hint)
        if self._schema.worktree and kind.code is not None:
            message = "this store moves the run's code in the checkout, not in a worktree"
            hint = "leave worktree out, or keep the run in files (store.kind: file)"
            where = self._at(("worktree",))
            yield ("worktree",), ConfigurationError(message, where=where, hint=hint)

    def _check_agent_entries(self) -> Iterator[LocatedError]:
        for name, entry in self._schema.agents.items():
            path = ("agents", name)
            if name == "auto":
                message = "'auto' means the first client that is installed; choose another name"
                yield path, ConfigurationError(message, where=self._at(path))
            elif entry.kind is None and name not in BUILTIN_AGENTS:
                hint = "for example kind: command with argv: [make, test]"
                yield (
                    path,
                    ConfigurationError("needs a kind", where=self._at(path), hint=hint),
                )

    def _check_agent_names(self) -> Iterator[LocatedError]:
        schema = self._schema
        agents_by_path: dict[KeyPath, str | None] = {("agent", "default"): schema.agent.default}
        agents_by_path |= {
            ("agent", "roles", role): name for role, name in schema.agent.roles.items()
        }
        agents_by_path |= {
            ("agent", "prompts", prompt): name for prompt, name in schema.agent.prompts.items()
        }
        agents_by_path |= {
            ("agent", "fallback", index): name for index, name in enumerate(schema.agent.fallback)
        }
        for order, definition in schema.workflows.items():
            if definition.review is not None:
                agents_by_path["workflows", order, "review", "agent"] = definition.review.agent
        for path, name in agents_by_path.items():
            if name is not None:
                yield from self.check_agent(name, path)

    def _check_prompt_names(self) -> Iterator[LocatedError]:
        schema = self._schema
        prompt_keys = ("supervisor_prompt", "main_prompt", "reviewer_prompt")
        prompts_by_path: dict[KeyPath, str | None] = {
            (key,): getattr(schema, key) for key in prompt_keys
        }
        prompts_by_path["router", "prompt"] = schema.router.prompt
        prompts_by_path |= {
            ("router", "allowlist", index): name
            for index, name in enumerate(schema.router.allowlist)
        }
        prompts_by_path |= {("agent", "prompts", name): name for name in schema.agent.prompts}
        for path, name in prompts_by_path.items():
            yield from self.check_prompt(name, path)
        yield from self._check_step_prompts(schema.step_defaults, ("step_defaults",))

    def _check_step_prompts(self, step: Step, path: KeyPath) -> Iterator[LocatedError]:
        yield from self.check_prompt(step.prompt_name, (*path, "prompt"))
        yield from self.check_prompt(step.system_prompt, (*path, "system_prompt"))
        for name in step.added_system_prompts:
            yield from self.check_prompt(name, (*path, "append_system_prompt"))

    def _check_gates(self) -> Iterator[LocatedError]:
        for name in self._schema.workflows:
            if name not in self._registry.names or name in self._registry.flows:
                continue
            for step, step_names in list_feedback_targets(self._registry.get(name)):
                target = step.approval.feedback_to if step.approval is not None else None
                if target is not None and target not in step_names:
                    path = ("workflows", name)
                    message = f"feedback at the gate {step.name!r} goes to step {target!r}, which "
                    message += "is neither the gate's step nor one that always runs before it"
                    hint = f"set approval.feedback_to to one of: {', '.join(step_names)}"
                    yield path, ConfigurationError(message, where=self._at(path), hint=hint)

    def _check_router(self) -> Iterator[LocatedError]:
        router = self._schema.router
        if not router.enabled or router.prompt is not None:
            return
        path = ("router", "prompt")
        if router.mode is RouterMode.ONLY:
            message = "mode router_only needs a prompt for the router"
            yield path, ConfigurationError(message, where=self._at(path))
        else:
            text = "the router is enabled but has no prompt, so the workflow chooses"
            self._layers.notices.append(f"{self._at(path)}: {text}")


def _list_steps(definition: WorkflowDefinition, path: KeyPath) -> Iterator[tuple[KeyPath, Step]]:
    """Yield (path, step) for each step in *definition*; a change is a step with few fields set."""
    steps: list[tuple[KeyPath, Step]] = [
        *((("steps", index), step) for index, step in enumerate(definition.steps)),
        *definition.inline_steps(),
        *definition.added_steps(),
        *((("replace", name), change) for name, change in definition.replace.items()),
    ]
    if definition.review is not None:
        steps.append((("review", "step"), definition.review.step))
    for subpath, step in steps:
        yield (*path, *subpath), step
        if step.validation is not None and step.validation.fixer is not None:
            yield (*path, *subpath, "validation", "fixer"), step.validation.fixer


def check_procedure_name(
    name: str, path: KeyPath, registry: Registry, where: str
) -> Iterator[tuple[KeyPath, ConfigurationError]]:
    """Yield an error if *name*, written at *path*, is not the name of a procedure."""
    names = registry.procedure_names
    if name in names:
        return
    if name in registry.names:
        message = f"workflow {name!r} is a cycle, but a request can start only a procedure"
        hint = f"known procedures: {', '.join(names)}"
        yield path, ConfigurationError(message, where=where, hint=hint)
    else:
        yield path, UnknownName("procedure", name, names, where=where)
