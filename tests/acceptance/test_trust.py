"""A project that nobody has trusted runs nothing, whatever is typed; what changes asks again."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.acceptance.cli_process import environment, read_until

CANARY = "open({path!r}, 'a').write('x')\n"
HOOKS = """\
import helper
import sequencer

@sequencer.hookimpl
def sequencer_prompt(context, text):
    return text
"""


@dataclass(frozen=True)
class Clone:
    """A project as it comes from somebody else, and a user who has trusted nothing."""

    folder: Path
    state: Path
    canary: Path

    def configure(self, **sections: str) -> None:
        """Write orchestration.yaml; each section is one line."""
        text = {
            "agent": "{default: script}",
            "agents": "{script: {kind: command, argv: [sh, agent.sh]}}",
            **sections,
        }
        lines = [f"{name}: {value}\n" for name, value in text.items()]
        (self.folder / "orchestration.yaml").write_text("".join(lines))

    def cli(
        self, *arguments: str, code: int = 0, **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command without a terminal; it has to end with *code*."""
        ran = forked.run(
            [sys.executable, "-m", "sequencer", *arguments],
            cwd=self.folder,
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.returncode == code, f"{arguments}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran

    def environment(self, **variables: str) -> dict[str, str]:
        """Return an environment of a user of their own."""
        own = {"SEQUENCER_TRUST": "", "XDG_STATE_HOME": str(self.state), **variables}
        return environment(**own)

    @property
    def record(self) -> Path:
        """Return the one record that there is."""
        (found,) = (self.state / "sequencer" / "trust").iterdir()
        return found

    def trust(self) -> None:
        self.cli("trust", "--yes")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    folder = tmp_path / "clone"
    made = Clone(folder, tmp_path / "state", tmp_path / "canary")
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text(f"Be the {name}.\n")
    (folder / "agent.sh").write_text(f"echo agent >> {made.canary}\n")
    (folder / "hooks.py").write_text(HOOKS)
    (folder / "helper.py").write_text(CANARY.format(path=str(made.canary)))
    made.configure(hooks="[hooks.py]")
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "--agent", "rehearsal"),
        ("run", "--mode", "async", "--max-steps", "1"),
        ("run", "--mode", "sync", "--position", "main", "--max-wait", "1"),
        ("tick",),
        ("start", "Fix the bug"),
        ("start", "Fix the bug", "--no-run"),
        ("plan", "--request", "Fix the bug"),
        ("answer", "approve"),
        ("skip",),
    ],
    ids=" ".join,
)
def test_nothing_of_an_untrusted_project_runs(clone: Clone, arguments: tuple[str, ...]) -> None:
    ran = clone.cli(*arguments, code=2)
    assert "agents.script.argv" in ran.stderr
    assert "sequencer trust" in ran.stderr
    assert not clone.canary.exists()
    assert not (clone.folder / "sync").exists()


@pytest.mark.parametrize(
    "arguments",
    [("check",), ("status",), ("plan",), ("history",), ("plan", "--list"), ("status", "--all")],
    ids=str,
)
def test_read_only_commands_neither_ask_nor_run_anything(
    clone: Clone, arguments: tuple[str, ...]
) -> None:
    ran = clone.cli(*arguments)
    assert not clone.canary.exists()
    assert ("not trusted" in ran.stdout) == (arguments == ("check",))


def test_a_wrong_configuration_is_fixed_first_and_then_trusted(clone: Clone) -> None:
    path = clone.folder / "orchestration.yaml"
    right = path.read_text()
    path.write_text(right + "limts: {steps: 3}\n")
    refused = clone.cli("trust", "--yes", code=2).stderr
    assert "nothing runs until you fix the configuration; trust the project after that" in refused
    assert "unknown key 'limts'" in refused
    path.write_text(right)
    assert "agents.script.argv" in clone.cli("tick", code=2).stderr
    clone.cli("trust", "--yes")


def test_posting_needs_trust_too(clone: Clone) -> None:
    sinks = "{sinks: {hook: {kind: webhook, url: 'https://127.0.0.1:9/', secret_env: A_TOKEN}}}"
    clone.configure(activity=sinks)
    assert "activity.sinks.hook.url" in clone.cli("answer", "approve", code=2).stderr


