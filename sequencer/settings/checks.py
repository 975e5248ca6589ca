"""What two settings have to agree on: names that refer to each other, and safe paths.

Runs on settings whose single values are right. Every problem is reported, not the first.
Lists of tasks that stand in the settings are made here too, because they are checked as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer.documents.keys import located
from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.model.step import Step
from sequencer.settings.schema import BUILTIN_AGENTS, Schema
from sequencer.settings.sources import Layers
from sequencer.workflows.definitions import WorkflowDefinition
from sequencer.workflows.prompts import relative_name
from sequencer.workflows.registry import Registry
from sequencer.workflows.requests.options import AUTO, RULES
from sequencer.workflows.router import RouterMode
from sequencer.workflows.teams.options import TeamOptions, roles
from sequencer.workflows.verdicts import ensure_schema

if TYPE_CHECKING:
    from sequencer.model.team import Role
    from sequencer.workflows.teams.lists import TaskList


Found = tuple[KeyPath, ConfigurationError]
MAX_PUSHED_BYTES = 1024 * 1024
"""Of an open journal that is kept in git, where each transition writes it anew."""


class Check:
    """One look at a whole set of settings."""

    def __init__(
        self, layers: Layers, schema: Schema, registry: Registry, prompts_dir: Path
    ) -> None:
        """Prepare to check *schema*, whose values *layers* holds the places of."""
        self._layers = layers
        self._schema = schema
        self._registry = registry
        self._prompts_dir = prompts_dir
        # Entries that were refused are known by name; naming them twice would hide the cause.
        self._agents = frozenset(BUILTIN_AGENTS) | self._written("agents")
        self._definitions = self._written("workflows")

    def _written(self, key: str) -> frozenset[str]:
        """Return the names that were written below *key*, refused ones included."""
        entries = self._layers.values.get(key)
        return frozenset(entries if isinstance(entries, dict) else ())

    def problems(self) -> list[Found]:
        """Return what doesn't fit together."""
        parts: tuple[Callable[[], Iterator[Found]], ...] = (
            self._workflow,
            self._store,
            self._agent_entries,
            self._agent_names,
            self._prompt_names,
            self._steps,
            self._gates,
            self._router,
            self._routing,
            self._team_score,
            self._team_roles,
        )
        return [found for part in parts for found in part()]

    def _at(self, path: KeyPath) -> str:
        return located(self._layers.where(path), path)

    def _workflow(self) -> Iterator[Found]:
        path = ("workflow", "name")
        name = self._schema.workflow.name
        known = self._registry.names
        if name not in known:
            if name not in self._definitions:
                yield path, UnknownName("workflow", name, known, where=self._at(path))
            return
        cadence = ("workflow", "review_every_n")
        every = self._schema.workflow.review_every_n or 0
        source = self._layers.sources.get(cadence)
        # What an option asks for is about one run, which may have another workflow.
        is_option = source is not None and source.kind == "flag"
        if every > 0 and not is_option and self._registry.get(name).review is None:
            message = f"workflow {name!r} has no review step, so review_every_n has no effect"
            self._layers.notices.append(f"{self._at(cadence)}: {message}")

    def _store(self) -> Iterator[Found]:
        path = ("store", "journal", "rotate_bytes")
        written = self._schema.store.journal.rotate_bytes
        is_meant = self._schema.store.kind == "git" and path in self._layers.sources
        if is_meant and written > MAX_PUSHED_BYTES:
            message = f"is at most {MAX_PUSHED_BYTES} with kind git, not {written}"
            hint = "each transition pushes the whole open journal"
            yield path, ConfigurationError(message, where=self._at(path), hint=hint)
        if self._schema.worktree and self._schema.store.kind == "git":
            message = "code that moves with the state is in the checkout, not in a worktree"
            hint = "leave worktree out, or keep the run in files (store.kind: file)"
            where = self._at(("worktree",))
            yield ("worktree",), ConfigurationError(message, where=where, hint=hint)

    def _agent_entries(self) -> Iterator[Found]:
        for name, entry in self._schema.agents.items():
            path = ("agents", name)
            if name == "auto":
                message = "'auto' means the first client that is installed; choose another name"
                yield path, ConfigurationError(message, where=self._at(path))
            elif entry.kind is None and name not in BUILTIN_AGENTS:
                hint = "for example kind: command with argv: [make, test]"
                yield path, ConfigurationError("needs a kind", where=self._at(path), hint=hint)

    def _agent_names(self) -> Iterator[Found]:
        agent = self._schema.agent
        yield from self._agent(agent.default, ("agent", "default"))
        for role, name in agent.roles.items():
            yield from self._agent(name, ("agent", "roles", role))
        for prompt, name in agent.prompts.items():
            yield from self._agent(name, ("agent", "prompts", prompt))

    def _agent(self, name: str, path: KeyPath) -> Iterator[Found]:
        if name not in self._agents:
            yield path, UnknownName("agent", name, self._agents, where=self._at(path))

    def _prompt_names(self) -> Iterator[Found]:
        schema = self._schema
        yield from self._prompt(schema.supervisor_prompt, ("supervisor_prompt",))
        yield from self._prompt(schema.main_prompt, ("main_prompt",))
        yield from self._prompt(schema.reviewer_prompt, ("reviewer_prompt",))
        yield from self._prompt(schema.router.prompt, ("router", "prompt"))
        for index, name in enumerate(schema.router.allowlist):
            yield from self._prompt(name, ("router", "allowlist", index))
        for name in schema.agent.prompts:
            yield from self._prompt(name, ("agent", "prompts", name))
        yield from self._system_prompts(schema.step_defaults, ("step_defaults",))

    def _prompt(self, name: str | None, path: KeyPath) -> Iterator[Found]:
        if name is None:
            return
        try:
            relative_name(self._prompts_dir, name)
        except UnsafePath as error:
            yield path, UnsafePath(error.message, where=self._at(path), hint=error.hint)

    def _steps(self) -> Iterator[Found]:
        for name, definition in self._schema.workflows.items():
            for path, step in _steps_of(definition, ("workflows", name)):
                if step.executor is not None:
                    yield from self._agent(step.executor, (*path, "executor"))
                yield from self._prompt(step.prompt_name, (*path, "prompt"))
                yield from self._system_prompts(step, path)
                yield from self._answer(step, path)

    def _answer(self, step: Step, path: KeyPath) -> Iterator[Found]:
        """Yield what is wrong with the schema of a step's answer; it would fail every step."""
        schema = step.output.json_schema if step.output is not None else None
        if schema is None:
            return
        whole = (*path, "output", "schema")
        try:
            ensure_schema(schema, self._at(whole))
        except ConfigurationError as error:
            yield whole, error

    def _gates(self) -> Iterator[Found]:
        for name in self._schema.workflows:
            if name not in self._registry.names or name in self._registry.flows:
                continue
            so_far: list[str] = []
            for step in self._registry.get(name).steps:
                so_far.append(step.name)
                target = step.approval.feedback_to if step.approval is not None else None
                if target is not None and target not in so_far:
                    path = ("workflows", name)
                    message = f"feedback at the gate {step.name!r} goes to step {target!r}, which "
                    message += "does not come before it"
                    hint = f"set approval.feedback_to to one of: {', '.join(so_far)}"
                    yield path, ConfigurationError(message, where=self._at(path), hint=hint)

    def _system_prompts(self, step: Step, path: KeyPath) -> Iterator[Found]:
        yield from self._prompt(step.system_prompt, (*path, "system_prompt"))
        for name in step.added_system_prompts:
            yield from self._prompt(name, (*path, "append_system_prompt"))

    def _router(self) -> Iterator[Found]:
        router = self._schema.router
        if not router.enabled or router.prompt is not None:
            return
        path = ("router", "prompt")
        if router.mode is RouterMode.ONLY:
            message = "mode router_only needs a prompt that chooses"
            yield path, ConfigurationError(message, where=self._at(path))
        else:
            text = "the router is enabled but has no prompt, so the workflow selects"
            self._layers.notices.append(f"{self._at(path)}: {text}")

    def _routing(self) -> Iterator[Found]:
        routing, registry = self._schema.routing, self._registry
        # A definition that was refused makes no workflow, and was reported for what it is.
        refused = self._definitions - set(registry.names)
        chosen: dict[KeyPath, str] = {("routing", "fallback"): routing.fallback}
        chosen |= {("routing", "procedures", word): n for word, n in routing.procedures.items()}
        for path, name in chosen.items():
            # A default that nobody wrote may name what the project has made a cycle of.
            if path in self._layers.sources and name not in refused:
                yield from ensure_procedure(name, path, registry, self._at(path))
        if routing.classifier not in (AUTO, RULES):
            yield from self._agent(routing.classifier, ("routing", "classifier"))
        for name, entry in routing.system_prompts.items():
            yield from self._prompt(entry.prompt, ("routing", "system_prompts", name, "prompt"))

    def _team_score(self) -> Iterator[Found]:
        refused = self._definitions - set(self._registry.names)
        for name in self._schema.teams.score.procedures:
            path = ("teams", "score", "procedures", name)
            if name not in refused:
                yield from ensure_procedure(name, path, self._registry, self._at(path))

    def _team_roles(self) -> Iterator[Found]:
        if (agent := self._schema.teams.fallback_agent) is not None:
            yield from self._agent(agent, ("teams", "fallback_agent"))
        for name, role in self._schema.teams.roles.items():
            path = ("teams", "roles", name)
            step = Step.model_validate({"name": name, **role.step})
            if step.executor is not None:
                yield from self._agent(step.executor, (*path, "executor"))
            yield from self._prompt(step.prompt, (*path, "prompt"))
            yield from self._system_prompts(step, path)
            yield from self._answer(step, path)


