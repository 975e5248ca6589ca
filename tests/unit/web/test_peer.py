"""Who is at the other end of a connection to the pages: a person's process, or an agent's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sequencer.plugins.web import peer
from sequencer.plugins.web.peer import is_from_agent
from tests.inside import below_a_guard

CONNECTS = """
import os, socket, sys
host, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
made = socket.create_connection((host, port))
if how == "shared":
    os.fork()
if how == "closed":
    made.close()
if how == "in flight":
    pair = socket.socketpair()
    socket.send_fds(pair[0], [b"x"], [made.fileno()])
    made.close()
print("connected", flush=True)
sys.stdin.read()
"""
OWN_TABLE = """
import ctypes, socket, sys, threading
host, port = sys.argv[1], int(sys.argv[2])
def connect():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    made = socket.create_connection((host, port))
    print("connected", flush=True)
    sys.stdin.read()
thread = threading.Thread(target=connect)
thread.start()
thread.join()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's tables")


@contextmanager
def connected(
    host: str, folder: Path | None = None, how: str = "", family: int = socket.AF_INET
) -> Iterator[tuple[peer.Address, peer.Address]]:
    """Yield both ends of a connection from another process, below a guard if *folder* is given."""
    with socket.create_server((host, 0), family=family) as listening:
        port = listening.getsockname()[1]
        program = OWN_TABLE if how == "own table" else CONNECTS
        command = [sys.executable, "-c", program, host, str(port), how]
        argv = command if folder is None else below_a_guard(folder, command)
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            taken, client = listening.accept()
            process.stdout.readline()
            with taken:
                server = taken.getsockname()
                yield (client[0], client[1]), (server[0], server[1])
            process.stdin.close()


@pytest.mark.parametrize("how", ["", "shared"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_agents_connection_is_distinguished_from_a_persons(
    tmp_path: Path, host: str, how: str
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with connected(host, how=how, family=family) as ends:
        assert not is_from_agent(*ends)
    with connected(host, tmp_path, how, family) as ends:
        assert is_from_agent(*ends)


def test_an_agent_that_closed_its_end_is_still_recognized(tmp_path: Path) -> None:
    with connected("127.0.0.1", tmp_path, "closed") as ends:
        assert is_from_agent(*ends)
    assert is_from_agent(("127.0.0.1", 1), ("127.0.0.1", 2))


def test_a_closed_agent_connection_is_recognized_from_any_of_our_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process may connect to 127.0.0.1 from any address of the machine."""
    entries = [SimpleNamespace(family=socket.AF_INET, address="192.0.2.7")]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth7": entries})
    assert is_from_agent(("192.0.2.7", 50000), ("127.0.0.1", 8420))
    assert not is_from_agent(("192.0.2.8", 50000), ("127.0.0.1", 8420))


def test_a_thread_with_its_own_descriptors_hides_no_agent(tmp_path: Path) -> None:
    with connected("127.0.0.1", how="own table") as ends:
        assert not is_from_agent(*ends)
    with connected("127.0.0.1", tmp_path, "own table") as ends:
        assert is_from_agent(*ends)


def test_a_process_that_has_ended_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(os, "scandir", hiding([ended.pid, os.getpid()]))
        assert not {ended.pid} & {*peer._owners(1)[1]}
        assert os.getpid() in peer._owners(1)[1]


@pytest.mark.parametrize("sees_all", [True, False])
def test_an_ownerless_connection_is_an_agents_if_all_processes_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees_all: bool
) -> None:
    monkeypatch.setattr(peer, "can_see_all_processes", lambda: sees_all)
    monkeypatch.setattr(peer, "_users", lambda _: [])
    with connected("127.0.0.1", tmp_path, "in flight") as ends:
        assert is_from_agent(*ends) == sees_all


def test_another_machine_is_not_an_agent_of_this_one() -> None:
    assert not is_from_agent(("192.0.2.7", 50000), ("192.0.2.1", 8420))


def test_an_ipv4_mapped_address_is_the_same(tmp_path: Path) -> None:
    with connected("127.0.0.1", tmp_path) as (client, server):
        assert is_from_agent((f"::ffff:{client[0]}", client[1]), server)


def test_without_tables_the_key_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_TABLES", ("/nowhere/tcp",))
    assert not is_from_agent(("127.0.0.1", 1), ("127.0.0.1", 2))


def test_other_systems_are_queried_in_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with connected("127.0.0.1") as ends:
        assert not is_from_agent(*ends)
    with connected("127.0.0.1", tmp_path) as ends:
        assert is_from_agent(*ends)


def hiding(pids: list[int]) -> Callable[[str], Any]:
    """Return a `scandir` that may not look at the descriptors of *pids*."""
    folders, scandir = tuple(f"/proc/{pid}/" for pid in pids), os.scandir

    def look(path: str) -> Any:
        if path.startswith(folders):
            raise PermissionError(path)
        return scandir(path)

    return look


def test_an_agent_that_hides_its_descriptors_is_still_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can see whose the connection is then; a process of a person may hide, too."""
    for folder in (tmp_path, None):
        with connected("127.0.0.1", folder) as ends, monkeypatch.context() as patch:
            owners, _ = peer._owners(peer._find_socket(peer._TABLES, *ends)[0])
            patch.setattr(os, "scandir", hiding(owners))
            assert is_from_agent(*ends) == (folder is not None)
            # One of another user has nothing to do with it.
            patch.setattr(peer, "_users", lambda _: ["another"])
            patch.setattr(peer, "can_see_all_processes", lambda: False)
            assert not is_from_agent(*ends)
