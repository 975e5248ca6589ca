"""`schedule`: unattended ticks, and the web pages as a service of this machine.

Ticks need no extra lock, because two ticks exclude each other. The key in the link to the pages
is in a file that only this user can read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb, with_options
from sequencer.cli.unattended import OPTION
from sequencer.errors import UsageRefused
from sequencer.files.textfile import slug
from sequencer.model.workflow import Workflow
from sequencer.plugins.schedules.installers import (
    DAY_MIN,
    HOUR_MIN,
    KINDS,
    Cron,
    Installer,
    Job,
    find_installer,
)
from sequencer.plugins.schedules.schedules import list_scheduled_runs
from sequencer.plugins.schedules.timer_needs import (
    MissingRequirement,
    find_missing_for_cron,
    find_missing_keys,
    find_missing_trust,
    list_run_workflows,
)
from sequencer.plugins.schedules.timers import (
    LATE,
    LATE_S,
    last_tick,
    list_programs,
    log_of_all,
    path_for,
    tick_log,
)
from sequencer.plugins.web.cli_web import ensure_extra, parse_names, read_key
from sequencer.project.agent_checks import check_time_limits
from sequencer.project.costs import agent_warnings
from sequencer.project.project import Project
from sequencer.project.scheduler import describe_start, format_local_time
from sequencer.project.settings import Settings
from sequencer.store.identity import ensure_person
from sequencer.store.user_state import STATE_VARIABLE, make_user_folder, user_state_path

_TICK_OPTIONS = {"every": "--every", "is_all": "--all", "at_most": "--at-most"}
_WEB_OPTIONS = {
    "port": "--port",
    "bind": "--bind",
    "names": "--name",
    "token_file": "--token-file",
}
_JOB_OPTIONS = {"env_file": "--env-file"}
_MAKING = ("install", "print")
"""The actions that make a job of the options; the others find it by its name."""
ACTIONS = ("install", "show", "remove", "print")
_NO_ACTION = f"ACTION is missing: expected {', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}"
_OPTIONS = with_options(
    click.option("--every", type=click.IntRange(1, DAY_MIN), metavar="MINUTES", default=HOUR_MIN,
                 show_default=True, help="How often a step may run."),
    click.option("--all", "is_all", is_flag=True,
                 help="Steps of any run, one run after the other; see 'tick --all'."),
    click.option("--at-most", type=click.IntRange(1, 100), metavar="N",
                 help="With --all: at most N runs at the same time; default 1."),
    click.option("--env-file", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
                 help="A file of NAME=value lines (keys, secrets); mode 600."),
    click.option("--with", "kind", type=click.Choice(KINDS),
                 help="Timer to use; by default what this machine has, and cron for 'print'."),
    click.option("--web", "is_web", is_flag=True,
                 help="Keep the pages ('sequencer web') of this project or DIR... running."),
    click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", default=8420,
                 show_default=True, help="With --web: as for 'web'; the next three too."),
    click.option("--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS",
                 help="Address to listen at."),
    click.option("--name", "names", multiple=True, callback=parse_names, metavar="HOST[:PORT]",
                 help="What browsers and trackers call this machine."),
    click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 metavar="FILE",
                  help="Read the key of the link from FILE; without it, one is made and kept."),
)  # fmt: skip


@verb("schedule", has_json=False, first=("--every", "--all", "--env-file", "--with", "--web"))
@click.argument("action", type=click.Choice(ACTIONS), required=False)
@click.argument(
    "folders",
    nargs=-1,
    metavar="[DIR]...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@_OPTIONS
@pass_invocation
def schedule(
    invocation: Invocation,
    /,
    *,
    action: str | None,
    folders: tuple[Path, ...],
    kind: str | None,
    is_web: bool,
    **given: Any,
) -> int:
    """Let cron, systemd or launchd run due steps, or keep the pages running.

    'install' installs a timer that runs one due step every hour, or replaces it, and says what
    it needs and this machine lacks; 'show' says what is installed for this project, how often it
    runs, and when next; 'remove' removes it; 'print' prints what 'install' would install. With
    --web, all four are for the pages.

    \b
    Examples:
      sequencer schedule install --every 30
      sequencer schedule show
      sequencer schedule install --web --env-file ~/.config/sequencer.env
    """
    if action is None:
        raise UsageRefused(_NO_ACTION, hint="for example: sequencer schedule show")
    if folders and not is_web:
        raise UsageRefused("works only with --web", where="DIR", hint="add --web, or use --config")
    _ensure_options_count(action, is_web=is_web)
    if action != "print":
        ensure_person(invocation.verb, "a person has to decide what runs unattended")
    settings = invocation.project().settings
    names = _make_job_names(invocation, settings, folders)
    if action == "show":
        return _show(invocation, find_installer(kind), names)
    name = names[is_web]
    if action == "remove":
        was_installed = find_installer(kind).remove(name)
        invocation.notify(f"{name} {'was removed' if was_installed else 'was not installed'}")
        return 0
    log = str(_choose_log(settings, invocation.run_name, given))
    tick = partial(_make_tick_job, settings, name, invocation.run_name, log)
    job = _make_pages_job(settings, name, folders, given) if is_web else tick(given)
    if action == "print":
        _print(invocation, Cron() if kind is None else find_installer(kind), job, log)
        return 0
    if is_web:
        _install_pages(invocation, find_installer(kind), job, _make_link(given))
    else:
        _install_ticks(invocation, find_installer(kind), job, log, is_all=given["is_all"])
    return 0


def _ensure_options_count(action: str, *, is_web: bool) -> None:
    """Check that no option was given that has no effect on *action* and this kind of job.

    Raises:
        UsageRefused: such an option was given.
    """
    names, relation = (_TICK_OPTIONS, "without") if is_web else (_WEB_OPTIONS, "with")
    context = click.get_current_context()

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    if action not in _MAKING:
        for name, option in {**_TICK_OPTIONS, **_WEB_OPTIONS, **_JOB_OPTIONS}.items():
            if is_given(name):
                message = f"has no effect on '{action}', which is about the installed timer"
                hint = f"only {' and '.join(map(repr, _MAKING))} take it; leave it out"
                raise UsageRefused(message, where=option, hint=hint)
    for name, option in names.items():
        if is_given(name):
            raise UsageRefused(f"works only {relation} --web", where=option)


def _install_pages(invocation: Invocation, installer: Installer, job: Job, link: str) -> None:
    _install(invocation, installer, job)
    invocation.echo(link, is_verbatim=True)


def _install(invocation: Invocation, installer: Installer, job: Job) -> None:
    for line in installer.install(job):
        invocation.notify(line)


def _install_ticks(
    invocation: Invocation, installer: Installer, job: Job, log: str, *, is_all: bool
) -> None:
    """Install the timer *job*; print what it lacks, and its next dates."""
    _install(invocation, installer, job)
    invocation.notify(f"one due step runs {_format_frequency(job)}; the full record: {log}")
    project = invocation.project()
    workflows = list_run_workflows(project, invocation.run_name, is_all=is_all)
    missing_requirements = [*_find_missing(project, workflows, job)]
    if isinstance(installer, Cron):
        of_cron = [*find_missing_for_cron(installer.read_lines(), log)]
        missing_requirements += of_cron
        if not of_cron:
            invocation.notify("cron mails what you have to know")
    notices = [f"{missing.what}\n  {missing.hint}" for missing in missing_requirements]
    invocation.show_notices([*notices, *_agent_warnings(project, workflows)])
    for line in _describe_next_ticks(invocation, installer, job.name):
        invocation.notify(line)


def _find_missing(
    project: Project, workflows: list[Workflow], job: Job
) -> Iterator[MissingRequirement]:
    """Yield what the timer's ticks need and only this shell has."""
    yield from find_missing_trust(project)
    yield from find_missing_keys(project, workflows, Path(job.env_file) if job.env_file else None)


