"""``python -m tests.project.shared_files``: writes the manual page and the completions.

A package has them as files, and is built without the program's own dependencies. So they are
kept in the repository, and a test compares them with what the program prints.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packaging" / "share"
FILES = {
    "man/man1/sequencer.1": ("--man",),
    "bash-completion/completions/sequencer": ("--completion", "bash"),
    "zsh/site-functions/_sequencer": ("--completion", "zsh"),
    "fish/vendor_completions.d/sequencer.fish": ("--completion", "fish"),
}
"""Below ``share/`` of an installation, and what `sequencer help` is asked for."""
COMMAND = "python -m tests.project.shared_files"


def printed(arguments: tuple[str, ...]) -> str:
    """Return what ``sequencer help ARGUMENTS`` prints, wherever it is called."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, "-m", "sequencer", "help", *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": folder,
                 "COLUMNS": "80", "LC_ALL": "C.UTF-8"},
            check=True,
            capture_output=True,
            encoding="utf-8",
        ).stdout  # fmt: skip


def main() -> int:
    """Write all of them."""
    for name, arguments in FILES.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(printed(arguments), encoding="utf-8")
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
