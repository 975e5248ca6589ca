"""A project's files: where they are, and which names they may have.

A timer asks every minute where a run is, and usually nothing is due. So the answer is as cheap as
reading one small file: YAML is parsed only if the text may contain the key ``state_file``, and
nothing here validates the rest. Files must be regular and small, and reading never blocks.

Not promised: that the configuration is valid. `settings` checks that, and agrees with this
module wherever it accepts a file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sequencer.errors import ConfigurationError
from sequencer.files.regular import read_bytes

CONFIG_NAME = "orchestration.yaml"
SCHEMA_NAME = ".orchestration.schema.json"
"""A copy next to the configuration, so that editors find it without a network."""
DEFAULT_STATE_FILE = "sync/state.json"
STATE_VARIABLE = "SEQUENCER_STATE_FILE"
MAX_RUN_NAME = 100
"""How many characters a run's name has at most; a longer one does not fit into tables."""


class Location(NamedTuple):
    """The paths of a project that are known before its settings are read."""

    config_path: Path | None
    """None: no file was found, so the defaults apply."""
    project_dir: Path
    """Folder of the file, or where the search started; relative paths start here."""
    state_path: Path


def compute_digest(data: bytes) -> str:
    """Return the digest of a file's *data* in the form of trust records and diffs."""
    return f"sha256 {hashlib.sha256(data).hexdigest()}"


def expand_home(written: str) -> str:
    """Return *written* with its ``~`` or ``~USER`` replaced; unchanged if that home is unknown.

    A user without HOME and without an entry in passwd has no home. No other code in the package
    asks for a home folder: `Path.home` and `Path.expanduser` raise RuntimeError in that case.
    """
    # An empty HOME would turn ~/x into /x.
    is_unset = os.environ.get("HOME") == "" and written.split("/", maxsplit=1)[0] == "~"
    return written if is_unset else os.path.expanduser(written)  # noqa: PTH111 - see above


def path_at_home(below: str, variable: str = "") -> Path:
    """Return the absolute path of ~/*below*; a hint names *variable*, which can replace it.

    Raises:
        ConfigurationError: the home folder is unknown.
    """
    path = expand_home(f"~/{below}")
    if not path.startswith("/"):
        hint = f"set HOME{f' or {variable}' if variable else ''} to a folder of yours"
        raise ConfigurationError("your home folder is unknown", hint=hint)
    return Path(path)


def find_config(start: Path, explicit: Path | None = None) -> Path | None:
    """Return *explicit*, else the nearest orchestration.yaml in *start* or a folder above.

    Raises:
        ConfigurationError: *explicit* does not exist, or the file has the ending ``.yml``. The
            defaults never replace a file that you name or wrote.
    """
    if explicit is not None:
        # Resolve the folder and not the file: a link to a shared file belongs to its own folder.
        given_path = start / explicit
        path = Path(os.path.realpath(given_path.parent)) / given_path.name
        if not path.exists():
            raise ConfigurationError(
                "file not found",
                where=str(path),
                hint=f"without --config, {CONFIG_NAME} is looked for here and in the folders above",
            )
        return path
    resolved_start = Path(os.path.realpath(start))
    for folder in (resolved_start, *resolved_start.parents):
        candidate = folder / CONFIG_NAME
        # A fifo or a folder with that name is reported when it is read. Searching further would
        # silently pick up another project's settings.
        if os.path.lexists(candidate):
            return candidate
        if os.path.lexists(twin := candidate.with_suffix(".yml")):
            hint = f"rename it to {CONFIG_NAME}"
            raise ConfigurationError("is not read", where=str(twin), hint=hint)
    return None


def locate(start: Path, explicit: Path | None, env: Mapping[str, str]) -> Location:
    """Return the paths of the project that contains *start*.

    Raises:
        ConfigurationError: the file can't be read, or its ``state_file`` is not a path in the
            project.
    """
    config_path = find_config(start, explicit)
    project_dir = config_path.parent if config_path else Path(os.path.realpath(start))
    value: object = env.get(STATE_VARIABLE) or None
    source = STATE_VARIABLE
    if value is None and config_path is not None:
        value, source = _read_state_file_key(config_path)
    if value is None:
        value = DEFAULT_STATE_FILE
    path = resolve_path(project_dir, value, source)
    # The file may come from a clone, so it must not send readers out of the project.
    if source != STATE_VARIABLE and not path.is_relative_to(project_dir):
        raise ConfigurationError(_describe_outside("state_file", path), where=source)
    return Location(config_path, project_dir, path)


def resolve_path(project_dir: Path, written: object, where: str) -> Path:
    """Return the absolute path that *written* means in a project; ``~`` is the home folder.

    Inside the project no link is resolved, because the folders of a run must not be links.
    Outside, the folders above the path's folder are yours, and links are fine.

    Raises:
        ConfigurationError: *written* is not text, is empty, contains a NUL, or starts with the
            ``~`` of an unknown home folder.
    """
    if not isinstance(written, str) or not written.strip() or "\0" in written:
        raise ConfigurationError(f"expected a path, not {written!r}", where=where)
    path = Path(os.path.normpath(project_dir / _expand_path(written, where)))
    if path.is_relative_to(project_dir):
        return path
    folder = path.parent
    return Path(os.path.realpath(folder.parent)) / folder.name / path.name


