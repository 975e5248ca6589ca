"""Hook files of a project and hooks of installed packages, as modules and objects.

A file is code that the project's author wrote down in orchestration.yaml; it is still read
only inside the project. It leaves nothing behind: no byte code on disk, no entry on the
search path. Modules of the project that it imports are compiled from their text, which is
compared with what was trusted: byte code and compiled extensions in the project never run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType

from sequencer.documents.textfile import read_bytes
from sequencer.errors import ConfigurationError, NotTrusted, UnsafePath
from sequencer.hooks.points import Plugin

MAX_BYTES = 1024 * 1024
MODULE_PREFIX = "_sequencer_hooks_"
_ERROR_CHARS = 300


def load_files(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str]
) -> Iterator[Plugin]:
    """Yield each of *files*, loaded as a module of its own.

    While one loads, modules of the project's folder can be imported, installed ones first.

    *trusted* has the files that were trusted with their fingerprints; empty: nobody compares.

    Raises:
        NotTrusted: a file has another fingerprint than in *trusted*; it was not run.
        UnsafePath: a path leaves the project, or is no regular file.
        ConfigurationError: a file is missing, listed twice, or can't be loaded.
    """
    root = project.resolve()
    seen: dict[Path, str] = {}
    for place, written in enumerate(files):
        path = _inside(root, written, f"hooks[{place}]")
        if path in seen:
            raise ConfigurationError(
                f"{written!r} is the same file as {seen[path]!r}",
                where=f"hooks[{place}]",
                hint="list it once; a hook is called as often as it is listed",
            )
        seen[path] = written
        yield Plugin(written, _load(path, root, trusted))


def load_entries(entries: Iterable[EntryPoint]) -> Iterator[Plugin]:
    """Yield what *entries* name, in the order of their names.

    Raises:
        ConfigurationError: one can't be imported, or is a class; its package is named.
    """
    for entry in sorted(entries, key=lambda one: (one.name, _package(one))):
        name = f"{_package(entry)}: {entry.name}"
        try:
            value = entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ConfigurationError(
                f"the hooks of an installed package can't be imported: {summary(error)}",
                where=f"{name} = {entry.value}",
                hint=f"fix or uninstall {_package(entry)}",
            ) from error
        if isinstance(value, type):
            raise ConfigurationError(
                "an entry point names a module or an object with hooks, not a class",
                where=f"{name} = {entry.value}",
                hint="name an instance of it",
            )
        yield Plugin(name, value)


def summary(error: BaseException) -> str:
    """Return type and message of *error* on one line, whatever its own ``__str__`` does."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    told = traceback.TracebackException.from_exception(error, limit=0, compact=True)
    line = " ".join("".join(told.format_exception_only())[: 4 * _ERROR_CHARS].split())
    return line if len(line) <= _ERROR_CHARS else f"{line[:_ERROR_CHARS]}…"


def line_in(file: str, error: BaseException) -> int | None:
    """Return the line of *file* that *error* came through last; None: through none of it."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"


def _inside(root: Path, written: str, where: str) -> Path:
    if not written or "\0" in written:
        raise ConfigurationError(f"expected a path, not {written!r}", where=where)
    path = Path(os.path.realpath(root / written))
    if not path.is_relative_to(root):
        raise UnsafePath(
            f"{written!r} leads out of the project ({path})",
            where=where,
            hint=f"put the file below {root}",
        )
    if path.suffix != ".py":
        raise ConfigurationError(
            f"{written!r} is not a Python file", where=where, hint="a hook file's name ends in .py"
        )
    return path


def _load(path: Path, root: Path, trusted: Mapping[Path, str]) -> ModuleType:
    file = str(path)
    name = MODULE_PREFIX + hashlib.sha256(os.fsencode(file)).hexdigest()[:16]
    spec = ModuleSpec(name, None, origin=file)
    module = module_from_spec(spec)
    module.__file__ = file
    source = _source(path)
    _ensure_trusted(path, source, trusted, is_listed=True)
    try:
        # dont_inherit: this module's own __future__ imports are not the hook file's.
        code: CodeType = compile(source, file, "exec", dont_inherit=True)
        with _importable(root, trusted):
            # Dataclasses and pickles look their module up by its name.
            sys.modules[name] = module
            exec(code, vars(module))  # noqa: S102 - it is what a hook file is for
    except (KeyboardInterrupt, NotTrusted):
        sys.modules.pop(name, None)
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        line = line_in(file, error)
        raise ConfigurationError(
            f"the hook file can't be loaded: {summary(error)}",
            where=f"{file}:{line}" if line else file,
            hint="fix it, or remove it from hooks in orchestration.yaml",
        ) from error
    return module


def _ensure_trusted(
    path: Path, source: bytes, trusted: Mapping[Path, str], *, is_listed: bool = False
) -> None:
    """Return if *source*, the text of *path*, is what was trusted; see `load_files`.

    Of a module that no import statement names nothing was recorded.
    """
    known = trusted.get(path)
    now = f"sha256 {hashlib.sha256(source).hexdigest()}"
    if known != now and (known is not None or (trusted and is_listed)):
        line = f"hooks, file {path}: "
        raise NotTrusted(
            str(path), (), ([f"- {line}{known}"] if known else []) + [f"+ {line}{now}"]
        )


class _TrustedSource(SourceFileLoader):
    """Compiles a module of the project from its text, never from byte code beside it."""

    trusted: Mapping[Path, str] = MappingProxyType({})

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the text that is there now, once it was compared.

        Raises:
            NotTrusted: it is not what was trusted.
        """
        path = self.get_filename(fullname)
        source = self.get_data(path)
        _ensure_trusted(Path(os.path.realpath(path)), source, self.trusted)
        return self.source_to_code(source, path)


@contextmanager
def _importable(root: Path, trusted: Mapping[Path, str]) -> Iterator[None]:
    """Let modules in *root* be imported, behind all others, and leave no byte code there."""
    folder, writes_none = str(root), sys.dont_write_bytecode
    # An environment may be in the project: what is installed there is no module of the project.
    loader = type("_Source", (_TrustedSource,), {"trusted": trusted})
    others = [entry for entry in sys.path if entry.startswith(f"{folder}/")]

    def found(path: str) -> FileFinder:
        is_installed = any(path == other or path.startswith(f"{other}/") for other in others)
        if is_installed or (path != folder and not path.startswith(f"{folder}/")):
            raise ImportError(path)
        return FileFinder(path, (loader, [".py"]))

    before = sys.path_importer_cache.pop(folder, None)
    sys.path_hooks.insert(0, found)
    sys.path.append(folder)
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_none
        sys.path_hooks.remove(found)
        sys.path_importer_cache.pop(folder, None)
        if before is not None:
            sys.path_importer_cache[folder] = before
        # The last one: the same folder may have been there before, for a reason of its own.
        places = [place for place, entry in enumerate(sys.path) if entry == folder]
        if places:
            del sys.path[places[-1]]


def _source(path: Path) -> bytes:
    try:
        # The links in its path were followed before.
        return read_bytes(path, MAX_BYTES, os.O_NOFOLLOW)
    except ConfigurationError as error:
        raise UnsafePath(
            f"the hook file {error.message}",
            where=error.where,
            hint="hooks in orchestration.yaml are files, relative to its folder",
        ) from error
