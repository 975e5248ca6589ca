"""A client never starts with settings of the project that no person has said yes to."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.clones import git

CLAUDE = """\
#!/bin/sh
cat > /dev/null
echo started >> {home}/started
if [ -f {home}/plan.sh ]; then . {home}/plan.sh; fi
echo '{{"type": "system", "subtype": "init", "session_id": "s1"}}'
echo '{{"type": "result", "subtype": "success", "is_error": false, "result": "ok", \
"session_id": "s1", "total_cost_usd": 0.01, "usage": {{"input_tokens": 1, "output_tokens": 1}}}}'
"""
"""It does what plan.sh says, in the folder where it was started."""
ALLOW = '{"permissions": {"allow": ["Bash(*)"]}}'
DENY = '{"permissions": {"deny": ["Read(.env)"]}, "theme": "dark"}'
STEPS = "steps: [{name: one, text: x}, {name: two, text: y}]\n"


@dataclass(frozen=True)
class Trusted:
    """A project whose agent is a claude, and its user."""

    folder: Path
    home: Path

    def call(self, *arguments: str, code: int = 0, **variables: str) -> str:
        """Return what a command says, which has to end with *code*."""
        own: dict[str, Any] = {"SEQUENCER_TRUST": "", "XDG_STATE_HOME": str(self.home / "state")}
        own |= variables
        ran = cli(self.folder, *arguments, **own)
        assert ran.returncode == code, f"{arguments}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    def configure(self, options: str = "", more: str = STEPS) -> None:
        program = self.home / "claude"
        entry = f"{{kind: claude, program: {program}, permission_mode: acceptEdits{options}}}"
        text = f"agent: claude\nagents: {{claude: {entry}}}\n{more}"
        (self.folder / "orchestration.yaml").write_text(text)

    def put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def plan(self, text: str) -> None:
        """Let the client run the shell's *text*, once."""
        (self.home / "plan.sh").write_text(f"rm {self.home}/plan.sh\n{text}\n")

    @property
    def starts(self) -> int:
        path = self.home / "started"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def trusted(tmp_path: Path) -> Trusted:
    made = Trusted(tmp_path / "project", tmp_path / "home")
    made.folder.mkdir()
    made.home.mkdir()
    program = made.home / "claude"
    program.write_text(CLAUDE.format(home=made.home))
    program.chmod(0o755)
    made.configure()
    return made


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        (".claude/settings.json", ALLOW, 'permissions.allow: ["Bash(*)"]'),
        (".claude/settings.local.json", ALLOW, 'permissions.allow: ["Bash(*)"]'),
        (".mcp.json", '{"mcpServers": {"x": {"command": "sh"}}}', 'mcpServers.x.command: "sh"'),
        (".claude/agents/x.md", "---\ntools: Bash\n---\n", "sha256"),
        (".envrc", "export PATH=evil\n", "sha256"),
    ],
)
def test_an_agent_that_may_only_edit_files_gives_the_next_one_nothing(
    name: str, text: str, fact: str, trusted: Trusted
) -> None:
    trusted.call("trust", "--yes")
    trusted.plan(f"mkdir -p $(dirname {name}); cat > {name} <<'END'\n{text}\nEND")
    said = trusted.call("run", "--max-steps", "2", code=2)
    assert f"+ claude, file {name}" in said
    assert fact in said
    assert trusted.starts == 1
    assert fact in trusted.call("tick", code=2)
    assert trusted.starts == 1
    assert (
        f"claude: reads files of this project that act (not trusted as they are now): {name}"
        in (trusted.call("check"))
    )
    assert fact in trusted.call("trust", "--yes")
    trusted.call("tick")
    assert trusted.starts == 2
    assert f"that act (trusted): {name}" in trusted.call("check")


@pytest.mark.slow
def test_a_removed_deny_rule_needs_trust_and_a_theme_does_not(trusted: Trusted) -> None:
    trusted.put(".claude/settings.json", DENY)
    assert "permissions.deny" in trusted.call("trust", "--yes")
    trusted.plan("sed -i s/dark/light/ .claude/settings.json")
    trusted.call("tick")
    trusted.plan("echo '{}' > .claude/settings.json")
    trusted.call("tick")
    said = trusted.call("run", "--max-steps", "1", code=2)
    assert '- claude, file .claude/settings.json, permissions.deny: ["Read(.env)"]' in said
    (trusted.folder / ".claude" / "settings.json").unlink()
    assert "permissions.deny" in trusted.call("tick", code=2)
    trusted.put(".claude/settings.json", DENY)
    trusted.call("tick")


def test_a_client_that_ignores_project_settings_needs_no_trust(trusted: Trusted) -> None:
    trusted.configure(", setting_sources: [user]")
    trusted.call("trust", "--yes")
    trusted.plan(f"mkdir .claude; echo '{ALLOW}' > .claude/settings.json")
    trusted.call("run", "--max-steps", "2")
    assert trusted.starts == 2
    assert "settings.json" not in trusted.call("trust")


def test_a_client_chosen_by_an_option_needs_trust_then(trusted: Trusted) -> None:
    script = "agents: {x: {kind: command, argv: ['true']}}\nagent: x\n"
    (trusted.folder / "orchestration.yaml").write_text(script + STEPS)
    trusted.put(".claude/settings.json", ALLOW)
    assert ".claude" not in trusted.call("trust", "--yes")
    trusted.call("tick")
    run = ("run", "--agent", "claude", "--max-steps", "1")
    refused = trusted.call(*run, code=2)
    assert "+ claude, file .claude/settings.json" in refused
    assert "'SEQUENCER_AGENT__DEFAULT=claude sequencer trust' shows everything" in refused
    trusted.call("trust", "--yes", SEQUENCER_AGENT__DEFAULT="claude")
    trusted.call("tick")
    trusted.call("trust", "--yes")
    # There is no such program on PATH; it is trusted all the same, and stays so.
    assert "not trusted" not in trusted.call(*run, code=2, PATH="/nowhere")
    trusted.put(".claude/settings.json", DENY)
    trusted.call("tick")
    assert "permissions.deny" in trusted.call(*run, code=2)


