"""Names made to be taken for a command."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import strategies as st

from tests.property.amounts import FEW, for_all, in_memory
from tests.unit.cli.calling import call

WRAPS = [
    "$(touch {})",
    "`touch {}`",
    "; touch {};",
    "a\ntouch {}\n",
    "a'; touch {}; '",
    'a"; touch {}; "',
    "| touch {}",
    "&& touch {} #",
    "-c touch {}",
    "--output={}",
    "> {}",
    "${{IFS}}$(touch {})",
    "{{{{prompt_file}}}} {}",
]
AGENT = 'printf "%s\\0" "$@" "$SEQUENCER_STEP" "$SEQUENCER_RUN_NAME" >> received\n'


def begin(folder: Path, step: str, model: str, branch: str) -> Path:
    """Write a project whose every name is hostile."""
    (folder / "prompts").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
    (folder / "prompts" / "main.md").write_text("Do it.\n")
    (folder / "agent.sh").write_text(AGENT)
    document = {
        "workflow": {"name": "mine"},
        "workflows": {"mine": {"steps": [{"name": step, "prompt": "main", "model": model}]}},
        "agent": {"default": "scribe"},
        "agents": {"scribe": {"kind": "command", "argv": ["sh", "agent.sh", "{model}"]}},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def test_a_name_is_never_a_command(tmp_path: Path) -> None:
    with in_memory() as place:
        # Every name contains its path, and names have a maximum length.
        try_hostile_names(tmp_path, place / "canary")


def try_hostile_names(folder_of_projects: Path, canary: Path) -> None:
    made = iter(range(10**6))
    payloads = st.builds(
        lambda start, wrap, end: start + wrap.format(canary) + end,
        st.sampled_from(["", "-", "x "]),
        st.sampled_from(WRAPS),
        st.sampled_from(["", "!", " *"]),
    )
    received = 0

    def check(step: str, model: str, run: str, branch: str) -> None:
        nonlocal received
        folder = begin(folder_of_projects / str(next(made)), step, model, branch)
        ran = call(folder, "run", f"--run={run}", "--max-steps", "1")
        for verb in ("status", "history", "plan"):
            looked = call(folder, verb, f"--run={run}")
            assert looked.code != 70, looked.err
        assert not canary.exists()
        if "\n" in step + model or model.startswith("-"):
            # A name is one line, and the program would take the model for an option.
            assert ran.code == 2, ran.err
            assert not (folder / "received").exists()
            return
        assert ran.code in (0, 2), ran.err
        if ran.code == 0:
            received += 1
            found = (folder / "received").read_bytes().decode().split("\0")
            assert found[:2] == [model, step]
        assert {path.name for path in folder.iterdir()} <= {
            ".git",
            "prompts",
            "agent.sh",
            "orchestration.yaml",
            "received",
            "sync",
            "logs",
        }

    for_all(check, payloads.map(lambda text: text[:100]), *[payloads] * 3, examples=FEW)
    assert received
