"""Where the peers are, and how they get there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements-peers.txt"
ENVIRONMENTS = REQUIREMENTS.parent / ".venv-peers"
_HEADING = re.compile(r"# \[(\S+)\]")
INSTALL_S = 600


def required() -> dict[str, list[str]]:
    """Return the packages of each peer, by its name."""
    found: dict[str, list[str]] = {}
    packages: list[str] = []
    for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines():
        if (heading := _HEADING.fullmatch(line)) is not None:
            packages = found.setdefault(heading[1], [])
        elif line and not line.startswith("#"):
            packages.append(line)
    return found


def interpreter(peer: str) -> Path:
    """Return the interpreter of *peer*; it need not be there."""
    return ENVIRONMENTS / peer / "bin" / "python"


def why_absent(peer: str) -> str | None:
    """Return why *peer* can't be run, or None if it was installed."""
    reason = ENVIRONMENTS / f"{peer}.failed"
    if reason.is_file():
        return reason.read_text(encoding="utf-8").strip()
    if not interpreter(peer).exists():
        return "not installed (python -m bench --install-peers)"
    return None


def install_all() -> dict[str, str | None]:
    """Install every peer; return for each why it failed, or None."""
    ENVIRONMENTS.mkdir(exist_ok=True)
    (ENVIRONMENTS / ".gitignore").write_text("*\n", encoding="utf-8")
    return {peer: _install(peer, packages) for peer, packages in required().items()}


def _install(peer: str, packages: list[str]) -> str | None:
    folder = ENVIRONMENTS / peer
    reason = ENVIRONMENTS / f"{peer}.failed"
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter(peer))]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    problem = _run([sys.executable, "-m", "venv", "--without-pip", str(folder)]) or _run(
        [*pip, "install", *quiet, *packages]
    )
    if problem is None:
        reason.unlink(missing_ok=True)
        return None
    reason.write_text(f"could not be installed: {problem}\n", encoding="utf-8")
    return problem


def _run(command: list[str]) -> str | None:
    """Run *command*; return the last line of what it says if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"took more than {INSTALL_S} s"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1][:300] if errors else f"ended with {done.returncode}"
