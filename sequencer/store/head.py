"""state.json: read it as untrusted input, replace it atomically, migrate another program's.

The file is never written in place. Replacing it needs no fsync, because the journal can
rebuild it; a reader sees the old content or the new content, never a part.

Two forms of hoidn/orchestration are read. The newer one counts steps (``step_index``); the older
one counts cycles of two steps and names the actor whose turn it is (``iteration`` and
``expected_actor``). A file that contradicts itself is refused: a wrong guess would run a step
twice or never.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from sequencer.errors import CorruptState, DefinitionChanged, EditRefused, NewerSchema
from sequencer.frozen.base import encode_json, format_json
from sequencer.frozen.fields import ValidationError
from sequencer.model.head import SCHEMA_VERSION, Head, Status
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.store import folder as folders
from sequencer.store.folder import Folder, read_regular, sync_folder
from sequencer.store.strictjson import MAX_BYTES, parse_object

_WRITTEN_FIRST = (
    r"\.idle\.json|remote\.json|definition\.json|flow\.json"
    r"|journal(?:-\d{6,})?\.jsonl|marking-[0-9a-f]{1,64}\.json"
)
"""Files next to state.json that are written under a temporary name and then renamed."""


class RawHead(Struct, frozen=True):
    """The content of state.json: an object, or None with a reason."""

    content: dict[str, Any] | None
    problem: str | None = None
    """Why it can't be read; None: it is missing."""


def read_head(path: Path) -> RawHead:
    """Return the content of the head file *path*.

    Raises:
        CorruptState: it is not a regular file, so it can't be replaced either.
    """
    try:
        return parse_raw_head(read_regular(path, max_bytes=MAX_BYTES))
    except FileNotFoundError:
        return parse_raw_head(None)


def parse_raw_head(data: bytes | None) -> RawHead:
    """Return the content of state.json from its bytes *data*; None: it is missing."""
    try:
        return RawHead(None if data is None else parse_object(data))
    except ValueError as error:
        return RawHead(None, str(error))


