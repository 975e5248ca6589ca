"""Tasks that are added and can't even start: a prompt is missing, or no agent can do them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequencer.engine.events import Emit
from sequencer.engine.performing import Performer
from sequencer.errors import ConfigurationError
from sequencer.executors.protocol import Executor
from sequencer.model.step import Step
from sequencer.model.team import Role
from tests.unit.engine.flow.labs import Texts
from tests.unit.engine.flow.team_labs import TeamLab, adds, task, team


class Missing(Texts):
    """Prompts, some of which are not there."""

    missing: frozenset[str] = frozenset()

    def read_for(self, step: Step, executor: Executor) -> str:
        if step.prompt in self.missing:
            raise ConfigurationError(f"there is no prompt {step.prompt!r} (s3cret)")
        return super().read_for(step, executor)


@dataclass
class BadLab(TeamLab):
    """A team whose prompt ``gone.md`` is not there."""

    missing: frozenset[str] = frozenset({"gone.md"})

    def performer(self, made: Any, emit: Emit) -> Performer:
        performer = super().performer(made, emit)
        prompts = Missing(self.prompts)
        prompts.missing = self.missing
        object.__setattr__(performer, "prompts", prompts)
        return performer


def bad(tmp_path: Path, *, role: str = "odd") -> BadLab:
    roles = {"odd": Role.model_validate({"prompt": "gone.md"})}
    says = {"lead": adds(("broken",), role=role)}
    made = team(tmp_path, [task("lead", adds="tasks"), task("sum", "lead")], says, roles=roles)
    return BadLab(**{name: getattr(made, name) for name in made.__dataclass_fields__})


def test_an_added_task_that_can_not_start_fails_and_says_why(tmp_path: Path) -> None:
    made = bad(tmp_path)
    assert "task 'broken' failed: there is no prompt 'gone.md' (***)" in made.ended()
    assert made.accepted() == ["lead"]
    (fact,) = made.facts("failed")
    assert fact["step"] == "broken"
    assert made.head.claims == ()


def test_it_is_done_when_it_can_start(tmp_path: Path) -> None:
    made = bad(tmp_path)
    made.ended()
    made.missing = frozenset()
    made.retry()
    made.work()
    assert made.accepted() == ["lead", "broken", "sum"]


def test_a_later_process_prepares_what_was_added(tmp_path: Path) -> None:
    """It knows of the addition by the run's files only."""
    made = bad(tmp_path)
    made.work(limits={"max_steps": 1})
    assert "there is no prompt 'gone.md'" in made.ended()
    assert made.marking.lost.keys() == {"broken"}
