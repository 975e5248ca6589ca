"""Prepares the steps of a workflow, and holds everything that the layers need to perform them.

Every mistake that can be found before anything runs is refused in `Performer.prepare`, without a
claim.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sequencer.engine.agents import Agents
from sequencer.engine.attempt import PreparedStep
from sequencer.engine.events import Emit, NoticeGiven
from sequencer.engine.hooking import HookContext, HookFailed, Hooks
from sequencer.engine.logs import StepLogs
from sequencer.engine.prompts import PromptFolder
from sequencer.engine.records import drop_comment_tools
from sequencer.engine.workspace import Workspace
from sequencer.errors import ConfigurationError
from sequencer.model.head import Head, Status
from sequencer.model.limits import RunLimits
from sequencer.model.request import Definition
from sequencer.model.sequence.order import current_round, last_step, position_at, step_at
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef
from sequencer.model.workflow import Workflow
from sequencer.workflows.router import RouterMode, RouterSettings

if TYPE_CHECKING:
    from sequencer.engine.tasks import TaskExecution


class Performer(Struct, frozen=True):
    """Prepares the steps of one workflow, and holds what the layers need to perform them."""

    workflow: Workflow
    agents: Agents
    prompts: PromptFolder
    logs: StepLogs
    emit: Emit
    project: Path
    workspace: Workspace
    """Where agents work."""
    with_defaults: Callable[[Step], Step]
    """Fills in the fields of a step that come from ``step_defaults``."""
    redact: Callable[[str], str]
    router: RouterSettings | None = None
    hooks: Hooks | None = None
    """None: the project has no hooks."""
    definition: Definition | None = None
    """None: the run was not made from a request."""
    tasks: TaskExecution | None = None
    """None: the nodes are not tasks."""
    comment_tools: tuple[str, ...] = ()
    """Tools that can post comments; a step with ``no_comment`` gets none of them."""
    own_folders: tuple[Path, ...] = ()
    """Folders of the project's runs; changes there are not the work of an agent."""
    max_attempts: int = RunLimits().attempts
    """The most attempts at one step; a usage limit at the last one is a failure."""

    def find_step(self, place: StepRef) -> tuple[Step, str]:
        """Return the step at *place*, defaults filled in, and the name of its position."""
        step = step_at(self.workflow, place)
        if self.definition is None:
            # The steps of a definition got their defaults when it was made.
            step = self.with_defaults(step)
        return step, position_at(self.workflow, place.step_index)

    def prepare(self, place: StepRef) -> PreparedStep:
        """Return the step at *place*, ready to start.

        Raises:
            ConfigurationError: its prompt or its agent is missing; nothing was started.
        """
        step, position = self.find_step(place)
        router = self.router
        if router is not None and router.is_active:
            # The router is asked after the claim, so its agent is checked before.
            self.agents.choose_installed(self.router_step(router), "router")
        if router is None or router.needs_selection:
            is_routed = router is not None and router.enabled and router.mode is RouterMode.ONLY
            if is_routed:
                raise ConfigurationError(
                    "router_only needs a prompt",
                    where="router.prompt",
                    hint="name the router's prompt",
                )
            return self.prepare_step(step, position, place)
        # The router chooses the prompt, so the prompt of the workflow need not exist.
        agent, executor, replacement = self.agents.choose_installed(step, position)
        step = drop_comment_tools(step, executor, self.comment_tools)
        return PreparedStep(step, position, place, agent, executor, prompt="", instead=replacement)

    def prepare_step(self, step: Step, position: str, place: StepRef) -> PreparedStep:
        """Return *step*, defaults filled in, ready to start; see `prepare`."""
        agent, executor, replacement = self.agents.choose_installed(step, position)
        read_prompt, added_prompts = self.prompts.read, step.added_system_prompts
        return PreparedStep(
            step=drop_comment_tools(step, executor, self.comment_tools),
            position=position,
            place=place,
            agent=agent,
            executor=executor,
            prompt=self.prompts.read_for(step, executor),
            system_prompt=None if step.system_prompt is None else read_prompt(step.system_prompt),
            append_system_prompt="\n\n".join([read_prompt(name).strip() for name in added_prompts])
            or None,
            instead=replacement,
        )

    def router_step(self, router: RouterSettings) -> Step:
        """Return the question to the router as a step, with the router's own time limit.

        The defaults for the time and the completion of steps don't fit an answer of one line.
        """
        step = self.with_defaults(Step(name="router", prompt=router.prompt))
        fields = {"timeout_s": router.timeout_s, "idle_timeout_s": None, "complete_when": None}
        return step.replace(**fields, continue_session=False, expects=None, stagnation=None)

    def make_hook_context(
        self, workflow: Workflow, step: Step, step_index: int, attempt: int, head: Head
    ) -> HookContext:
        """Return the context for a hook about *step*; *attempt* counts from 1."""
        return HookContext(
            run_id=head.run_id,
            run_name=head.run_name,
            workflow=workflow.name,
            project=self.project,
            step=step,
            step_index=step_index,
            attempt=attempt,
            round=current_round(head),
            request=self.definition.request if self.definition else None,
            steps=workflow.names,
            moves=workflow.moves,
        )

    def report_completed(self, step_index: int, head: Head) -> None:
        """End the workspace of the run of *head*, complete with *step_index*, and call the hooks.

        The run stays complete in any case; a hook that raises causes a notice.

        Raises:
            WorkTreeRefused: see `Workspace.end`.
        """
        try:
            if head.status is Status.COMPLETE:
                self.workspace.end(head)
        finally:
            self._call_hooks(step_index, head)

    def _call_hooks(self, step_index: int, head: Head) -> None:
        if self.hooks is None:
            return
        step = last_step(self.workflow, head, step_index)
        try:
            self.hooks.completed(
                self.make_hook_context(self.workflow, step, step_index, 1, head), head
            )
        except HookFailed as error:
            self.emit(NoticeGiven(self.redact(str(error))))