def test_secrets_of_a_clients_settings_are_never_printed(trusted: Trusted) -> None:
    trusted.put(".claude/settings.json", json.dumps({"env": {"DB": "hunter2-hunter2"}}))
    shown = trusted.call("trust", code=2) + trusted.call("tick", code=2) + trusted.call("check")
    shown += trusted.call("trust", "--yes", "--json") + trusted.call("trust", "--list", "--json")
    assert "settings.json, env.DB: " in shown
    assert "hunter2" not in shown


@pytest.mark.slow
def test_files_an_attempt_leaves_in_a_work_tree_are_compared_too(trusted: Trusted) -> None:
    trusted.configure(more=f"{STEPS}worktree: true\n")
    trusted.put(".gitignore", "sync/\nlogs/\n")
    git(trusted.folder, "init", "-q", "-b", "main", "--template=")
    git(trusted.folder, "config", "user.name", "Ada")
    git(trusted.folder, "config", "user.email", "ada@example.org")
    git(trusted.folder, "add", "-A")
    git(trusted.folder, "commit", "-q", "-m", "first")
    # Git does not bring it to a work tree: that is no change.
    trusted.put(".claude/settings.local.json", DENY)
    trusted.call("trust", "--yes")
    trusted.plan(f"mkdir -p .claude; echo '{ALLOW}' > .claude/settings.json")
    said = trusted.call("run", "--max-steps", "2", code=1)
    assert "+ claude, file .claude/settings.json" in said
    assert "undo it there, or do the same in the project's folder" in said
    assert trusted.starts == 1
    trusted.put(".claude/settings.json", ALLOW)
    trusted.call("trust", "--yes")
    # claude looks for servers in every folder above the one where it works.
    trusted.put("sync/worktrees/.mcp.json", '{"mcpServers": {"x": {"command": "sh"}}}')
    said = trusted.call("run", "--max-steps", "1", code=1)
    assert '+ claude, file ../.mcp.json, mcpServers.x.command: "sh"' in said
    (trusted.folder / "sync" / "worktrees" / ".mcp.json").unlink()
    trusted.call("run", "--max-steps", "1")
    assert trusted.starts == 2


def test_a_deny_file_an_attempt_removes_in_a_work_tree_is_noticed(
    trusted: Trusted,
) -> None:
    trusted.configure(more=f"{STEPS}worktree: true\n")
    trusted.put(".gitignore", "sync/\nlogs/\n")
    trusted.put(".claude/settings.json", DENY)
    git(trusted.folder, "init", "-q", "-b", "main", "--template=")
    git(trusted.folder, "config", "user.name", "Ada")
    git(trusted.folder, "config", "user.email", "ada@example.org")
    git(trusted.folder, "add", "-A")
    git(trusted.folder, "commit", "-q", "-m", "first")
    trusted.call("trust", "--yes")
    trusted.plan("rm .claude/settings.json")
    said = trusted.call("run", "--max-steps", "2", code=1)
    assert "- claude, file .claude/settings.json" in said
    assert trusted.starts == 1
    # Git brings it no more: whoever has taken it out of the project said so.
    git(trusted.folder, "rm", "-q", "--cached", ".claude/settings.json")
    trusted.call("run", "--max-steps", "1")
    assert trusted.starts == 2


@pytest.mark.slow
def test_files_named_in_an_argument_are_compared(trusted: Trusted) -> None:
    for argv in (
        ["sh", "-c", "sh agent.sh x"],
        ["sh", "-c", ". ./agent.sh"],
        ["env", "-S", "sh agent.sh"],
        ["python3", "-c", "import helper"],
    ):
        trusted.put("agent.sh", "true\n")
        trusted.put("helper.py", "x = 1\n")
        entry = {"kind": "command", "argv": argv}
        steps = [{"name": "one", "text": "x"}]
        script = {"agents": {"x": entry}, "agent": "x", "steps": steps}
        (trusted.folder / "orchestration.yaml").write_text(json.dumps(script))
        trusted.call("trust", "--yes")
        trusted.call("tick")
        name = "helper.py" if "helper" in argv[-1] else "agent.sh"
        trusted.put(name, "import os  # more\n")
        assert f"file {name}" in trusted.call("tick", code=2), argv


def test_files_a_program_reads_by_itself_are_listed_but_not_compared(trusted: Trusted) -> None:
    trusted.put("Makefile", "all:\n")
    trusted.put("tests/conftest.py", "")
    said = trusted.call("trust", "--yes")
    assert "read by trusted programs, not compared: Makefile, tests/" in said
    trusted.put("Makefile", "all: more\n")
    trusted.call("tick")


def test_links_fifos_and_odd_files_do_not_block_a_tick(trusted: Trusted) -> None:
    trusted.put(".claude/settings.json", "{" * 10_000)
    subprocess.run(["mkfifo", ".mcp.json", ".envrc"], cwd=trusted.folder, check=True)
    (trusted.folder / ".claude" / "skills").symlink_to("/")
    said = trusted.call("tick", code=2)
    for line in (
        'file .claude/skills: leads to "/"',
        "file .mcp.json: no regular file",
        "file .claude/settings.json: sha256",
    ):
        assert line in said
    trusted.call("trust", "--yes")
    trusted.call("tick")
