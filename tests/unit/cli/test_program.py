from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from sequencer import __version__
from sequencer.cli import main, options
from sequencer.cli.context import Invocation, fit_lines, json_text, write_to_stderr
from sequencer.cli.options import Verb, save
from sequencer.cli.program import COMMANDS, NAME, _translate_error, make_root_group, report, run
from sequencer.errors import (
    ClaimHeld,
    ConfigurationError,
    CorruptState,
    Interrupted,
    MachineBusy,
    SequencerError,
    StepFailed,
    StorageFailed,
    UnknownName,
    WaitsForPerson,
)
from sequencer.project import dependencies
from tests import forked
from tests.unit.cli.calling import call, project, worked

ROOT = Path(__file__).parents[3]


def python(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_verb_of_the_table_exists_and_has_that_name() -> None:
    for name, entry in COMMANDS.items():
        command = make_root_group().get_command(click.Context(make_root_group()), name)
        assert isinstance(command, click.Command)
        assert command.name == name
        assert entry.help.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_has_a_help_with_an_example_and_global_options(
    tmp_path: Path, name: str
) -> None:
    ended = call(tmp_path, name, "--help-all")
    assert ended.code == 0
    assert "Example" in ended.out
    assert f"sequencer {name}" in ended.out.partition("Example")[2] or "--run" in ended.out
    assert "Global options:" in ended.out
    # Click's mark for a paragraph that keeps its lines.
    assert "\\b" not in ended.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    command = make_root_group().get_command(click.Context(make_root_group()), name)
    assert command is not None
    silent = [
        option.name
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert silent == []


def test_without_a_verb_the_first_screen_is_shown_as_an_error(tmp_path: Path) -> None:
    ended = call(tmp_path)
    assert ended.code == 2
    assert "Show how the run is doing." in ended.err
    assert "Traceback" not in ended.err
    assert not ended.err.startswith("error:")
    assert ended.err.count("Usage:") == 1


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"1a2b3c4d5e6f of 2026-11-26\n", "1a2b3c4d5e6f of 2026-11-26"),
        (b"1a2b\x1b[2J of 2026\n\n", "1a2b of 2026"),
        (b"\xff\n", "unknown"),
        (None, "unknown"),
    ],
)
def test_the_version_names_the_commit_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes | None, said: str
) -> None:
    path = tmp_path / "built.txt"
    if written is not None:
        path.write_bytes(written)
    monkeypatch.setattr(options, "BUILT", path)
    assert call(tmp_path, "--version").out == f"sequencer {__version__} (commit {said})\n"
    assert call(tmp_path, "status", "--version").out == call(tmp_path, "--version").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("statsu",),
            ("unknown command 'statsu'", "did you mean 'status' or 'start'?"),
        ),
        (("status", "--jsn"), ("there is no option --jsn; did you mean --json or ",)),
        (("--quit", "status"), ("there is no option --quit", "--quiet")),
        (("plan", "--count", "many"), ("--count: expected a whole number", ", not 'many'")),
        (("run", "--max-steps", "0"), ("--max-steps: expected a whole number of at least 1, not",)),
        (("run", "--max-cost", "0"), ("--max-cost: expected a number greater than 0, not '0",)),
        (("plan", "--review-every", "x"), ("--review-every: expected a whole number, not 'x'",)),
        (("status", "extra"), ("unexpected argument: extra",)),
        (("run", "--mode", "turbo"), ("--mode: expected combined, sync or async, not 'turbo'",)),
    ],
)
def test_usage_errors_name_the_valid_choices(
    tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ended = call(project(tmp_path / "p"), *arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    for word in words:
        assert word in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json", "--run", "nightly", "status"),
        ("status", "--json", "--run", "nightly"),
        ("--json", "status", "--run", "nightly"),
        ("--run=nightly", "status", "--json"),
    ],
)
def test_global_options_can_come_before_or_after_the_verb(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    folder = project(tmp_path / "p")
    assert call(folder, "run", "--run", "nightly", "--max-steps", "3", "--quiet").code == 0
    assert call(folder, *arguments).json["step_index"] == 3


def test_a_verb_without_facts_refuses_json() -> None:
    @click.command("sleep", cls=Verb, has_json=False)
    def sleep() -> None:
        """Do nothing."""

    assert sleep.main([], standalone_mode=False, obj=Invocation()) is None
    with pytest.raises(click.UsageError, match="No such option '--json'"):
        sleep.main(["--json"], standalone_mode=False)
    with pytest.raises(click.UsageError, match="has no --json"):
        sleep.main([], standalone_mode=False, obj=Invocation(is_json=True))


def test_help_and_listing_import_no_verb(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom sequencer.cli.program import run\nrun(['--help'])\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    modules = python(tmp_path, "-c", code).stderr.split()
    assert "sequencer.cli.program" in modules
    loaded = {f"sequencer.{entry.module}" for entry in COMMANDS.values()} & set(modules)
    assert loaded == set()
    assert not {"pydantic", "rich", "psutil", "anthropic", "yaml"} & set(modules)


@pytest.mark.slow
def test_the_console_script_and_the_module_are_the_same(tmp_path: Path) -> None:
    by_module = python(tmp_path, "-m", "sequencer", "plan", "--workflow", "standard", "--json")
    script = Path(sys.executable).with_name("sequencer")
    by_script = subprocess.run(
        [script, "plan", "--workflow", "standard", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert by_module.stdout == by_script.stdout
    assert by_module.returncode == 0


def test_modules_in_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('obeyed')\n")
    (tmp_path / "click.py").write_text("raise SystemExit('obeyed')\n")
    ended = python(tmp_path, "-m", "sequencer", "plan", "--workflow", "standard", "--json")
    assert ended.returncode == 0


def completed(folder: Path, words: str, count: int) -> list[str]:
    """Return what the shell would offer for the word number *count* of *words*."""
    env = {"COMP_WORDS": words, "COMP_CWORD": str(count), "_SEQUENCER_COMPLETE": "bash_complete"}
    argv = [sys.executable, "-m", "sequencer"]
    ended = forked.run(argv, cwd=folder, env=os.environ | env, capture_output=True, text=True)
    assert ended.stderr == ""
    return [line.partition(",")[2] for line in ended.stdout.splitlines() if line]


@pytest.mark.slow
def test_the_shell_gets_its_script(tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        ended = python(tmp_path, "-m", "sequencer", _SEQUENCER_COMPLETE=f"{shell}_source")
        assert ended.returncode == 0 or shell == "bash", ended.stderr
        assert "_SEQUENCER_COMPLETE" in ended.stdout or shell == "bash"


def test_verbs_and_options_are_completed(tmp_path: Path) -> None:
    assert completed(tmp_path, f"{NAME} st", 1) == [n for n in COMMANDS if n.startswith("st")]
    assert set(COMMANDS) <= set(completed(tmp_path, f"{NAME} ", 1))
    assert "--json" in completed(tmp_path, f"{NAME} --j", 1)
    assert completed(tmp_path, f"{NAME} status --wat", 2) == ["--watch"]


def test_a_broken_project_completes_nothing_and_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text("nonsense: [")
    assert completed(tmp_path, f"{NAME} run --position ", 3) == []


@pytest.mark.parametrize("name", ["evil\x1b[2J", "two\nlines", "\u2028", "pay\u202eoff"])
@pytest.mark.parametrize("verb", [("status",), ("run", "--max-steps", "1"), ("start", "x")])
def test_a_run_name_with_control_characters_is_refused(
    tmp_path: Path, name: str, verb: tuple[str, ...]
) -> None:
    folder = project(tmp_path / "p")
    for arguments in (("--run", name, *verb), (*verb, "--run", name)):
        ended = call(folder, *arguments)
        assert ended.code == 2
        assert "control character" in ended.err
        assert name not in ended.err
    assert not (folder / "sync").exists()
    assert call(folder, "--run", "計画 2", "run", "--max-steps", "1", "--quiet").code == 0


KEY = "sk-ant-api03-" + "a1b2" * 10


def reported(error: BaseException, *, is_verbose: bool = False) -> tuple[int, str]:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        code = report(error, is_verbose=is_verbose)
    return code, err.getvalue()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StepFailed("x"), 1),
        (ConfigurationError("x"), 2),
        (UnknownName("agent", "x", ()), 2),
        (CorruptState("x"), 3),
        (WaitsForPerson("x"), 4),
        (ClaimHeld("x"), 75),
        (Interrupted("x"), 130),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("x"), 2),
        (RuntimeError("x"), 70),
        (RecursionError("x"), 70),
        (MemoryError(), 75),
        (PermissionError(errno.EACCES, "x", "a"), 3),
        (NotADirectoryError(errno.ENOTDIR, "x", "a"), 3),
        (FileExistsError(errno.EEXIST, "x", "a"), 3),
        (IsADirectoryError(errno.EISDIR, "x", "a"), 3),
        (FileNotFoundError(errno.ENOENT, "x", "a"), 3),
        (FileNotFoundError(errno.ENOENT, "x"), 70),
    ],
)
def test_every_error_has_its_code(error: BaseException, code: int) -> None:
    assert reported(error)[0] == code


def test_a_file_that_is_in_the_way_is_named_with_what_to_do() -> None:
    error = NotADirectoryError(errno.ENOTDIR, "Not a directory", "/home/me/.local/state")
    assert reported(error)[1] == (
        "error: /home/me/.local/state: can't be used: Not a directory\n"
        "  a folder belongs there, or above it; move away what is in its place\n"
    )


@pytest.mark.parametrize("made", [".local", ".local/state", ".local/state/sequencer"])
def test_a_file_in_place_of_the_folder_of_records_is_no_bug(
    tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    (tmp_path / made).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / made).touch()
    folder = project(tmp_path / "p")
    for words in (["trust", "--yes"], ["trust", "--list"], ["run", "--max-steps", "1"]):
        ended = call(folder, *words)
        assert "this is a bug" not in ended.err
        assert str(tmp_path / ".local/state/sequencer") in ended.err
        assert ended.code in (2, 3)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["report"], 0),
        (["report", "--gantt"], 0),
        (["plan", "flow.md", "--diagram"], 0),
        (["status"], 0),
        (["mcp"], 2),
    ],
)
def test_a_closed_standard_output_is_no_bug(
    tmp_path: Path, words: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = worked(tmp_path / "p", 2)
    (folder / "flow.md").write_text("```mermaid\nflowchart TD\n  a\n```\n### a\nDo it.\n")
    monkeypatch.chdir(folder)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        monkeypatch.setattr(sys, "stdout", None)
        ended = run(words)
        monkeypatch.undo()
    assert (ended, "this is a bug" in err.getvalue()) == (code, False), err.getvalue()


@pytest.mark.parametrize(("words", "said"), [(["reset"], "--yes"), (["mcp"], "a client")])
def test_a_closed_standard_input_is_no_bug(
    tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = worked(tmp_path / "p", 2)
    monkeypatch.setattr(sys, "stdin", None)
    ended = call(folder, *words)
    assert (ended.code, said in ended.err) == (2, True), ended.err


def test_a_bug_is_reported_as_a_bug_with_a_traceback_on_request() -> None:
    def fail() -> None:
        message = "the impossible"
        raise ValueError(message)

    with pytest.raises(ValueError, match="impossible") as raised:
        fail()
    _, short = reported(raised.value)
    assert short.startswith("error: this is a bug: ValueError: the impossible\n")
    assert "--verbose" in short
    assert "Traceback" not in short
    _, long = reported(raised.value, is_verbose=True)
    assert "Traceback" in long
    assert "in fail" in long


def test_secrets_are_hidden_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse-battery")
    for error in (
        SequencerError(f"refused {KEY}"),
        RuntimeError(f"with {KEY} and correct-horse-battery"),
        click.UsageError(f"what is correct-horse-battery {KEY}?"),
    ):
        for is_verbose in (False, True):
            text = reported(error, is_verbose=is_verbose)[1]
            assert KEY not in text
            assert "correct-horse-battery" not in text
            assert "[secret]" in text


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


def test_writing_to_stderr_never_fails() -> None:
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stderr(closed):
        write_to_stderr("nobody hears it")
    with contextlib.redirect_stderr(None):
        write_to_stderr("nobody hears it")
    with (
        # Closing tries once more to write what complaining has given up on.
        contextlib.suppress(OSError),
        Path("/dev/full").open("w") as full,
        contextlib.redirect_stderr(full),
    ):
        write_to_stderr("nobody hears it")


def save_numbers(path: Path, data: bytes, mode: int | None = None) -> None:
    save(path, data, is_ours=lambda head: head[:1].isdigit(), what="numbers", mode=mode)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_gets_the_given_mode_or_the_default_mode(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        save_numbers(tmp_path / "usual", b"1")
        save_numbers(tmp_path / "shared", b"1", mode=0o644)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "usual").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o644


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="can't be written") as caught:
        save_numbers(tmp_path / "no" / "n.txt", b"1")
    assert str(tmp_path / "no" / "n.txt") in str(caught.value)


def test_ctrl_c_while_the_program_loads_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("sequencer.cli.program.run", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == Interrupted.exit_code


def test_an_older_python_gets_a_clear_error(tmp_path: Path) -> None:
    old = "import sys, runpy; sys.version_info = (3, 10, 12, 'final', 0); "
    ended = python(tmp_path, "-c", old + "runpy.run_module('sequencer', run_name='__main__')")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"error: sequencer needs Python 3.11 or newer, but this is 3.10 at {sys.executable}\n"
    )


def test_long_lines_are_cut_and_the_rest_is_counted() -> None:
    lines = ["  agents.x.argv: " + "y" * 3000, "  short"]
    assert [*fit_lines(lines, None)] == lines
    first, second, hint = fit_lines(lines, 80)
    assert len(first) == 80
    kept, more = first[: -len("… (2950 more)")], "… (2950 more)"
    assert (first, len(lines[0]) - len(kept)) == (kept + more, 2950)
    assert (second, hint) == ("  short", "'sequencer trust --json' shows the long lines whole")


def test_trust_cuts_long_values_at_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "steps: [main]\nagent: x\nagents: {x: {kind: command, argv: [cat, %s]}}\n"
    folder = project(tmp_path / "p", text % ("y" * 3000))
    assert "y" * 3000 in call(folder, "trust", "--yes").out
    monkeypatch.setattr("sequencer.cli.context.terminal_width", lambda _: 80)
    shown = call(folder, "trust", "--yes").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "'sequencer trust --json' shows the long lines whole" in shown
    assert "y" * 3000 in json.dumps(call(folder, "trust", "--json").json)


def test_an_extra_is_added_the_way_the_program_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(read_text=lambda _: '{"url": "file:///a%20b/clone", "dir_info": {}}')
    monkeypatch.setattr(dependencies, "distribution", lambda _: told)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert dependencies.extra_hint("web") == "pip install '/a b/clone[web]'"
    (tmp_path / "uv-receipt.toml").touch()
    assert dependencies.extra_hint("web") == "uv tool install '/a b/clone[web]'"
    told.read_text = lambda _: None
    assert dependencies.extra_hint("web") == "uv tool install 'step-sequencer[web]'"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the thread is gone"),
        StorageFailed("can't be written"),
        ConfigurationError("can't be read"),
    ],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_no_error_is_its_own_cause(error: Exception, number: int) -> None:
    error.__cause__ = cause = MachineBusy("the disk has no room left")
    cause.__cause__ = OSError(number, os.strerror(number))
    for first in (error, cause, cause.__cause__):
        shown: BaseException | None = _translate_error(first)
        seen: list[BaseException] = []
        while shown is not None:
            assert not any(shown is one for one in seen)
            seen.append(shown)
            shown = shown.__cause__
    if isinstance(error, StorageFailed):
        error.__cause__ = OSError(errno.EIO, "I/O error")
        assert _translate_error(error) is error
        assert isinstance(error.__cause__, OSError)
