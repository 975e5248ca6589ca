"""The program's deliberate errors: one tree, each with its exit code.

An error says what went wrong, where, and what to do. The same facts are attributes, so
programs that use the library don't have to parse prose. Any other exception is a bug, which
the command line reports with exit code 70.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar

_SHOWN_CHANGES = 40
_SHOWN_ACTS = 15
_SHOWN_CHARACTERS = 200
"""Limits on what an error lists about a project; `trust` shows everything before it asks."""


class SequencerError(Exception):
    """A deliberate refusal; the message is for people, the attributes are for programs."""

    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        """Keep *message* (what), *where* (file, key path, line) and *hint* (what to do)."""
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    @property
    def each(self) -> tuple[SequencerError, ...]:
        """Return the errors that this one consists of: usually only itself."""
        return (self,)

    @property
    def in_one_line(self) -> str:
        """Return the three parts on one line; see `to_one_line`."""
        return to_one_line(str(self))

    def __str__(self) -> str:
        """Return the three parts in the order in which a person needs them."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


_ENDS_A_PART = (":", ";", ",", ".", "!", "?", "…")


def to_one_line(text: str) -> str:
    r"""Return *text* on one line, with a semicolon after each part that has no punctuation.

    >>> to_one_line("the run is held\n  'sequencer resume' lets it continue")
    "the run is held; 'sequencer resume' lets it continue"
    >>> to_one_line("these changed:\n    agents\n    hooks")
    'these changed: agents; hooks'
    """
    line = ""
    for part in filter(None, map(str.strip, text.splitlines())):
        separator = " " if line.endswith(_ENDS_A_PART) else "; "
        line = f"{line}{separator}{part}" if line else part
    return line


class StepFailed(SequencerError):
    """A step was tried and failed; the run's step_index did not move."""

    exit_code = 1


class UsageRefused(SequencerError):
    """The command or the library was used in a way that makes no sense."""

    exit_code = 2


class ConfigurationError(UsageRefused):
    """The configuration asks for something that can't be done; nothing was started."""


class PackageFailed(ConfigurationError):
    """An installed package has a bug: it can't be loaded, it raised, or it returned nonsense."""


class ConfigurationErrors(ConfigurationError):
    """Everything that is wrong with a file, in the order of the file."""

    def __init__(self, errors: Iterable[ConfigurationError]) -> None:
        """Hold *errors*; the message joins all of theirs."""
        self.errors = tuple(errors)
        super().__init__(str(self))

    @property
    def each(self) -> tuple[ConfigurationError, ...]:
        return self.errors

    def __str__(self) -> str:
        """Return all errors as they are now: a caller may have added their locations."""
        return "\n".join(str(error) for error in self.errors)


def raise_all(errors: list[ConfigurationError]) -> None:
    """Raise the only one of *errors* as it is, or several as one error; return if it is empty."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigurationErrors(errors)


class AgentMissing(ConfigurationError):
    """An agent's program or key is not there; no step was claimed for it."""


def _get_fact_part(fact: str) -> str:
    return re.split(r"[.,:\[ ]", fact.removeprefix("- ").removeprefix("+ "), maxsplit=1)[0]


def sample_facts(facts: Sequence[str], most: int) -> list[str]:
    """Return at most *most* of *facts*, some from every part of a project, in order.

    So a project can't hide a dangerous fact after many harmless ones.
    """
    by_part: dict[str, list[int]] = {}
    for index, fact in enumerate(facts):
        by_part.setdefault(_get_fact_part(fact), []).append(index)
    # The first fact of each part, then the second of each, and so on.
    alternating_indexes = [index for indexes in zip_longest(*by_part.values()) for index in indexes]
    sample = [index for index in alternating_indexes if index is not None][:most]
    return [facts[index] for index in sorted(sample)]


def summarize_facts(facts: Sequence[str], most: int = _SHOWN_CHANGES) -> list[str]:
    """Return one line that counts *facts* by part of the project; no line if all are shown.

    >>> summarize_facts(["agents.x.argv: []"] * 40 + ["hooks: []"], 40)
    ['41 parts in all: agents 40, hooks 1']
    """
    if len(facts) <= most:
        return []
    counts = ", ".join(
        f"{part} {count}" for part, count in Counter(map(_get_fact_part, facts)).items()
    )
    return [f"{len(facts)} parts in all: {counts}"]


class NotTrusted(UsageRefused):
    """No one has trusted this project on this machine yet; nothing in it was run."""

    def __init__(
        self,
        project: str,
        acts: Iterable[str],
        changed: Iterable[str] = (),
        flows: Iterable[str] = (),
        hint: str | None = None,
    ) -> None:
        """List the *acts* of *project*, or what has *changed* since it was trusted.

        *flows* are the paths of the requested workflows. *hint* says what to do if trusting
        the project is not enough.
        """
        self.project = project
        self.acts = tuple(acts)
        self.changed = tuple(changed)
        if self.changed:
            message = "the project has changed since you trusted it; these parts changed"
            facts = self.changed
        else:
            message = "the project is not trusted on this machine; these parts of it could act"
            facts = self.acts or ("built-in agents, with the prompts of this project",)
        max_lines = _SHOWN_CHANGES if self.changed else _SHOWN_ACTS
        # A difference may be at the end of a long line.
        lines = [
            line if self.changed else _shorten(line) for line in sample_facts(facts, max_lines)
        ]
        lines += summarize_facts(facts, max_lines)
        super().__init__(
            "\n".join([f"{message}:", *(f"    {line}" for line in lines)]),
            where=project,
            hint=hint
            or f"nothing was run; {format_command(None, 'trust', *flows)} shows everything and "
            "asks you",
        )