def _agent_warnings(project: Project, workflows: list[Workflow]) -> list[str]:
    """Return warnings about agents of *workflows* that can go wrong in unattended ticks.

    They are clients without a time limit, fallbacks that can't be used, and unknown costs.
    """
    warnings: list[str] = []
    for workflow in workflows:
        findings = check_time_limits(project, workflow)
        warnings += [
            f"{finding.where}: {finding.message}\n  {finding.hint}" for finding in findings
        ]
        in_agents = agent_warnings(project, workflow, project.settings.cost_caps(workflow))
        warnings += [f"{message}\n  {hint}" for message, hint in in_agents]
    return list(dict.fromkeys(warnings))


def _choose_log(settings: Settings, run: str | None, options: Mapping[str, Any]) -> Path:
    """Return the log of the ticks of *run*, or of `tick --all`, whose runs also have their own.

    Raises:
        UsageRefused: the options contradict each other.
    """
    if not options["is_all"]:
        if options["at_most"] is not None:
            raise UsageRefused("goes with --all", where="--at-most")
        return tick_log(settings, run)
    if run is not None:
        raise UsageRefused("is one run", where="--run", hint="leave --all out")
    return log_of_all(settings)


def _make_job_names(
    invocation: Invocation, settings: Settings, folders: tuple[Path, ...]
) -> tuple[str, str]:
    """Return the job names of the ticks for this project's run and of the pages."""
    run = invocation.run_name
    if run is not None:
        invocation.run()  # an unknown name is an error, and the known ones are listed
    folder = folders[0].resolve() if folders else settings.project_dir
    return (
        _make_job_name("tick", settings.project_dir, settings.config_path, run),
        _make_job_name("web", folder, None, None),
    )


