"""``teams:`` of orchestration.yaml: when a team is used, its roles, and its limits.

Scoring and building graphs are in other modules, which are loaded only to start a team.
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


def _ensure_keyword(text: str) -> str:
    if _KEYWORD.fullmatch(text) is None:
        raise ValueError("a keyword needs a letter or a digit, and can't have '|' or a line break")
    return text


def _refuse_step_key(value: object) -> object:
    if isinstance(value, Mapping) and HELD_IN in value:
        raise ValueError(f"unknown key {HELD_IN!r}; put a step's fields next to the role's own")
    return value


Keyword = Annotated[str, Field(max_length=100), AfterValidator(_ensure_keyword)]
"""Words as people write them; a ``|`` can't be part of a keyword."""
_Score = Annotated[int, Field(ge=0, le=MAX_SCORE)]

BUILTIN = Path(__file__).parents[2] / "builtin" / "team.json"
"""The built-in roles, and the points of words, labels and kinds of request."""


class Count(Frozen):
    """Points for a number of things."""

    each: _Score = 5
    """Points for each one after the first `free`."""
    free: int = Field(default=1, ge=0, le=10_000)
    max: _Score = 20
    """Maximum points in total."""


class Subtasks(Count):
    """List items at the top level, and boxes that are not checked."""

    max: _Score = 30


class Files(Count):
    """Different paths in the text."""

    each: _Score = 4


class TraceLines(Count):
    """Lines of stack traces, in a request for debugging."""

    each: _Score = 1
    free: int = Field(default=4, ge=0, le=10_000)
    max: _Score = 15


class ReproductionSteps(Count):
    """List items below "steps to reproduce", in a request for debugging."""

    each: _Score = 3
    max: _Score = 15


class ScoreSettings(Frozen):
    """``teams.score:``, the parts of a request's score; the sum stays within 0 to 100."""

    never: tuple[Word, ...] = ("question", "documentation", "transient", "planning")
    """Kinds of request that always score 0."""
    classifications: dict[Word, Points] = Field(default_factory=dict)
    """Added to the built-in points of kinds, as `keywords` and `labels` are to theirs; 0 removes
    an entry."""
    keywords: dict[Keyword, Points] = Field(default_factory=dict)
    labels: dict[Label, Points] = Field(default_factory=dict)
    procedures: dict[Name, Points] = Field(default_factory=dict)
    long_chars: int = Field(default=2000, ge=0, le=1_000_000)
    """A text with more characters gets `long_points`; code, addresses and comments don't count."""
    long_points: _Score = 40
    medium_chars: int = Field(default=800, ge=0, le=1_000_000)
    medium_points: _Score = 20
    subtasks: Subtasks = Subtasks()
    files: Files = Files()
    components: Count = Count()
    """Different names of `component_names` in the text."""
    component_names: tuple[Keyword, ...] = (
        *("frontend", "backend", "api", "database", "cli", "ui", "server", "client", "worker"),
        *("queue", "cache", "scheduler", "infrastructure", "pipeline", "mobile app"),
    )
    trace_lines: TraceLines = TraceLines()
    reproduction_steps: ReproductionSteps = ReproductionSteps()
    min_size: int = Field(default=2, ge=1, le=64)
    """Members of a team; each score in `size_from` that is reached adds one."""
    size_from: tuple[_Score, ...] = (60, 80)


class TeamOptions(SharedRules):
    """``teams:`` of orchestration.yaml."""

    enabled: bool = False
    """Whether `start` may use a team without ``--team``."""
    threshold: _Score = 60
    """The minimum score for a team."""
    max_size: int = Field(default=4, ge=1, le=64)
    classifications: tuple[Word, ...] = ("orchestrator", "debugger", "code")
    """Kinds of request that may get a team."""
    lead_model: ModelName | None = None
    teammate_model: ModelName | None = None
    """Model of tasks that name none, neither themselves nor by their role."""
    score: ScoreSettings = ScoreSettings()
    roles: dict[Name, Annotated[Role, BeforeValidator(_refuse_step_key)]] = Field(
        default_factory=dict
    )
    """Changes to the built-in roles, and your own roles."""

    @cached_property
    def every_role(self) -> Mapping[str, Role]:
        """Return the roles of the project; see `merge_roles`."""
        models = {"teammate_model": self.teammate_model, "lead_model": self.lead_model}
        return MappingProxyType(merge_roles(self.roles, **models))

    @property
    def rules(self) -> TeamRules:
        """Return the rules for a run of a team."""
        budgets = {
            name: role.budget for name, role in self.roles.items() if role.budget != Budget()
        }
        shared_fields = {name: getattr(self, name) for name in SharedRules.model_fields}
        return TeamRules(role_budgets=budgets, **shared_fields)


FOLDER = "team"
"""Folder of the roles' system prompts, below prompts_dir."""
LEAD = "lead"
FIXER = "implementer"
"""The role of a task that fixes work that a judge has refused."""
UNNAMED = "implementer"
"""The role of a task that a lead adds without one. So leaving out the role does not avoid the
limits that the project's roles set."""
_SHARED = "system/shared.md"


def roles_in(sections: Sections | None) -> Mapping[str, Role]:
    """Return the roles of the project with *sections*; None: the built-in roles."""
    if sections is None:
        return builtin_roles()
    options: TeamOptions = sections("teams")
    return options.every_role


@cache
def builtin_roles() -> Mapping[str, Role]:
    """Return the roles that exist without any configuration, by name.

    >>> sorted(name for name, role in builtin_roles().items() if role.writes)
    ['git-handler', 'implementer']
    """
    role_entries = json.loads(BUILTIN.read_bytes())["roles"]
    prompts = {name: (f"{FOLDER}/{name}.md", _SHARED) for name in role_entries}
    return MappingProxyType(
        {
            name: Role.model_validate({"append_system_prompt": prompts[name], **fields})
            for name, fields in role_entries.items()
        }
    )


def merge_roles(
    options: Mapping[str, Role] | None = None,
    *,
    teammate_model: str | None = None,
    lead_model: str | None = None,
) -> dict[str, Role]:
    """Return every role of a project: the built-in roles with the changes in *options*.

    A field of an entry replaces the same field of the built-in role, and each step field counts
    as one field; `null` removes a step field. A role without a model gets *lead_model* if it is
    the lead, else *teammate_model*.

    >>> changed = merge_roles({"verifier": Role.model_validate({"max_turns": 9})})["verifier"]
    >>> changed.step["max_turns"], changed.step["tools"]["edit"]
    (9, False)
    """
    result = dict(builtin_roles())
    for name, changes in (options or {}).items():
        result[name] = _merge_role(result[name], changes) if name in result else changes
    for name, role in result.items():
        model = lead_model if name == LEAD else teammate_model
        if model is not None and "model" not in role.step:
            result[name] = role.replace(step={**role.step, "model": model})
    return result


def _merge_role(role: Role, changes: Role) -> Role:
    changed_fields = {name: getattr(changes, name) for name in changes.model_fields_set - {"step"}}
    return role.replace(**changed_fields, step={**role.step, **changes.step})