def _expand_path(text: str, location: str) -> str:
    path = expand_home(text)
    if path == text and text.split("/", maxsplit=1)[0] == "~":
        hint = "set HOME to a folder of yours, or write a path without ~"
        message = f"{text!r}: your home folder is unknown"
        raise ConfigurationError(message, where=location, hint=hint)
    return path


def find_path_problem(
    key: str, paths: Mapping[str, Path], project_dir: Path, *, is_chosen: bool
) -> str | None:
    """Return why the program must not write to the path of *key* in *paths*; None: it may.

    The file may come from a clone. *is_chosen* means that the user gave the path.
    """
    path = paths[key]
    if key == "prompts_dir":
        # Nothing is written there, so the file may name any folder, but a link must not hide it.
        problem = f"a link leads {path} out of the project; name the target folder instead"
        return problem if is_linked_outside(path, project_dir) else None
    if not is_chosen and not path.is_relative_to(project_dir):
        return _describe_outside(key, path)
    if ".git" in path.parts:
        return f"{path} is in git's folder"
    if key == "state_file" and path.parent == project_dir:
        return "a run needs a separate folder for its files, and this is the project's folder"
    prompts = paths["prompts_dir"]
    if key == "state_file" and prompts != project_dir and path.is_relative_to(prompts):
        return "a run needs a separate folder for its files, and this is the prompts folder"
    return None


def _describe_outside(key: str, path: Path) -> str:
    return f"{path} is outside the project; only SEQUENCER_{key.upper()} may set that"


def _read_state_file_key(config_path: Path) -> tuple[object, str]:
    text = read_bytes(config_path)
    # A YAML escape with a backslash can spell the key's letters differently.
    if b"state_file" not in text and b"\\" not in text:
        return None, ""
    from sequencer.files import yamlfile as reader  # noqa: PLC0415 - yaml only where it is needed

    document = reader.parse(text, config_path)
    return document.data.get("state_file"), document.locate(("state_file",))


def is_linked_outside(path: Path, folder: Path) -> bool:
    """Return whether a link leads *path*, which is in *folder* as written, out of it.

    A user who copied a project did not choose where its links lead.
    """
    real_path, plain_path = os.path.realpath(path), Path(os.path.normpath(path))
    # folder/../x is not in the folder, unless the .. is applied to a link's target.
    is_below_link = path.is_relative_to(folder) and real_path != os.path.realpath(plain_path)
    is_inside = plain_path.is_relative_to(folder) or is_below_link
    return is_inside and not Path(real_path).is_relative_to(os.path.realpath(folder))


MAX_COMPONENT_BYTES = 120
"""A slug is at most this long, so that prefix, suffix and attempt still fit into 255 bytes."""

_PLAIN = re.compile(r"[a-z0-9_](?:[a-z0-9_.]|-(?!-))*", re.ASCII)
_LIKE_AN_ATTEMPT = re.compile(r".*\.\d+", re.ASCII | re.DOTALL)
"""The log of the second attempt at ``main`` starts with ``main.2``."""
_DIGEST_CHARS = 16
_NO_BRANCH = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|\A[-/.]|[/.]\Z|/\.|\.lock(?:/|\Z)|\A@\Z"
)


@lru_cache(maxsize=256)
def slug(name: str) -> str:
    r"""Return one path component for *name*; different names give different components.

    A name of lowercase ASCII letters, digits, ``_``, ``.`` and single ``-`` that starts with a
    letter, digit or ``_`` stays as it is. Any other name gets ``--`` and the first 64 bits of its
    SHA-256; no unchanged name contains ``--``. Uppercase counts as "other" because macOS folds
    case, and ``main.2`` because logs count attempts that way.

    >>> slug("main"), slug("feature/x")
    ('main', 'feature-x--217d2bf51f16e9dc')
    >>> slug("../../etc")[:5], slug("-rf")[:4]
    ('etc--', 'rf--')
    """
    is_safe = (
        _PLAIN.fullmatch(name) is not None
        and not name.endswith(("-", "."))
        and _LIKE_AN_ATTEMPT.fullmatch(name) is None
        and len(name) <= MAX_COMPONENT_BYTES
    )
    if is_safe:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    prefix = re.sub(r"[^a-z0-9_]+", "-", name.lower(), flags=re.ASCII).strip("-")[:40].strip("-")
    return f"{prefix or 'x'}--{digest}"


def ref_part(slugged: str) -> str:
    """Return one part of a git ref's name for a slug; git allows fewer names than folders.

    >>> ref_part("nightly"), ref_part("x.lock")[:8], ref_part("a..b")[:5]
    ('nightly', 'x-lock--', 'a-b--')
    """
    is_refused = slugged.endswith(".lock") or ".." in slugged
    # No name holds a NUL, so no other name gets this digest.
    return slug(f"{slugged}\0") if is_refused else slugged


def is_branch_name(text: str) -> bool:
    """Return whether git accepts *text* as the name of a branch (git-check-ref-format).

    >>> is_branch_name("sequencer/default"), is_branch_name("a..b"), is_branch_name("-f")
    (True, False, False)
    """
    return bool(text) and _NO_BRANCH.search(text) is None
