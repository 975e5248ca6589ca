"""A project with one flow whose agents are real processes, and what has to hold of its run."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import psutil

from sequencer import InvocationLimits, Mode, Run, Usage, open_project
from sequencer.project.flows import resolve_run
from tests.storage.commands import sequencer

NAME = "flow"
PLACES = 4
"""Agents at once in one process."""
AGENT = """\
import os, sys, time
node, token = os.environ["SEQUENCER_STEP"], os.environ["SEQUENCER_TOKEN"]
asked = sys.stdin.read()
fd = os.open("began", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
os.write(fd, f"{node} {token}\\n".encode())
while os.path.exists(f"hold-{node}"):
    time.sleep(0.01)
time.sleep(float(asked.split()[-1]))
print(f"{node} is done, and this line is its output")
"""


def output_of(node: str) -> str:
    return f"{node} is done, and this line is its output"


@dataclass(frozen=True)
class Flow:
    """One project in a folder of its own."""

    folder: Path
    nodes: tuple[str, ...]

    def run(self) -> Run:
        """Return the flow's run, opened as a process of its own would."""
        project = open_project(self.folder, environment={"PATH": "/usr/bin:/bin"})
        name, source = resolve_run(project, f"{NAME}.md", {}, None, is_new=False)
        return project.run(name, source=source)

    @property
    def sync(self) -> Path:
        return self.folder / "sync" / "runs" / NAME

    def work(self, mode: Mode = Mode.COMBINED) -> Usage:
        """Work on the run, and return what that took."""
        return self.run().work(mode, InvocationLimits(max_steps=None), places=PLACES).usage

    def replay(self) -> list[str]:
        """Return the starts and ends that `sequencer history` prints, as "start s", "done s"."""
        told = sequencer(self.folder, "--run", NAME, "history")
        assert told.code == 0, told.err
        lines = re.findall(r"Z +\d+  ((?:start|done) .+?)(?: {2,}.*)?\n", told.out)
        return [str(line) for line in lines]

    def began(self) -> list[tuple[str, int]]:
        """Return which agents have begun: node and token, as they say themselves."""
        path = self.folder / "began"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(words[0], int(words[1])) for words in map(str.split, lines)]

    def hold(self, *nodes: str) -> None:
        """Let the agents of *nodes* not end before `let_go`."""
        for node in nodes:
            (self.folder / f"hold-{node}").touch()

    def let_go(self) -> None:
        """Let every agent that is held go on."""
        for path in self.folder.glob("hold-*"):
            path.unlink()

    def agents(self) -> list[int]:
        """Return the processes of agents that live."""
        return list(_with_word(str(self.folder / "agent.py")))


def _with_word(word: str) -> Iterator[int]:
    for process in psutil.process_iter(["cmdline"]):
        if word in (process.info["cmdline"] or ()):
            yield process.pid


def write(folder: Path, chart: str, nodes: Iterable[str], seconds: float, **front: object) -> Flow:
    """Write the project of a flow whose agents take *seconds*."""
    folder.mkdir(parents=True)
    agent = folder / "agent.py"
    agent.write_text(AGENT)
    argv = json.dumps([sys.executable, "-IS", str(agent)])
    (folder / "orchestration.yaml").write_text(
        f"agent: {{default: script}}\nagents:\n  script: {{kind: command, argv: {argv}}}\n"
    )
    named = tuple(nodes)
    sections = "".join(f"### {node}\nSleep {seconds}\n\n" for node in named)
    text = f"---\n{json.dumps({'id': NAME, **front})}\n---\n```mermaid\n{chart}\n```\n\n{sections}"
    (folder / f"{NAME}.md").write_text(text)
    return Flow(folder, named)


def fan(folder: Path, width: int, seconds: float, **front: object) -> Flow:
    """Write a flow with a start, *width* agents at once, and one that joins them."""
    names = [f"n{number}" for number in range(width)]
    chart = f"flowchart TD\ns --> {' & '.join(names)}\n{' & '.join(names)} --> j"
    return write(folder, chart, ["s", *names, "j"], seconds, **front)


def lanes(folder: Path, length: int, seconds: float, markers: int = 0) -> Flow:
    """Write a flow with three lanes at once, each of *length* agents, between two more.

    *markers* lie beside them: nodes that do no work, and make the marking large.
    """
    rows = [[f"{lane}{number}" for number in range(length)] for lane in "abc"]
    drawn = "\n".join(["flowchart TD", *(f"s --> {' --> '.join(row)} --> j" for row in rows)])
    drawn += "".join(f"\ns --> m{number}((M)) --> j" for number in range(markers))
    return write(folder, drawn, ["s", *chain(*rows), "j"], seconds)


def violations(flow: Flow, *, may_be_again: bool = True) -> list[str]:
    """Return what does not hold of the run of *flow*, which should be complete.

    *may_be_again*: agents may have begun more than once, because processes were killed.
    """
    run, wrong = flow.run(), list[str]()
    head, facts = run.head, list(run.history())
    if head is None or head.flow is None or head.flow.status != "completed":
        return [f"not completed: {head}"]
    if head.claims:
        wrong.append(f"claims at the end: {head.claims}")
    accepted = Counter(fact["step"] for fact in facts if fact["event"] == "succeeded")
    if accepted != Counter(flow.nodes):
        wrong.append(f"accepted {accepted}")
    granted = {f["token"]: f["step"] for f in facts if f["event"] == "claimed"}
    if len(granted) != sum(1 for f in facts if f["event"] == "claimed"):
        wrong.append("a token was granted twice")
    began = flow.began()
    wrong += [f"{node} ran with token {n}" for node, n in began if granted.get(n) != node]
    twice = [one for one, count in Counter(began).items() if count > 1]
    if twice or (not may_be_again and len(began) != len(flow.nodes)):
        wrong.append(f"begun: {Counter(node for node, _ in began)}, twice: {twice}")
    if head.step_index != len(flow.nodes) or head.usage.steps != len(flow.nodes):
        wrong.append(f"step_index {head.step_index}, {head.usage.steps} steps")
    wrong += _impossible(flow, facts)
    wrong += _outputs(flow, run)
    wrong += [f"left behind: {path}" for path in flow.sync.glob("*.tmp")]
    return wrong


def _impossible(flow: Flow, facts: list[dict[str, object]]) -> Iterator[str]:
    """Yield what of the trace could not have happened so."""
    done: set[object] = set()
    lines = flow.replay()
    for fact in facts:
        if fact["event"] == "claimed" and fact["step"] == "j" and len(done) != len(flow.nodes) - 1:
            yield f"j began after {sorted(map(str, done))}"
        if fact["event"] == "claimed" and fact["step"] != "s" and "s" not in done:
            yield f"{fact['step']} began before s was done"
        if fact["event"] == "succeeded":
            done.add(fact["step"])
    if lines[0] != "start s" or lines[-1] != "done j":
        yield f"from {lines[0]} to {lines[-1]}"
    for node in flow.nodes:
        starts = [text for text in lines if text.split(" <-")[0] == f"start {node}"]
        if len(starts) != 1 or lines.count(f"done {node}") != 1:
            yield f"{node}: {starts}, done {lines.count(f'done {node}')} times"
    if [fact["event"] for fact in facts].count("completed") != 1:
        yield "completed more or less than once"


def _outputs(flow: Flow, run: Run) -> Iterator[str]:
    head = run.head
    assert head is not None
    control = run.flow
    _, marking = control.marking(head)
    for node in flow.nodes:
        text = control.read_text(marking.outputs.get(node)).strip()
        if text != output_of(node):
            yield f"{node} has said {text!r}"
