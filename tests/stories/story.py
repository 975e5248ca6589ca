"""A story: one behavior of a run as data, told in every way in which people use the program.

A story has the project, what is done (``steps``), and what must be true afterwards. Each step is
one of ``run`` (limits), a command of a person (``do``), or ``write`` (files of the project). It
may have ``exit``, the exit code, and ``says``, a part of what is printed or raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import sequencer
from sequencer import SequencerError
from sequencer.testing import ScratchProject
from tests.continued import list_misfits

COMMANDS = sequencer.commands
STORIES = Path(__file__).parent
_KEYS = {
    "story",
    "project",
    "prompts",
    "outcomes",
    "files",
    "run",
    "steps",
    "trace",
    "head",
    "ways",
}


class Ended(NamedTuple):
    """How a step of a story ended."""

    exit_code: int
    text: str


class Way(ABC):
    """How the steps of a story are done."""

    def __init__(self, project: ScratchProject, run: str | None) -> None:
        self.project, self.run = project, run

    @abstractmethod
    def work(self, limits: Mapping[str, Any]) -> Ended:
        """Work on the run within *limits*."""

    @abstractmethod
    def do(self, verb: str, values: Mapping[str, Any]) -> Ended:
        """Do a command of a person."""


class CommandLine(Way):
    """Every step is a child process, as in a terminal."""

    def _ended(self, *arguments: str) -> Ended:
        named = [] if self.run is None else ["--run", self.run]
        done = self.project.run_command(*named, *arguments)
        return Ended(done.exit_code, done.stdout + done.stderr)

    def work(self, limits: Mapping[str, Any]) -> Ended:
        options = [f"--{name.replace('_', '-')}={value}" for name, value in limits.items()]
        return self._ended("run", *options)

    def do(self, verb: str, values: Mapping[str, Any]) -> Ended:
        return self._ended(*_ARGUMENTS[verb](dict(values)))


class Library(Way):
    """Every step is a call of a program that imports the library."""

    def work(self, limits: Mapping[str, Any]) -> Ended:
        try:
            found = self.project.run(self.run).work(limits=sequencer.InvocationLimits(**limits))
        except SequencerError as error:
            return Ended(error.exit_code, str(error))
        return Ended(0, found.reason)

    def do(self, verb: str, values: Mapping[str, Any]) -> Ended:
        try:
            self.project.run(self.run).do(_COMMANDS[verb](**values), by="ann")
        except SequencerError as error:
            return Ended(error.exit_code, str(error))
        return Ended(0, "")


_COMMANDS = {
    "approve": COMMANDS.Approve,
    "reject": COMMANDS.Reject,
    "feedback": COMMANDS.Feedback,
    "answer": COMMANDS.AnswerQuestion,
    "tell": COMMANDS.Tell,
    "skip": COMMANDS.Skip,
    "accept": COMMANDS.Accept,
    "fail": COMMANDS.Fail,
    "rewind": COMMANDS.Rewind,
    "retry": COMMANDS.RetryNow,
    "reset": COMMANDS.Reset,
    "stop": COMMANDS.Stop,
    "pause": COMMANDS.Pause,
    "resume": COMMANDS.Resume,
    "adopt": COMMANDS.Adopt,
}


def _note(values: dict[str, Any]) -> list[str]:
    return [f"--note={values['note']}"] if "note" in values else []


def _node(values: dict[str, Any]) -> list[str]:
    return [values["node"]] if "node" in values else []


_ARGUMENTS: dict[str, Any] = {
    "approve": lambda values: ["answer", "approve", *_note(values)],
    "reject": lambda values: ["answer", "reject", *_note(values)],
    "feedback": lambda values: ["answer", "feedback", values["text"]],
    "answer": lambda values: ["answer", values["text"]],
    "tell": lambda values: ["tell", *_node(values), values["text"]],
    "skip": lambda values: ["skip", *_node(values), *_note(values)],
    "accept": lambda values: ["skip", *_node(values), "--as-done", *_note(values)],
    "fail": lambda values: ["skip", *_node(values), "--as-failed", *_note(values)],
    "rewind": lambda values: ["rewind", values["to"]],
    "retry": lambda values: ["retry", *_node(values)],
    "reset": lambda _: ["reset"],
    "stop": lambda values: [
        "stop",
        *([f"--reason={values['reason']}"] if "reason" in values else []),
    ],
    "pause": lambda _: ["stop", "--pause"],
    "resume": lambda _: ["resume"],
    "adopt": lambda _: ["adopt"],
}


def read(path: Path) -> dict[str, Any]:
    """Return the story in *path*."""
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    unknown = found.keys() - _KEYS
    assert not unknown, f"{path.name}: unknown keys {sorted(unknown)}; known: {sorted(_KEYS)}"
    return found


def project_of(story: Mapping[str, Any], folder: Path) -> ScratchProject:
    """Return the project of *story*, made in *folder*."""
    made = ScratchProject(
        folder,
        story.get("project"),
        outcomes=tuple(story.get("outcomes", ())),
        prompts=story.get("prompts"),
    )
    write(folder, story.get("files", {}))
    return made


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write *files*, by their paths in *folder*."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def play(story: Mapping[str, Any], way: Way) -> None:
    """Do the steps of *story* in one *way*, and check what the story promises."""
    for number, step in enumerate(story["steps"], 1):
        ended = _done(step, way)
        where = f"step {number}, {step}:\n{ended.text}"
        assert ended.exit_code == step.get("exit", 0), where
        assert step.get("says", "") in ended.text, where
        assert [*list_misfits(way.project.folder)] == [], where
    assert way.project.trace(way.run) == story["trace"]
    head = way.project.run(way.run).head
    assert head is not None
    expected = story.get("head", {})
    assert {name: getattr(head, name) for name in expected} == expected


def _done(step: Mapping[str, Any], way: Way) -> Ended:
    if "run" in step:
        return way.work(step["run"] or {})
    if "write" in step:
        write(way.project.folder, step["write"])
        return Ended(0, "")
    verb, values = step["do"], {k: v for k, v in step.items() if k not in ("do", "exit", "says")}
    return way.do(verb, values)
