"""Ask a program of this folder, run by Node, what Mermaid says about charts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any


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
