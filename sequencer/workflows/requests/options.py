"""``routing:`` of orchestration.yaml: how a request gets its procedure and system prompts.

Apart from the routing itself, which only those need who route.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, get_args

from sequencer.model.fields import AfterValidator, Field
from sequencer.model.frozen import Frozen
from sequencer.model.request import Label, Request
from sequencer.model.step import Name, PromptName

SHARED_PROMPT = "system/shared.md"
"""What every step with system_from_labels is told, whatever the labels."""
AUTO, RULES = "auto", "rules"
"""Words of `classifier` that name no agent: the default one if there is one, and none."""

Literally = Annotated[str, Field(min_length=1, max_length=1_000)]
Labels = Annotated[tuple[Label, ...], Field(max_length=200)]


class LabelOverrides(Frozen):
    """``routing.labels:``, labels that decide without a classification."""

    debugger: Labels = ("debugger", "bug")
    orchestrator: Labels = ("orchestrator", "epic")


class LabelPrompt(Frozen):
    """One of ``routing.system_prompts:``, the file that goes with some labels."""

    labels: Labels | None = None
    """May be left out in a built-in entry; empty: the entry is never chosen."""
    prompt: PromptName | None = None
    """File below prompts_dir; may be left out in a built-in entry."""


SYSTEM_PROMPTS: Mapping[str, LabelPrompt] = MappingProxyType(
    {
        "debugger": LabelPrompt(labels=("bug", "debugger"), prompt="system/debugger.md"),
        "builder": LabelPrompt(
            labels=("feature", "enhancement", "improvement", "builder"), prompt="system/builder.md"
        ),
        "scoper": LabelPrompt(labels=("prd", "spec", "scoper"), prompt="system/scoper.md"),
        "orchestrator": LabelPrompt(
            labels=("epic", "orchestrator"), prompt="system/orchestrator.md"
        ),
    }
)


def _own_ones_are_whole(value: dict[str, LabelPrompt]) -> dict[str, LabelPrompt]:
    for name, entry in value.items():
        if name not in SYSTEM_PROMPTS and (entry.labels is None or entry.prompt is None):
            known = ", ".join(SYSTEM_PROMPTS)
            raise ValueError(
                f"{name!r} needs labels and a prompt; only built-in entries "
                f"({known}) have some already"
            )
    return value


class RoutingSettings(Frozen):
    """``routing:`` of orchestration.yaml."""

    labels: LabelOverrides = LabelOverrides()
    system_prompts: Annotated[dict[Name, LabelPrompt], AfterValidator(_own_ones_are_whole)] = Field(
        default_factory=dict
    )
    """Looked at in the order written, and then the built-in ones that are not."""
    classifier: Name = AUTO
    """``auto``, ``rules``, or an agent."""
    timeout_s: float = Field(default=10.0, gt=0, le=600, allow_inf_nan=False)
    """Of the whole classification, however often the classifier is asked."""
    fallback: Name = "full-development"
    procedures: dict[Word, Name] = Field(default_factory=dict)
    """Other procedures for some of the words."""
    substitutions: dict[Literally, str] = Field(default_factory=dict)
    """Literal texts in prompts, and what is written instead."""

    def procedure_for(self, word: Word) -> str:
        """Return the procedure for requests that are classified as *word*.

        >>> RoutingSettings(procedures={"code": "mine"}).procedure_for("code")
        'mine'
        """
        return self.procedures.get(word, PROCEDURE_OF[word])

    def labelled(self, request: Request) -> Iterator[tuple[Word, str]]:
        """Yield the words that labels of *request* say, most important first, with the label."""
        words: tuple[tuple[Word, Labels], ...] = (
            ("debugger", self.labels.debugger),
            ("orchestrator", self.labels.orchestrator),
        )
        for word, wanted in words:
            if (label := request.has_label(wanted)) is not None:
                yield word, label

    def label_prompts(self) -> dict[str, LabelPrompt]:
        """Return the labels and files of system prompts, whole, in the order of precedence."""
        names = dict.fromkeys((*self.system_prompts, *SYSTEM_PROMPTS))
        return {name: self._label_prompt(name) for name in names}

    def _label_prompt(self, name: str) -> LabelPrompt:
        builtin = SYSTEM_PROMPTS.get(name, LabelPrompt())
        written = self.system_prompts.get(name, builtin)
        return LabelPrompt(
            labels=builtin.labels if written.labels is None else written.labels,
            prompt=written.prompt or builtin.prompt,
        )


def system_prompts_for(request: Request, settings: RoutingSettings) -> tuple[str, ...]:
    """Return the files that a step with system_from_labels is given for *request*.

    >>> system_prompts_for(Request(title="x", labels=("Bug",)), RoutingSettings())
    ('system/debugger.md', 'system/shared.md')
    """
    for entry in settings.label_prompts().values():
        if entry.prompt is not None and request.has_label(entry.labels or ()):
            return entry.prompt, SHARED_PROMPT
    return (SHARED_PROMPT,)


def every_system_prompt(settings: RoutingSettings) -> list[str]:
    """Return each file that `system_prompts_for` may name."""
    entries = settings.label_prompts().values()
    return [SHARED_PROMPT, *(entry.prompt for entry in entries if entry.labels and entry.prompt)]


def classifying_agent(settings: RoutingSettings, default: str | None) -> str | None:
    """Return the agent to ask, or None where the rules decide.

    *default* is the agent that the project has chosen for its steps; None: it chose none,
    and a model that nobody configured is not asked.
    """
    if settings.classifier == RULES:
        return None
    return default if settings.classifier == AUTO else settings.classifier


Word = Literal[
    "question", "documentation", "transient", "planning", "code", "debugger", "orchestrator"
]
WORDS: tuple[Word, ...] = get_args(Word)

PROCEDURE_OF: Mapping[Word, str] = MappingProxyType(
    {
        "question": "simple-question",
        "documentation": "documentation-edit",
        "transient": "simple-question",
        "planning": "plan-mode",
        "code": "full-development",
        "debugger": "debugger-full",
        "orchestrator": "orchestrator-full",
    }
)
