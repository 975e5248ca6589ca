"""What the how-to says about turns that were taken on the branch of the code, typed in clones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.clones import Shared, git
from tests.project.documents import ROOT, clean_environment, commands, fences

PAGE = ROOT / "docs" / "how-to" / "from-hoidn-orchestration.md"


def as_theirs(folder: Path) -> Shared:
    """Make a repository in which the state is tracked on the branch of the code."""
    shared = Shared(folder)
    first = shared.clone("first")
    (first / ".gitignore").write_text("logs/\n")
    for name in ("prompts", "sync"):
        (first / name).mkdir()
    for name in ("supervisor", "main"):
        (first / "prompts" / f"{name}.md").write_text(f"# {name}\n")
    state = {"iteration": 7, "expected_actor": "ralph", "status": "waiting-ralph"}
    (first / "sync" / "state.json").write_text(json.dumps(state))
    (first / "orchestration.yaml").write_text("agent: {default: rehearsal}\n")
    git(first, "add", ".")
    git(first, "commit", "-q", "-m", "as it is there")
    git(first, "push", "-q", "origin", "HEAD:main")
    return shared


def typed(folder: Path, place: int) -> dict[str, int]:
    """Type the commands of block *place* of the page's last section; return how each ended."""
    blocks = [fence for fence in fences(PAGE) if fence.language == "console"]
    ended = {}
    for command in commands(blocks[place]):
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=folder,
            env=clean_environment(folder.parent),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        ended[command.text] = done.returncode
        assert "Traceback" not in done.stderr
    return ended


def test_two_clones_go_over_as_the_page_says(tmp_path: Path) -> None:
    shared = as_theirs(tmp_path)
    a, b = shared.clone("a"), shared.clone("b")
    for clone in (a, b):
        git(clone, "branch", "-q", "--set-upstream-to=origin/main")
    first = typed(a, -2)
    # It says what is wrong, and the next line is what it says.
    assert {text for text, code in first.items() if code} == {"sequencer check"}
    assert first["sequencer check"] == 2
    (b / "sync" / "state.json").write_text('{"as": "a poll had left it"}')
    assert set(typed(b, -1).values()) == {0}
    heads = [json.loads((clone / "sync" / "state.json").read_text()) for clone in (a, b)]
    assert [head["step_index"] for head in heads] == [14, 15]
    assert heads[0]["run_id"] == heads[1]["run_id"]
    assert git(b, "ls-files", "sync") == "sync/.gitignore"
