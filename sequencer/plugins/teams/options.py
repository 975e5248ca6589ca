"""``teams:`` of orchestration.yaml: when a team is used, who is in it, what it may use.

Apart from the scoring and the building themselves, which only those need who start a team.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from sequencer.files.keys import HELD_IN
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, BeforeValidator, Field
from sequencer.model.graph.task import Budget
from sequencer.model.request import Label
from sequencer.model.step import ModelName, Name
from sequencer.plugins.requests.routing import Word
from sequencer.plugins.teams.team import Role, SharedRules, TeamRules
from sequencer.workflows.finding import Sections

MAX_SCORE = 100

Points = Annotated[int, Field(ge=-MAX_SCORE, le=MAX_SCORE)]
_KEYWORD = re.compile(r"[^|\x00-\x1f]*\w[^|\x00-\x1f]*")


def _words(text: str) -> str:
    if _KEYWORD.fullmatch(text) is None:
        raise ValueError("a keyword needs a letter or a digit, and can't have '|' or a line break")
    return text


def _beside_others(value: object) -> object:
    if isinstance(value, Mapping) and HELD_IN in value:
        raise ValueError(f"unknown key {HELD_IN!r}; put a step's fields next to the role's own")
    return value


Keyword = Annotated[str, Field(max_length=100), AfterValidator(_words)]
"""Words as they stand in a text; a ``|`` stands between no two of them."""
_Score = Annotated[int, Field(ge=0, le=MAX_SCORE)]

BUILTIN = Path(__file__).parents[2] / "builtin" / "team.json"
"""The built-in roles, and points of words, labels and kinds of request."""


class Count(Frozen):
    """Points for how often something is there."""

    each: _Score = 5
    """Of every one of them, but for the first `free`."""
    free: int = Field(default=1, ge=0, le=10_000)
    max: _Score = 20
    """Of all together."""


class Subtasks(Count):
    """List items on the outermost level, and boxes that are not ticked."""

    max: _Score = 30


class Files(Count):
    """Different paths that are named."""

    each: _Score = 4


class TraceLines(Count):
    """Lines of stack traces, of a request for debugging."""

    each: _Score = 1
    free: int = Field(default=4, ge=0, le=10_000)
    max: _Score = 15


class ReproductionSteps(Count):
    """List items below "steps to reproduce", of a request for debugging."""

    each: _Score = 3
    max: _Score = 15


class ScoreSettings(Frozen):
    """``teams.score:``, what a request's score is made of; the sum stays within 0 to 100."""

    never: tuple[Word, ...] = ("question", "documentation", "transient", "planning")
    """Kinds of request that score 0, whatever they say."""
    classifications: dict[Word, Points] = Field(default_factory=dict)
    """Laid over the built-in ones, as the next two are over theirs; 0 takes
    an entry away."""
    keywords: dict[Keyword, Points] = Field(default_factory=dict)
    labels: dict[Label, Points] = Field(default_factory=dict)
    procedures: dict[Name, Points] = Field(default_factory=dict)
    long_chars: int = Field(default=2000, ge=0, le=1_000_000)
    """A text of more characters gets `long_points`; code, addresses and comments aside."""
    long_points: _Score = 40
    medium_chars: int = Field(default=800, ge=0, le=1_000_000)
    medium_points: _Score = 20
    subtasks: Subtasks = Subtasks()
    files: Files = Files()
    components: Count = Count()
    """Different ones of `component_names`."""
    component_names: tuple[Keyword, ...] = (
        *("frontend", "backend", "api", "database", "cli", "ui", "server", "client", "worker"),
        *("queue", "cache", "scheduler", "infrastructure", "pipeline", "mobile app"),
    )
    trace_lines: TraceLines = TraceLines()
    reproduction_steps: ReproductionSteps = ReproductionSteps()
    min_size: int = Field(default=2, ge=1, le=64)
    """Members of a team, and one more from each score of `size_from` on."""
    size_from: tuple[_Score, ...] = (60, 80)


class TeamOptions(SharedRules):
    """``teams:`` of orchestration.yaml."""

    enabled: bool = False
    """Whether `start` may use a team without being asked to."""
    threshold: _Score = 60
    """The score from which on a request gets a team."""
    max_size: int = Field(default=4, ge=1, le=64)
    classifications: tuple[Word, ...] = ("orchestrator", "debugger", "code")
    """Kinds of request that may get a team."""
    lead_model: ModelName | None = None
    teammate_model: ModelName | None = None
    """Models of tasks whose role and whose own fields name none."""
    score: ScoreSettings = ScoreSettings()
    roles: dict[Name, Annotated[Role, BeforeValidator(_beside_others)]] = Field(
        default_factory=dict
    )
    """Changes to the built-in roles, and roles of one's own."""

    @cached_property
    def every_role(self) -> Mapping[str, Role]:
        """Return the roles of the project, see `roles`."""
        models = {"teammate_model": self.teammate_model, "lead_model": self.lead_model}
        return MappingProxyType(roles(self.roles, **models))

    @property
    def rules(self) -> TeamRules:
        """Return what a run of a team has to keep to."""
        budgets = {n: role.budget for n, role in self.roles.items() if role.budget != Budget()}
        shared = {name: getattr(self, name) for name in SharedRules.model_fields}
        return TeamRules(role_budgets=budgets, **shared)


FOLDER = "team"
"""Of the roles' system prompts, below prompts_dir."""
LEAD = "lead"
FIXER = "implementer"
"""The role of who mends what a task that judges has refused."""
UNNAMED = "implementer"
"""The role of what a lead adds without one: leaving a role out gets nobody around what the
project's roles may do, where they work and what they may use."""
_SHARED = "system/shared.md"


def roles_in(sections: Sections | None) -> Mapping[str, Role]:
    """Return the roles of the project with *sections*; None: nothing is configured."""
    if sections is None:
        return builtin_roles()
    options: TeamOptions = sections("teams")
    return options.every_role


@cache
def builtin_roles() -> Mapping[str, Role]:
    """Return the roles that exist without a line of configuration, by name.

    >>> sorted(name for name, role in builtin_roles().items() if role.writes)
    ['git-handler', 'implementer']
    """
    written = json.loads(BUILTIN.read_bytes())["roles"]
    prompts = {name: (f"{FOLDER}/{name}.md", _SHARED) for name in written}
    return MappingProxyType(
        {
            name: Role.model_validate({"append_system_prompt": prompts[name], **fields})
            for name, fields in written.items()
        }
    )


def roles(
    options: Mapping[str, Role] | None = None,
    *,
    teammate_model: str | None = None,
    lead_model: str | None = None,
) -> dict[str, Role]:
    """Return every role of a project: the built-in ones, changed and added to by *options*.

    What an entry writes down takes the place of the built-in role's, field by field, and a
    step field is one; `null` takes a step field away. A role without a model has
    *lead_model* if it is the lead, else *teammate_model*.

    >>> changed = roles({"verifier": Role.model_validate({"max_turns": 9})})["verifier"]
    >>> changed.step["max_turns"], changed.step["tools"]["edit"]
    (9, False)
    """
    found = dict(builtin_roles())
    for name, changes in (options or {}).items():
        found[name] = _changed(found[name], changes) if name in found else changes
    for name, role in found.items():
        model = lead_model if name == LEAD else teammate_model
        if model is not None and "model" not in role.step:
            found[name] = role.replace(step={**role.step, "model": model})
    return found


def _changed(role: Role, changes: Role) -> Role:
    written = {name: getattr(changes, name) for name in changes.model_fields_set - {"step"}}
    return role.replace(**written, step={**role.step, **changes.step})