def signature(path: Path | str) -> tuple[int, int, int] | None:
    """Return (inode, mtime in ns, size) of *path*, or None if it is missing."""
    try:
        status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 (on every step's path)
    except FileNotFoundError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def encode_head(head: Head) -> bytes:
    """Return the bytes of state.json for *head*.

    Raises:
        ValueError: it would be too large to read, or a text in it can't be encoded.
    """
    return format_head(encode_json(head))


def format_head(head_json: bytes) -> bytes:
    """Return the bytes of state.json for a head whose JSON is *head_json*.

    Raises:
        ValueError: it would be too large to read.
    """
    content = format_json(head_json) + b"\n"
    if len(content) > MAX_BYTES:
        message = f"{len(content)} bytes of state.json, more than {MAX_BYTES}"
        raise ValueError(message)
    return content


def write_head(
    path: Path,
    head: Head,
    content: bytes | None = None,
    within: Folder | None = None,
    opened: list[int] | None = None,
) -> tuple[int, int, int]:
    """Replace *path* by *head* and return the signature of the new file.

    A caller that has the result of `encode_head` or the open folder passes them as *content* and
    *within*. If *opened* is given, a descriptor of the new file is appended to it.

    Raises:
        OSError: the old file is unchanged; a temporary file may be left for `sweep`.
    """
    name, within = path.name, within or folders.open_folder(path.parent)
    temporary = f".{name}.{os.getpid()}.tmp"
    data = encode_head(head) if content is None else content
    fd = within.create(temporary)
    try:
        _reserve(fd, len(data))
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if opened is not None:
        # Read-only: closing a descriptor that wrote would wake the processes that watch the folder.
        opened.append(within.open(temporary, os.O_RDONLY))
    within.replace(temporary, name)
    # Not from the path: someone may have edited the file since.
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _reserve(fd: int, size: int) -> None:
    """Allocate the blocks of a new file before it is written.

    ext4 flushes a file without blocks when it replaces another file, which costs more than
    the rest of a transition. Skipping that flush loses nothing: after a power loss the file may
    be full of zeros, and the journal restores it.
    """
    try:
        os.posix_fallocate(fd, 0, size)
    except (OSError, AttributeError):
        return  # not every system has it


def make_leftover_filter(state_name: str) -> Callable[[str], bool]:
    """Return a function that recognizes the temporary files of killed processes by their names.

    >>> is_left_over = make_leftover_filter("state.json")
    >>> [is_left_over(name) for name in (".state.json.7.tmp", "journal.jsonl.7.tmp", "notes.tmp")]
    [True, True, False]
    """
    pattern = re.compile(rf"(?:\.?{re.escape(state_name)}|{_WRITTEN_FIRST})\.\d{{1,10}}\.tmp")
    return lambda name: pattern.fullmatch(name) is not None


def keep_copy(path: Path, suffix: str) -> Path:
    """Copy *path* durably to a free name with *suffix* in the same folder; return the copy."""
    copy = _copy_to_free_name(path, suffix)
    # The original is replaced next. Sync even an old copy: its writer may have been killed earlier.
    fd = folders.open_file(copy, os.O_RDONLY)
    try:
        folders.sync_fd(fd)
    finally:
        os.close(fd)
    sync_folder(copy.parent)
    return copy


def _copy_to_free_name(path: Path, suffix: str) -> Path:
    for number in range(1, 10_000):
        copy = path.with_name(f"{path.name}.{suffix}" + (f"-{number}" if number > 1 else ""))
        if is_same(path, copy):
            return copy
        with contextlib.suppress(FileExistsError):
            fd = folders.open_file(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "wb") as file:
                file.write(read_regular(path))
            return copy
    raise CorruptState(f"too many copies *.{suffix} are kept", where=str(path.parent))


def is_same(path: Path, copy: Path) -> bool:
    """Return whether *copy* is a regular file with the same bytes as *path*."""
    try:
        return read_regular(copy) == read_regular(path)
    except (OSError, CorruptState):
        return False


def parse_head(content: dict[str, Any], where: str) -> Head:
    """Return *content* as a head.

    Raises:
        NewerSchema: a newer version of the program wrote it.
        EditRefused: a field has an invalid value; the message names each.
    """
    version = content.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchema(
            f"schema_version {version} is newer than {SCHEMA_VERSION}",
            where=where,
            hint="update sequencer on this machine",
        )
    try:
        return Head.model_validate(content)
    except ValidationError as error:
        raise EditRefused(
            f"is not the state of a run: {error}",
            where=where,
            hint="fix it; 'sequencer repair' restores the last accepted state",
        ) from None


OLD_CYCLE_LENGTH = 2
"""The older form has one cycle: galph (the supervisor), then ralph (the main step)."""
_POSITIONS = {"galph": 0, "ralph": 1}
_REPLACED = frozenset(
    {
        "expected_actor",
        "expected_step",
        "iteration",
        "last_prompt",
        "last_update",
        "status",
        "step_index",
        "workflow_name",
    }
)
"""Fields of the old forms whose values are replaced by new ones."""
_OURS = frozenset(Head.model_fields) - _REPLACED


def is_legacy(raw: Mapping[str, Any]) -> bool:
    """Return whether *raw*, the content of a state file, has one of the two old forms.

    >>> is_legacy({"iteration": 3, "expected_actor": "ralph", "status": "waiting-ralph"})
    True
    >>> is_legacy({"schema_version": 1, "step_index": 5})
    False
    """
    has_counter = "step_index" in raw or "expected_actor" in raw
    return has_counter and not {"schema_version", "run_id", "revision"} & raw.keys()


def legacy_workflow(raw: Mapping[str, Any]) -> str | None:
    """Return the name of the workflow that an old state file names, if it names one."""
    name = raw.get("workflow_name")
    return name if isinstance(name, str) and name else None


def migrate(
    raw: Mapping[str, Any],
    *,
    new_run_id: str,
    workflow_name: str,
    digest: str,
    params: Mapping[str, int],
    expected_step_for: Callable[[int], str],
    at: str,
    cycle_length: int = OLD_CYCLE_LENGTH,
) -> Head:
    """Return the first head of a run that continues from *raw*.

    Fields that this program does not use (commits, ``lease_expires_at``) are kept. A step that
    was running counts as failed once, because its end is unknown.

    Raises:
        CorruptState: *raw* has neither form, lacks a field, or contradicts itself.
        DefinitionChanged: *raw* was written under a workflow other than *workflow_name*,
            or counts cycles of two where *workflow_name* has *cycle_length* steps.
    """
    _ensure_legacy(raw)
    _ensure_same_workflow(raw, workflow_name, cycle_length)
    step_index = _parse_step_index(raw)
    status = _parse_status(raw)
    last_prompt = raw.get("last_prompt")
    if last_prompt is not None and not isinstance(last_prompt, str):
        _refuse(f"last_prompt is {last_prompt!r}, not a name")
    other_fields = {field: value for field, value in raw.items() if field not in _REPLACED}
    try:
        return Head.model_validate(
            {
                **other_fields,
                "run_id": new_run_id,
                "workflow_name": workflow_name,
                "workflow_digest": digest,
                "params": dict(params),
                "step_index": step_index,
                "iteration": step_index + 1,
                "expected_step": expected_step_for(step_index),
                "status": status,
                "failures_in_row": 1 if status is Status.FAILED else 0,
                "last_prompt": last_prompt,
                "last_update": at,
            }
        )
    except ValidationError as error:
        _refuse(str(error.errors()[0]["msg"]), error)


def _ensure_legacy(raw: Mapping[str, Any]) -> None:
    if not is_legacy(raw):
        _refuse("it is not a state file of hoidn/orchestration")
    mixed_keys = sorted(_OURS & raw.keys())
    if mixed_keys:
        _refuse(f"it has fields of two programs: {', '.join(mixed_keys)}")


def _ensure_same_workflow(raw: Mapping[str, Any], workflow_name: str, cycle_length: int) -> None:
    if "workflow_name" in raw and legacy_workflow(raw) is None:
        _refuse(f"workflow_name is {raw['workflow_name']!r}, not a name")
    given_name = legacy_workflow(raw)
    if given_name is not None and given_name != workflow_name:
        raise DefinitionChanged(
            f"the old state file is of workflow {given_name!r}, but the project runs "
            f"{workflow_name!r}",
            hint=f"set workflow.name to {given_name!r}, or move the state file away to start over",
        )
    if "step_index" not in raw and cycle_length != OLD_CYCLE_LENGTH:
        raise DefinitionChanged(
            f"the old state file counts cycles of {OLD_CYCLE_LENGTH} steps, but "
            f"{workflow_name!r} has {cycle_length}",
            hint="set workflow.name to 'standard', or move the state file away to start over",
        )


def _parse_step_index(raw: Mapping[str, Any]) -> int:
    if "step_index" in raw and "expected_actor" in raw:
        _refuse("it has both step_index and expected_actor")
    if "step_index" in raw:
        step_index = _parse_counter(raw, "step_index", 0)
        if "iteration" in raw and _parse_counter(raw, "iteration", 1) != step_index + 1:
            _refuse(
                f"step_index {step_index} and iteration {raw['iteration']} contradict each other"
            )
        return step_index
    actor = raw["expected_actor"]
    if not isinstance(actor, str) or actor not in _POSITIONS:
        _refuse(f"expected_actor is {actor!r}, but has to be galph or ralph")
    iteration = _parse_counter(raw, "iteration", 1)
    return OLD_CYCLE_LENGTH * (iteration - 1) + _POSITIONS[actor]


def _parse_counter(raw: Mapping[str, Any], field: str, minimum: int) -> int:
    value = raw.get(field)
    # Twice the iteration must be valid too. `type`, because JSON's true is an int for Python.
    if type(value) is int and minimum <= value <= MAX_COUNTER // 2:
        return value
    return _refuse(f"{field} is {value!r}, not a whole number from {minimum}")


def _parse_status(raw: Mapping[str, Any]) -> Status:
    status = raw.get("status")
    if not isinstance(status, str):
        _refuse(f"status is {status!r}, not a word")
    word, _, actor = status.partition("-")
    if actor in _POSITIONS and "expected_actor" in raw and actor != raw["expected_actor"]:
        _refuse(f"status is {status!r}, but expected_actor is {raw['expected_actor']!r}")
    if word == "waiting" and actor:
        return Status.WAITING_NEXT
    if word == "running":
        return Status.FAILED
    statuses = {
        "complete": Status.WAITING_NEXT,
        "failed": Status.FAILED,
        "idle": Status.IDLE,
    }
    if status not in statuses:
        _refuse(f"status is {status!r}, which neither old form has")
    return statuses[status]


def _refuse(problem: str, cause: Exception | None = None) -> NoReturn:
    raise CorruptState(
        f"the old state file can't be migrated: {problem}",
        hint="correct it by hand, or move it away to start at step_index 0; it was not changed",
    ) from cause
