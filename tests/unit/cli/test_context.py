from __future__ import annotations

import contextlib
import io
import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from sequencer.cli.context import Invocation, complain, json_text
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.store.protocol import View
from tests.unit.cli.calling import call, project


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def test_the_project_is_opened_once(tmp_path: Path) -> None:
    with inside(project(tmp_path / "p")):
        invocation = Invocation()
        flags = {"workflow": "standard"}
        assert invocation.project(flags) is invocation.project()
        assert invocation.project().settings.workflow.name == "standard"


def test_flags_are_named_in_errors(tmp_path: Path) -> None:
    with inside(project(tmp_path / "p")):
        flags = {"workflow": "nope"}
        with pytest.raises(ConfigurationError, match="--workflow"):
            Invocation().project(flags)


def test_a_run_that_is_not_there_is_unknown_to_readers(tmp_path: Path) -> None:
    with inside(project(tmp_path / "p")):
        assert call(Path.cwd(), "run", "--run", "Nightly 1", "--max-steps", "1").code == 0
        with pytest.raises(UnknownName, match="unknown run 'nightly'") as raised:
            Invocation(run_name="nightly").run()
        assert raised.value.where == "--run"
        assert raised.value.known != ()
        assert Invocation(run_name="nightly").run(may_begin=True).head is None
        head = Invocation(run_name="Nightly 1").run().head
        assert head is not None
        assert head.step_index == 1
        assert Invocation().run().head is None


def test_facts_and_remarks_go_their_own_ways(capsys: pytest.CaptureFixture[str]) -> None:
    invocation = Invocation()
    invocation.echo("fact")
    invocation.print_json({"a": 1})
    invocation.say("remark")
    invocation.notices(["one"])
    invocation.notices(View(None, ("two",)))
    out, err = capsys.readouterr()
    assert out == 'fact\n{"a": 1}\n'
    assert err == "remark\nnotice: one\nnotice: two\n"


def test_quiet_keeps_facts_and_drops_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    invocation = Invocation(is_quiet=True)
    invocation.echo("fact")
    invocation.say("remark")
    invocation.notices(["one"])
    assert capsys.readouterr() == ("fact\n", "")


def test_neither_a_terminal_nor_a_pipe_gets_control_sequences() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, contextlib.redirect_stdout(terminal):
        Invocation().echo("\x1b]0;owned\x07\x1b[31mred\u009b2J")
    assert os.read(master, 1000) == b"red\r\n"
    os.close(master)
    pipe = io.StringIO()
    with contextlib.redirect_stdout(pipe):
        Invocation().echo("\x1b[31mred")
    assert pipe.getvalue() == "red\n"


def test_json_can_always_be_written() -> None:
    assert json_text({"a": "é計"}) == '{"a": "é計"}'
    odd = json_text({"a": "\ud800"})
    odd.encode()
    assert json.loads(odd) == {"a": "\ud800"}
    for letter in ("\x7f", "\x9b", "\u2028", "\u2029"):
        text = json_text({letter: [f"a{letter}b\\u"]})
        assert text.isprintable()
        assert json.loads(text) == {letter: [f"a{letter}b\\u"]}
    assert json_text([Path("x")]) == '["x"]'
    assert json_text([1], indent=1) == "[\n 1\n]"


def test_complaining_never_fails() -> None:
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stderr(closed):
        complain("nobody hears it")
    with contextlib.redirect_stderr(None):
        complain("nobody hears it")
    with (
        # Closing tries once more to write what complaining has given up on.
        contextlib.suppress(OSError),
        Path("/dev/full").open("w") as full,
        contextlib.redirect_stderr(full),
    ):
        complain("nobody hears it")
