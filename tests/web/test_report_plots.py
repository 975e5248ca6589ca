"""The plots of a run as a picture: what was used over time, and what reviews found."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from sequencer.testing import AGENT, ScratchProject, scripted

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>alert(1)</script> & "x"'


def made(folder: Path) -> ScratchProject:
    """Return a project whose check says no once; each attempt costs half a dollar."""
    usage = {"cost_usd": 0.5, "input_tokens": 100, "seconds": 9}
    reason = f"It fails. {HOSTILE}\x1b[2J"
    answers = [
        *((step, "done") for step in (HOSTILE, "fix")),
        *(("check", json.dumps({"pass": is_good, "reason": reason})) for is_good in (False, True)),
    ]
    outcomes = [
        # The journal has whole seconds, and there is no plot of a single moment.
        {"step": step, "output": answer, "usage": usage, "delay_s": 1.1 * (step == "fix")}
        for step, answer in answers
    ]
    fixer = {"name": "fix", "text": "Fix it."}
    check = {"name": "check", "text": "Check.", "validation": {"fixer": fixer}}
    cycle = {"steps": [{"name": HOSTILE, "text": "Build."}, check]}
    return ScratchProject(
        folder,
        {
            "workflow": "job",
            "workflows": {"job": cycle},
            "agents": {AGENT: scripted(*outcomes)},
        },
    )


def test_the_picture_has_plots_and_findings(tmp_path: Path) -> None:
    project = made(tmp_path / "p")
    ran = project.run_command("run", "--max-cycles", "2")
    assert ran.exit_code == 0, ran.stderr
    drawn = project.run_command("report", "--html", "p.html", "--svg", "p.svg", "--png", "p.png")
    assert drawn.exit_code == 0, drawn.stderr
    text = (project.folder / "p.svg").read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own
    said = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert {"Cost by agent", "Tokens by step", "Agent time by agent"} <= set(said)
    assert f"{AGENT} $3.00" in said
    assert f"{HOSTILE} 200" in said
    assert any(one.startswith("check: 2 of 3 passed; It fails.") for one in said)
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in text
    assert [one.get("class") for one in root.findall(f"{SVG}rect")][1:] == ["no", "yes", "yes"]
    assert (project.folder / "p.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_run_without_usage_is_not_drawn(tmp_path: Path) -> None:
    project = ScratchProject(tmp_path / "p")
    with project.run().turn() as turn:
        turn.output = "done"
    drawn = project.run_command("report", "--html", "p.html", "--svg", "p.svg")
    assert drawn.exit_code == 3
    assert "there is nothing to draw" in drawn.stderr
    assert not (project.folder / "p.svg").exists()
