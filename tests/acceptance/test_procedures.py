"""From a request to a finished run, as a person does it: real processes, an agent script."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli
from tests.concurrency.odd_bytes import on_terminal

AGENT = """\
import json, os, sys, time
step, token = os.environ["SEQUENCER_STEP"], os.environ["SEQUENCER_TOKEN"]
with open(f"prompt-{token}-{step}.txt", "w") as file:
    file.write(sys.stdin.read())
if os.path.exists(f"slow-{step}"):
    os.rename(f"slow-{step}", f"begun-{step}")
    time.sleep(60)
if step == "verifications":
    print(json.dumps({"pass": os.path.exists("fixed"), "reason": "login_test fails"}))
elif step == "validation-fixer":
    open("fixed", "w").close()
else:
    print(f"{step} is done")
"""
CONFIGURATION = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
"""
SECRET = "supersecret-value-1"  # noqa: S105 - invented
DEBUGGING = [
    "debugger-reproduction",
    "get-approval",
    "debugger-fix",
    "verifications",
    "git-gh",
    "concise-summary",
]
RUN = "--run=debug-login-timeout"
REQUESTS = {
    "How does authentication work?": ("question", "simple-question"),
    "Update the installation docs": ("documentation", "documentation-edit"),
    "Search the web for release dates of Python": ("transient", "simple-question"),
    "Improve performance": ("planning", "plan-mode"),
    "Add user profile page": ("code", "full-development"),
    "Debug with approval why login times out": ("debugger", "debugger-full"),
    "Break checkout into sub-issues": ("orchestrator", "orchestrator-full"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION)
    return tmp_path


def start_bug(project: Path) -> subprocess.CompletedProcess[str]:
    return cli(project, "start", "Debug login timeout", "--label", "bug")


def facts(project: Path) -> list[dict[str, Any]]:
    printed = cli(project, RUN, "history", "--json").stdout
    return [json.loads(line) for line in printed.splitlines()]


def steps_of(project: Path, event: str) -> list[str]:
    return [fact["step"] for fact in facts(project) if fact["event"] == event]


@pytest.mark.parametrize("text", REQUESTS)
def test_plan_shows_the_procedure_a_request_would_get(text: str, project: Path) -> None:
    ended = cli(project, "plan", "--request", text, "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["classification"], told["procedure"]) == REQUESTS[text]
    assert told["source"] == "rules"
    assert told["request"]["title"] == text
    assert all(step["agent"] == "script" for step in told["steps"])
    assert not (project / "sync").exists()


@pytest.mark.parametrize(
    ("answers", "procedure", "source"),
    [
        (["planning"], "plan-mode", "classification"),
        (["It is code, I think.", '"Code".'], "full-development", "classification"),
        (["no idea", "none of them"], "documentation-edit", "fallback"),
    ],
)
def test_an_agent_classifies(
    answers: list[str], procedure: str, source: str, project: Path
) -> None:
    (project / "answers.txt").write_text("\n".join(answers) + "\n")
    (project / "ask.sh").write_text('cd "${0%/*}"; head -n1 answers.txt; sed -i 1d answers.txt\n')
    (project / "orchestration.yaml").write_text(
        CONFIGURATION + "  classifier: {kind: command, argv: [sh, ask.sh]}\n"
        "routing: {classifier: classifier, fallback: documentation-edit}\n"
    )
    told = json.loads(cli(project, "plan", "--request", "Improve it", "--json").stdout)
    assert (told["procedure"], told["source"]) == (procedure, source)
    tried = [one for one in told["considered"] if one["source"] == "classification"]
    assert len(tried) == len(answers)
    assert not (project / "sync").exists()


def test_a_label_decides_before_any_classifier_is_asked(project: Path) -> None:
    told = json.loads(
        cli(project, "plan", "--request", "Improve it", "--label", "EPIC", "--json").stdout
    )
    assert (told["procedure"], told["source"]) == ("orchestrator-full", "label")
    shown = cli(project, "plan", "--request", "Improve it", "--procedure", "plan-mode").stdout
    assert shown.startswith("plan-mode  (it was named)\n")


def test_three_processes_from_a_bug_to_its_summary(project: Path) -> None:
    started = start_bug(project)
    assert started.returncode == 4, started.stderr
    (waiting,) = json.loads(cli(project, "inbox", "--json").stdout)
    assert (waiting["run"], waiting["step"]) == ("debug-login-timeout", "get-approval")
    assert waiting["question"] == "get-approval is done"
    assert cli(project, "answer", "approve", "--note", "go").returncode == 0
    rest = cli(project, RUN, "run")
    assert rest.returncode == 0, rest.stderr
    assert "verifications: no (round 1 of 4): login_test fails · " in rest.stderr
    assert "verifications: yes (round 2 of 4): login_test fails · " in rest.stderr
    listed = cli(project, RUN, "history").stdout
    assert " no (round 1): login_test fails, script, " in listed
    assert " yes (round 2): login_test fails, script, " in listed
    assert steps_of(project, "succeeded") == DEBUGGING
    assert steps_of(project, "invalid") == ["verifications"]
    assert steps_of(project, "fixed") == ["validation-fixer"]
    (run,) = json.loads(cli(project, "status", "--all", "--ended", "--json").stdout)
    assert (run["status"], run["workflow"], run["steps"]) == ("complete", "debugger-full", 6)
    assert run["title"] == "Debug login timeout"


@pytest.mark.slow
def test_feedback_twice_then_approval(project: Path) -> None:
    start_bug(project)
    for text in ("look at the retry", "and at the proxy"):
        assert cli(project, "answer", text).returncode == 0
        assert cli(project, "answer", "too late").returncode == 3
        assert cli(project, RUN, "run").returncode == 4
    prompts = sorted(project.glob("prompt-*-debugger-reproduction.txt"))
    told = [path.read_text() for path in prompts]
    assert ["look at the retry" in text for text in told] == [False, True, True]
    assert ["and at the proxy" in text for text in told] == [False, False, True]
    assert cli(project, "answer", "approve").returncode == 0
    assert cli(project, RUN, "run").returncode == 0
    assert steps_of(project, "succeeded") == [
        *("debugger-reproduction", "get-approval") * 3,
        *DEBUGGING[2:],
    ]


@pytest.mark.slow
def test_a_rejection_is_final(project: Path) -> None:
    start_bug(project)
    assert cli(project, "answer", "reject", "--note", "works as designed").returncode == 0
    again = cli(project, RUN, "answer", "approve")
    assert again.returncode == 3
    assert "rejected at 'get-approval' already" in again.stderr
    assert cli(project, RUN, "run").returncode == 0
    (run,) = json.loads(cli(project, "status", "--all", "--ended", "--json").stdout)
    assert run["status"] == "rejected"
    assert cli(project, "inbox").stdout == "no run waits for a decision\n"


def test_with_two_waiting_runs_one_must_be_named(project: Path) -> None:
    start_bug(project)
    assert cli(project, "--run", "second", "start", "Another", "--label", "bug").returncode == 4
    unclear = cli(project, "answer", "approve")
    assert unclear.returncode == 3
    assert "2 runs wait for a decision: debug-login-timeout, second" in unclear.stderr
    assert cli(project, "--run", "second", "answer", "approve").returncode == 0


def test_a_title_can_be_reused_but_a_run_name_cannot(project: Path) -> None:
    for _ in range(2):
        assert (
            cli(project, "start", "Fix it", "--no-run", "--procedure", "plan-mode").returncode == 0
        )
    names = [run["run"] for run in json.loads(cli(project, "status", "--all", "--json").stdout)]
    assert names == ["fix-it", "fix-it-2"]
    refused = cli(project, "--run", "fix-it", "start", "Other", "--procedure", "plan-mode")
    assert refused.returncode == 3
    assert "run 'fix-it' exists" in refused.stderr


def test_a_request_file_with_all_options_reaches_the_prompt(project: Path) -> None:
    (project / "issue.md").write_text("# Add a page\n\nWith a form.\n")
    (project / "data.csv").write_text("1\n")
    ended = cli(
        project, "start", "--file", "issue.md", "--label", "feature", "--comment", "small please",
        "--attach", "data.csv", "--procedure", "plan-mode",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    prompt = (project / "prompt-1-preparation.txt").read_text()
    for words in ("Add a page", "With a form.", "Labels: feature", "small please", "- data.csv"):
        assert words in prompt
    assert (
        json.loads(cli(project, "status", "--all", "--ended", "--json").stdout)[0]["run"]
        == "add-a-page"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("start",), 2, "there is no request"),
        (("start", "  "), 2, "the request is empty"),
        (("start", "x", "--file", "agent.py"), 2, "not both"),
        (("start", "--file", "nothing.md"), 2, "nothing.md: can't be read"),
        (("start", "x", "--procedure", "debuger-full"), 2, "debugger-full"),
        (("start", "x", "--label", "a\nb"), 2, "labels.0"),
        (("start", "x", "--label", ""), 2, "labels.0"),
        (("start", "x", "--attach", "/etc/passwd"), 2, "outside the project"),
        (("start", "x", "--attach", "../x"), 2, "outside the project"),
        (("start", "x", "--attach", "gone.txt"), 2, "not a regular file"),
        (("start", "x", "--agent", "nobody"), 2, "nobody"),
        (("answer", "approve"), 3, "no run waits"),
        (("answer", "x"), 3, "no run waits"),
        (("--run", "nobody", "answer", "reject"), 2, "unknown run 'nobody'"),
    ],
)
def test_a_mistake_is_reported_and_nothing_is_started(
    arguments: tuple[str, ...], code: int, words: str, project: Path
) -> None:
    ended = cli(project, *arguments)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    assert words in ended.stderr
    assert not (project / "sync").exists()


def test_a_hook_file_with_a_syntax_error_starts_nothing(project: Path) -> None:
    (project / "hooks.py").write_text("def f(:\n")
    (project / "orchestration.yaml").write_text(CONFIGURATION + "hooks: [hooks.py]\n")
    ended = start_bug(project)
    assert ended.returncode == 2
    assert "hooks.py:1" in ended.stderr
    assert not (project / "sync").exists()
    checked = cli(project, "check")
    assert checked.returncode == 2
    assert "hooks.py" in checked.stdout + checked.stderr


def test_a_link_out_of_the_project_cannot_be_attached(project: Path) -> None:
    (project / "link").symlink_to("/etc/passwd")
    assert "outside the project" in cli(project, "start", "x", "--attach", "link").stderr


def test_an_agent_chosen_at_start_is_used_by_later_runs(project: Path) -> None:
    more = "  other: {kind: command, argv: [sh, -c, 'cat > other-$SEQUENCER_STEP']}\n"
    (project / "orchestration.yaml").write_text(CONFIGURATION + more)
    options = ("--procedure", "plan-mode", "--agent", "other", "--no-run")
    assert cli(project, "--run", "one", "start", "Plan it", *options).returncode == 0
    assert cli(project, "--run", "one", "run").returncode == 0
    assert (project / "other-preparation").exists()


def test_secrets_in_peoples_messages_are_hidden(project: Path) -> None:
    text = ("start", f"Debug {SECRET}", "--label", "bug")
    assert cli(project, "--run", "one", *text, MY_API_KEY=SECRET).returncode == 4
    told = cli(project, "--run", "one", "answer", f"try {SECRET}", MY_API_KEY=SECRET)
    assert told.returncode == 0
    files = [path for path in (project / "sync").rglob("*") if path.is_file()]
    assert not [path for path in files if b"supersecret" in path.read_bytes()]


def test_one_broken_run_hides_no_other(project: Path) -> None:
    for name in ("one", "two"):
        cli(project, "--run", name, "start", "Plan", "--procedure", "plan-mode", "--no-run")
    (project / "sync" / "runs" / "one" / "definition.json").write_text("{")
    listed = cli(project, "status", "--all")
    assert listed.returncode == 0
    assert "unreadable" in listed.stdout
    assert "two" in listed.stdout


def test_a_decision_stands_even_if_it_cannot_be_posted(project: Path) -> None:
    start_bug(project)
    (project / "orchestration.yaml").write_text(
        CONFIGURATION + "activity: {sinks: {x: {kind: webhook, url: 'http://127.0.0.1:1/', "
        "secret_env: NOPE_SECRET}}}\n"
    )
    approved = cli(project, "answer", "approve")
    assert (approved.returncode, "the decision was not posted" in approved.stderr) == (0, True)


def test_activity_goes_to_a_file(project: Path) -> None:
    (project / "orchestration.yaml").write_text(
        CONFIGURATION + "activity: {sinks: {file: {kind: jsonl, path: activity.jsonl}}}\n"
    )
    start_bug(project)
    cli(project, "answer", "approve", "--note", "go")
    cli(project, RUN, "run")
    posts = [json.loads(line) for line in (project / "activity.jsonl").read_text().splitlines()]
    types = [post["type"] for post in posts]
    assert "elicitation" in types
    assert types.count("response") >= 5
    keys = [post["key"] for post in posts if post["type"] not in ("thought", "action")]
    assert len(keys) == len(set(keys))


def test_on_a_terminal_the_question_is_asked_at_once(project: Path) -> None:
    typed = b"f\nlook again\na\n"
    shown = on_terminal(project, "start", "Debug login timeout", "--label", "bug", typed=typed)
    assert b"has been waiting since" in shown
    assert steps_of(project, "feedback") == ["get-approval"]
    assert steps_of(project, "succeeded")[-1] == "concise-summary"


@pytest.mark.slow
def test_an_ambiguous_word_is_not_taken_as_a_decision(project: Path) -> None:
    assert start_bug(project).returncode == 4
    words = ("aprove", "rejected", "yes", "OK", "feedback", "decline", "stop", "go", "lgtm!", "ja")
    for said in words:
        for answer in ((said,), ("get-approval", said)):
            unclear = cli(project, "answer", *answer)
            assert unclear.returncode == 2, unclear.stdout
            assert f"{said!r} is neither 'approve' nor 'reject'" in unclear.stderr
            assert f"answer feedback {shlex.quote(said)}" in unclear.stderr
    assert steps_of(project, "feedback") == []
    assert cli(project, "answer", "get-approval", "Approve").returncode == 0


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("text", ["shorter", "approve"])
def test_a_single_word_that_is_called_feedback_is_sent(text: str, project: Path) -> None:
    start_bug(project)
    sent = cli(project, "answer", "feedback", text)
    assert "feedback was given to 'get-approval'" in sent.stdout, sent.stderr
    assert steps_of(project, "feedback") == ["get-approval"]


def test_a_sentence_of_a_script_without_blanks_is_feedback(project: Path) -> None:
    start_bug(project)
    assert cli(project, "answer", "\u540c\u610f").returncode == 2
    sentence = "\u8bf7\u518d\u68c0\u67e5\u4e00\u4e0b\u91cd\u8bd5\u903b\u8f91"
    assert cli(project, "answer", sentence).returncode == 0
