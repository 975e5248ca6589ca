"""Which agent performs a step.

Pure choice: whether the agent is installed, and whether it can honour the step's fields,
is asked later by those who start it. `auto` alone looks at what is installed, through
functions that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.settings.schema import BUILTIN_AGENTS
from sequencer.settings.settings import Settings
from sequencer.workflows.prompts import relative_name

CLIENTS = ("claude", "codex", "gemini", "opencode")
"""What `auto` looks for on PATH, in this order."""
_OLD_ROLES = {"galph": "supervisor", "ralph": "main", "loop": "main"}


class ChosenAgent(NamedTuple):
    """An agent's name and who chose it."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class AgentOverrides:
    """What ``--agent-prompt`` and ``--agent-step`` say; ``--agent`` sets ``agent.default``."""

    by_prompt: Mapping[str, str] = field(default_factory=dict)
    by_step: Mapping[str, str] = field(default_factory=dict)


def choose_agent(
    settings: Settings, step: Step, position: str, overrides: AgentOverrides | None = None
) -> ChosenAgent:
    """Return the agent for *step*, which runs at *position* (another name in a review).

    The first that is set: ``--agent-prompt``, ``--agent-step``, the step's own executor,
    ``agent.prompts``, ``agent.roles`` by position and then by step, ``agent.default``.

    Raises:
        UnknownName: the agent is neither built in nor configured.
    """
    given = overrides or AgentOverrides()
    candidates = _candidates(settings, step, position, given)
    chosen = next(ChosenAgent(name, source) for name, source in candidates if name is not None)
    known = known_agents(settings)
    if chosen.name not in known:
        raise UnknownName("agent", chosen.name, known, where=chosen.source)
    return chosen


def known_agents(settings: Settings) -> frozenset[str]:
    """Return every name that may stand where an agent is named."""
    return frozenset(BUILTIN_AGENTS) | settings.agents.keys()


def ensure_known_steps(overrides: AgentOverrides, workflow: Workflow) -> None:
    """Return if every step that ``--agent-step`` names is one of *workflow*.

    Raises:
        UnknownName: it is not, so that the override would silently do nothing.
    """
    known = {step.name for step in workflow.steps}
    if workflow.review is not None:
        known.add(workflow.review.step.name)
    for name in overrides.by_step:
        if name not in known and _OLD_ROLES.get(name) not in known:
            raise UnknownName("step", name, known, where="--agent-step")


def resolve_auto(
    which: Callable[[str], str | None],
    env: Mapping[str, str],
    suits: Callable[[str], bool] = lambda _: True,
) -> str:
    """Return the agent that `auto` means on this machine; never the rehearsal.

    Of those that are there it is the first that *suits*; where none does, the first.

    Raises:
        ConfigurationError: no client is on PATH and no key is set.
    """
    there = [client for client in CLIENTS if which(client) is not None]
    if env.get("ANTHROPIC_API_KEY") or env.get("ANTHROPIC_AUTH_TOKEN"):
        there.append("anthropic")
    if there:
        return next(filter(suits, there), there[0])
    raise ConfigurationError(
        "agent 'auto': none of claude, codex, gemini, opencode is on PATH, and no "
        "ANTHROPIC_API_KEY is set",
        hint="install one of them (claude: npm install -g @anthropic-ai/claude-code; codex: "
        "npm install -g @openai/codex; gemini: npm install -g @google/gemini-cli; opencode: "
        "npm install -g opencode-ai), set the key, or name an agent in agent.default "
        "(--rehearse runs without any)",
    )


def _candidates(
    settings: Settings, step: Step, position: str, given: AgentOverrides
) -> Iterator[tuple[str | None, str]]:
    prompts_dir = settings.prompts_dir
    # A step that has its prompt's text itself has no file, and its name need not be one's.
    prompt = None if step.text is not None else relative_name(prompts_dir, step.prompt_name)
    yield _by_prompt(given.by_prompt, prompt, prompts_dir), "--agent-prompt"
    yield _by_role(given.by_step, step.name), "--agent-step"
    yield step.executor, f"executor of step {step.name!r}"
    yield _by_prompt(settings.agent.prompts, prompt, prompts_dir), "agent.prompts"
    yield _by_role(settings.agent.roles, position), "agent.roles"
    yield _by_role(settings.agent.roles, step.name), "agent.roles"
    yield settings.agent.default, "agent.default"


def _by_prompt(table: Mapping[str, str], prompt: str | None, prompts_dir: Path) -> str | None:
    for name, agent in table.items():
        if prompt is not None and relative_name(prompts_dir, name) == prompt:
            return agent
    return None


def _by_role(table: Mapping[str, str], name: str) -> str | None:
    if name in table:
        return table[name]
    # A step that is itself called "loop" was found above; only then is it an old word.
    return next((agent for old, agent in table.items() if _OLD_ROLES.get(old) == name), None)
