"""The workflows of a project: the built-in ones and the ones in orchestration.yaml.

The registry returns a workflow as its author wrote it, because a run stores a digest of that.
Step defaults are applied to one step at a time, just before it runs.
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
from sequencer.model.workflow import OWN_WORKFLOW, Review, Workflow

if TYPE_CHECKING:
    from sequencer.workflows.finding import GraphFile, Sections


FOLDER = "subroutines"
"""Folder of the procedures' prompts, under prompts_dir."""
_FIELDS = Path(__file__).parents[1] / "builtin" / "procedures.json"
"""The purpose of each procedure, and the fields of its steps in addition to name and prompt.
A step may have different fields in one procedure: a request for orchestrator-full needs an
architect, whatever its labels are."""

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
    fields = json.loads(_FIELDS.read_bytes())
    overrides = fields["steps_in"].get(name, {})
    steps = tuple(
        Step.model_validate(
            {
                "name": step,
                "prompt": f"{FOLDER}/{step}.md",
                **fields["steps"][step],
                **overrides.get(step, {}),
            }
        )
        for step in PROCEDURES[name]
    )
    return Workflow(name, steps, kind="procedure", description=fields["procedures"][name])


class BuiltinPrompts(Struct, frozen=True):
    """Prompt files for the steps of the built-in cycles."""

    supervisor: str = "supervisor.md"
    main: str = "main.md"
    reviewer: str = "reviewer.md"


class BuiltinWorkflows(Mapping[str, Workflow]):
    """The workflows that need no configuration; each is built when it is first needed.

    ``standard2`` and ``review_cadence2`` have their own supervisor and main prompts and use only
    the reviewer's prompt of *prompts*.

    >>> [step.prompt for step in BuiltinWorkflows(BuiltinPrompts())["standard2"].steps]
    ['supervisor2.md', 'main2.md']
    """

    def __init__(self, prompts: BuiltinPrompts) -> None:
        """Use *prompts* for the steps of the cycles."""
        first_file_names, second_file_names = (
            (prompts.supervisor, prompts.main),
            ("supervisor2.md", "main2.md"),
        )
        self._cycles = {
            "standard": (*first_file_names, None),
            "review_cadence": (*first_file_names, prompts.reviewer),
            "standard2": (*second_file_names, None),
            "review_cadence2": (*second_file_names, prompts.reviewer),
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
            task = "Looks at what the last cycles have done"
            step = Step(name="reviewer", prompt=reviewer, description=task)
            description = "A supervisor and a worker take turns, without end"
            self._built[name] = Workflow(
                name, steps, Review(step=step) if reviewer else None, description=description
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
        """Return the number of built-in workflows."""
        return len(self._cycles) + len(PROCEDURES)


class Registry:
    """The workflows that a project can run, by name; a name always means the same workflow."""

    def __init__(
        self,
        configured: Mapping[str, Workflow] | None = None,
        prompts: BuiltinPrompts | None = None,
        flows: Mapping[str, Path] | None = None,
        *,
        lists: Mapping[str, GraphFile] | None = None,
        sections: Sections | None = None,
    ) -> None:
        """Combine the built-in workflows and *configured*, which win if a name is in both.

        *flows* are the files of flowcharts and task lists; each is read when its workflow is
        first needed. *lists* are the graphs inside the configuration. *sections* returns a
        plug-in's section; None: nothing is configured.
        """
        self.lists = dict(lists or {})
        self._configured = {
            **(configured or {}),
            **{name: file.workflow for name, file in self.lists.items()},
        }
        self.flows = dict(flows or {})
        self._builtin = BuiltinWorkflows(prompts or BuiltinPrompts())
        self._sections = sections
        self._read: dict[tuple[Path, str | None], tuple[object, GraphFile]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted({*self._builtin, *self._configured, *self.flows}))

    @property
    def procedure_names(self) -> tuple[str, ...]:
        """Return the names of the procedures, sorted, without building them."""
        names = set(PROCEDURES) - self._configured.keys() - self.flows.keys()
        names |= {name for name, flow in self._configured.items() if flow.has_end}
        return tuple(sorted(names))

    def get(self, name: str, *, where: str | None = None) -> Workflow:
        """Return the workflow called *name*, as it was written, without step defaults.

        Raises:
            UnknownName: there is no such workflow; *where* says where the name was written.
            ConfigurationError: its file can't be read, or is not a workflow.
        """
        workflow = self._configured.get(name)
        if workflow is not None:
            return workflow
        if name in self.flows:
            self._configured[name] = self.load(self.flows[name], name=name).workflow
            return self._configured[name]
        if name not in self._builtin:
            error = UnknownName("workflow", name, self.names, where=where)
            if name == OWN_WORKFLOW:
                error.hint = f"'steps:' in orchestration.yaml defines it; {error.hint}"
            raise error
        return self._builtin[name]

    def load(self, path: Path, *, name: str | None = None) -> GraphFile:
        """Return the graph of the file *path*, a flowchart or a task list, called *name*.

        A file is not read again while its size and times have not changed.

        Raises:
            ConfigurationError: it can't be read, or has something that can't be run.
        """
        # Take the fingerprint before reading: a change during the read is noticed next time.
        fingerprint = _fingerprint(path)
        cache_entry = self._read.get((path, name))
        if cache_entry is None or fingerprint is None or cache_entry[0] != fingerprint:
            cache_entry = fingerprint, self._load(path, name)
            # A caller may also use the name that the file gives itself.
            self._read[path, name] = self._read[path, cache_entry[1].workflow.name] = cache_entry
        return cache_entry[1]

    def parse_graph(self, path: Path, data: bytes) -> GraphFile:
        """Parse *data* as the content of *path*, which is not read, and return the graph.

        Raises:
            ConfigurationError: see `load`.
        """
        return self._load(path, None, data)

    def _load(self, path: Path, name: str | None, data: bytes | None = None) -> GraphFile:
        from sequencer.workflows.finding import find_format, read_markdown_text  # noqa: PLC0415 - graphs only

        page = read_markdown_text(path, data)
        text = page if data is None else decode(data, path)
        if (file_format := find_format(path, page)) is not None:
            return file_format.load(path, self._sections, name=name, text=text)
        from sequencer.workflows.flowfile.reader import load_flow  # noqa: PLC0415 - few need it

        return load_flow(path, name=name, text=text)


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """Return the facts that change when the file *path* changes; None: there is no file."""
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _is_answer_only(step: Step) -> bool:
    """Return whether *step* only gives an answer and changes no files."""
    return step.single_turn or step.disallow_all_tools or step.validation is not None


def with_defaults(step: Step, defaults: Mapping[str, Any]) -> Step:
    """Return *step* with *defaults* for the fields that its author left out.

    A field that the author wrote stays, even if its value is the built-in default: with
    ``timeout_s: null`` a step says that it has no time limit. A default of ``expects: change``
    does not apply to steps without tools and steps that judge.

    >>> with_defaults(Step(name="a", model="x"), {"model": "y", "max_turns": 3}).model
    'x'
    """
    missing_fields = {
        field: defaults[field] for field in defaults if field not in step.model_fields_set
    }
    if (
        "expects" in missing_fields
        and missing_fields["expects"] == "change"
        and _is_answer_only(step)
    ):
        del missing_fields["expects"]
    return step.replace(**missing_fields) if missing_fields else step
