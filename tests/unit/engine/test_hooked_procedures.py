"""What a project's hooks make of a procedure's run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import StepFailed
from sequencer.model.head import Status
from sequencer.project import open_project
from tests.unit.engine.procedures import reopened, started, work
from tests.unit.engine.projects import Recorder, head_of

HOOKS = """
from sequencer import Decision, Move, hookimpl

@hookimpl
def sequencer_transition(context, outcome):
    if context.step.name == "build":
        {body}
"""


def test_a_hook_that_raises_fails_the_step_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS.format(body="raise RuntimeError('boom')"))
    run = started(tmp_path, steps=["reproduce", "build", "tell"], hooks=["hooks.py"])
    recorder = Recorder()
    with pytest.raises(StepFailed, match="boom"):
        work(run, on_event=recorder)
    assert head_of(run).status is Status.FAILED
    log = recorder.logs[-1].read_text()
    assert "RuntimeError: boom" in log
    assert "hooks.py" in log


def test_completion_is_told_once(tmp_path: Path) -> None:
    hooks = "from pathlib import Path\nfrom sequencer import hookimpl\n@hookimpl\n"
    hooks += "def sequencer_completed(context, head):\n"
    hooks += f"    with Path({str(tmp_path / 'told')!r}).open('a') as file:\n"
    hooks += "        file.write(f'{context.step.name} {head.status}\\n')\n"
    (tmp_path / "hooks.py").write_text(hooks)
    run = started(tmp_path, steps=["reproduce", "tell"], hooks=["hooks.py"])
    work(run)
    work(reopened(tmp_path))
    assert (tmp_path / "told").read_text() == "tell complete\n"


def test_what_a_hook_says_reaches_no_file_with_a_secret(tmp_path: Path) -> None:
    body = "return Decision(Move.FAIL, reason='key supersecret-value-1')"
    (tmp_path / "hooks.py").write_text(HOOKS.format(body=body))
    started(tmp_path, steps=["build", "tell"], hooks=["hooks.py"])
    secret = {"PATH": "/usr/bin:/bin", "MY_API_KEY": "supersecret-value-1"}
    run = open_project(tmp_path, environment=secret).run("one")
    with pytest.raises(StepFailed):
        work(run)
    found = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "hooks.py"]
    assert not [p for p in found if b"supersecret" in p.read_bytes()]
