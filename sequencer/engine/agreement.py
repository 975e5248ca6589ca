"""Whether the workflow that a process has is the one that a run was begun with."""

from __future__ import annotations

from sequencer.engine.naming import command
from sequencer.errors import DefinitionChanged
from sequencer.model.head import Head
from sequencer.model.workflow import Workflow


def has_definition(head: Head, workflow: Workflow) -> bool:
    """Return whether the run of *head* was begun with *workflow* and its parameters."""
    return (
        head.workflow_name == workflow.name
        and head.workflow_digest == workflow.digest()
        and head.params == workflow.params
    )


def ensure_definition(head: Head, workflow: Workflow) -> None:
    """Return if *workflow* is the definition, with the parameters, that the run began with.

    Raises:
        DefinitionChanged: it is not; step_index might mean another step now.
    """
    if has_definition(head, workflow):
        return
    differences = []
    if head.workflow_name != workflow.name:
        differences.append(f"workflow {head.workflow_name!r} -> {workflow.name!r}")
    elif head.workflow_digest != workflow.digest():
        differences.append(f"the steps of {workflow.name!r} were changed")
    if head.params != workflow.params:
        differences.append(f"parameters {head.params} -> {dict(workflow.params)}")
    if differences:
        asked = _asked(head, workflow)
        raise DefinitionChanged(
            f"the run was begun differently: {'; '.join(differences)}",
            where=f"run {head.run_name or 'default'}, step_index {head.step_index}",
            hint=f"{command(head.run_name, f'adopt{asked}')} continues under the new definition, "
            f"{command(head.run_name, f'reset{asked}')} starts again",
        )


def _asked(head: Head, workflow: Workflow) -> str:
    """Return the options that ask a named run for *workflow*, which nothing else does."""
    if head.run_name is None:
        return ""
    asked = f" --workflow {workflow.name}" if head.workflow_name != workflow.name else ""
    if workflow.params and head.params != workflow.params:
        asked += f" --review-every {workflow.review_every}"
    return asked
