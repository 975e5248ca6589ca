"""Texts of others in every place that they can stand in, and what reaches a terminal of them.

Standard output and standard error are pipes here: the text that goes to them most often ends
on a terminal after all (``2>&1 | less -R``, a mail from cron, the log of a build).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, scripted_project

HOSTILE = (
    "\x1b]0;owned\x07\x1b[31mred\x1b[0m\x9b2J\x9d8;;http://a.example\x9clink\u202etxt\u2066"
    "\U000e0041\U000e0042\x08\x00\x7f\u200bend"
)
SEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
IN_FILES = HOSTILE.replace("\x00", "")

FLOW = f"""---
name: "flow"
---
```mermaid
flowchart TD
    a["Write {IN_FILES}"] -->|"{IN_FILES}"| b((End))
```

### a
Write it.
"""
AGENT = """\
import json, os, sys
sys.stdin.read()
text = json.load(open("hostile.json"))
way = sys.argv[1]
print(text, flush=True)
sys.stderr.write(text)
if way != "ok":
    said = {"status": "failed", "output": text} if way == "failed" else {text: text}
    open(os.environ["SEQUENCER_RESULT"], "w").write(json.dumps(said))
"""


def project(folder: Path, way: str) -> Path:
    scripted_project(folder)
    (folder / "hostile.json").write_text(json.dumps(HOSTILE))
    (folder / "agent.py").write_text(AGENT)
    configuration = (folder / "orchestration.yaml").read_text()
    (folder / "orchestration.yaml").write_text(
        configuration.replace("agent.py", f"agent.py, {way}")
    )
    (folder / "flows").mkdir()
    (folder / "flows" / "good.md").write_text(FLOW)
    heading = f"### evil{IN_FILES}\n---\nmodel: opus\n---\nText.\n"
    (folder / "flows" / "bad.md").write_text(f"{FLOW}\n{heading}")
    return folder


def told(folder: Path, *arguments: str) -> str:
    """Return what a command writes, both streams, and check that nothing in it is obeyed."""
    ended = cli(folder, *arguments)
    for name, text in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        found = SEEN.search(text)
        assert found is None, f"{arguments} wrote {found[0]!r} to {name}: {text[:2000]!r}"
    return ended.stdout + ended.stderr


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("way", ["ok", "failed", "odd"])
def test_agent_output_reaches_a_pipe_as_plain_text(tmp_path: Path, way: str) -> None:
    folder = project(tmp_path, way)
    assert "red" in told(folder, "--verbose", "tick")
    told(folder, "--verbose", "run", "--max-steps", "1")
    for looking in (
        "status",
        "history",
        "inbox",
        "plan",
        "repair",
        "report",
    ):
        told(folder, looking)
        told(folder, looking, "--json")


@pytest.mark.slow
def test_names_in_files_and_arguments_reach_a_pipe_as_plain_text(tmp_path: Path) -> None:
    folder = project(tmp_path, "ok")
    odd = IN_FILES
    assert "evil" in told(folder, "plan", "--simulate", "bad")
    assert "evil" in told(folder, "run", "bad", "--max-steps", "1")
    for flow in ("good", "bad"):
        told(folder, "plan", "--simulate", flow, "--json")
        for arguments in ((), ("--json",), ("--mermaid",), ("--diagram",), ("--svg", "x.svg")):
            told(folder, "plan", flow, *arguments)
    picture = (folder / "x.svg").read_text() if (folder / "x.svg").exists() else ""
    assert SEEN.search(picture) is None
    told(folder, "--run", "flowing", "run", "good", "--max-steps", "1")
    told(folder, "--run", "flowing", "status")
    told(folder, "check")
    asked = ["--run status", "plan", "", "log"]
    for words in asked:
        first, *rest = words.split() or [odd]
        typed = [first, odd, *rest] if words else [odd]
        assert "red" in told(folder, *typed)
    told(folder, "plan", "--request", f"fix {odd}", "--label", odd, "--comment", odd)
    configuration = (folder / "orchestration.yaml").read_text()
    escaped = "".join(f"\\U{ord(character):08x}" for character in odd)
    (folder / "orchestration.yaml").write_text(f'{configuration}"{escaped}": 1\n')
    for looking in ("check", "status", "tick"):
        assert "red" in told(folder, looking)


def test_settings_are_printed_without_the_logins_in_them(tmp_path: Path) -> None:
    folder = scripted_project(tmp_path)
    path = folder / "orchestration.yaml"
    path.write_text(
        path.read_text() + '  x: {kind: command, argv: [a, "https://me:hunter22@h.example"]}\n'
    )
    for form in ((), ("--json",)):
        ended = cli(folder, "check", "--settings", *form)
        assert "https://[secret]@h.example" in ended.stdout
        assert "hunter22" not in ended.stdout + ended.stderr