def _steps_of(definition: WorkflowDefinition, path: KeyPath) -> Iterator[tuple[KeyPath, Step]]:
    """Yield what *definition* says about steps; a change is a step whose other fields are unset."""
    found: list[tuple[KeyPath, Step]] = [
        *((("steps", index), step) for index, step in enumerate(definition.steps)),
        *((("tasks", index), entry) for index, entry in enumerate(definition.tasks)),
        *definition.added_steps(),
        *((("replace", name), change) for name, change in definition.replace.items()),
    ]
    if definition.review is not None:
        found.append((("review", "step"), definition.review.step))
    for below, step in found:
        yield (*path, *below), step
        if step.validation is not None and step.validation.fixer is not None:
            yield (*path, *below, "validation", "fixer"), step.validation.fixer


def ensure_procedure(
    name: str, path: KeyPath, registry: Registry, where: str
) -> Iterator[tuple[KeyPath, ConfigurationError]]:
    """Yield what is wrong with *name*, which stands at *path*, as a procedure."""
    known = registry.procedure_names
    if name in known:
        return
    if name in registry.names:
        message = f"workflow {name!r} is a cycle, and what a request starts has to end"
        hint = f"known procedures: {', '.join(known)}"
        yield path, ConfigurationError(message, where=where, hint=hint)
    else:
        yield path, UnknownName("procedure", name, known, where=where)


