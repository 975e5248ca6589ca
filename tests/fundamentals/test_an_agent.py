"""What an agent gets, what it may say, and who is chosen."""

from __future__ import annotations

from tests.fundamentals.scratch import STANDARD, Project

CANARY = "canary-6f1d0a77b2"


def test_the_prompt_comes_on_standard_input(project: Project) -> None:
    (project.folder / "prompts" / "supervisor.md").write_text("Zeile 1 — ü\n$(touch pwned) `id`\n")
    project.agent("cat > asked.txt")
    project.sequencer("run", "--max-steps", "1")
    assert (project.folder / "asked.txt").read_text() == "Zeile 1 — ü\n$(touch pwned) `id`\n"
    assert not (project.folder / "pwned").exists()


def test_it_knows_which_step_it_is(project: Project) -> None:
    project.agent("env | grep ^SEQUENCER_ | sort > env.txt")
    project.sequencer("run", "--max-steps", "2")
    lines = (project.folder / "env.txt").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    head = project.head()
    assert {name: found[f"SEQUENCER_{name}"] for name in ("STEP", "POSITION", "WORKFLOW")} == {
        "STEP": "main",
        "POSITION": "main",
        "WORKFLOW": "standard",
    }
    numbers = [found[f"SEQUENCER_{n}"] for n in ("STEP_INDEX", "ITERATION", "TOKEN", "ATTEMPT")]
    assert numbers == ["1", "2", "2", "1"]
    assert found["SEQUENCER_RUN_ID"] == head["run_id"]
    assert found["SEQUENCER_RUN_NAME"] == ""
    assert found["SEQUENCER_STATE"] == str(project.state)


def test_it_gets_no_unlisted_variable(project: Project) -> None:
    project.agent("env > env.txt")
    project.sequencer("run", "--max-steps", "1", AWS_SECRET_ACCESS_KEY=CANARY)
    assert CANARY not in (project.folder / "env.txt").read_text()


def test_a_secret_is_not_written_anywhere(project: Project) -> None:
    project.configure(
        "agent: {default: leaky}\n"
        "agents:\n  leaky: {kind: command, argv: [sh, agent.sh], pass_env: [MY_API_KEY]}\n"
    )
    project.agent('echo "the key is $MY_API_KEY"; echo "$MY_API_KEY" >&2; exit 1')
    ran = project.sequencer("run", code=1, MY_API_KEY=CANARY)
    assert CANARY not in ran.out + ran.err
    for path in project.folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
    assert "[secret]" in (project.folder / "logs/local/steps/iter-00001_supervisor.log").read_text()


def test_its_answer_is_saved(project: Project) -> None:
    project.agent("echo 'three files changed'")
    project.sequencer("run", "--max-steps", "1")
    *_, last = project.history()
    assert last["outcome"]["output"] == "three files changed"
    assert last["outcome"]["agent"] == "scribe"


def test_a_large_answer_is_saved_beside_the_journal(project: Project) -> None:
    project.agent("head -c 20000 /dev/zero | tr '\\0' x")
    project.sequencer("run", "--max-steps", "1")
    *_, last = project.history()
    file = project.folder / "sync" / last["outcome"]["output_file"]
    assert file.read_text() == "x" * 20000
    assert len(project.state.read_bytes()) < 4096


def test_the_agent_is_chosen_by_flags_and_configuration(project: Project) -> None:
    project.configure(
        "agent: {default: scribe, prompts: {main.md: other}}\n"
        "agents:\n  other: {kind: command, argv: [sh, -c, 'echo other >> done.txt']}\n"
    )
    project.sequencer("run", "--max-steps", "2")
    project.sequencer("run", "--max-steps", "2", "--agent-step", "main=scribe")
    project.sequencer(
        "run", "--max-steps", "2", "--agent", "other", "--agent-prompt=main.md=scribe"
    )
    assert project.done() == ["supervisor", "other", "supervisor", "main", "other", "main"]


def test_an_unsupported_field_is_refused_before_it_runs(project: Project) -> None:
    project.configure(STANDARD + "step_defaults: {max_turns: 3}\n")
    ran = project.sequencer("run", code=2)
    assert "max_turns" in ran.err
    assert project.done() == []


def test_a_log_is_what_it_wrote(project: Project) -> None:
    project.agent("printf 'caf\\303\\251 \\377 \\033[31mred\\n'; echo to stderr >&2")
    project.sequencer("run", "--max-steps", "1")
    log = (project.folder / "logs/local/steps/iter-00001_supervisor.log").read_bytes()
    assert b"caf\xc3\xa9 \xff \x1b[31mred\n" in log
    assert b"to stderr\n" in log
    assert "# ended · ".encode() in log
    shown = project.sequencer("log", "supervisor").out
    assert "red" in shown


def test_a_prompt_can_be_tried_beside_the_run(project: Project) -> None:
    project.sequencer("run", "--max-steps", "1")
    before = project.state.read_bytes()
    project.sequencer("run", "--mode", "async", "--step-index", "5", "--max-steps", "2")
    assert project.done() == ["supervisor", "main", "supervisor"]
    assert project.state.read_bytes() == before
    assert project.logs()[1:] == ["iter-00006_main.log", "iter-00007_supervisor.log"]


def test_a_rehearsal_asks_no_agent(project: Project) -> None:
    project.sequencer("run", "--agent", "rehearsal", "--max-steps", "2")
    assert project.done() == []
    assert project.head()["step_index"] == 2
