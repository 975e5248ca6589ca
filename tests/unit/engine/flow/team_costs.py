"""Teams whose agents use money, as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sequencer.plugins.teams.team import Role
from tests.unit.engine.flow.labs import said
from tests.unit.engine.flow.team_labs import TeamLab, cost, task, team

LINE = (task("a"), task("b", "a"), task("c", "b"))
RETRY = {"retry": {"max_attempts": 9, "initial_delay_s": 0}}
LATER = {"retry": {"max_attempts": 9, "initial_delay_s": 0.2, "backoff": "fixed"}}


def paid(usd: float, tokens: int = 0) -> Any:
    return said("ok", **cost(usd, tokens))


def line(tmp_path: Path, rules: dict[str, Any], usd: float = 0.4, **more: Any) -> TeamLab:
    says = {name: paid(usd, 100) for name in "abc"}
    return team(tmp_path, LINE, says, rules=rules, **more)


ROLES = {"cook": Role.model_validate({"writes": True}), "taster": Role.model_validate({})}