def roles_of(options: TeamOptions) -> Callable[[], Mapping[str, Role]]:
    """Return what makes the roles of a project whose section `teams` is *options*."""
    models = {"teammate_model": options.teammate_model, "lead_model": options.lead_model}
    return partial(roles, options.roles, **models)


def task_lists(
    schema: Schema,
    roles: Callable[[], Mapping[str, Role]],
    layers: Layers,
    file: Path,
    found: list[Found],
) -> dict[str, TaskList]:
    """Return the lists of tasks in *schema*, by workflow; what is wrong is added to *found*.

    *file* is the one in which settings are written.
    """
    made: dict[str, TaskList] = {}
    for name, listed in _written_lists(layers).items():
        from sequencer.workflows.teams.lists import inline_list, list_errors  # noqa: PLC0415

        def where(path: KeyPath, above: KeyPath = ("workflows", name)) -> str:
            return located(layers.where((*above, *path)), (*above, *path))

        errors = list_errors(listed, roles(), where)
        found += [(("workflows", name, *path), error) for path, error in errors]
        # Whatever is wrong with an entry itself was found before, and its list is not here.
        entry = schema.workflows.get(name)
        if entry is not None and entry.tasks and not errors:
            tasks = entry.as_tasks()
            made[name] = inline_list(name, tasks, roles(), entry.size, file=file, where=where)
    return made


def _written_lists(layers: Layers) -> dict[str, list[Any]]:
    """Return the entries of each list as they were written, refused ones too."""
    workflows = layers.values.get("workflows")
    written = workflows if isinstance(workflows, dict) else {}
    return {
        name: entry["tasks"]
        for name, entry in written.items()
        if isinstance(entry, dict) and isinstance(entry.get("tasks"), list)
    }
