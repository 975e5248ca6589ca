"""The example flows load, do on a virtual clock what is recorded, and run from end to end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from sequencer import Head, Mode, Status, Step, open_run
from tests import forked
from tests.project.documents import ROOT, clean_environment, ensure_true, fences, run_region

FOLDER = ROOT / "examples" / "flows"
DRAWN = ROOT / "tests" / "data" / "flowcharts" / "examples.json"
FLOWS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
SCRIPTS = sorted((FOLDER / "scripts").glob("*.json"))
README = (FOLDER / "README.md").read_text()


class Section(NamedTuple):
    """What a flow's file says about one node."""

    settings: dict[str, Any]
    text: str


def front_matter(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text().split("---\n")[1]))


def sections(path: Path) -> dict[str, Section]:
    """Return the sections of the flow *path*, by node; each has settings and a text."""
    parts = re.split(r"^### (\w+)\n---\n", path.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        settings, _, text = body.partition("\n---\n")
        found[name] = Section(yaml.safe_load(settings), text.strip())
    return found


def flow_of(script: Path) -> Path:
    """Return the flow that *script* is for: the one whose name its own begins with."""
    (path,) = [path for path in FLOWS if script.stem.startswith(path.stem)]
    return path


def stem(path: Path) -> str:
    return path.stem


def copied(to: Path) -> Path:
    """Copy the folder, so that the repository stays clean."""
    left = shutil.ignore_patterns("sync", "logs", "mended.txt")
    return Path(shutil.copytree(FOLDER, to / "flows", ignore=left))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copied(tmp_path)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder in which everything was done that its README says."""
    folder = tmp_path_factory.mktemp("tried")
    ensure_true(run_region(FOLDER / "README.md", folder))
    return folder


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the folder in which nothing is done."""
    return copied(tmp_path_factory.mktemp("untouched"))


def sequencer(folder: Path, *arguments: str, expect: int = 0) -> str:
    return called(folder, *arguments, expect=expect).stdout


def called(
    folder: Path, *arguments: str, expect: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run ``sequencer ARGUMENTS`` in *folder*; None: it may end with any exit code."""
    done = forked.run(
        [sys.executable, "-m", "sequencer", *arguments],
        cwd=folder,
        env=clean_environment(folder.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert expect in (None, done.returncode), said
    assert "Traceback" not in done.stderr, said
    return done


def planned(folder: Path, path: Path) -> dict[str, Any]:
    """Return the nodes and edges of a flow, as `plan` prints them."""
    return dict(json.loads(sequencer(folder, "plan", path.name, "--json")))


def drawn_by(folder: Path, path: Path) -> Any:
    """Return the chart of a flow, as `plan --chart` prints it."""
    return json.loads(sequencer(folder, "plan", "--chart", path.name, "--json"))


def steps_of(folder: Path, path: Path) -> tuple[Step, ...]:
    """Return the steps of a flow in *folder*, where it is then the workflow of runs."""
    configuration = folder / "orchestration.yaml"
    text = configuration.read_text()
    configuration.write_text(
        re.sub("^workflow: .*", f"workflow: {path.stem}", text, flags=re.MULTILINE)
    )
    workflow = open_run(folder, environment={}).workflow
    assert workflow.name == path.stem
    return workflow.steps


def replayed(folder: Path, script: Path, **changes: Any) -> dict[str, Any]:
    """Return what `plan --simulate` prints for *script* with some keys changed."""
    said: dict[str, Any] = json.loads(script.read_text())
    changed = folder.parent / script.name
    changed.write_text(json.dumps({**said, **changes}))
    flow = flow_of(script).name
    options = ("--simulate", "--script", str(changed), "--json")
    return dict(json.loads(sequencer(folder, "plan", flow, *options)))


def facts_of(folder: Path, run: str) -> list[dict[str, Any]]:
    return list(open_run(folder, run, environment={}).history())


def head_of(folder: Path, run: str) -> Head:
    head = open_run(folder, run, environment={}).head
    assert head is not None
    return head


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def accepted(facts: list[dict[str, Any]]) -> list[str]:
    return [fact["step"] for fact in facts if fact["event"] in ("succeeded", "answered")]


# --- as they are written -----------------------------------------------------------------


def test_six_flows_are_in_the_table_and_configured(untouched: Path) -> None:
    names = [path.stem for path in FLOWS]
    assert len(names) == 6
    assert re.findall(r"^\| \[([\w-]+)\]\(\1\.md\)", README, re.MULTILINE) == [
        *("code-review", "write-test-fix", "release", "triage"),
        *("research-fan-out", "nightly-maintenance"),
    ]
    listed = json.loads(sequencer(untouched, "plan", "--list", "--json"))
    assert sorted(one["name"] for one in listed if one["kind"] == "graph") == names


@pytest.mark.parametrize("path", FLOWS, ids=stem)
def test_it_loads_without_a_warning(untouched: Path, path: Path) -> None:
    replay = called(untouched, "plan", path.name, "--simulate", "--json")
    assert replay.stderr == ""
    front = front_matter(path)
    assert front["id"] == path.stem
    assert front["description"]
    assert front["version"]
    chart = planned(untouched, path)
    # The first node is the entry of each of them.
    assert "entrypoint" not in front
    reached, left = set[str](), [chart["nodes"][0]["id"], front.get("onError")]
    while left:
        node = left.pop()
        reached.add(node)
        ways = {edge["to"] for edge in chart["edges"] if edge["from"] == node}
        left += ways - reached
    assert {node["id"] for node in chart["nodes"]} == reached - {None}


@pytest.mark.parametrize("path", FLOWS, ids=stem)
def test_every_node_has_a_description_and_limits(project: Path, path: Path) -> None:
    said = sections(path)
    for step in steps_of(project, path):
        assert step.timeout_s, step.name
        assert step.retry, step.name
        assert said[step.name].settings["description"], step.name
        # A model is told what to answer with; a command of the project's own needs no words.
        assert step.agent == "tests" or len(step.text or "") > 100, step.name
    assert front_matter(path)["config"]["timeout"]
    for node in planned(project, path)["nodes"]:
        if node["kind"] == "human":
            settings, question = said[node["id"]]
            assert question, node["id"]
            options = settings.get("options", ())
            assert all(option["description"] for option in options), node["id"]


@pytest.mark.parametrize("path", FLOWS, ids=stem)
def test_the_prompt_of_a_choice_names_each_of_its_answers(project: Path, path: Path) -> None:
    edges = planned(project, path)["edges"]
    for step in steps_of(project, path):
        labels = {edge["label"] for edge in edges if edge["from"] == step.name} - {"default"}
        if len(labels) > 1 and step.agent is None:
            missing = [label for label in labels if f"`{label}`" not in (step.text or "")]
            assert missing == [], step.name


@pytest.mark.parametrize("path", FLOWS, ids=stem)
def test_its_chart_matches_what_github_draws(untouched: Path, path: Path) -> None:
    # Recorded from the Mermaid package itself; `pytest -m mermaid` asks it again.
    drawn: dict[str, Any] = json.loads(DRAWN.read_text())
    assert drawn.keys() == {path.stem for path in FLOWS}
    assert drawn_by(untouched, path) == drawn[path.stem]


def test_the_project_readme_shows_the_chart_of_an_example() -> None:
    shown, example = (
        [fence.text for fence in fences(page) if fence.language == "mermaid"]
        for page in (ROOT / "README.md", FOLDER / "code-review.md")
    )
    assert len(shown) == 1
    assert shown == example


# --- on a virtual clock ------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=stem)
def test_it_follows_the_recorded_trace(untouched: Path, script: Path) -> None:
    expected = json.loads(script.read_text())["expect"]
    done = replayed(untouched, script)
    assert done["trace"] == expected["trace"]
    assert done["status"] == expected["status"]


def test_the_scripts_reach_every_node_that_has_work(untouched: Path) -> None:
    reached: dict[str, set[str]] = {path.stem: set() for path in FLOWS}
    for script in SCRIPTS:
        trace = json.loads(script.read_text())["expect"]["trace"]
        reached[flow_of(script).stem] |= {
            line.split()[2] for line in trace if line.split()[1] == "start"
        }
    working = ("agent", "human")
    missing = {
        path.stem: {
            node["id"] for node in planned(untouched, path)["nodes"] if node["kind"] in working
        }
        - reached[path.stem]
        for path in FLOWS
    }
    # Three kinds of issues go a way that looks like the recorded ones.
    assert missing.pop("triage") == {"scope", "look_up"}
    assert missing.pop("nightly-maintenance") == {"complain"}
    assert not any(missing.values()), missing


def test_a_recorded_trace_is_really_compared(untouched: Path) -> None:
    script = FOLDER / "scripts" / "triage-unclear.json"
    other = replayed(untouched, script, nodes={"classify": {"out": ["question"]}})
    assert other["trace"] != json.loads(script.read_text())["expect"]["trace"]
    assert any(line.endswith("start look_up") for line in other["trace"])


def test_no_repair_continues_forever_at_night(untouched: Path) -> None:
    script = FOLDER / "scripts" / "nightly-maintenance.json"
    nodes = {
        "choose": {"out": ["work"]},
        "check_it": {"out": ["failed"]},
        "put_back": {"out": ["again"]},
    }
    done = replayed(untouched, script, nodes=nodes)
    assert done["status"] == "max_iterations"
    repairs = [line for line in done["trace"] if line.split(" ", 1)[1] == "done fix"]
    assert len(repairs) == 3


def test_a_failure_at_night_is_written_down(untouched: Path) -> None:
    script = FOLDER / "scripts" / "nightly-maintenance.json"
    done = replayed(untouched, script, nodes={"links": {"out": [{"error": "no network"}]}})
    assert done["status"] == "completed_after_error"
    assert [line.split(" ", 1)[1] for line in done["trace"][-5:]] == [
        "onError -> complain",
        "start complain",
        "done complain",
        "start morning",
        "done morning",
    ]


# --- with agents ------------------------------------------------------------------------


def problems(project: Path) -> list[str]:
    found = json.loads(called(project, "check", "--json", expect=None).stdout)["findings"]
    # What a client may do unless its own settings say more is a notice.
    return [
        f"{one['where']}: {one['message']}; {one['hint']}"
        for one in found
        if one["level"] != "notice"
    ]


def test_each_agent_in_the_readme_supports_what_the_nodes_need(project: Path) -> None:
    (named,) = re.findall(r"they run with (\w+), (\w+) and (\w+)\.", README)
    before = "stand-in"
    for agent in named:
        edit(project / "orchestration.yaml", f"agent: {before}\n", f"agent: {agent}\n")
        before = agent
        # The clients need not be installed here, nor may they edit anything; nothing else is wrong.
        fitting = ("is not on PATH", "edit files in step")
        found = [said for said in problems(project) if not any(one in said for one in fitting)]
        assert found == [], agent


def test_an_unsuitable_agent_is_reported_before_anything_starts(project: Path) -> None:
    edit(project / "orchestration.yaml", "agent: stand-in", "agent: anthropic")
    said = problems(project)
    assert any("research-fan-out.md" in line and "websearch" in line for line in said)


@pytest.mark.slow
def test_a_review_is_sent_back_with_what_should_change(tried: Path) -> None:
    facts = facts_of(tried, "code-review")
    assert accepted(facts)[0] == "collect"
    assert set(accepted(facts)[1:4]) == {"correctness", "security", "readability"}
    assert accepted(facts)[4:] == [*("report", "decide", "feedback", "report", "decide", "publish")]
    looped = [fact["outcome"] for fact in facts if fact["event"] == "looped"]
    assert [(one["to"], one["number"]) for one in looped] == [("report", 1)]
    answers = [fact["outcome"]["output"] for fact in facts if fact["event"] == "answered"]
    assert answers == ["send back", "Say how to test it.", "approve"]


def test_a_command_picks_the_branch_until_the_tests_pass(tried: Path) -> None:
    facts = facts_of(tried, "write-test-fix")
    assert accepted(facts) == [
        *("plan", "write", "test", "fix", "test", "review", "fix", "test", "review", "commit")
    ]
    runs = [f["outcome"] for f in facts if f["event"] == "succeeded" and f["step"] == "test"]
    assert [run["agent"] for run in runs] == ["tests"] * 3
    assert [run["output"].splitlines()[-1] for run in runs] == ["failed", "passed", "passed"]


def test_tests_that_cannot_run_are_a_failure_and_not_an_answer(project: Path) -> None:
    path = project / "orchestration.yaml"
    path.write_text(re.sub(r"TEST_COMMAND: .*}", "TEST_COMMAND: nobody-has-it}", path.read_text()))
    edit(project / "write-test-fix.md", "initialDelay: 2000", "initialDelay: 10")
    sequencer(project, "run", "write-test-fix", "--quiet", expect=1)
    facts = facts_of(project, "write-test-fix")
    assert [fact["attempt"] for fact in facts if fact["event"] == "failed"] == [1, 2, 3]
    assert accepted(facts) == ["plan", "write"]


def test_a_release_is_published_with_the_requested_version(tried: Path) -> None:
    facts = facts_of(tried, "release")
    assert accepted(facts)[-4:] == ["approve", "tag", "upload", "announce"]
    assert facts[-1]["outcome"] == {"status": "completed"}
    source = json.loads((tried / "sync" / "runs" / "release" / "flow.json").read_text())
    assert source["state"] == {"version": "1.4.0"}


def test_a_bug_takes_two_branches_and_is_answered_once(tried: Path) -> None:
    facts = facts_of(tried, "triage")
    assert sorted(accepted(facts)) == ["classify", "duplicates", "reply", "reproduce"]
    assert accepted(facts)[-1] == "reply"
    (begun,) = [f["outcome"] for f in facts if f["event"] == "claimed" and f["step"] == "reply"]
    assert sorted(begun["from"]) == ["duplicates", "reproduce"]


def test_research_goes_another_round_in_the_given_direction(tried: Path) -> None:
    facts = facts_of(tried, "research-fan-out")
    rounds = Counter(accepted(facts))
    angles = ("literature", "practice", "numbers", "critics")
    assert [rounds[name] for name in ("outline", *angles, "synthesis", "paper")] == [2] * 6 + [1]
    choices = [
        fact["outcome"]["choice"]
        for fact in facts
        if fact["event"] == "answered" and fact["step"] == "enough"
    ]
    assert choices == ["Look at mobile networks.", "yes"]


def test_the_nightly_flow_needs_no_person_and_starts_over_each_time(project: Path) -> None:
    # The first night one repair breaks a test and is put back.
    for steps in (11, 7):
        said = sequencer(project, "run", "nightly-maintenance", "--new")
        assert said.startswith(f"the run is completed after {steps} steps")
    for name in ("nightly-maintenance", "nightly-maintenance-2"):
        assert head_of(project, name).status == Status.COMPLETE


def test_a_timer_goes_through_the_projects_own_flow_node_by_node(project: Path) -> None:
    run = open_run(project)
    for done in range(1, 12):
        summary = run.work(Mode.TICK)
        assert summary.head is not None
        assert (summary.usage.steps, summary.head.step_index) == (1, done)
        is_over = summary.head.status is Status.COMPLETE
        assert is_over == (done == 11)
    assert run.work(Mode.TICK).usage.steps == 0
