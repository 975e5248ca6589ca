"""What the command line shows of flowcharts: states, drawings, simulations, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.flow_projects import as_json, asked, cli, make_project, write_flow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


# --- looking -----------------------------------------------------------------------------


def test_show_in_every_way(project: Path) -> None:
    cli(project, "run", "review")
    rows = {
        line.split()[0]: line.split()[1:]
        for line in cli(project, "plan", "review").stdout.splitlines()
        if line
    }
    assert rows["fine"][:3] == ["waiting", "for", "you"]
    table = as_json(cli(project, "plan", "flows/review.md", "--json"))
    states = {node["id"]: node["state"] for node in table["nodes"]}
    assert states == {
        "draft": "done", "prose": "done", "facts": "done", "join": "done", "fine": "asked",
        "publish": "pending", "note": "pending", "done": "pending",
    }  # fmt: skip
    assert (table["status"], table["done"], table["total"]) == ("waiting", 4, 8)
    mermaid = cli(project, "plan", "review", "--mermaid").stdout
    assert mermaid.startswith("flowchart TD\n  draft[Draft] --> prose & facts")
    assert "class draft,prose,facts,join seqDone" in mermaid
    drawn = cli(project, "plan", "review", "--diagram").stdout
    assert "Draft" in drawn
    assert "Fine?" in drawn
    # The run that --run names is drawn as its author drew it, until somebody edits the chart.
    assert cli(project, "--run", "review", "plan", "--mermaid").stdout == mermaid
    flow = project / "flows" / "review.md"
    flow.write_text(flow.read_text().replace("draft[Draft]", "draft[Drafts]"))
    assert not cli(project, "--run", "review", "plan", "--mermaid").stdout.startswith(mermaid[:30])
    both = cli(project, "plan", "review", "--diagram", "--json")
    assert both.returncode == 2


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_flow_whose_file_changed_is_shown_as_the_run_has_it(
    project: Path, *, is_broken: bool
) -> None:
    cli(project, "run", "review")
    flow = project / "flows" / "review.md"
    before = cli(project, "--run", "review", "plan", "--list", "--diagram").stdout
    table = cli(project, "--run", "review", "status").stdout.partition("\nNODE")[2]
    changed = "facts --> more[More] --> join" if not is_broken else "prose --- facts"
    text = flow.read_text().replace("join --> fine", f"{changed}\n  join --> fine")
    flow.write_text(text + "\n### more\nSay more\n" * (not is_broken))
    now = cli(project, "--run", "review", "status")
    assert now.stdout.partition("\nNODE")[2].splitlines()[:5] == table.splitlines()[:5]
    assert ("E-EDGE" if is_broken else "sequencer --run review adopt") in now.stdout + now.stderr
    assert cli(project, "--run", "review", "plan", "--list", "--diagram").stdout == before
    assert "prose" in cli(project, "--run", "review", "report").stdout


def test_chart_json_lists_nodes_and_edges(project: Path) -> None:
    (project / "c.mmd").write_text('graph LR\n  a["x (y)"] -.->|why| b{{Q}}\n')
    said = as_json(cli(project, "plan", "--chart", "c.mmd", "--json"))
    assert said["direction"] == "LR"
    assert said["nodes"] == [
        {"id": "a", "label": "x (y)", "shape": "square"},
        {"id": "b", "label": "Q", "shape": "hexagon"},
    ]
    (edge,) = said["edges"]
    assert (edge["label"], edge["stroke"], edge["type"]) == ("why", "dotted", "arrow_point")
    (project / "bad.mmd").write_text("graph LR\n  a[x (y)] --> b\n")
    ended = cli(project, "plan", "--chart", "bad.mmd", "--json")
    assert ended.returncode == 2
    assert as_json(ended)["invalid"] is True
    assert "bad.mmd:2:" in as_json(ended)["error"]


def test_a_simulation_with_and_without_a_script(project: Path) -> None:
    plain = as_json(cli(project, "plan", "--simulate", "flows/review.md", "--json"))
    assert plain["status"] == "completed"
    assert plain["trace"][0] == "0 start draft"
    assert plain["back"] == ["fine->draft[send back]"]
    script = {"nodes": {"fine": {"out": ["send back", "approve"]}, "prose": {"ms": 50}}}
    (project / "script.json").write_text(json.dumps(script))
    ended = cli(project, "plan", "--simulate", "review", "--script", "script.json")
    assert ended.returncode == 0
    assert "70 loop fine -> draft #1" in ended.stdout.splitlines()
    assert asked(project) == []
    assert not (project / "sync").exists()
    (project / "script.json").write_text('{"nodes": {"nobody": {}}}')
    wrong = cli(project, "plan", "--simulate", "review", "--script", "script.json")
    assert (wrong.returncode, "nobody" in wrong.stderr) == (2, True)


def test_simulating_an_invalid_chart_reports_the_error(project: Path) -> None:
    (project / "bad.mmd").write_text("flowchart TD\na --- b\n")
    ended = cli(project, "plan", "--simulate", "bad.mmd", "--json")
    assert ended.returncode == 2
    said = as_json(ended)
    assert said["status"] == "invalid"
    assert said["trace"] == ["load error: E-EDGE a b: only -->, -.-> and ==> are executable"]
    assert cli(project, "plan", "--simulate", "bad.mmd").returncode == 2


def test_check_reports_everything_at_once(project: Path) -> None:
    write_flow(
        project,
        "broken",
        "a --- b\na -->|x| c\na -->|default| d\na --> e\nc --> f>odd]",
        "onError: nobody\nretry: {maxAttempts: 0}\nconfig: {timeout: -1}\n",
        a="Say {{nodes.zz.output}}",
        ghost="---\nmode: all\n---\nnobody draws it",
    )
    for command in (("check",), ("run", "broken")):
        ended = cli(project, *command)
        assert ended.returncode == 2, ended.stdout
        told = ended.stdout + ended.stderr
        for part in ("only -->", "default", "a flag", "nobody", "maxAttempts", "timeout", "ghost"):
            assert part in told, (command, part, told)
        assert told.count("broken.md:") >= 7
    assert asked(project) == []
    assert not (project / "sync").exists()
