"""The text of a new project's files.

Agents get the permissions that their own words describe, spelled out beside each; nothing
here switches a client's permission checks off. Nothing is read but this package's data.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.resources import files

from sequencer.model.workflow import Workflow

DEFAULT_REVIEW_EVERY = 3
ROUTER_PROMPT = "router.md"
IGNORE_ALL = "# What a run writes belongs to this machine.\n*\n!.gitignore\n!.gitkeep\n"

CLAUDE = """\
  claude:
    # acceptEdits: edits files in this folder without asking. Commands run only if they are
    # listed below or only read; whatever else would be asked about is refused, and shown.
    permission_mode: acceptEdits
    allowed_tools:
      - Bash(git status *)
      - Bash(git diff *)
      - Bash(git log *)
      - Bash(git add *)
      - Bash(git commit *)
      # the command that runs your tests, for example:
      # - Bash(python -m pytest *)
"""
CODEX = """\
  codex:
    # workspace-write: commands may write in this folder and nowhere else, without network.
    # read-only would let it look only.
    sandbox: workspace-write
"""
GEMINI = """\
  gemini:
    # auto_edit: edits files without asking. Everything else that would be asked about is
    # refused, shell commands too.
    approval_mode: auto_edit
"""
OPENCODE = """\
  opencode:
    # allow: without asking. ask: refused, because nobody is there to answer. deny: refused.
    # Of several patterns that fit a command the last one decides.
    permission:
      edit: allow
      webfetch: deny
      bash:
        "*": ask
        "git status*": allow
        "git diff*": allow
        "git log*": allow
        "git add*": allow
        "git commit*": allow
        # the command that runs your tests, for example:
        # "python -m pytest*": allow
"""
ENTRIES = {"claude": CLAUDE, "codex": CODEX, "gemini": GEMINI, "opencode": OPENCODE}
"""Client -> its entry below ``agents:``."""

_BEGINNING = """\
# What sequencer does in this folder. 'sequencer check' finds mistakes, and
# 'sequencer check --settings' shows every value and where it comes from.

# The order of the steps; 'sequencer show' lists the workflows and draws them.
"""
_NO_CLIENT = """\
# No agent program was found when this file was written. Install one of claude, codex, gemini
# or opencode, or set ANTHROPIC_API_KEY; 'sequencer run --rehearse' tries the order without
# any. An entry says what an agent may do:
#agents:
"""


def configuration(workflow: Workflow, clients: Collection[str]) -> str:
    """Return orchestration.yaml for *workflow*, with an entry for each of *clients*."""
    parts = [_BEGINNING, f"workflow:\n  name: {workflow.name}\n"]
    if workflow.review is not None:
        parts.append(
            f"  review_every_n: {DEFAULT_REVIEW_EVERY}     # of so many cycles the last is a "
            "review; 0: none is\n"
        )
    parts.append(
        "\n# Who performs a step. auto: the first of claude, codex, gemini, opencode that is on\n"
        "# PATH, else the Messages API if ANTHROPIC_API_KEY is set.\n"
        "agent:\n  default: auto\n"
        "  # prompts: {reviewer.md: codex}   # another agent for one prompt\n\n"
    )
    known = [ENTRIES[client] for client in ENTRIES if client in clients]
    if known:
        parts.append("# What the agents may do without asking.\nagents:\n" + "".join(known))
    else:
        commented = "".join(f"#{line}\n" for line in CLAUDE.splitlines())
        parts.append(_NO_CLIENT + commented)
    parts.append(
        "\n# Of the whole run; the counters survive restarts. What one 'sequencer run' may do\n"
        "# has its own limit (20 steps; 500 in mode sync), see 'sequencer run --help'.\n"
        "limits:\n  max_failures_in_row: 3\n  # max_cost_usd: 50\n  # max_steps: 200\n\n"
        "# For steps that set none themselves. A step that failed is tried again by itself, after\n"
        "# 60 s and then 120 s; without a retry the first failure ends 'sequencer run'. A service\n"
        "# that is overloaded or out of reach is waited for in any case.\n"
        "step_defaults:\n  timeout_s: 7200\n"
        "  retry: {max_attempts: 3, backoff: exponential, initial_delay_s: 60}\n"
    )
    return "".join(parts)


@cache
def prompt_texts() -> dict[str, str]:
    """Return the prompts that come with the program, by file name."""
    folder = files("sequencer").joinpath("builtin", "prompts")
    return {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".md")
    }