@pytest.mark.parametrize(
    "arguments", [("run",), ("tick",), ("stop", "--pause"), ("stop",), ("skip",)]
)
def test_an_untrusted_project_contacts_no_remote(clone: Clone, arguments: tuple[str, ...]) -> None:
    clone.configure(store="{kind: git, remote: 'ssh://nobody@127.0.0.1/x'}")
    for command in (("init", "-q"), ("config", "core.sshCommand", f"touch {clone.canary}; false")):
        subprocess.run(["git", *command], cwd=clone.folder, check=True)
    assert "store.remote" in clone.cli(*arguments, code=2).stderr
    assert not clone.canary.exists()


def test_commands_git_would_run_need_trust(clone: Clone) -> None:
    def ssh(canary: Path) -> None:
        command = ("git", "config", "core.sshCommand", f"touch {canary}; false")
        subprocess.run(command, cwd=clone.folder, check=True)

    clone.configure(store="{kind: git, remote: here}")
    for command in (("init", "-q"), ("remote", "add", "here", "ssh://nobody@127.0.0.1/x")):
        subprocess.run(["git", *command], cwd=clone.folder, check=True)
    ssh(clone.canary)
    said = clone.cli("run", code=2).stderr
    assert "git.core.sshcommand: " in said
    assert "git.remote.here.url: " in said
    assert not clone.canary.exists()
    clone.trust()
    clone.cli("run", "--max-steps", "1", code=3)
    assert clone.canary.exists(), "a deploy key that somebody has said yes to works"
    other = clone.canary.with_name("other")
    ssh(other)
    assert "+ git.core.sshcommand: " in clone.cli("tick", code=2).stderr
    assert not other.exists()


@pytest.mark.parametrize("kind", ["git", "temporal"])
def test_remotes_that_receive_code_need_trust(clone: Clone, kind: str) -> None:
    clone.configure(store=f"{{kind: {kind}, remote: here}}")
    for command in (("init", "-q"), ("remote", "add", "here", "ssh://nobody@127.0.0.1/x")):
        subprocess.run(["git", *command], cwd=clone.folder, check=True)
    assert "git.remote.here.url: " in clone.cli("trust", "--yes").stdout


def test_a_trusted_project_runs_until_something_executable_changes(clone: Clone) -> None:
    said = clone.cli("trust", code=2).stdout
    assert "hooks, file helper.py: sha256" in said, "what a hook imports is its code too"
    clone.trust()
    clone.cli("run", "--max-steps", "1")
    assert clone.canary.read_text() == "xagent\n"
    for name in ("agent.sh", "hooks.py", "helper.py"):
        path = clone.folder / name
        before = path.read_text()
        path.write_text(f"{before}\n# more\n")
        ran = clone.cli("tick", code=2)
        assert f"- {'agents.script' if name == 'agent.sh' else 'hooks'}, file {name}" in ran.stderr
        path.write_text(before)
    clone.cli("tick")


def test_removing_an_agents_wall_needs_trust_again(clone: Clone) -> None:
    clone.configure()
    clone.cli("trust", "--yes")
    clone.configure(agents="{script: {kind: command, argv: [sh, agent.sh], wall: none}}")
    said = clone.cli("run", "--max-steps", "1", code=2).stderr
    assert '+ agents.script.wall: "none"' in said


def test_steps_prompts_and_lower_caps_are_free(clone: Clone) -> None:
    clone.configure(limits="{max_steps: 50}")
    clone.trust()
    (clone.folder / "prompts" / "main.md").write_text("Something else.\n")
    clone.configure(limits="{max_steps: 20}", workflow="{name: review_cadence}")
    clone.cli("tick")
    clone.configure(limits="{max_steps: 51}")
    raised = clone.cli("tick", code=2).stderr
    assert "- limits.steps: 50" in raised
    assert "+ limits.steps: 51" in raised
    clone.configure()
    assert "+ limits.steps: no cap" in clone.cli("tick", code=2).stderr


FLOW = """
```mermaid
flowchart TD
    a[Do it] --> e((End))
```

### a
---
agent: script
tools: {%s: true}
---
Do it.
"""


