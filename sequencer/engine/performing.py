"""From a place in a workflow to a step that can be started; what performs it has that from here.

What can be refused before anything runs is refused in `Performer.prepare`, without a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sequencer.engine.agents import Agents
from sequencer.engine.attempt import PreparedStep
from sequencer.engine.events import Emit, Noticed
from sequencer.engine.hooking import HookContext, HookFailed, Hooks
from sequencer.engine.logs import StepLogs
from sequencer.engine.prompts import PromptFolder
from sequencer.engine.records import without_comments
from sequencer.engine.workspace import Workspace
from sequencer.errors import ConfigurationError
from sequencer.model.head import Head, Status
from sequencer.model.limits import RunLimits
from sequencer.model.request import Definition
from sequencer.model.sequence.order import last_step, position_at, round_of, step_at
from sequencer.model.step import Step
from sequencer.model.transitions import StepRef
from sequencer.model.workflow import Workflow
from sequencer.workflows.router import RouterMode, RouterSettings

if TYPE_CHECKING:
    from sequencer.engine.tasks import TaskExecution


class Performer(Struct, frozen=True):
    """Prepares the steps of one workflow, and has what the layers need to perform them."""

    workflow: Workflow
    agents: Agents
    prompts: PromptFolder
    logs: StepLogs
    emit: Emit
    project: Path
    workspace: Workspace
    """Where agents work."""
    with_defaults: Callable[[Step], Step]
    """Fills in the fields that a step leaves to ``step_defaults``."""
    redact: Callable[[str], str]
    router: RouterSettings | None = None
    hooks: Hooks | None = None
    """None: the project has none, and nothing is asked."""
    definition: Definition | None = None
    """Of a run that was made from a request."""
    tasks: TaskExecution | None = None
    """Of a graph whose nodes are tasks."""
    comment_tools: tuple[str, ...] = ()
    """With which agents could post comments; a step with ``no_comment`` has none of them."""
    own_folders: tuple[Path, ...] = ()
    """Of the project's runs; what changes there is no agent's work."""
    max_attempts: int = RunLimits().attempts
    """At one step; a usage limit at the last one is a failure."""

    def look(self, here: StepRef) -> tuple[Step, str]:
        """Return the step at *here*, defaults filled in, and its position's name."""
        step = step_at(self.workflow, here)
        if self.definition is None:
            # Those of a definition were filled in when it was made.
            step = self.with_defaults(step)
        return step, position_at(self.workflow, here.step_index)

    def prepare(self, here: StepRef) -> PreparedStep:
        """Return the step at *here*, ready to start.

        Raises:
            ConfigurationError: its prompt or its agent can't be had; nothing was started.
        """
        step, position = self.look(here)
        router = self.router
        if router is not None and router.is_active:
            # It is asked behind the claim, so what it lacks has to be known before.
            self.agents.ready(self.router_step(router), "router")
        if router is None or router.needs_selection:
            is_routed = router is not None and router.enabled and router.mode is RouterMode.ONLY
            if is_routed:
                raise ConfigurationError(
                    "router_only needs a prompt",
                    where="router.prompt",
                    hint="name the router's prompt",
                )
            return self.prepare_step(step, position, here)
        # The router chooses the prompt, so the workflow's own need not exist.
        agent, executor, instead = self.agents.ready(step, position)
        step = without_comments(step, executor, self.comment_tools)
        return PreparedStep(step, position, here, agent, executor, prompt="", instead=instead)

    def prepare_step(self, step: Step, position: str, here: StepRef) -> PreparedStep:
        """Return *step*, defaults filled in, ready to start; see `prepare`."""
        agent, executor, instead = self.agents.ready(step, position)
        read, added = self.prompts.read, step.added_system_prompts
        return PreparedStep(
            step=without_comments(step, executor, self.comment_tools),
            position=position,
            place=here,
            agent=agent,
            executor=executor,
            prompt=self.prompts.read_for(step, executor),
            system_prompt=None if step.system_prompt is None else read(step.system_prompt),
            append_system_prompt="\n\n".join([read(name).strip() for name in added]) or None,
            instead=instead,
        )

    def router_step(self, router: RouterSettings) -> Step:
        """Return the question to the router as a step; its times are its own.

        What steps may take, and the file that ends them, say nothing about one line.
        """
        step = self.with_defaults(Step(name="router", prompt=router.prompt))
        own = {"timeout_s": router.timeout_s, "idle_timeout_s": None, "complete_when": None}
        return step.replace(**own, continue_session=False, expects=None, stagnation=None)

    def context(
        self, workflow: Workflow, step: Step, step_index: int, attempt: int, head: Head
    ) -> HookContext:
        """Return what a hook may know about *step*, tried for the *attempt*-th time."""
        return HookContext(
            run_id=head.run_id,
            run_name=head.run_name,
            workflow=workflow.name,
            project=self.project,
            step=step,
            step_index=step_index,
            attempt=attempt,
            round=round_of(head),
            request=self.definition.request if self.definition else None,
            steps=workflow.names,
            moves=workflow.moves,
        )

    def tell_completed(self, step_index: int, head: Head) -> None:
        """Tell who has a part in it that the run of *head* is complete since *step_index*.

        The run stays complete whatever they do; a hook that raises is a notice.

        Raises:
            WorkTreeRefused: see `Workspace.end`.
        """
        try:
            if head.status is Status.COMPLETE:
                self.workspace.end(head)
        finally:
            self._tell_hooks(step_index, head)

    def _tell_hooks(self, step_index: int, head: Head) -> None:
        if self.hooks is None:
            return
        step = last_step(self.workflow, head, step_index)
        try:
            self.hooks.completed(self.context(self.workflow, step, step_index, 1, head), head)
        except HookFailed as error:
            self.emit(Noticed(self.redact(str(error))))
