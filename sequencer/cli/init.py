"""`init`: the files of a new project; what is there is never touched."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

import click

from sequencer.assembly.agents import CLIENTS
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.errors import UsageRefused
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project import open_project
from sequencer.settings.location import CONFIG_NAME, is_inside_agent
from sequencer.settings.settings import Settings, load
from sequencer.store import folder as folders
from sequencer.workflows.prompts import relative_name
from sequencer.workflows.registry import Registry


@dataclass(slots=True)
class _Written:
    """What became of each file, relative to the project."""

    folder: Path
    created: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Prompts that a workflow needs and nobody but its author can write."""
    notes: list[str] = field(default_factory=list)

    def write(self, path: Path, text: str) -> None:
        """Create *path* with *text*, or keep what is there."""
        name = os.path.relpath(path, self.folder)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # O_EXCL also refuses a link, even one that leads nowhere.
            with path.open("x", encoding="utf-8") as file:
                self.created.append(name)
                file.write(text)
        except FileExistsError as error:
            if not path.parent.is_dir():
                raise _refused(error, path.parent) from error
            self.kept.append(name)
        except OSError as error:
            raise _refused(error, path) from error

    def undo(self) -> None:
        """Remove what was created: half of a file would be kept as if somebody had made it."""
        for name in reversed(self.created):
            path = self.folder / name
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()


def _refused(error: OSError, path: Path) -> UsageRefused:
    why = "is no folder" if isinstance(error, FileExistsError) else error.strerror
    return UsageRefused(f"can't be written: {why}", where=str(path))


@verb("init")
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path)
)
@click.option("--workflow", metavar="NAME", help="The workflow to begin with.")
@pass_invocation
def init(invocation: Invocation, folder: Path, workflow: str | None) -> None:
    """Create orchestration.yaml, prompts/, sync/ and logs/ in DIR (default: here).

    Files that exist are kept as they are, so it can be used again to add what is missing;
    a folder with an orchestration.yaml of its own keeps it, and gets the prompts that its
    workflow needs.

    \b
    Examples:
      sequencer init
      sequencer init ../other --workflow review_cadence
    """
    if invocation.config is not None or invocation.run_name is not None:
        raise UsageRefused(
            "init takes neither --config nor --run", hint="name the folder: 'sequencer init DIR'"
        )
    written = _Written(folder.absolute())
    try:
        _init(written, workflow)
    except BaseException:
        written.undo()
        raise
    if invocation.is_json:
        invocation.print_json(
            {
                "folder": str(written.folder),
                "created": written.created,
                "kept": written.kept,
                "missing": written.missing,
            }
        )
    else:
        for name in written.created:
            invocation.echo(f"created  {name}")
        for name in written.kept:
            invocation.echo(f"kept     {name}")
        for name in written.missing:
            invocation.echo(f"missing  {name} (write it: no prompt of that name comes along)")
    for note in written.notes:
        invocation.say(f"notice: {note}")
    if not invocation.is_json:
        where = "" if folder == Path() else f"cd {folder} && "
        invocation.say(
            f"next: {where}sequencer check, then sequencer next, then sequencer run --max-steps 2"
        )


def _init(written: _Written, workflow_name: str | None) -> None:

    folder = written.folder
    config = folder / CONFIG_NAME
    if not os.path.lexists(config):
        workflow = Registry().get(workflow_name or "standard", where="--workflow")
        clients = [client for client in CLIENTS if shutil.which(client)]
        written.write(config, configuration(workflow, clients))
        settings = load(folder, config=config, env={})
        # Whoever starts here is to be able to run any built-in workflow.
        is_new = True
    else:
        is_new = False
        written.kept.append(CONFIG_NAME)
        settings = load(folder, config=config, env={})
        workflow = settings.registry.get(
            workflow_name or settings.workflow.name, where="--workflow"
        )
        if workflow.name != settings.workflow.name:
            written.notes.append(
                f"{CONFIG_NAME} was kept and names workflow {settings.workflow.name!r}; set "
                f"workflow.name, or run with --workflow {workflow.name}"
            )
    _write_prompts(written, settings, workflow, with_all=is_new)
    if is_new:
        _trust(written)
    for kind, path in (("state", settings.state_file.parent), ("logs", settings.logs_dir)):
        _write_ignore(written, settings, kind, path)


def _trust(written: _Written) -> None:
    """Trust what was just made here; what somebody else has put here is for a person to see."""
    if is_inside_agent():
        return
    trust = open_project(written.folder, environment={}).trust
    if all(line.startswith("agents.") and ", file " not in line for line in trust.acts.lines):
        trust.keep()
    else:
        written.notes.append("more than 'init' has made can act here: 'sequencer trust' shows it")


def _write_prompts(
    written: _Written, settings: Settings, workflow: Workflow, *, with_all: bool
) -> None:

    texts = prompt_texts()
    wanted = dict(texts) if with_all else {}
    wanted |= {
        relative_name(settings.prompts_dir, settings.router.prompt or ROUTER_PROMPT): (
            texts[ROUTER_PROMPT]
        )
    }
    for step in _prompted_steps(settings, workflow):
        name = relative_name(settings.prompts_dir, step.prompt_name)
        # A step that is called as a known one gets its text under the name that it asks for.
        wanted[name] = texts.get(name) or texts.get(f"{step.name}.md", "")
    for name in sorted(wanted):
        path = settings.prompts_dir / name
        if wanted[name]:
            written.write(path, wanted[name])
        elif not path.exists():
            written.missing.append(os.path.relpath(path, written.folder))
        else:
            written.kept.append(os.path.relpath(path, written.folder))


def _prompted_steps(settings: Settings, workflow: Workflow) -> Iterator[Step]:
    """Yield the steps that can't run without a prompt file."""
    review = () if workflow.review is None else (workflow.review.step,)
    for step in (*workflow.steps, *review):
        agent = settings.agents.get(step.executor or "")
        if step.prompt is not None or agent is None or agent.kind != "command":
            yield step


def _write_ignore(written: _Written, settings: Settings, kind: str, folder: Path) -> None:

    ours = (settings.project_dir, settings.prompts_dir)
    if any(path == folder or folder in path.parents for path in ours):
        # Ignoring everything there would hide the project itself from git.
        written.notes.append(f"the {kind} files are in {folder}: add them to .gitignore by hand")
        return
    try:
        folders.made(folder)
    except OSError as error:
        raise _refused(error, folder) from error
    is_foreign = any(
        not entry.name.startswith(("state.json", "journal", ".git")) and entry.is_file()
        for entry in folder.iterdir()
    )
    if is_foreign and not (folder / ".gitignore").exists():
        written.notes.append(f"{folder} holds other files too: no .gitignore was written")
        return
    written.write(folder / ".gitignore", IGNORE_ALL)


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