def test_a_project_with_many_flows_asks_about_one_line_for_each(clone: Clone) -> None:
    flows = Path(__file__).parents[2] / "examples" / "flows"
    names = sorted(path.name for path in flows.glob("*.md") if path.name != "README.md")
    (clone.folder / "flows").mkdir(exist_ok=True)
    for name in names:
        shutil.copyfile(flows / name, clone.folder / "flows" / name)
    said = clone.cli("trust", code=2).stdout.splitlines()
    about = [line for line in said if line.startswith("  file flows/")]
    assert [line.partition(",")[0] for line in about] == [f"  file flows/{name}" for name in names]
    assert any("asks a person: true" in line for line in about)
    assert "each step, with its limits: 'sequencer --verbose trust'" in said
    every = clone.cli("--verbose", "trust", code=2).stdout.splitlines()
    assert len(every) > 3 * len(said)
    assert "  file flows/release.md, tag, overdue, announce, timeout_s: 300" in every
    told = json.loads(clone.cli("trust", "--yes", "--json").stdout)["acts"]
    assert "file flows/release.md, tag, overdue, announce, timeout_s: 300" in told


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("place", ["elsewhere.md", "docs/elsewhere.md", "{outside}/elsewhere.md"])
def test_a_flow_in_any_place_grants_only_what_was_trusted(clone: Clone, place: str) -> None:
    clone.trust()
    place = place.format(outside=clone.state.parent)
    path = clone.folder / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(FLOW % "bash")
    clone.cli("plan", "--simulate", place)
    clone.cli("run", place, "--dry-run")
    refused = clone.cli("run", place, code=2).stderr
    assert "+ file " in refused
    assert "elsewhere.md, a, tools.bash: true" in refused
    assert not clone.canary.exists()
    assert f"'sequencer trust {os.path.relpath(path, clone.folder)}'" in refused
    clone.cli("trust", "--yes", place)
    # A command can't be given tools, which is looked at behind the question of trust.
    assert "does not support tools" in clone.cli("run", place, code=2).stderr


def test_a_persons_own_variables_and_flags_need_no_trust(clone: Clone) -> None:
    clone.trust()
    agents = '{"mine": {"kind": "command", "argv": ["true"]}}'
    variables: dict[str, Any] = {"SEQUENCER_AGENTS": agents, "SEQUENCER_LIMITS__STEPS": "9"}
    clone.cli("run", "--max-steps", "1", "--max-cost", "5", "--agent", "mine", **variables)


def test_an_agent_that_edits_the_configuration_is_not_obeyed(clone: Clone) -> None:
    edit = "sed -i 's/agent.sh/evil.sh/' orchestration.yaml; echo 'touch evil' > evil.sh"
    (clone.folder / "agent.sh").write_text(f"{edit}\n")
    clone.trust()
    clone.cli("tick")
    assert '+ agents.script.argv: ["sh", "evil.sh"]' in clone.cli("tick", code=2).stderr
    assert not (clone.folder / "evil").exists()


def test_an_agent_that_edits_the_next_ones_program_ends_the_same_run(clone: Clone) -> None:
    (clone.folder / "agent.sh").write_text("echo step >> steps; echo 'touch evil' >> agent.sh\n")
    clone.trust()
    ran = clone.cli("run", "--max-steps", "4", code=2)
    assert "agents.script, file" in ran.stderr
    assert (clone.folder / "steps").read_text() == "step\n"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("argv", "edit"),
    [
        ("[sh, agent.sh]", "printf 'touch evil' > other.sh; ln -sf other.sh agent.sh"),
        ("[sh, -c, '. ./agent.sh; test ! -f more.sh || . ./more.sh']", "echo touch evil > more.sh"),
        ("[python3, -m, run]", 'echo \'open("evil", "w")\' > json.py'),
    ],
    ids=["a link that is turned", "a file that has come", "a module that has come"],
)
def test_an_agent_that_puts_another_file_in_the_way_ends_the_same_run(
    clone: Clone, argv: str, edit: str
) -> None:
    (clone.folder / "agent.sh").unlink()
    (clone.folder / "first.sh").write_text(f"echo step >> steps; test -f evil || {{ {edit}; }}\n")
    (clone.folder / "agent.sh").symlink_to("first.sh")
    (clone.folder / "run.py").write_text(
        "import json, subprocess\nsubprocess.run(['sh', 'first.sh'])\n"
    )
    clone.configure(agents=f"{{script: {{kind: command, argv: {argv}}}}}")
    clone.trust()
    ran = clone.cli("run", "--max-steps", "4", code=2)
    assert "agents.script, file" in ran.stderr
    assert (clone.folder / "steps").read_text() == "step\n"


