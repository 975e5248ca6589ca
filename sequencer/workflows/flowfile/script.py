"""The script of a simulation: what each node answers, how long it takes, and other limits.

A mapping as JSON gives it: ``nodes`` (``out``, ``ms`` and ``timeout`` by node), ``entry``,
``onError``, ``retry``, ``maxIterations`` and ``timeout``, which lie over what the workflow's
own file says. A recorded flow may be given as it is: its chart, its name and what was
expected of it are for people, and are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from sequencer.documents.keys import dotted
from sequencer.documents.problems import problems_of, raise_all
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.net.graph import Graph
from sequencer.workflows.flowfile.reader import Overrides
from sequencer.workflows.flowfile.settings import (
    MAX_TIMEOUT_MS,
    Milliseconds,
    RetrySettings,
    Settings,
)
from sequencer.workflows.simulate import Part

ABOUT = ("name", "mermaid", "why", "expect")
"""What a recorded flow has beside its script."""


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _answer(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"error"} and not isinstance(value["error"], str):
        raise ValueError("expected the error's text")
    return value


_Length = Annotated[int, Field(strict=True, ge=0, le=MAX_TIMEOUT_MS)]


class _NodeScript(Settings):
    out: Annotated[
        tuple[Annotated[Any, AfterValidator(_answer)], ...],
        BeforeValidator(_listed),
        Field(min_length=1),
    ] = ()
    """One an attempt, the last one for all that follow; an answer alone is the only one."""
    ms: Annotated[tuple[_Length, ...], BeforeValidator(_listed), Field(min_length=1)] = ()
    timeout: Milliseconds | None = None

    @property
    def part(self) -> Part:
        return Part(self.out, self.ms)


class _Script(Settings):
    nodes: dict[str, _NodeScript] = Field(default_factory=dict)
    entry: str | None = Field(default=None, min_length=1)
    on_error: str | None = Field(default=None, alias="onError", min_length=1)
    retry: RetrySettings | None = None
    max_iterations: int | None = Field(
        default=None, alias="maxIterations", strict=True, ge=0, le=1_000_000
    )
    timeout: Milliseconds | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """What a script says, for the reader of the workflow and for the simulation."""

    overrides: Overrides
    parts: Mapping[str, Part]
    where: str = field(default="", compare=False)

    def check(self, graph: Graph) -> None:
        """Return if every node that the script names is one of *graph*, and can do it.

        Raises:
            ConfigurationError: one is not in the chart, or has a time limit but no work.
        """
        wrong: list[ConfigurationError] = []
        known = graph.by_id
        for name in {**self.parts, **self.overrides.timeouts}:
            where = f"{self.where}: {dotted(('nodes', name))}"
            if name not in known:
                wrong.append(UnknownName("node", name, known, where=where))
            elif name in self.overrides.timeouts and not known[name].works:
                text = f"a {known[name].kind} does no work, so it can't take too long"
                wrong.append(ConfigurationError(text, where=f"{where}.timeout"))
        raise_all(wrong)


def read_script(data: object, where: str) -> Script:
    """Return the script that *data* is, the content of the file *where*.

    Raises:
        ConfigurationError: it says something that no script can say; everything at once.
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError('a script is a mapping, {"nodes": {…}, …}', where=where)
    try:
        said = _Script.model_validate({key: data[key] for key in data if key not in ABOUT})
    except ValidationError as refused:
        problems = problems_of(refused, _Script, lambda _: where)
        raise_all([problem.error for problem in problems])
        raise
    retry = None
    if said.retry is not None:
        retry = said.retry.model_dump(by_alias=True, exclude_none=True)
    parts = {name: node.part for name, node in said.nodes.items()}
    overrides = Overrides(
        entry=said.entry,
        on_error=said.on_error,
        retry=retry,
        max_iterations=said.max_iterations,
        timeout=said.timeout,
        timeouts={n: node.timeout for n, node in said.nodes.items() if node.timeout is not None},
        agents=frozenset(name for name, part in parts.items() if part.out or part.ms),
    )
    return Script(overrides, parts, where)
