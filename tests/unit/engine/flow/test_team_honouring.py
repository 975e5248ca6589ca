"""Fields that a role has brought, where a task's agent can't honour them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequencer.engine.attempt import Observer, SilentObserver
from sequencer.engine.performing import Performer
from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor
from sequencer.model.step import Step
from sequencer.model.team import Role
from tests.unit.engine.flow.labs import Actor
from tests.unit.engine.flow.team_labs import JUDGE, YES, TeamLab, no, task, team


@dataclass
class Choosy:
    """Agents that honour some fields only, as the project's own do."""

    honours: frozenset[str] = frozenset()
    actor: Executor = field(default_factory=Actor)
    models: tuple[str, ...] = ("big",)
    known: tuple[str | None, ...] = (None, "actor")

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        del position
        if step.executor not in self.known:
            raise ConfigurationError(f"there is no agent {step.executor!r}")
        given = step.model_dump(exclude_defaults=True).keys()
        if refused := sorted(given - self.honours - EVERY_EXECUTOR):
            raise ConfigurationError(f"the agent can't honour {refused[0]}")
        if step.model is not None and step.model not in self.models:
            raise ConfigurationError(f"there is no model {step.model!r}")
        return "actor", self.actor

    def __post_init__(self) -> None:
        """Let the executor say what it honours, as real ones do."""
        vars(self.actor)["supported_fields"] = self.honours

    def warm_up(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


# --- in a run ----------------------------------------------------------------------------


@dataclass
class ChoosyLab(TeamLab):
    """A team whose agents honour few fields."""

    honours: frozenset[str] = frozenset({"validation"})

    def _performer(self, made: Any, observer: Observer) -> Performer:
        performer = super()._performer(made, observer)
        object.__setattr__(performer, "agents", Choosy(self.honours, self.actor))
        return performer


class Listening(SilentObserver):
    """An observer that keeps notices."""

    def __init__(self, notices: list[str]) -> None:
        self._notices = notices

    def notice(self, text: str) -> None:
        self._notices.append(text)


def choosy(made: TeamLab) -> ChoosyLab:
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return ChoosyLab(**fields)


ROLES = {
    "reader": Role.model_validate({"allowed_tools": ["Read"], "max_turns": 5}),
    "implementer": Role.model_validate({"max_turns": 7, "writes": True}),
}


def test_a_person_hears_what_was_left_out(tmp_path: Path) -> None:
    made = choosy(team(tmp_path, [task("a", role="reader"), task("b", "a")], roles=ROLES))
    made.work(observer=Listening(made.notices))
    assert made.status == "completed"
    told = "task a: its agent can't honour allowed_tools, max_turns of role reader; left out"
    assert made.notices.count(told) == 1
    (asked,) = [one for one in made.actor.asked if one.step.name == "a"]
    assert (asked.step.allowed_tools, asked.step.max_turns) == (None, None)


def test_a_run_does_not_begin_with_a_task_whose_author_asks_too_much(tmp_path: Path) -> None:
    tasks = [task("first"), task("a", "first", role="reader", max_turns=2)]
    made = choosy(team(tmp_path, tasks, roles=ROLES))
    error = made.refused()
    assert isinstance(error, ConfigurationError)
    assert made.actor.asked == []


def test_a_fix_is_performed_without_what_only_its_role_asks(tmp_path: Path) -> None:
    made = choosy(team(tmp_path, [task("check", **JUDGE)], {"check": [no(), YES]}, roles=ROLES))
    made.work(observer=Listening(made.notices))
    assert made.status == "completed"
    told = "task check-fix-1: its agent can't honour max_turns of role implementer; left out"
    assert made.notices.count(told) == 1