def test_an_agent_program_edited_in_its_work_tree_is_not_obeyed(
    clone: Clone,
) -> None:
    step = "echo step >> {0}; printf 'touch {1}' > agent.new; mv agent.new agent.sh\n"
    steps, evil = clone.canary.with_name("steps"), clone.canary.with_name("evil")
    (clone.folder / "agent.sh").write_text(step.format(steps, evil))
    (clone.folder / ".gitignore").write_text("sync/\nlogs/\n")
    clone.configure(worktree="true")
    for words in (
        "init -q -b main --template=",
        "config user.name Ada",
        "config user.email ada@example.org",
        "add -A",
        "commit -q -m first",
    ):
        subprocess.run(["git", *words.split()], cwd=clone.folder, check=True)
    clone.trust()
    ran = clone.cli("run", "--max-steps", "4", code=1)
    assert "+ agents.script, file agent.sh" in ran.stderr
    assert "undo it there, or do the same in the project's folder" in ran.stderr
    clone.cli("tick", code=1)
    assert steps.read_text() == "step\n"
    assert not evil.exists()


def test_a_program_found_through_a_variables_folder_is_compared(clone: Clone) -> None:
    (clone.folder / "bin").mkdir()
    tool = clone.folder / "bin" / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    env = "{PATH: 'bin:/usr/bin:/bin'}"
    clone.configure(agents=f"{{script: {{kind: command, argv: [tool], env: {env}}}}}")
    clone.trust()
    tool.write_text(f"#!/bin/sh\ntouch {clone.canary}\n")
    assert "agents.script, file bin/tool" in clone.cli("tick", code=2).stderr


def test_an_agent_cannot_grant_trust(clone: Clone) -> None:
    inside: dict[str, Any] = {"SEQUENCER_TOKEN": "7"}
    clone.cli("trust", "--yes", code=2, **inside)
    ran = clone.cli("run", code=2, SEQUENCER_TRUST="all", **inside)
    assert "not trusted" in ran.stderr
    assert not clone.canary.exists()
    clone.cli("run", "--max-steps", "1", SEQUENCER_TRUST=str(clone.folder.parent))


def test_an_agent_does_not_see_the_trust_variable(clone: Clone) -> None:
    (clone.folder / "agent.sh").write_text("env > env.txt\n")
    agents = "{script: {kind: command, argv: [sh, agent.sh], pass_env: ['SEQUENCER_*']}}"
    clone.configure(agents=agents)
    clone.cli("run", "--max-steps", "1", SEQUENCER_TRUST="all")
    seen = (clone.folder / "env.txt").read_text()
    assert "SEQUENCER_TOKEN=" in seen
    assert "SEQUENCER_TRUST" not in seen


def test_an_agent_cannot_make_decisions_reserved_for_people(clone: Clone) -> None:
    clone.configure()
    clone.trust()
    clone.cli("tick")
    before = (clone.folder / "sync" / "state.json").read_text()
    inside: dict[str, Any] = {"SEQUENCER_TOKEN": "7"}
    for arguments in (
        *(
            ("answer", "approve"),
            ("answer", "reject"),
            ("answer", "x"),
            ("answer", "a", "b"),
            ("skip", "--as-done"),
        ),
        *(("retry",), ("skip",), ("set", "a=1"), ("rewind", "0"), ("reset", "--yes")),
        *(("adopt",), ("takeover", "--force"), ("repair", "--apply"), ("resume",)),
    ):
        assert "for a person" in clone.cli(*arguments, code=2, **inside).stderr, arguments
    assert (clone.folder / "sync" / "state.json").read_text() == before
    clone.cli("stop", "--pause", **inside)
    clone.cli("repair", **inside)
    clone.configure(agents_may_decide="[skip]")
    assert "+ agents_may_decide" in clone.cli("tick", code=2).stderr
    clone.trust()
    clone.cli("skip", **inside)
    clone.cli("resume", code=2, **inside)
    clone.cli("resume", code=2, SEQUENCER_AGENTS_MAY_DECIDE="resume", **inside)
    own = clone.folder.parent / "own.yaml"
    state = clone.folder / "sync" / "state.json"
    own.write_text(f"agents_may_decide: [resume]\nstate_file: {state}\n")
    assert "not trusted" in clone.cli("resume", "--config", str(own), code=2, **inside).stderr
    # Nor does what one project allows count for the run of another one.
    elsewhere = str(clone.folder.parent / "elsewhere" / "state.json")
    clone.cli("skip", code=2, SEQUENCER_STATE_FILE=elsewhere, **inside)
    clone.cli("skip", SEQUENCER_LOGS__MAX_BYTES="1000000", **inside)
    clone.configure(agents_may_decide="[skip, resume]")
    assert "has changed" in clone.cli("resume", code=2, **inside).stderr