def _make_job_name(kind: str, folder: Path, config: Path | None, run: str | None) -> str:
    """Return a unique job name for *kind* in *folder*: two folders may have the same name."""
    key = f"{folder}\n{config or ''}\n{run or ''}"
    digest = blake2b(key.encode(errors="surrogateescape"), digest_size=3).hexdigest()
    words = [kind, folder.name or "root", *([run] if run else [])]
    return f"sequencer-{slug('-'.join(words))}-{digest}"


def _show(invocation: Invocation, installer: Installer, names: tuple[str, str]) -> int:
    has_any = False
    for kind, name in zip(("ticks", "pages"), names, strict=True):
        is_installed, state = installer.describe_state(name)
        interval = installer.interval(name) if is_installed else None
        often = "" if interval is None else f", {_format_interval(interval)}"
        invocation.echo(f"{kind}: {state}{often}")
        if is_installed and kind == "ticks":
            for line in _describe_next_ticks(invocation, installer, name):
                invocation.echo(f"  {line}")
        has_any |= is_installed
    return 0 if has_any else 1


def _describe_next_ticks(invocation: Invocation, installer: Installer, name: str) -> Iterator[str]:
    """Yield lines with the last and the next tick of the timer *name*, and the next dates."""
    project, run = invocation.project(), invocation.run_name
    last_time, now = last_tick(project.settings, run), time.time()
    due_time, interval = installer.find_next_start(name, last_time), installer.interval(name)
    yield f"last tick: {'none yet' if last_time is None else format_local_time(last_time)}"
    if due_time is not None and due_time > now:
        yield f"next tick: {format_local_time(due_time)}"
    elif due_time is None and interval is not None:
        yield f"next tick: within {_format_interval(interval).removeprefix('every ')}"
    if (
        last_time is not None
        and interval is not None
        and now - last_time > LATE * interval * 60 + LATE_S
    ):
        yield (
            f"late: no tick has come since {format_local_time(last_time)}, although one comes "
            f"{_format_interval(interval)}"
        )
    for schedule, date in list_scheduled_runs(project):
        if date is not None and run in (None, schedule.name):
            yield f"{schedule.name}: {describe_start(date)}"


