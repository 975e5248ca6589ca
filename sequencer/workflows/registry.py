"""Which workflows there are: the built-in ones and those of orchestration.yaml.

A workflow comes out as its author wrote it, because the digest that a run keeps is
computed on that; step defaults are laid over one step at a time, just before it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sequencer.errors import UnknownName
from sequencer.files.yamlfile import decode
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow

if TYPE_CHECKING:
    from sequencer.workflows.finding import GraphFile, Sections


FOLDER = "subroutines"
"""Of the steps' prompts, below prompts_dir."""
_FIELDS = Path(__file__).parents[1] / "builtin" / "procedures.json"
"""What the procedures are for, and the fields of their steps besides name and prompt; some
have others in one procedure: whoever sends a request to orchestrator-full wants an architect,
whatever its labels are."""

PROCEDURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "simple-question": ("question-investigation", "question-answer"),
        "documentation-edit": ("primary", "git-gh", "concise-summary"),
        "full-development": ("coding-activity", "verifications", "git-gh", "concise-summary"),
        "debugger-full": (
            "debugger-reproduction",
            "get-approval",
            "debugger-fix",
            "verifications",
            "git-gh",
            "concise-summary",
        ),
        "orchestrator-full": ("primary", "concise-summary"),
        "plan-mode": ("preparation", "plan-summary"),
        "release": ("release", "release-publish", "release-summary"),
        "user-testing": ("user-testing", "user-testing-summary"),
    }
)
"""Procedure -> the names of its steps."""


@cache
def builtin_procedure(name: str) -> Workflow:
    """Return the built-in procedure called *name*.

    >>> [step.prompt_name for step in builtin_procedure("plan-mode").steps]
    ['subroutines/preparation.md', 'subroutines/plan-summary.md']

    Raises:
        UnknownName: there is no such procedure.
    """
    if name not in PROCEDURES:
        raise UnknownName("procedure", name, PROCEDURES)
    written = json.loads(_FIELDS.read_bytes())
    here = written["steps_in"].get(name, {})
    steps = tuple(
        Step.model_validate(
            {
                "name": step,
                "prompt": f"{FOLDER}/{step}.md",
                **written["steps"][step],
                **here.get(step, {}),
            }
        )
        for step in PROCEDURES[name]
    )
    return Workflow(name, steps, kind="procedure", description=written["procedures"][name])


class BuiltinPrompts(Struct, frozen=True):
    """Prompt files of the built-in workflows' steps."""

    supervisor: str = "supervisor.md"
    main: str = "main.md"
    reviewer: str = "reviewer.md"


