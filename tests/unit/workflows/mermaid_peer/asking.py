"""Ask a program of this folder, run by Node, what Mermaid says about charts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def installed_peer(config: pytest.Config, program: str) -> Path:
    """Return the folder with the Mermaid package and a copy of *program*, or skip the test."""
    named = os.environ.get("SEQUENCER_TEST_MERMAID")
    folder = Path(named) if named else config.cache.mkdir("mermaid")
    if not (shutil.which("node") and (folder / "node_modules" / "mermaid").is_dir()):
        pytest.skip("no Mermaid package; test_against_mermaid.py installs it")
    shutil.copy(Path(__file__).with_name(program), folder)
    return folder


def ask(program: str, peer: Path, texts: list[str], *, timeout_s: float) -> list[dict[str, Any]]:
    """Return the answers of *program* in the folder *peer* about each of *texts*."""
    done = subprocess.run(
        ["node", program],
        cwd=peer,
        input="".join(json.dumps(text) + "\n" for text in texts),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        timeout=timeout_s,
    )
    found = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(found) == len(texts)
    return found