def test_an_agent_cannot_start_runs_but_can_work_on_existing_ones(clone: Clone) -> None:
    clone.configure(schedules="{nightly: {workflow: standard, at: '0 2 * * *'}}")
    clone.trust()
    inside: dict[str, Any] = {"SEQUENCER_TOKEN": "7"}
    for arguments in (
        *(("run",), ("tick",), ("run", "--run", "new"), ("run", "--mode", "async")),
        *(("run", "--rehearse"), ("run", "--run", "nightly"), ("start", "do it", "--no-run")),
    ):
        assert "for a person" in clone.cli(*arguments, code=2, **inside).stderr, arguments
    assert not clone.canary.exists()
    assert not [*clone.folder.glob("sync/**/state.json")]
    clone.cli("run", "--dry-run", **inside)
    clone.cli("tick", "--run", "nightly", **inside)
    clone.cli("tick")
    clone.cli("tick", **inside)
    clone.configure(agents_may_decide="[start]")
    clone.trust()
    clone.cli("tick", "--run", "new", **inside)
    (record,) = (clone.state / "sequencer" / "schedules").iterdir()
    record.write_text('{"since": 0}')  # a date has come
    clone.configure(schedules="{nightly: {workflow: standard, at: '0 2 * * *'}}")
    clone.trust()
    assert "is done" in clone.cli("tick", "--run", "nightly", **inside).stdout


def test_records_are_listed_and_removed(clone: Clone) -> None:
    clone.trust()
    assert str(clone.folder) in clone.cli("trust", "--list").stdout
    (told,) = json.loads(clone.cli("trust", "--list", "--json").stdout)
    assert told["project"] == str(clone.folder)
    assert json.loads(clone.cli("trust", "--json").stdout)["digest"] == told["digest"]
    clone.cli("trust", "--remove")
    clone.cli("tick", code=2)


@pytest.mark.parametrize("forgery", ["readable by others", "a link", "a folder of others"])
def test_a_record_that_others_could_have_made_is_refused(clone: Clone, forgery: str) -> None:
    clone.trust()
    record = clone.record
    if forgery == "a link":
        elsewhere = clone.state / "elsewhere.json"
        record.rename(elsewhere)
        record.symlink_to(elsewhere)
    elif forgery == "a folder of others":
        record.parent.chmod(0o777)
    else:
        record.chmod(0o644)
    ran = clone.cli("tick", code=2)
    assert str(record.parent) in ran.stderr
    assert not clone.canary.exists()


def test_records_are_private_and_a_damaged_one_asks_again(clone: Clone) -> None:
    clone.trust()
    assert (clone.record.stat().st_mode & 0o777, clone.record.parent.stat().st_mode & 0o777) == (
        0o600,
        0o700,
    )
    clone.record.write_text(clone.record.read_text().replace("agent.sh", "other.sh"))
    assert "not trusted" in clone.cli("tick", code=2).stderr


def test_a_new_project_is_trusted_and_a_moved_one_is_not(clone: Clone) -> None:
    made = clone.folder / "made"
    clone.cli("init", str(made))
    here = Clone(made, clone.state, clone.canary)
    here.cli("run", "--agent", "rehearsal", "--max-steps", "1")
    copy = made.rename(clone.folder / "moved")
    Clone(copy, clone.state, clone.canary).cli("run", "--agent", "rehearsal", code=2)


def test_a_project_that_init_only_completes_is_not_trusted_by_it(clone: Clone) -> None:
    clone.cli("init")
    clone.cli("tick", code=2)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2)])
def test_on_a_terminal_a_person_is_asked(clone: Clone, answer: str, code: int) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sequencer", "run", "--max-steps", "1"],
        cwd=clone.folder, env=clone.environment(TERM="dumb"),
        stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        said = read_until(ours, b"[y/N]")
        assert b"agents.script.argv" in said
        assert not clone.canary.exists()
        os.write(ours, f"{answer}\n".encode())
        read_until(ours, None)
        assert process.wait(60) == code
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert clone.canary.exists() == (answer == "y")
    clone.cli("tick", code=code)
