"""Whether a project may act on this machine: checked once, before any of its code runs.

This is the only check before a project's hooks and agents run and before the addresses that it
names get secrets. Reading a run never asks. The records are in the user's state folder, never in
a project.
A record that another user could have written is refused. Inside an agent, neither
``SEQUENCER_TRUST`` nor a calling program can vouch for a project.

Not promised: protection against an agent that may write any file of its user. It can also write
a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, field, to_builtins
from msgspec.structs import replace

from sequencer import extensions
from sequencer.errors import NotTrusted, SequencerError, StorageFailed, UnsafeFolder, UnsafePath
from sequencer.executors.project_files import files_for
from sequencer.files.textfile import CONFIG_NAME
from sequencer.model.limits import parse_time
from sequencer.project.client_files import (
    ClientFacts,
    find_client,
    find_clients,
    get_line_file,
    scan,
)
from sequencer.project.settings import Settings
from sequencer.project.step_facts import escape_non_ascii
from sequencer.project.store_requests import EVERYTHING, RepositoryInspector
from sequencer.project.trust import (
    ABSENT,
    EMPTY,
    Acts,
    compute_fingerprint,
    files_of_agent,
    fingerprint,
    fingerprint_link,
    list_acts,
)
from sequencer.project.workflow_facts import Recorded
from sequencer.store import folder as folders
from sequencer.store.identity import ensure_person, is_inside_agent
from sequencer.store.user_state import make_user_folder, make_user_folder_error, user_state_path

VARIABLE = "SEQUENCER_TRUST"
"""Trusted folders, including all folders below them, or ``all``."""
Ask = Callable[[NotTrusted], bool]
"""Returns whether a person accepts the list in the error."""


class Trust:
    """The trust of a person in one project, compared with what the project can do now."""

    def __init__(self, settings: Settings, ask: Ask | bool) -> None:
        """Call *ask* if there is no valid record; True: the calling program vouches for it."""
        self._settings = settings
        self._ask = ask
        self._is_sure = False
        self._files: Mapping[str, Mapping[Path, str]] = {}
        self._read: frozenset[str] | None = None
        """The trusted facts about files that clients read; None: nothing is compared."""
        self._flows: set[Path] = set()
        """Workflows that the user named by their paths."""

    def __repr__(self) -> str:
        """Return only the project's key."""
        return f"<Trust of {self.key}>"

    @property
    def key(self) -> str:
        """Return the key of this project's record; see `project_key`."""
        return project_key(self._settings.project_dir, self._settings.config_path)

    @cached_property
    def acts(self) -> Acts:
        """Return what the project can do now, including the files that its clients read."""
        client_lines = {line for facts in self._scans.values() for line in facts.lines}
        return replace(self._written, lines=tuple(sorted({*self._written.lines, *client_lines})))

    @cached_property
    def _written(self) -> Acts:
        settings = self._settings
        return list_acts(settings.written, settings.project_dir, self._own_settings, self._flows)

    @cached_property
    def _scans(self) -> dict[str, ClientFacts]:
        """The files of the project that each possible client would read."""
        settings, workflows = self._settings, self._written.workflows
        clients = find_clients(settings, () if workflows is None else workflows.texts)
        return {
            name: scan(name, project_files, settings.project_dir)
            for name, project_files in clients.items()
        }

    @cached_property
    def _repositories(self) -> tuple[RepositoryInspector, ...]:
        return tuple(
            inspector for _, inspector in extensions.load_builtins(extensions.REPOSITORIES)
        )

    @cached_property
    def _own_settings(self) -> Mapping[str, str]:
        store = self._settings.store
        # Code is synced through the remote even if the run's state is on a server.
        remote = store.remote if self._settings.store_kind.code is not None else None
        git_settings: dict[str, str] = {}
        for inspector in self._repositories:
            git_settings |= inspector.acting_settings(self._settings.project_dir, remote)
        return git_settings

    @property
    def git_settings(self) -> Mapping[str, str]:
        """Return the repository settings that git may act on once the project is trusted."""
        return EVERYTHING if self.is_vouched_for else self._own_settings

    @property
    def is_vouched_for(self) -> bool:
        """Return whether the program or `VARIABLE` vouches for it, no matter what it does."""
        text = os.environ.get(VARIABLE, "").strip()
        if not (text or self._ask is True) or is_inside_agent():
            return False
        if self._ask is True:
            return True
        real_path = Path(os.path.realpath(self._settings.project_dir))
        entries = (entry for entry in text.split(":") if os.path.isabs(entry))  # noqa: PTH117
        return text == "all" or any(
            real_path.is_relative_to(os.path.realpath(path)) for path in entries
        )

    @property
    def is_known(self) -> bool:
        """Return whether a person has trusted this or an earlier version of it.

        Costs one small read.
        """
        return self._is_sure or self.is_vouched_for or read(self.key) is not None

    @property
    def is_current(self) -> bool:
        """Return whether its current version is trusted; `check` reports a bad record."""
        try:
            return self.refusal() is None
        except SequencerError:
            return False

    def with_settings(self, settings: Settings) -> Trust:
        """Return a new object for the same project with newly read *settings*."""
        return Trust(settings, self._ask)

    @property
    def since(self) -> float | None:
        """Return the time when a person last trusted it, in seconds since 1970, or None.

        Raises:
            UnsafePath: see `read`.
        """
        record = None
        with contextlib.suppress(OSError):  # the state folder can't be opened
            record = read(self.key)
        moment = parse_time(record.at) if record is not None else None
        return None if moment is None else moment.timestamp()

    def refusal(self, *, by_record: bool = False) -> NotTrusted | None:
        """Return why none of its code may run; None: it may run.

        With *by_record*, only the record counts: a timer does not have this shell's variables.

        Raises:
            UnsafePath: the record is a link, or another user could have written it.
        """
        if not by_record and (self._is_sure or self.is_vouched_for):
            return None
        record = read(self.key)
        if record is None:
            return NotTrusted(self.key, self.acts.summary)
        changes = self.acts.diff_from(self._without_unused(record.acts))
        flows = map(os.path.relpath, self._flows)
        hint = self._trust_hint(changes)
        return NotTrusted(self.key, self.acts.summary, changes, flows, hint) if changes else None

    def _trust_hint(self, changes: Iterable[str]) -> str | None:
        """Return how to trust the files of a client that only an option or a variable names."""
        settings = self._settings
        name = settings.agent.default
        kind = settings.agents[name].kind if name in settings.agents else name
        is_typed = settings.get_source("agent", "default").kind in ("flag", "environment")
        if not is_typed or kind not in {find_client(line[2:]) for line in changes}:
            return None
        command = f"'SEQUENCER_AGENT__DEFAULT={name} sequencer trust'"
        return f"nothing was run; {command} shows everything and asks you"

    def ensure(self, *, may_ask: bool = True) -> None:
        """Check that the project may act.

        Raises:
            NotTrusted: no person has trusted it, or it has changed since; nothing was run.
        """
        if self._is_sure:
            return
        refusal = self.refusal()
        if refusal is not None:
            if not may_ask or isinstance(self._ask, bool) or not self._ask(refusal):
                raise refusal
            self.save_record()
        self._is_sure = True
        if not self.is_vouched_for:
            self._files = self.acts.files
            record = read(self.key)
            self._read = frozenset(record.lines if record else ())

    def _without_unused(self, acts: Acts) -> Acts:
        """Return *acts* without the files of clients that no agent uses now."""
        lines = [line for line in acts.lines if find_client(line) in (None, *self._scans)]
        return replace(acts, lines=tuple(lines))

    def add_flow(self, path: Path) -> None:
        """Include the workflow file *path*, in any folder: the tools that it grants need trust."""
        if path not in self._flows:
            self._flows.add(path)
            self._is_sure = False
            for name in ("acts", "_written", "_scans"):
                vars(self).pop(name, None)

    def save_record(self) -> None:
        """Record that a person trusts what the project can do now.

        Raises:
            DecisionRefused: the caller is an agent, whatever command it used.
            StorageFailed: the record can't be written. UnsafePath: see `read`.
        """
        ensure_person("trust", "ask a person to run it")
        key, acts = self.key, self.acts
        record = read(key)
        # Keep the facts of unused clients: an option may choose such a client again.
        unused_lines = (
            set(record.lines) - set(self._without_unused(record.acts).lines) if record else ()
        )
        acts = replace(acts, lines=tuple(sorted({*acts.lines, *unused_lines})))
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        caps = {name: None if math.isinf(cap) else cap for name, cap in acts.caps.items()}
        content: dict[str, Any] = {"project": key, "at": timestamp, "digest": acts.digest}
        content |= {"acts": acts.lines, "caps": caps, "steps": to_builtins(acts.recorded)}
        temporary_name = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with _open_folder(is_made=True) as folder:
                fd = os.open(temporary_name, flags, 0o600, dir_fd=folder)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=1)
                    file.flush()
                    os.fsync(fd)
                os.replace(temporary_name, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise StorageFailed(
                f"can't be written: {error.strerror}", where=str(records_folder())
            ) from error

    def get_trusted_files(self, owner: str) -> Mapping[Path, str]:
        """Return the trusted files that *owner* runs, with their fingerprints."""
        return self._files.get(owner, {})

    def ensure_files(self, owner: str, seen: dict[Path, tuple[int, ...]]) -> None:
        """Check that the files that *owner* runs are unchanged since they were trusted.

        *seen* has the last `stat` values of the files and their folders, and is updated; only
        files with other values are read.

        Raises:
            NotTrusted: a file has changed, or a file that the configuration names has appeared.
        """
        files = self._files.get(owner, {})
        for path, trusted_text in files.items():
            signature = _stat_signature(path)
            # A missing file is no risk: starting it fails.
            if signature is not None and seen.get(path) != signature:
                ensure_unchanged(path, trusted_text, owner)
                seen[path] = signature
        folders = {folder: _stat_signature(folder) for folder in {path.parent for path in files}}
        changed_folders = {
            folder: signature
            for folder, signature in folders.items()
            if signature and signature != seen.get(folder)
        }
        if changed_folders.keys() & seen.keys():
            self.ensure_files_in(owner, self._settings.project_dir)
        seen |= changed_folders
        remove_byte_code(files)

    def ensure_files_in(self, owner: str, folder: Path) -> None:
        """Check that the files in *folder* that the agent *owner* runs are the trusted ones.

        *folder* is the project's folder or a work tree, where files that git ignores may be
        missing.

        Raises:
            NotTrusted: a file has changed, or did not exist when the project was trusted.
        """
        entries = self._settings.written.get("agents")
        if self._read is None or not isinstance(entries, Mapping):
            return  # nothing is compared
        files = self._files.get(owner, {})
        project = os.path.realpath(self._settings.project_dir)
        trusted_files = {os.path.relpath(path, project): text for path, text in files.items()}
        root = Path(os.path.realpath(folder))
        changes: list[str] = []
        present_files = files_of_agent(entries.get(owner.partition(".")[2]), root)
        for path, text in present_files.items():
            name = os.path.relpath(path, root)
            if trusted_files.get(name) != text:
                line = f"{owner}, file {escape_non_ascii(name)}: "
                changes += [f"- {line}{trusted_files[name]}"] if name in trusted_files else []
                changes.append(f"+ {line}{text}")
        if changes and str(root) == project:
            raise NotTrusted(self.key, (), changes)
        if changes:
            hint = "its program was not started; undo it there, or do the same in the project's "
            hint += "folder and call 'sequencer trust'"
            raise NotTrusted(f"work tree {folder}", (), changes, hint=hint)
        remove_byte_code(present_files)

    def ensure_client(
        self, kind: str, options: Mapping[str, Any], folder: Path | None = None
    ) -> None:
        """Check that the files that a client of *kind* would read in *folder* are the trusted ones.

        Without *folder*, the project's folder is checked, with one `stat` per file if nothing has
        changed. In a work tree, a missing file is a change if git had checked it out there.

        Raises:
            NotTrusted: an acting key or a file has changed, appeared, or been removed.
        """
        project_files = None if self._read is None else files_for(kind, options)
        if project_files is None or self._read is None:
            return
        old_facts = self._scans.get(kind)
        if folder is None and old_facts is not None and old_facts.is_current():
            return
        project = self._settings.project_dir
        facts = scan(kind, project_files, folder or project, None if folder is None else project)
        trusted_lines = known_lines = {line for line in self._read if find_client(line) == kind}
        if folder is not None:
            trusted_lines = {
                line
                for line in trusted_lines
                if line in facts.lines or get_line_file(line) in facts.files
            }
            missing_files = sorted(
                {get_line_file(line) for line in known_lines - trusted_lines} - facts.files
            )
            inspectors = self._repositories if missing_files else ()
            removed_files = {
                name
                for inspector in inspectors
                for name in inspector.taken_out(missing_files, folder, project)
            }
            trusted_lines |= {line for line in known_lines if get_line_file(line) in removed_files}
        changes = _acts_from_lines(facts.lines).diff_from(_acts_from_lines(trusted_lines))
        if changes:
            if folder is None:
                raise NotTrusted(self.key, (), changes)
            hint = "its client was not started; undo it there, or do the same in the project's "
            hint += "folder and call 'sequencer trust'"
            raise NotTrusted(f"work tree {folder}", (), changes, hint=hint)
        if folder is None:
            self._scans[kind] = facts

    def client_files(self) -> Iterator[tuple[str, list[str], bool]]:
        """Yield (client, files of the project that it reads, whether all are trusted)."""
        record = None if self.is_vouched_for else read(self.key)
        trusted_lines = set(record.lines) if record else set()
        for client, facts in self._scans.items():
            if facts.lines:
                files = sorted({get_line_file(line) for line in facts.lines})
                yield client, files, self.is_vouched_for or facts.lines <= trusted_lines


def _stat_signature(path: Path) -> tuple[int, ...] | None:
    try:
        facts = os.stat(path)  # noqa: PTH116 - before each attempt
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _acts_from_lines(lines: Iterable[str]) -> Acts:
    return Acts(tuple(sorted(lines)), {})


def remove_byte_code(sources: Iterable[Path]) -> None:
    """Remove the compiled byte code of *sources*, so that Python compiles them again.

    Python accepts byte code that has the time and size of its source, which any process can
    forge.

    Raises:
        UnsafePath: byte code in a folder of this user can't be removed.
    """
    stems: dict[Path, set[str]] = {}
    for path in sources:
        if path.suffix == ".py":
            stems.setdefault(path.parent / "__pycache__", set()).add(path.stem)
    for folder, file_stems in stems.items():
        try:
            for name in folders.list_names(folder):
                if name.endswith(".pyc") and name.partition(".")[0] in file_stems:
                    folders.remove(folder / name)
        except UnsafeFolder:
            folders.remove(folder)  # a link, which Python would follow
        except (OSError, StorageFailed) as error:
            # In another user's folder, this user's agents can't write either.
            if os.lstat(folder).st_uid == os.geteuid():
                message = f"byte code in it can't be removed: {error}"
                hint = "remove the folder; Python compiles the modules again"
                raise UnsafePath(message, where=str(folder), hint=hint) from error


def ensure_unchanged(path: Path, trusted: str, owner: str) -> None:
    """Check that *path* has the content with the fingerprint *trusted*.

    Raises:
        NotTrusted: the file has changed since it was trusted.
    """
    real_path = Path(os.path.realpath(path))
    current_text = fingerprint(real_path)
    if trusted == ABSENT and current_text in (None, EMPTY):
        return
    if trusted not in (current_text, *fingerprint_link(path, real_path)):
        line = f"{owner}, file {path}"
        raise NotTrusted(
            str(path), (), (f"- {line}: {trusted}", f"+ {line}: {current_text or 'is gone'}")
        )


_NAME = re.compile(r"[0-9a-f]{32}\.json")
_RECORD_BYTES = 32 * 1024 * 1024
_OTHERS = 0o077
_HINT = "remove it; then 'sequencer trust' asks again"


class Trusted(Struct, frozen=True):
    """The record of one trusted project."""

    project: str
    """The folder, or the configuration file if that does not have the usual name."""
    at: str
    digest: str
    lines: tuple[str, ...] = field(name="acts")
    caps: dict[str, float | None]
    """Key -> maximum; None: no cap."""
    grants: tuple[str, ...] = ()
    """Only in a record that was written before steps were compared."""
    steps: Recorded | None = None

    @property
    def acts(self) -> Acts:
        """Return the trusted facts."""
        caps = {name: math.inf if cap is None else cap for name, cap in self.caps.items()}
        return Acts(self.lines, caps, kept=self.steps)

    @property
    def is_whole(self) -> bool:
        """Return whether the record has the digest of its content."""
        return compute_fingerprint(self.lines, self.grants, self.steps) == self.digest


def project_key(folder: Path, config: Path | None) -> str:
    """Return the key of a record: the real folder, plus the file if it has another name."""
    real_folder = os.path.realpath(folder)
    return (
        real_folder
        if config is None or config.name == CONFIG_NAME
        else f"{real_folder}/{config.name}"
    )


def read(key: str) -> Trusted | None:
    """Return the record of the project with *key*, or None if there is no valid one.

    Raises:
        UnsafePath: the record is a link, or another user could have written it.
    """
    with contextlib.suppress(FileNotFoundError), _open_folder() as folder:
        record = _read(folder, _name(key))
        return record if record is not None and record.project == key else None
    return None


def forget(key: str) -> bool:
    """Remove the record of the project with *key*; return whether there was one.

    Raises:
        DecisionRefused: see `Trust.save_record`.
    """
    ensure_person("trust", "ask a person to run it")
    with contextlib.suppress(FileNotFoundError), _open_folder() as folder:
        os.unlink(_name(key), dir_fd=folder)
        return True
    return False


def list_records() -> Iterator[Trusted]:
    """Yield every record, sorted by project; it raises the errors of `read`."""
    with contextlib.suppress(FileNotFoundError), _open_folder() as folder:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]  # noqa: PTH208
        records = (_read(folder, name) for name in names)
        yield from sorted(filter(None, records), key=lambda record: record.project)


