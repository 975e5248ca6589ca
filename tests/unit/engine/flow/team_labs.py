"""A team's run in this process; each `work` is one more process for all that the run knows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec import structs

from sequencer.engine.events import Emit
from sequencer.engine.performing import Performer
from sequencer.errors import SequencerError
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import Executor, StepRequest
from sequencer.model.commands import RetryNow, Tell
from sequencer.model.graph.graph import Graph
from sequencer.model.graph.marking import Marking
from sequencer.model.outcome import Outcome, Usage
from sequencer.model.step import Step
from sequencer.plugins.teams.expansion import TeamExpander
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.project_tasks import make_execution
from sequencer.plugins.teams.team import Role, Task, TeamRules
from tests.unit.engine.flow.labs import Actor, Cast, Lab, Said, failed, said

AT_ONCE: dict[str, Any] = {"retry": {"max_attempts": 3, "initial_delay_s": 0}}
"""Step fields of a task with three attempts, one right after the other."""
JUDGE: dict[str, Any] = {"validation": {"fixer": {"name": "mend"}, "max_attempts": 3}}
"""Step fields of a task that judges three times at most."""


def task(name: str, *blockers: str, **more: Any) -> Task:
    """Return a task behind *blockers*; *more* may have step fields too."""
    return Task.model_validate(
        {"id": name, "subject": f"Do {name}", "blocked_by": blockers, **more}
    )


def adds(*tasks: tuple[str, ...], about: str = "", **more: Any) -> str:
    """Return the answer of a lead that asks for *tasks*, each an id and its blockers."""
    listed = [
        {"id": name, "subject": f"Do {name}", "description": about, "blocked_by": blockers, **more}
        for name, *blockers in tasks
    ]
    return json.dumps({"tasks": listed})


def no(reason: str = "it is wrong", **more: Any) -> Outcome:
    """Return what an agent says that judges, and refuses."""
    return said(json.dumps({"pass": False, "reason": reason}), **more)


YES = json.dumps({"pass": True, "reason": "fine"})


def cost(usd: float = 0.0, tokens: int = 0, **more: Any) -> dict[str, Any]:
    """Return the part of an outcome that says what it has used."""
    return {"usage": Usage(cost_usd=usd, input_tokens=tokens, **more)}


class Everybody(Cast):
    """One actor for all, fixers included, which stand in the step of who judges."""

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        del step, position
        return "actor", self.actor


@dataclass
class TeamLab(Lab):
    """One team's run."""

    rules: TeamRules = field(default_factory=TeamRules)
    roles: Mapping[str, Role] = field(default_factory=dict)

    def performer(self, made: Any, emit: Emit) -> Performer:
        expander = TeamExpander(
            self.roles, self.rules.max_tasks, has_fallback=self.rules.has_fallback
        )
        performer = super().performer(made, emit)
        tasks = make_execution(self.rules, expander)
        return structs.replace(performer, tasks=tasks, agents=Everybody(self.actor))

    @property
    def marking(self) -> Marking:
        """Return how the run stands, read from its files."""
        return self.run().flow.marking(self.head)[1]

    @property
    def graph(self) -> Graph:
        return self.marking.graph

    def under(self, **rules: Any) -> TeamLab:
        """Return the same run after the settings were changed."""
        return replace(self, rules=TeamRules.model_validate(rules))

    def ended(self) -> str:
        """Work, and return what is said at the end: the reason, or the error."""
        try:
            return str(self.work().reason)
        except SequencerError as error:
            return str(error)

    def retry(self) -> None:
        self.run().do(RetryNow())

    def tell(self, name: str, text: str) -> None:
        self.run().do(Tell(text, name), by="ann")

    def warnings(self) -> list[str]:
        return [fact["outcome"]["note"] for fact in self.facts("warned")]


def team(
    folder: Path,
    tasks: Sequence[Task],
    says: Mapping[str, Any] | None = None,
    *,
    roles: Mapping[str, Role] | None = None,
    rules: Mapping[str, Any] | None = None,
    size: int | None = None,
    prompts: Mapping[str, str] | None = None,
) -> TeamLab:
    """Return the lab of a team that works on *tasks*, *size* of them at once."""
    given = {n: one if isinstance(one, list) else [one] for n, one in (says or {}).items()}
    known = dict(roles or {})
    return TeamLab(
        folder,
        build_task_workflow("crew", tasks, known, size=size),
        Actor(given),
        dict(prompts or {}),
        rules=TeamRules.model_validate(rules or {}),
        roles=known,
    )


def fails(times: int, then: str = "at last") -> list[Said]:
    """Return what a task says that fails *times* times."""
    return [*(failed(f"boom {number}") for number in range(times)), then]


def crash(request: StepRequest, cancellation: Cancellation) -> Outcome:
    """Raise what no executor should."""
    del request, cancellation
    raise ValueError("a bug")