def _shorten(line: str) -> str:
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[: _SHOWN_CHARACTERS - 1]}…"


class DecisionRefused(UsageRefused):
    """An agent tried to decide what only people decide; see `store.identity.is_inside_agent`."""

    def __init__(self, what: str, hint: str) -> None:
        """Say *what* an agent may not do; *hint* says who may, or which setting allows it."""
        super().__init__(
            f"{what}: this is for a person to decide, but it was called inside of an agent's step",
            hint=f"{hint}; nothing was changed",
        )


class UnsafePath(ConfigurationError):
    """A name would reach a file outside the folder that it belongs to."""


class UnknownName(ConfigurationError):
    """A name that is not defined; the error lists the known ones."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, where: str | None = None
    ) -> None:
        """Refuse *name* as a *kind* ("workflow", "prompt", …) and list the *known* names."""
        from difflib import get_close_matches  # noqa: PLC0415 - the idle tick does not need it

        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        self.nearest = matches = get_close_matches(
            name, self.known, n=2 if kind == "command" else 1
        )
        guess = f"did you mean {' or '.join(map(repr, matches))}?" if matches else ""
        choices = f"known {kind}s: {', '.join(self.known) or 'none'}"
        # A step has thirty keys: after a typo, only the nearest one helps.
        hint = guess if guess and kind == "key" else f"{guess} {choices}".strip()
        if kind == "command":
            hint = guess or "'sequencer help all' lists them"
        super().__init__(f"unknown {kind} {name!r}", where=where, hint=hint)


class StateRefused(SequencerError):
    """The run's files, or a claim on them, can't be trusted; they are untouched."""

    exit_code = 3


class StaleClaim(StateRefused):
    """The claim with this token is not in the head: another process has taken over the step."""


class CorruptState(StateRefused):
    """Neither the head nor the journal gives a clear state."""


class StepsMissing(CorruptState):
    """The files can be read, but are older than what is known of the run."""


class DefinitionChanged(StateRefused):
    """The run was started under another definition or other parameters."""


class NewerSchema(StateRefused):
    """The files were written by a newer version of the program."""


class EditRefused(StateRefused):
    """A manual edit of state.json that would break the order of the run."""


class TransitionRefused(StateRefused):
    """The current status of the run does not allow this change."""


class TooManyFailures(StateRefused):
    """The step has failed in a row as often as the limits of the run allow."""


class UnsafeFolder(StateRefused):
    """A folder of a run is a symbolic link; its target does not belong to the run."""


class StorageFailed(StateRefused):
    """The file system refused a write; nothing was accepted."""


class RecordRefused(StateRefused):
    """No process could read this change's record back; nothing was accepted."""


class RemoteUnreachable(StorageFailed):
    """The remote of a run did not answer or denied access; trying again later may help."""

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        is_denied: bool = False,
    ) -> None:
        """Say what failed; *is_denied*: the credentials were refused, so waiting does not help."""
        super().__init__(message, where=where, hint=hint)
        self.is_denied = is_denied


class RemoteRefused(StorageFailed):
    """The remote answered and rejected the push: its rules have to be changed."""


class WorkTreeRefused(StateRefused):
    """A step can't use the work tree: it has uncommitted changes or another history."""


class NetworkFileSystem(StateRefused):
    """The run's folder is on a file system where locks and renames are not reliable."""


class WaitsForPerson(SequencerError):
    """The run can't continue before a person decides."""

    exit_code = 4


class ClaimHeld(SequencerError):
    """Another process runs the step, and nothing proves that it is gone."""

    exit_code = 75


class WorkTreeBusy(ClaimHeld):
    """Agents of another process on this machine use the work tree, or are being stopped."""


class MachineBusy(SequencerError):
    """This machine can't run the step's agent now; nothing failed, and its claim was released."""

    exit_code = 75


class Interrupted(SequencerError):
    """SIGINT or SIGTERM; the claim was released and no process is left running."""

    exit_code = 130


_TOO_MANY_PROCESSES = (
    "this machine can't start any more processes or threads",
    "end what you don't need, or raise 'ulimit -u' (in a container or service, its pids limit too)",
)
_NO_ROOM = "free some; 'df -h' and 'df -i' show where there is none"
_NO_MEMORY = ("this machine has no memory left", "end what you don't need, or give it more memory")
_EXHAUSTED = {
    errno.EAGAIN: _TOO_MANY_PROCESSES,
    errno.EMFILE: (
        "this process can't open any more files",
        "raise 'ulimit -n', or run fewer agents at once",
    ),
    errno.ENFILE: (
        "this machine can't open any more files",
        "end what you don't need, or raise the system's limit (sysctl fs.file-max)",
    ),
    errno.ENOMEM: _NO_MEMORY,
    errno.ENOSPC: ("the disk has no room left, or no inodes", _NO_ROOM),
    errno.EDQUOT: ("this user's share of the disk is used up", _NO_ROOM),
}


