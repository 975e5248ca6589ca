"""An agent that has done its work and does not end says so by a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fundamentals.scratch import Project, is_running

FILE = "workflow: {name: standard}\nagent: {default: scribe}\n"
FILE += "step_defaults: {complete_when: {file: %s}, timeout_s: 40}\n"
LINGERS = """\
echo "$SEQUENCER_STEP" >> done.txt
setsid sleep 600 & echo $! >> pids
echo $$ >> pids
echo "my answer"
%s
sleep 600
"""


def left(project: Project) -> list[int]:
    path = project.folder / "pids"
    pids = path.read_text().split() if path.exists() else []
    return [pid for pid in map(int, pids) if is_running(pid)]


def test_the_process_tree_is_ended_and_the_step_is_accepted(project: Project) -> None:
    project.configure(FILE % "out/summary.md")
    project.agent(LINGERS % "mkdir -p out; date +%N > out/summary.md")
    project.sequencer("run", "--max-steps", "2")
    assert project.done() == ["supervisor", "main"], "the second one writes the file again"
    assert left(project) == []
    head = project.head()
    assert (head["step_index"], head["status"]) == (2, "waiting-next"), "the run is not complete"
    *_, last = project.history()
    assert (last["event"], last["outcome"]["output"]) == ("succeeded", "my answer")
    assert "the file of complete_when is there" in project.sequencer("log").out


def test_an_agent_that_ends_by_itself_needs_no_file(project: Project) -> None:
    project.configure(FILE % "summary.md")
    project.sequencer("run", "--max-steps", "1")
    assert project.head()["step_index"] == 1
    project.agent("echo > summary.md; exit 3")
    project.sequencer("run", code=1)
    assert project.head()["step_index"] == 1, "a failure stays one, whatever it wrote"


@pytest.mark.parametrize("how", ["ln -s done.txt %s", "mkdir %s"])
def test_a_link_or_folder_does_not_end_the_agent(project: Project, how: str) -> None:
    project.configure((FILE % "mark").replace("timeout_s: 40", "timeout_s: 1.5"))
    project.agent(LINGERS % (how % "mark"))
    ran = project.sequencer("run", code=1)
    assert "timed out after 1.5 s" in ran.err
    assert left(project) == []


def test_a_path_outside_the_project_is_refused_before_anything_starts(project: Project) -> None:
    project.configure(FILE % "../summary.md")
    ran = project.sequencer("run", code=2)
    assert "orchestration.yaml:3" in ran.err
    assert "complete_when.file" in ran.err
    assert "'../summary.md' is not the path of a file below the project's folder" in ran.err
    assert not Path(project.folder / "sync" / "state.json").exists()


def test_an_agent_without_a_program_does_not_support_it(project: Project) -> None:
    project.configure((FILE % "mark").replace("scribe", "anthropic"))
    checked = project.sequencer("check", code=2, ANTHROPIC_API_KEY="dummy")
    assert "does not support complete_when: {file}" in checked.out
