"""What the page of costs says, adds up and draws."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from sequencer import InvocationLimits, open_project
from tests.web.conftest import Client, Serve, words
from tests.web.sample import make_project, work


def test_costs_are_summed_by_run_and_agent(looking: Client) -> None:
    page = looking.get("/costs").text
    total = sum(run.head.usage.cost_usd for run in looking.runs() if run.head)
    assert f"${total:.2f}+?" in words(page)
    assert "2 attempts have no known cost (+?); the sums do not include them." in words(page)
    assert '<svg class="plot"' in page


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "hand $2.51 eye $0.02"),
        ("?of=tokens&by=agent", "hand 310k eye 1.9k"),
        ("?by=step", "supervisor $0.73 "),
        ("?by=run&of=nonsense", "default run $1.20 login-timeout $0.46"),
    ],
)
def test_costs_are_plotted_by_the_requested_grouping(
    looking: Client, query: str, said: str
) -> None:
    page = looking.get(f"/costs{query}").text
    assert said in words(page).replace("■ ", "")
    assert page.count('<path class="area"') == words(page).count("■")
    assert len(page) < 150_000


def test_limits_show_when_they_are_reached_and_reviews_their_findings(looking: Client) -> None:
    page = words(looking.get("/costs").text)
    assert "login-timeout shop 5 steps 400 steps after about 395 more steps" in page
    assert "release-1.3" not in page.partition("Reviews")[0], "what has ended reaches nothing"
    assert "judge polish 1 1 ✗ ✓ a link on page 2 is dead" in page


KNOWN = """
workflow: {name: loop}
agent: {default: hand}
agents:
  hand:
    kind: scripted
    outcomes:
      - {output: done, usage: {cost_usd: 0.5, input_tokens: 400, cache_read_tokens: 300}}
workflows: {loop: {steps: [plan, build]}}
limits: {cost_usd: 200}
store: {journal: {rotate_bytes: 65536, keep: 1}}
"""


def test_costs_add_up_and_show_the_remaining_budget(tmp_path: Path, serve: Serve) -> None:
    folder = make_project(tmp_path / "sums")
    (folder / "orchestration.yaml").write_text(KNOWN)
    work(folder, None, "loop", 20)
    page = words(serve([folder]).get("/costs").text)
    assert "Total $10.00 Tokens in 8,000 From cache 75%" in page
    assert "$10.00 $200.00 after about 380 more steps" in page
    assert "hand its own choice 20" in page
    assert "were dropped" not in page
    work(folder, None, "loop", 180)
    page = words(serve([folder]).get("/costs").text)
    assert "Total $100.00 Tokens in 80,000" in page
    assert "The oldest records of 1 run were dropped" in page


CLAUDE = """#!{python}
import json, sys
sys.stdin.read()
told = {{"status": "allowed_warning", "rateLimitType": "five_hour", "utilization": 0.87}}
told["resetsAt"] = int(open(sys.argv[0] + ".resets").read())
print(json.dumps({{"type": "rate_limit_event", "rate_limit_info": told}}))
print(json.dumps({{"type": "result", "is_error": False, "result": "done"}}))
"""


def test_the_remaining_quota_is_shown_until_it_resets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    folder = make_project(tmp_path / "sums")
    claude = tmp_path / "bin/claude"
    claude.parent.mkdir()
    claude.write_text(CLAUDE.format(python=sys.executable))
    claude.chmod(0o755)
    monkeypatch.setenv("PATH", str(claude.parent), prepend=os.pathsep)
    (folder / "orchestration.yaml").write_text("agent: claude\nsteps: [supervisor, main]\n")
    for resets, said in ((time.time() + 3600, True), (time.time() - 3600, False)):
        claude.with_name("claude.resets").write_text(str(int(resets)))
        limits = InvocationLimits(max_steps=1)
        open_project(folder, trust=True).run(None).work(limits=limits)
        page = words(serve([folder]).get("/costs").text)
        assert ("claude five hour 87%" in page) is said
