"""What people answer and give, as it is asked, kept and shown: safe to paste, without secrets."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.cli_process import environment
from tests.acceptance.flow_projects import as_json, asked, cli, make_project, trace, write_flow
from tests.forked import Forked

SECRET = "hunter2-" + "correct-horse"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    return SECRET


# --- the line to paste -------------------------------------------------------------------


def asking(project: Path, *options: str, more: str = "") -> list[str]:
    """Run a flow that asks with *options*; return the lines of `inbox` that answer it."""
    section = f"---\noptions: {json.dumps(options)}\n{more}---\nWhich?" if options else "Which?"
    write_flow(project, "pick", "q{{Which?}} --> e((End))", q=section)
    ended = cli(project, "run", "pick", "--quiet")
    assert ended.returncode == 4, ended.stderr
    return [x for x in cli(project, "inbox").stdout.splitlines() if x.startswith("  sequencer")]


def pasted(project: Path, line: str) -> list[str]:
    """Let a shell run *line* in *project*; return what `sequencer` was called with."""
    (project / "bin").mkdir(exist_ok=True)
    script = project / "bin" / "sequencer"
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script.chmod(0o755)
    path = f"{project / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", line],
        cwd=project,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()


def test_a_pasted_line_never_runs_code_from_an_option(project: Path) -> None:
    hostile = ("a;touch t1", "$(touch t2)", "`touch t3`", "touch t4", "x > t5", "it's & touch t6")
    before = {path.name for path in project.iterdir()}
    for line, option in zip(asking(project, *hostile), hostile, strict=True):
        assert pasted(project, line) == ["--run", "pick", "answer", "q", option]
    after = {path.name for path in project.iterdir()}
    assert not [name for name in after - before if name.startswith("t")]


def test_one_option_can_be_pasted_as_it_is(project: Path) -> None:
    (line,) = asking(project, "send it back")
    assert line == "  sequencer --run pick answer q 'send it back'"
    assert cli(project, *shlex.split(line)[1:]).returncode == 0


def test_an_answer_that_looks_like_a_cli_option_still_answers(project: Path) -> None:
    line, _ = asking(project, "--run=release", "no")
    assert pasted(project, line) == ["--run", "pick", "answer", "--", "q", "--run=release"]
    done = cli(project, *shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr
    assert cli(project, "inbox").stdout == "no run waits for a decision\n"


def test_many_options_are_not_all_in_the_line(project: Path) -> None:
    (line,) = asking(project, *(f"the option {n} of many" for n in range(60)))
    assert line == "  sequencer --run pick answer q VALUE"
    assert "  - the option 59 of many" in cli(project, "inbox").stdout


# --- secrets -----------------------------------------------------------------------------


def kept(project: Path, secret: str) -> list[str]:
    """Return the files of the project's runs that hold *secret*."""
    files = [path for path in (project / "sync").rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if secret.encode() in path.read_bytes()]


def test_a_secret_in_the_state_is_not_saved(project: Path, secret: str) -> None:
    ended = cli(project, "run", "review", "--state", f"who=Ann and {secret}")
    assert ended.returncode == 4, ended.stderr
    assert "notice: --state who: a secret is kept as [secret]" in ended.stderr
    assert secret not in ended.stderr + ended.stdout
    assert kept(project, secret) == []
    source = json.loads((project / "sync" / "runs" / "review" / "flow.json").read_text())
    assert source["state"] == {"who": "Ann and [secret]"}
    assert asked(project)[0] == "draft: Say a draft for Ann and [secret]"
    # The same again is the same.
    assert cli(project, "run", "review", "--state", f"who=Ann and {secret}").returncode == 4


def test_a_secret_deep_in_the_state_is_not_saved(project: Path, secret: str) -> None:
    value = f"notes={{text: [1, {secret}, {{deep: '{secret}', {secret}: true}}]}}"
    ended = cli(project, "run", "review", "--state", value)
    assert ended.returncode == 4, ended.stderr
    assert kept(project, secret) == []
    source = json.loads((project / "sync" / "runs" / "review" / "flow.json").read_text())
    hidden = "[secret]"
    assert source["state"] == {"notes": {"text": [1, hidden, {"deep": hidden, hidden: True}]}}


def test_a_secret_of_digits_is_not_saved(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "4711081542")
    assert cli(project, "run", "review", "--state", "who=4711081542").returncode == 4
    assert kept(project, "4711081542") == []


def test_a_state_without_secrets_is_saved_unchanged(project: Path, secret: str) -> None:
    ended = cli(project, "run", "review", "--state", "notes={n: 1.5, on: true, no: null, l: [a]}")
    assert "notice" not in ended.stderr
    source = json.loads((project / "sync" / "runs" / "review" / "flow.json").read_text())
    assert source["state"] == {"notes": {"n": 1.5, "on": True, "no": None, "l": ["a"]}}
    assert secret not in ended.stderr


def test_a_secret_answer_is_neither_saved_nor_shown(project: Path, secret: str) -> None:
    cli(project, "run", "review", "--quiet")
    answered = cli(project, "answer", "fine", f"use {secret}")
    assert answered.returncode == 0, answered.stderr
    assert "fine was answered: use [secret]" in answered.stdout
    assert secret not in answered.stdout + answered.stderr
    assert kept(project, secret) == []


