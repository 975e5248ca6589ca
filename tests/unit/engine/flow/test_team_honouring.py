"""A run whose agents can't honour all that roles and authors ask of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from sequencer.engine.attempt import Emit, Noticed, RunEvent
from sequencer.engine.loop import Mode
from sequencer.engine.performing import Performer
from sequencer.errors import ConfigurationError, SequencerError
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor
from sequencer.model.step import Step
from sequencer.model.team import Role
from tests.unit.engine.flow.labs import Actor
from tests.unit.engine.flow.team_labs import JUDGE, YES, TeamLab, no, task, team


class Narrow(Actor):
    """An agent that can say nothing but its prompt."""

    supported_fields: ClassVar[frozenset[str]] = EVERY_EXECUTOR


@dataclass
class Choosy:
    """Agents that refuse what they can't honour, as a project's own do."""

    actor: Executor

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        del position
        if step.executor not in (None, "actor"):
            raise ConfigurationError(f"there is no agent {step.executor!r}")
        given = step.model_dump(exclude_defaults=True).keys()
        if refused := sorted(given - self.actor.supported_fields):
            raise ConfigurationError(f"the agent can't honour {refused[0]}")
        return "actor", self.actor

    def ready(self, step: Step, position: str) -> tuple[str, Executor]:
        return self.choose(step, position)

    def warm_up(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Listening:
    """Keeps notices."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, Noticed):
            self.heard.append(event.text)


@dataclass
class NarrowLab(TeamLab):
    """A team of agents that honour few fields."""

    ears: Listening = field(default_factory=Listening)

    def performer(self, made: Any, emit: Emit) -> Performer:
        return replace(super().performer(made, emit), agents=Choosy(self.actor))

    def ended_tick(self) -> None:
        """Work on what is due, whether it fails or not."""
        with contextlib.suppress(SequencerError):
            self.work(Mode.TICK, on_event=self.ears)

    def listen(self) -> None:
        """Work, and keep what a person would hear."""
        self.work(on_event=self.ears)


def narrow(made: TeamLab) -> NarrowLab:
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return NarrowLab(**{**fields, "actor": Narrow(made.actor.says)})


ROLES = {
    "reader": Role.model_validate({"allowed_tools": ["Read"], "max_turns": 5}),
    "implementer": Role.model_validate({"max_turns": 7, "writes": True}),
    "nobodys": Role.model_validate({"executor": "nobody", "max_turns": 5}),
}
LEFT_OUT = "role {}: its agent can't honour {}; left out"


def test_a_person_hears_once_what_was_left_out(tmp_path: Path) -> None:
    """Of a role, however many tasks have it."""
    tasks = [task("a", role="reader"), task("b", "a", role="reader"), task("c", role="reader")]
    says = {"a": ["", "again"]}
    made = narrow(team(tmp_path, tasks, says, roles=ROLES))
    made.listen()
    assert made.status == "completed"
    told = LEFT_OUT.format("reader", "allowed_tools, max_turns")
    assert [text for text in made.ears.heard if "left out" in text] == [told]
    for asked in made.actor.asked:
        assert (asked.step.allowed_tools, asked.step.max_turns) == (None, None)


def left_out(made: NarrowLab) -> list[str]:
    return [text for text in made.ears.heard if "left out" in text]


def test_later_processes_say_it_no_more(tmp_path: Path) -> None:
    tasks = [task("a", role="reader"), task("b", "a", role="reader"), task("c", "b", role="reader")]
    made = narrow(team(tmp_path, tasks, roles=ROLES))
    for _ in tasks:
        made.work(Mode.TICK, on_event=made.ears)
    assert made.accepted() == ["a", "b", "c"]
    assert left_out(made) == [LEFT_OUT.format("reader", "allowed_tools, max_turns")]
    assert all(asked.step.max_turns is None for asked in made.actor.asked)


def test_an_agent_that_is_not_there_is_no_fields_fault(tmp_path: Path) -> None:
    """Else a role with a misspelt agent would lose what it says, and work as anybody."""
    made = narrow(team(tmp_path, [task("a", role="nobodys")], roles=ROLES))
    assert "there is no agent 'nobody'" in str(made.refused())
    assert made.actor.asked == []


def test_a_fix_is_performed_without_what_only_its_role_asks(tmp_path: Path) -> None:
    made = narrow(team(tmp_path, [task("check", **JUDGE)], {"check": [no(), YES]}, roles=ROLES))
    made.listen()
    assert made.status == "completed"
    told = LEFT_OUT.format("implementer", "max_turns")
    assert made.ears.heard.count(told) == 1
