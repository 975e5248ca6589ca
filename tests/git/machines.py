"""Two machines with a cable between them: network namespaces, and processes that live there.

A process of another machine also has another boot and another id of the machine, so that
nothing but its lease tells whether it is alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from sequencer.store import identity, leases
from tests.clones import Shared, git
from tests.concurrency import children
from tests.git.servers import daemon_argv, end, until_open

HUB, FAR = "hub", "far"
"""Where the repository is served, and what is behind the cable."""
ADDRESS = "10.77.0.1"
PORT = 9418
LIMIT_S = 60.0
_NEW_NETWORK = 0x40000000
_NUMBERS = count()


def impossible() -> str | None:
    """Return why there can be no network namespaces here, or nothing."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    name = f"sq{os.getpid()}probe"
    argv = ("ip", "netns", "add", name)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    subprocess.run(("ip", "netns", "delete", name), check=True)
    return None


def pretend(boot: str) -> None:
    """Be a process of another boot and another machine from now on."""
    patch = pytest.MonkeyPatch()
    for module in (identity, leases):
        patch.setattr(module, "boot_id", lambda: f"boot-of-{boot}")
    patch.setattr(identity, "machine_digest", lambda: f"machine-{boot}")
    identity._this_process.cache_clear()


@dataclass
class Network:
    """A repository that is served in one namespace, and a cable to another one."""

    shared: Shared
    prefix: str

    def name(self, machine: str) -> str:
        return f"{self.prefix}{machine}"

    def run(self, machine: str, *argv: str) -> None:
        """Run a command on *machine*."""
        command = ("ip", "netns", "exec", self.name(machine), *argv)
        subprocess.run(command, check=True, capture_output=True)

    def cut(self) -> None:
        """Pull the cable."""
        self.run(HUB, "ip", "link", "set", f"{self.prefix}0", "down")

    def mend(self) -> None:
        """Put it back."""
        self.run(HUB, "ip", "link", "set", f"{self.prefix}0", "up")

    def start(self, machine: str, role: Callable[[], object]) -> int:
        """Fork a process that lives on *machine*; what it raises goes to the file errors."""

        def there() -> None:
            with Path(f"/var/run/netns/{self.name(machine)}").open() as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), _NEW_NETWORK):
                    raise OSError(ctypes.get_errno(), "setns")
            pretend(f"{self.prefix}-{machine}")
            role()

        return children.start(there, self.shared.folder / "errors")

    # --- signals between the processes ------------------------------------------------

    def note(self, what: str) -> None:
        (self.shared.folder / f"note-{what}").touch()

    def is_noted(self, what: str) -> bool:
        return (self.shared.folder / f"note-{what}").exists()

    def until(self, what: str, limit_s: float = LIMIT_S) -> None:
        """Return when somebody has noted *what*."""
        deadline = time.monotonic() + limit_s
        while not self.is_noted(what):
            if (self.shared.folder / "errors").exists():
                raise AssertionError((self.shared.folder / "errors").read_text())
            assert time.monotonic() < deadline, f"{what} has not come about"
            time.sleep(0.02)


@contextlib.contextmanager
def network(folder: Path) -> Iterator[Network]:
    """Make two machines, each with a clone of its own that is called as it is."""
    shared = Shared(folder)
    made = Network(shared, f"sq{os.getpid() % 10**5}x{next(_NUMBERS)}")
    for name in (HUB, FAR):
        git(shared.clone(name), "remote", "set-url", "origin", f"git://{ADDRESS}/remote.git")
    with contextlib.ExitStack() as cleaning:
        for name in (HUB, FAR):
            _ip("netns", "add", made.name(name))
            cleaning.callback(_ip, "netns", "delete", made.name(name))
        ends = [f"{made.prefix}{number}" for number in (0, 1)]
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, name in enumerate((HUB, FAR)):
            _ip("link", "set", ends[number], "netns", made.name(name))
            address = f"10.77.0.{number + 1}/24"
            made.run(name, "ip", "address", "add", address, "dev", ends[number])
            made.run(name, "ip", "link", "set", ends[number], "up")
            made.run(name, "ip", "link", "set", "lo", "up")
        argv = ["ip", "netns", "exec", made.name(HUB), *daemon_argv(folder, ADDRESS, PORT)]
        server = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
        cleaning.callback(end, server)
        pid = made.start(FAR, lambda: until_open(ADDRESS, PORT))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        try:
            yield made
        finally:
            for name in (HUB, FAR):
                git(shared.clone(name), "remote", "set-url", "origin", str(shared.bare))


def _ip(*argv: str) -> None:
    subprocess.run(("ip", *argv), check=True, capture_output=True)