def to_machine_busy(error: BaseException | None) -> MachineBusy | None:
    """Return *error* as `MachineBusy` if this machine ran out of processes, memory or disk space.

    None: it is something else. The causes of *error* count as well: if a file can't be opened
    for such a reason, the file is not at fault.
    """
    while error is not None:
        if isinstance(error, MachineBusy):
            return error
        advice = None
        if isinstance(error, OSError):
            advice = _EXHAUSTED.get(error.errno or 0)
        elif isinstance(error, MemoryError):
            advice = _NO_MEMORY
        elif isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            advice = _TOO_MANY_PROCESSES
        elif isinstance(error, ImportError) and "Too many open files" in str(error):
            # The loader of shared libraries gives no error number.
            advice = _EXHAUSTED[errno.EMFILE]
        if advice is not None:
            return MachineBusy(f"{advice[0]} ({error})", hint=advice[1])
        error = error.__cause__
    return None


def to_storage_failed(error: BaseException | None) -> StorageFailed | None:
    """Return *error* as `StorageFailed` if a disk fails or is read-only; None: it is neither."""
    if isinstance(error, StorageFailed):
        return None if to_storage_failed(error.__cause__) is None else error
    if not isinstance(error, OSError) or error.errno not in {errno.EIO, errno.EROFS}:
        return None
    # A file descriptor means nothing to a person.
    location = None if isinstance(error.filename, int | None) else str(error.filename)
    hint = "look at the disk ('mount' and 'dmesg' tell more), then start again"
    return StorageFailed(f"the disk can't be used: {error.strerror}", where=location, hint=hint)


def is_fault_of_attempt(error: BaseException) -> bool:
    """Return whether *error* counts as a failure of the attempt that raised it.

    A bug does, and so does a result that can't be recorded. A busy machine, a failing disk and a
    refusal of this program don't.
    """
    if isinstance(error, RecordRefused):
        return True
    is_meant = isinstance(error, SequencerError) or not isinstance(error, Exception)
    return not is_meant and to_machine_busy(error) is None and to_storage_failed(error) is None


def format_command(run_name: str | None, words: str, *named: str) -> str:
    """Return ``sequencer WORDS NAMED`` for the run called *run_name*, ready to be typed.

    *named* are words that a user or an agent has chosen; see `quote_words`.
    """
    line = f"sequencer {run_option(run_name)}{words} {quote_words(*named)}".rstrip()
    return _quote_line(line)


def format_other_command(*words: str) -> str:
    """Return the command line of another program with these *words*, ready to be typed."""
    return _quote_line(shlex.join(words))


def _quote_line(line: str) -> str:
    # No outer quotes around inner ones: when pasted, they would end at the first inner quote.
    return line if "'" in line else f"'{line}'"


class _GlobalOptions:
    """The global options of the command that this process runs."""

    config: str | None = None
    run: str | None = None


def set_global_options(config: str | None, run: str | None) -> None:
    """Let suggested commands include *config*, and also *run* if they name no other run."""
    _GlobalOptions.config, _GlobalOptions.run = config, run


def run_option(name: str | None) -> str:
    """Return the options that name the run, followed by a space; empty for the default run.

    ``--config`` is there too if it was given to this process.
    """
    options = [] if _GlobalOptions.config is None else [f"--config={_GlobalOptions.config}"]
    if name is not None:
        options += [f"--run={name}"] if name.startswith("-") else ["--run", name]
    return f"{shlex.join(options)} " if options else ""


_NO_RUN = re.compile(r"^(demo|help|init|mcp|schedule|start|trust|web|worker)\b| --(all|new)\b")
"""Commands that don't work on one existing run."""
_QUOTED_COMMAND = re.compile(r"'sequencer (?!--)([a-z][^'\n]*)'")


def complete_commands(text: str) -> str:
    """Return *text* with this process's ``--config`` and ``--run`` in each quoted command.

    >>> complete_commands("'sequencer retry' tries it again")
    "'sequencer retry' tries it again"
    """

    def complete(match: re.Match[str]) -> str:
        words = match[1]
        run_name = None if _NO_RUN.search(words) else _GlobalOptions.run
        return _quote_line(f"sequencer {run_option(run_name)}{words}")

    return _QUOTED_COMMAND.sub(complete, text)


def quote_words(*words: str) -> str:
    """Return *words*, which a user or an agent has chosen, quoted so that none is an option.

    >>> quote_words("q", "send it back"), quote_words("q", "--run=release")
    ("q 'send it back'", '-- q --run=release')
    """
    ends_options = ["--"] if any(word.startswith("-") for word in words) else []
    return shlex.join([*ends_options, *words])