def records_folder() -> Path:
    """Return the folder of the records; see `user_state_path`."""
    return user_state_path("trust")


def _name(key: str) -> str:
    return f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.json"


@contextlib.contextmanager
def _open_folder(*, is_made: bool = False) -> Iterator[int]:
    """Open the folder of the records; no other user may write in it."""
    path = make_user_folder("trust") if is_made else records_folder()
    try:
        fd = os.open(path.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise make_user_folder_error(path, error) from error
    try:
        # Open each folder relative to its parent, so that no link is followed.
        for folder_path in (path.parent, path):
            child_fd = _open_safely(folder_path.name, os.O_DIRECTORY, fd, folder_path)
            os.close(fd)
            fd = child_fd
            _ensure_own(fd, folder_path)
        yield fd
    finally:
        os.close(fd)


def _open_safely(name: str, flags: int, folder: int, path: Path) -> int:
    try:
        return os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnsafePath(
            f"can't be trusted: {error.strerror}", where=str(path), hint=_HINT
        ) from error


def _ensure_own(fd: int, path: Path) -> None:
    facts = os.fstat(fd)
    if facts.st_uid != os.geteuid():
        raise UnsafePath("belongs to another user", where=str(path), hint=_HINT)
    is_folder = stat.S_ISDIR(facts.st_mode)
    if not is_folder and not stat.S_ISREG(facts.st_mode):
        raise UnsafePath("is not a regular file", where=str(path), hint=_HINT)
    if stat.S_IMODE(facts.st_mode) & _OTHERS:
        hint = f"run 'chmod go= {path}' if no one else has changed it; or {_HINT}"
        raise UnsafePath("other users can read or write it", where=str(path), hint=hint)


def _read(folder: int, name: str) -> Trusted | None:
    path = records_folder() / name
    with os.fdopen(_open_safely(name, 0, folder, path), "rb") as file:
        _ensure_own(file.fileno(), path)
        data = file.read(_RECORD_BYTES + 1)
    try:
        record = convert(json.loads(data), Trusted)
    except (ValueError, ValidationError, RecursionError):
        # A damaged record counts as missing: the person is asked again.
        return None
    return record if record.is_whole else None