class BuiltinWorkflows(Mapping[str, Workflow]):
    """The workflows that exist without a line of configuration; each is built when asked for.

    ``standard2`` and ``review_cadence2`` keep their own supervisor and main prompts; of
    *prompts* only the reviewer's reaches them.

    >>> [step.prompt for step in BuiltinWorkflows(BuiltinPrompts())["standard2"].steps]
    ['supervisor2.md', 'main2.md']
    """

    def __init__(self, prompts: BuiltinPrompts) -> None:
        """Use *prompts* for the steps of the cycles."""
        first, second = (prompts.supervisor, prompts.main), ("supervisor2.md", "main2.md")
        self._cycles = {
            "standard": (*first, None),
            "review_cadence": (*first, prompts.reviewer),
            "standard2": (*second, None),
            "review_cadence2": (*second, prompts.reviewer),
        }
        self._built: dict[str, Workflow] = {}

    def __getitem__(self, name: str) -> Workflow:
        """Return the workflow called *name*."""
        if name in PROCEDURES:
            return builtin_procedure(name)
        if name not in self._built:
            supervisor, main, reviewer = self._cycles[name]
            steps = (
                Step(name="supervisor", prompt=supervisor, description="Chooses what is done next"),
                Step(name="main", prompt=main, description="Does it"),
            )
            looks = "Looks at what the last cycles have done"
            step = Step(name="reviewer", prompt=reviewer, description=looks)
            about = "A supervisor and a worker take turns, without end"
            self._built[name] = Workflow(
                name, steps, Review(step=step) if reviewer else None, description=about
            )
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a workflow called *name*, without building it."""
        return name in self._cycles or name in PROCEDURES

    def __iter__(self) -> Iterator[str]:
        """Yield the names, cycles first."""
        yield from self._cycles
        yield from PROCEDURES

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._cycles) + len(PROCEDURES)


class Registry:
    """The workflows that a project can run, by name; the same names always mean the same."""

    def __init__(
        self,
        configured: Mapping[str, Workflow] | None = None,
        prompts: BuiltinPrompts | None = None,
        flows: Mapping[str, Path] | None = None,
        *,
        lists: Mapping[str, GraphFile] | None = None,
        sections: Sections | None = None,
    ) -> None:
        """Hold the built-in workflows and *configured*, which replace those of the same name.

        *flows* are the files of flowcharts and lists of tasks; each is read when its workflow
        is first asked for. *lists* are the graphs that the configuration has in it. *sections*
        returns a plug-in's section; None: nothing is configured.
        """
        self.lists = dict(lists or {})
        self._configured = {
            **(configured or {}),
            **{name: made.workflow for name, made in self.lists.items()},
        }
        self.flows = dict(flows or {})
        self._builtin = BuiltinWorkflows(prompts or BuiltinPrompts())
        self._sections = sections
        self._read: dict[tuple[Path, str | None], tuple[object, GraphFile]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return every known name, in order."""
        return tuple(sorted({*self._builtin, *self._configured, *self.flows}))

    @property
    def procedure_names(self) -> tuple[str, ...]:
        """Return the names of the procedures, in order; none is built for it."""
        found = set(PROCEDURES) - self._configured.keys() - self.flows.keys()
        found |= {name for name, made in self._configured.items() if made.kind == "procedure"}
        return tuple(sorted(found))

    def get(self, name: str, *, where: str | None = None) -> Workflow:
        """Return the workflow called *name*, as it was written, without step defaults.

        Raises:
            UnknownName: nobody defined it; *where* says who asked.
            ConfigurationError: its file can't be read, or is no workflow.
        """
        found = self._configured.get(name)
        if found is not None:
            return found
        if name in self.flows:
            self._configured[name] = self.load(self.flows[name], name=name).workflow
            return self._configured[name]
        if name not in self._builtin:
            raise UnknownName("workflow", name, self.names, where=where)
        return self._builtin[name]

    def load(self, path: Path, *, name: str | None = None) -> GraphFile:
        """Return the graph of the file *path*, a flowchart or a list of tasks, called *name*.

        A file that looks as it did the last time is not read again.

        Raises:
            ConfigurationError: it can't be read, or has something that can't be run.
        """
        # Before it is read: what is written meanwhile is seen the next time.
        looks = _looks(path)
        kept = self._read.get((path, name))
        if kept is None or looks is None or kept[0] != looks:
            kept = looks, self._load(path, name)
            # Asked for by the name that it gives itself, it is the same.
            self._read[path, name] = self._read[path, kept[1].workflow.name] = kept
        return kept[1]

    def graph_in(self, path: Path, data: bytes) -> GraphFile:
        """Return the graph that *data* is as the content of the file *path*, which is not read.

        Raises: see `load`.
        """
        return self._load(path, None, data)

    def is_as_read(self, path: Path, *, name: str | None = None) -> bool:
        """Return whether the file *path* is as it was when it was loaded as *name*."""
        kept = self._read.get((path, name))
        return kept is not None and kept[0] == _looks(path)

    def _load(self, path: Path, name: str | None, data: bytes | None = None) -> GraphFile:
        from sequencer.workflows.finding import format_of, page_of  # noqa: PLC0415 - graphs only

        page = page_of(path, data)
        text = page if data is None else decode(data, path)
        if (own := format_of(path, page)) is not None:
            return own.load(path, self._sections, name=name, text=text)
        from sequencer.workflows.flowfile.reader import load_flow  # noqa: PLC0415 - few need it

        return load_flow(path, name=name, text=text)


def _looks(path: Path) -> tuple[int, ...] | None:
    """Return what tells the file *path* from what it was before; None: it is not there."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _only_answers(step: Step) -> bool:
    """Return whether *step* is there for its answer, so that it changes no files."""
    return step.single_turn or step.disallow_all_tools or step.validation is not None


def with_defaults(step: Step, defaults: Mapping[str, Any]) -> Step:
    """Return *step* with *defaults* for the fields that its author left out.

    A field that was written down stays, even if it holds the value that it would have
    anyway: ``timeout_s: null`` is how a step says that it has no time limit. A change is not
    expected of a step without tools, or of one that judges, unless it says so itself.

    >>> with_defaults(Step(name="a", model="x"), {"model": "y", "max_turns": 3}).model
    'x'
    """
    missing = {field: defaults[field] for field in defaults if field not in step.model_fields_set}
    if "expects" in missing and missing["expects"] == "change" and _only_answers(step):
        del missing["expects"]
    return step.replace(**missing) if missing else step