# --- the end of what is typed ------------------------------------------------------------


def at_the_question(project: Path, act: bytes | signal.Signals) -> tuple[int, str]:
    """Run ``review`` on a terminal, type or signal *act* at its question; return how it ended."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "sequencer", "run", "review"]
    with Forked(
        command,
        cwd=project,
        env=environment(TERM="dumb"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        got, deadline, has_acted = b"", time.monotonic() + 60, False
        with contextlib.suppress(OSError):  # EIO: the process is gone
            while time.monotonic() < deadline:
                if select.select([master], [], [], 0.5)[0]:
                    got += os.read(master, 65_536)
                if b"later" in got and not has_acted:
                    has_acted = True
                    if isinstance(act, bytes):
                        os.write(master, act)
                    else:
                        # Where the prompt is written, the read is about to begin.
                        time.sleep(0.3)
                        process.send_signal(act)
        try:
            code = process.wait(10)
        finally:
            process.kill()
    os.close(master)
    return code, got.decode()


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("takes_any_text", [True, False])
def test_end_of_input_is_not_an_answer(project: Path, *, takes_any_text: bool) -> None:
    if not takes_any_text:
        path = project / "flows" / "review.md"
        path.write_text(path.read_text().replace("allowCustomInput: true\n", ""))
    code, shown = at_the_question(project, b"\x04")
    assert code == 4, shown
    assert "'fine' waits for an answer" in shown
    (gate,) = as_json(cli(project, "inbox", "--json"))
    assert gate["node"] == "fine"
    assert not [line for line in trace(project, "review") if line.startswith("done fine")]


def test_an_option_called_later_is_not_taken_at_the_end_of_the_input(project: Path) -> None:
    path = project / "flows" / "review.md"
    path.write_text(path.read_text().replace("  - send back\n", "  - later\n  - send back\n"))
    code, shown = at_the_question(project, b"\x04")
    assert code == 4, shown
    assert len(as_json(cli(project, "inbox", "--json"))) == 1


def test_an_interrupt_at_the_question_ends_with_code_130(project: Path) -> None:
    code, shown = at_the_question(project, signal.SIGINT)
    assert code == 130, shown
    assert len(as_json(cli(project, "inbox", "--json"))) == 1


# --- which run ---------------------------------------------------------------------------


def test_an_answer_to_a_changed_chart_explains_why_no_one_asks(project: Path) -> None:
    asking(project)
    write_flow(project, "pick", "q{{Which?}} --> other --> e((End))", q="Which?", other="Say it")
    shown = cli(project, "inbox")
    assert (shown.stderr, shown.stdout.count("pick: ")) == ("", 1)
    assert "  sequencer --run pick adopt\n" in shown.stdout
    said = cli(project, "answer", "q", "this")
    assert said.returncode == 3
    assert "no run waits for a decision; pick can't be read: " in said.stderr
    assert "sequencer --run pick adopt" in said.stderr
    # Who asks elsewhere is not kept from being answered, and nothing else is told.
    assert cli(project, "run", "review", "--quiet").returncode == 4
    other = cli(project, "answer", "fine", "approve")
    assert other.returncode == 0
    assert "left out" not in other.stderr


def test_the_inbox_of_one_run_shows_only_its_gates(project: Path) -> None:
    asking(project)
    assert cli(project, "run", "review", "--quiet").returncode == 4
    everything = cli(project, "inbox", "--json")
    assert {one["run"] for one in as_json(everything)} == {"pick", "review"}
    one = cli(project, "--run", "pick", "inbox", "--json")
    assert [found["run"] for found in as_json(one)] == ["pick"]
    assert cli(project, "--run", "pick", "answer", "q", "x").returncode == 0
    none = cli(project, "--run", "pick", "inbox")
    assert none.stdout == "run 'pick' waits for no decision\n"
    unknown = cli(project, "--run", "nobody", "inbox")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "unknown run 'nobody'" in unknown.stderr


def test_an_unknown_flow_lists_every_flow_and_team(project: Path) -> None:
    text = (project / "orchestration.yaml").read_text()
    (project / "orchestration.yaml").write_text(
        f"{text}\nworkflows: {{crew: {{tasks: [{{id: a, subject: A}}]}}}}\n"
    )
    for verb in (["run"], ["plan", "--simulate"]):
        ended = cli(project, *verb, "crow")
        assert ended.returncode == 2
        assert "did you mean 'crew'? known flows: crew, review" in ended.stderr


def test_a_cancelled_run_is_shown_as_cancelled_everywhere(project: Path) -> None:
    asking(project)
    assert cli(project, "--run", "pick", "answer", "reject").returncode == 0
    shown = cli(project, "--run", "pick", "status").stdout
    assert "status      cancelled since" in shown
    assert "ended       the run is cancelled after 0 steps" in shown
    assert "in the way" not in shown
    (facts,) = as_json(cli(project, "status", "--all", "--ended", "--json"))
    assert (facts["status"], facts["ended"]) == ("cancelled", True)
    # The files keep their own word.
    assert as_json(cli(project, "--run", "pick", "status", "--json"))["status"] == "complete"
