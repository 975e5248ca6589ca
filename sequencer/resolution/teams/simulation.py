"""A team on a virtual clock: its schedule, what judges refuse, and what leads add.

The rules are those of real runs, and so are the names of what is added. Where the script does
not say, a task takes 10 ms for each unit of its weight, a judge says yes, and a lead adds
nothing.

Not promised: budgets, the circuit breaker, merges; they depend on what agents use and write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sequencer.documents.problems import raise_all
from sequencer.errors import ConfigurationError, SequencerError
from sequencer.model.net.graph import Growth, Node
from sequencer.model.net.marking import Reference
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Retry, Step, Validation
from sequencer.model.workflow import Workflow, grown
from sequencer.resolution.simulation import DEFAULT_MS, Part, Replay, Simulation
from sequencer.resolution.teams.growing import TeamGrower
from sequencer.resolution.verdict import verdict_of
from sequencer.workflows.flowfile.reader import Overrides

_DELAYS = {"initialDelay": "initial_delay_s", "maxDelay": "max_delay_s"}


class TeamSimulation(Simulation):
    """One replay of a team."""

    def __init__(self, workflow: Workflow, parts: Mapping[str, Part], grower: TeamGrower) -> None:
        """Replay *workflow*; *grower* makes what is added to it."""
        super().__init__(workflow, parts)
        self._grower = grower

    def _length(self, name: str, number: int) -> int:
        given = self._parts[name].ms if name in self._parts else ()
        task = self._graph.by_id[name].task
        if given or task is None:
            return super()._length(name, number)
        return max(1, round(DEFAULT_MS * task.weight))

    def _unsaid(self, node: Node) -> str:
        return json.dumps({"pass": True}) if self._judgement(node.id) is not None else ""

    def _judgement(self, name: str) -> Validation | None:
        step = self._workflow.steps_by_name.get(name)
        return step.validation if step is not None else None

    def _accept(self, name: str, text: str, reference: Reference | None) -> None:
        said = Outcome(status=OutcomeStatus.OK, output=text)
        validation = self._judgement(name)
        if validation is not None:
            verdict = verdict_of(said, is_command=False)
            if not verdict.is_pass and not self._is_enough(name, validation):
                self._refuse(name, verdict.reason, validation)
                return
        growth = None
        try:
            if text:
                growth = self._grower.of_answer(self._workflow, name, text)
        except SequencerError as refused:
            self._failed(name, refused.message)
            return
        if growth is not None:
            # Before its tokens go on: who waits for it waits for what it adds as well.
            self._grow(growth)
        self._course.succeed(name, text, reference)
        if growth is not None:
            self._course.tell_growth(growth, name)

    def _is_enough(self, name: str, validation: Validation) -> bool:
        """Return whether another "no" of the judge *name* lets the run go on behind it."""
        number = self._marking.team.refusals.get(name, 0) + 1
        return number >= validation.max_attempts and validation.on_exhausted == "continue"

    def _refuse(self, name: str, reason: str, validation: Validation) -> None:
        number = self._marking.team.refusals.get(name, 0) + 1
        message = f"the answer is no: {reason}"
        if number >= validation.max_attempts:
            self._course.fail(name, "Refused", f"{message} (after {number} judgements)")
            self._course.look_for_the_end()
            return
        fix = self._grower.fix(self._workflow, name, number)
        self._course.refuse(name, message, fix)
        if fix is not None:
            self._workflow = grown(self._workflow, [fix])
            return
        # It judges anew, as one whose next try has come.
        self._resting.add(name)
        self._is_overdue(name)

    def _grow(self, growth: Growth) -> None:
        self._course.do("grow", growth.as_json())
        self._workflow = grown(self._workflow, [growth])

    def _failed(self, name: str, message: str, kind: str = "error") -> None:
        super()._failed(name, message, kind)
        # Others need not fail with it; the run ends where only it is left.
        self._course.look_for_the_end()


def overridden(workflow: Workflow, said: Overrides, where: str, size: int | None) -> Workflow:
    """Return *workflow*, a team's, with what a script says beside the answers of tasks.

    *size* tasks are worked on at once where the list does not say how many.

    Raises:
        ConfigurationError: it says what only a flowchart has; *where* names the script.
    """
    charts = {"entry": said.entry, "onError": said.on_error, "maxIterations": said.max_iterations}
    text = "is for the file of a flowchart, not for a team or a run"
    wrong = [key for key, value in charts.items() if value is not None]
    raise_all([ConfigurationError(text, where=f"{where}: {key}") for key in wrong])
    graph = workflow.graph
    if graph is None:
        raise ValueError(f"workflow {workflow.name!r} is no graph")
    more = {"timeout_ms": said.timeout, "max_parallel": graph.max_parallel or size}
    graph = graph.model_copy(update={key: value for key, value in more.items() if value})
    steps = tuple(_overridden(step, said) for step in workflow.steps)
    return Workflow(workflow.name, steps, kind="graph", graph=graph)


def _overridden(step: Step, said: Overrides) -> Step:
    fields: dict[str, Any] = {}
    if step.name in said.timeouts:
        fields["timeout_s"] = said.timeouts[step.name] / 1000
    if said.retry is not None and step.retry is None:
        written = {
            "max_attempts": said.retry.get("maxAttempts"),
            "backoff": said.retry.get("backoff"),
        }
        for key, field in (("initialDelay", "initial_delay_s"), ("maxDelay", "max_delay_s")):
            written[field] = said.retry[key] / 1000 if key in said.retry else None
        kept = {key: value for key, value in written.items() if value is not None}
        fields["retry"] = Retry.model_validate(kept)
    return step.model_copy(update=fields) if fields else step


def _retry_field(written: tuple[str, Any]) -> tuple[str, Any]:
    """Return the field of a step's retry that a key of the script's stands for."""
    key, value = written
    if key in _DELAYS:
        return _DELAYS[key], value / 1000
    return "max_attempts" if key == "maxAttempts" else key, value


def simulate_team(
    workflow: Workflow, parts: Mapping[str, Part] | None, grower: TeamGrower
) -> Replay:
    """Return what the team of *workflow* does when its tasks answer as *parts* say."""
    return TeamSimulation(workflow, parts or {}, grower).run()