def _make_tick_job(
    settings: Settings, name: str, run: str | None, log: str, options: Mapping[str, Any]
) -> Job:
    """Return the job that runs one due step."""
    argv = [*program_argv(), "tick", f"{OPTION}={log}"]
    if settings.config_path is not None:
        argv.append(f"--config={settings.config_path.absolute()}")
    argv += [f"--run={run}"] if run is not None else []
    argv += ["--all"] if options["is_all"] else []
    argv += [f"--at-most={options['at_most']}"] if options["at_most"] is not None else []
    description, folder = f"One due step of {settings.project_dir}", str(settings.project_dir)
    return _job(settings, name, argv, description, folder, options, every=options["every"])


def _make_pages_job(
    settings: Settings, name: str, folders: tuple[Path, ...], options: Mapping[str, Any]
) -> Job:
    """Return the job that serves the pages."""
    ensure_extra()
    folder_names = tuple(str(path.resolve()) for path in folders) or (str(settings.project_dir),)
    argv = [*program_argv(), "web", "--no-browser", f"--token-file={_token_file(options)}"]
    argv += [f"--port={options['port']}", f"--bind={options['bind']}"]
    argv += [f"--name={host}" for host in options["names"]]
    if not folders and settings.config_path is not None:
        argv.append(f"--config={settings.config_path.absolute()}")
    argv += ["--", *folder_names] if folders or settings.config_path is None else []
    return _job(
        settings,
        name,
        argv,
        f"Pages and webhooks of {', '.join(folder_names)}",
        folder_names[0],
        options,
    )


def _job(  # noqa: PLR0917 - one word for each field
    settings: Settings,
    name: str,
    argv: list[str],
    description: str,
    folder: str,
    options: Mapping[str, Any],
    every: int | None = None,
) -> Job:
    env_file = options["env_file"]
    keys = str(env_file.absolute()) if env_file else None
    job = Job(name, description, tuple(argv), folder, _variables(settings, os.environ), keys, every)
    job.ensure_printable()
    return job


def _print(invocation: Invocation, installer: Installer, job: Job, log: str) -> None:
    lines = [f"# sequencer: {job.about}, {_format_frequency(job)}"]
    if job.every is not None:
        lines += (
            "# No flock is needed: a tick that finds another one at work ends with 75.",
            "# You are told once for each change (cron: by mail, see MAILTO).",
            f"# The full record, with the time on each line: {log}",
        )
    if job.env_file:
        lines.append(f"# Keys are read from {job.env_file}; let no one else read it (chmod 600).")
    else:
        lines.append("# Keys do not belong here: name a file of NAME=value lines with --env-file.")
    for line in (*lines, installer.format_job(job)):
        invocation.echo(line, is_verbatim=True)


def _format_frequency(job: Job) -> str:
    return "always" if job.every is None else _format_interval(job.every)


def _format_interval(minutes: int) -> str:
    return "every minute" if minutes == 1 else f"every {minutes} minutes"


def _make_link(options: Mapping[str, Any]) -> str:
    """Return the link that opens the pages; a missing key is created.

    Raises:
        UsageRefused: the key is too short, or not one for a link.
    """
    from sequencer.plugins.web import guard  # noqa: PLC0415 - of the extra

    path = _token_file(options)
    if options["token_file"] is None:
        make_user_folder()
        with suppress(FileExistsError):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(secrets.token_urlsafe(24) + "\n")
    key = read_key(path)
    guard.ensure_token(options["bind"], key)
    origin = guard.list_origins(options["bind"], options["port"], options["names"])[0]
    return guard.make_link(origin, key)


def _token_file(options: Mapping[str, Any]) -> Path:
    """Return the file with the key of the link: the option's, or this user's own file."""
    path: Path | None = options["token_file"]
    return path.absolute() if path else user_state_path("web.token")


def program_argv() -> list[str]:
    """Return the command that starts this same program, without a shell."""
    script = Path(sys.executable).with_name("sequencer")
    if script.is_file() and os.access(script, os.X_OK):
        return [str(script)]
    return [sys.executable, "-P", "-m", "sequencer"]


def _variables(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a timer would not have by itself."""
    state = env.get(STATE_VARIABLE, "")
    variables = {"PATH": path_for(list_programs(settings), env.get("PATH", ""), shutil.which)}
    return {**variables, STATE_VARIABLE: state} if state.startswith("/") else variables
