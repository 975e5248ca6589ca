"""`init`: the files of a new project; what is there is never touched."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

import click
from msgspec import Struct, field

from sequencer.assembly.agents import CLIENTS
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.documents.files import CONFIG_NAME, is_inside_agent
from sequencer.errors import UsageRefused
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.project import open_project
from sequencer.settings.settings import Settings, load
from sequencer.store import folder as folders
from sequencer.workflows.prompts import relative_name
from sequencer.workflows.registry import Registry


class _Written(Struct):
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
        names = ("created", "kept", "missing")
        facts = {name: getattr(written, name) for name in names}
        invocation.print_json({"folder": str(written.folder), **facts})
    else:
        more = " (write it: no prompt of that name comes along)"
        told = [f"created  {name}" for name in written.created]
        told += [f"kept     {name}" for name in written.kept]
        told += [f"missing  {name}{more}" for name in written.missing]
        for line in told:
            invocation.echo(line)
    for note in written.notes:
        invocation.say(f"notice: {note}")
    if not invocation.is_json:
        where = "" if folder == Path() else f"cd {folder} && "
        invocation.say(
            f"next: {where}sequencer check, then sequencer plan, then sequencer run --max-steps 2"
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
    for step in workflow.own_steps:
        agent = settings.agents.get(step.agent or "")
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


def configuration(workflow: Workflow, clients: Collection[str]) -> str:
    """Return orchestration.yaml for *workflow*, with an entry for each of *clients*."""
    known = [client for client in CLIENTS if client in clients]
    entries = "".join(_built_in("init", f"{client}.yaml") for client in known)
    review = (
        f"  review_every_n: {DEFAULT_REVIEW_EVERY}     # of so many cycles the last is a review; "
        "0: none is\n"
    )
    return Template(_built_in("init", "orchestration.yaml")).substitute(
        workflow=workflow.name,
        review="" if workflow.review is None else review,
        agents=f"# What the agents may do without asking.\nagents:\n{entries}"
        if known
        else _built_in("init", "no_client.yaml"),
    )


def _built_in(*path: str) -> str:
    return files("sequencer").joinpath("builtin", *path).read_text(encoding="utf-8")


@cache
def prompt_texts() -> dict[str, str]:
    """Return the prompts that come with the program, by file name."""
    names = (entry.name for entry in files("sequencer").joinpath("builtin", "prompts").iterdir())
    return {name: _built_in("prompts", name) for name in sorted(names) if name.endswith(".md")}
