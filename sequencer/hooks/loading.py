"""Loads a project's hook files and the hooks of installed packages as modules and objects.

The project's author lists hook files in orchestration.yaml, but only files inside the project
are read. Loading leaves no byte code on disk and no entry on the search path. Modules of the
project that a hook file imports are compiled from their source, which is compared with what was
trusted: byte code and compiled extensions in the project never run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType, ModuleType

from sequencer.errors import ConfigurationError, NotTrusted, UnsafePath
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import compute_digest
from sequencer.hooks.points import Plugin
from sequencer.packages import disable_hint, get_distribution_name

MAX_BYTES = 1024 * 1024
MODULE_PREFIX = "_sequencer_hooks_"
_ERROR_CHARS = 300


def load_files(
    files: Sequence[str], project: Path, trusted: Mapping[Path, str]
) -> Iterator[Plugin]:
    """Yield each of *files*, loaded as a separate module.

    While a file loads, it can import modules from the project's folder; installed modules of the
    same name win.

    *trusted* maps trusted files to their fingerprints; if it is empty, nothing is compared.

    Raises:
        NotTrusted: a file's fingerprint differs from *trusted*; it was not run.
        UnsafePath: a path leaves the project, or is not a regular file.
        ConfigurationError: a file is missing, listed twice, or can't be loaded.
    """
    root = project.resolve()
    paths: dict[Path, str] = {}
    for index, file in enumerate(files):
        path = _resolve_hook_path(root, file, f"hooks[{index}]")
        if path in paths:
            raise ConfigurationError(
                f"{file!r} is the same file as {paths[path]!r}",
                where=f"hooks[{index}]",
                hint="list it once; a hook is called as often as it is listed",
            )
        paths[path] = file
        yield Plugin(file, _load(path, root, trusted))


def load_entries(entries: Iterable[EntryPoint]) -> Iterator[Plugin]:
    """Yield the module or object of each entry point, in the order of their names.

    Raises:
        ConfigurationError: one can't be imported, or is a class; the error names its package.
    """
    for entry in sorted(entries, key=lambda entry: (entry.name, get_distribution_name(entry))):
        name = f"{get_distribution_name(entry)}: {entry.name}"
        try:
            value = entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ConfigurationError(
                f"the hooks of an installed package can't be imported: {summary(error)}",
                where=f"{name} = {entry.value}",
                hint=disable_hint(get_distribution_name(entry)),
            ) from error
        if isinstance(value, type):
            raise ConfigurationError(
                "an entry point names a module or an object with hooks, not a class",
                where=f"{name} = {entry.value}",
                hint="name an instance of it",
            )
        yield Plugin(name, value, get_distribution_name(entry))


def summary(error: BaseException) -> str:
    """Return type and message of *error* on one line, even if its ``__str__`` raises."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    details = traceback.TracebackException.from_exception(error, limit=0, compact=True)
    line = " ".join("".join(details.format_exception_only())[: 4 * _ERROR_CHARS].split())
    return line if len(line) <= _ERROR_CHARS else f"{line[:_ERROR_CHARS]}…"


def find_line(file: str, error: BaseException) -> int | None:
    """Return the last line of *file* in the traceback of *error*; None: it has none."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return lines[-1] if lines else None


def _resolve_hook_path(root: Path, text: str, location: str) -> Path:
    if not text or "\0" in text:
        raise ConfigurationError(f"expected a path, not {text!r}", where=location)
    path = Path(os.path.realpath(root / text))
    if not path.is_relative_to(root):
        raise UnsafePath(
            f"{text!r} leads out of the project ({path})",
            where=location,
            hint=f"put the file below {root}",
        )
    if path.suffix != ".py":
        raise ConfigurationError(
            f"{text!r} is not a Python file", where=location, hint="a hook file's name ends in .py"
        )
    return path


def _load(path: Path, root: Path, fingerprints: Mapping[Path, str]) -> ModuleType:
    file = str(path)
    name = MODULE_PREFIX + hashlib.sha256(os.fsencode(file)).hexdigest()[:16]
    spec = ModuleSpec(name, None, origin=file)
    module = module_from_spec(spec)
    module.__file__ = file
    source = _read_source(path)
    if fingerprints:
        _ensure_same(file, fingerprints.get(path), source)
    try:
        # dont_inherit: this module's own __future__ imports are not the hook file's.
        code: CodeType = compile(source, file, "exec", dont_inherit=True)
        with _allow_imports(root, fingerprints):
            # Dataclasses and pickles look their module up by its name.
            sys.modules[name] = module
            exec(code, vars(module))  # noqa: S102 - hook files are made to be run
    except (KeyboardInterrupt, NotTrusted):
        sys.modules.pop(name, None)
        raise
    except BaseException as error:
        sys.modules.pop(name, None)
        line = find_line(file, error)
        raise ConfigurationError(
            f"the hook file can't be loaded: {summary(error)}",
            where=f"{file}:{line}" if line else file,
            hint="fix it, or remove it from hooks in orchestration.yaml",
        ) from error
    return module


@contextmanager
def _allow_imports(root: Path, fingerprints: Mapping[Path, str]) -> Iterator[None]:
    """Let modules in *root* be imported; other top-level modules go first."""
    first_finder = _Modules(root, fingerprints, is_last=False)
    last_finder = _Modules(root, fingerprints, is_last=True)
    sys.meta_path[:] = [first_finder, *sys.meta_path, last_finder]
    try:
        yield
    finally:
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if finder not in (first_finder, last_finder)
        ]


class _Modules(MetaPathFinder):
    """Finds the project's modules, and only as trusted source.

    Byte code next to a module, or a compiled library of the same name, would run although no one
    saw it. So would a file named like a module that an installed package tries to import.
    """

    def __init__(self, root: Path, trusted: Mapping[Path, str], *, is_last: bool) -> None:
        """Find modules in *root* itself if this is the last finder, else modules in its packages.

        *trusted* has the fingerprints; if it is empty, all code of the project may run.
        """
        self._root = root
        self._trusted = trusted
        self._is_last = is_last
        # A virtual environment may be in the project: its packages are not the project's modules.
        folders = [Path(entry) for entry in sys.path if entry]
        self._installed = [folder for folder in folders if root in folder.parents]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the project; None: this finder does not have it.

        The module loads only if its file was trusted, see `_TrustedSource`.
        """
        if (path is None) != self._is_last:
            return None
        for folder in [self._root] if path is None else map(Path, path):
            if not folder.is_relative_to(self._root):
                continue
            if any(folder.is_relative_to(package_folder) for package_folder in self._installed):
                continue
            loader = partial(_TrustedSource, self._trusted)
            finder = FileFinder(str(folder), (loader, [".py"]))  # type: ignore[arg-type]
            spec = finder.find_spec(fullname, target)
            if spec is not None:
                return spec
        return None


class _TrustedSource(SourceFileLoader):
    """Loads a module from its source and writes no byte code."""

    def __init__(self, trusted: Mapping[Path, str], fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._trusted = trusted

    def get_code(self, fullname: str) -> CodeType:
        """Return the code compiled from the source; byte code is not read.

        Raises:
            ImportError: the file was not trusted.
            NotTrusted: its content has changed since then.
        """
        file = self.get_filename(fullname)
        source = self.get_data(file)
        if self._trusted:
            real_path = Path(os.path.realpath(file))
            # A link that leads out of the project is trusted by the link's path.
            fingerprint = self._trusted.get(real_path, self._trusted.get(Path(file)))
            if fingerprint is None:
                raise ImportError(
                    f"{file} is not among the files that were trusted with the hooks; name it "
                    "in an import statement of a hook file",
                    name=fullname,
                    path=file,
                )
            _ensure_same(file, fingerprint, source)
        code: CodeType = compile(source, file, "exec", dont_inherit=True)
        return code


def _ensure_same(file: str, fingerprint: str | None, source: bytes) -> None:
    """Check that the *source* of *file* has the trusted *fingerprint*.

    A file that is too large has no digest and passes.

    Raises:
        NotTrusted: the source differs, or was not trusted.
    """
    digest = compute_digest(source)
    line = f"hooks, file {file}: "
    if fingerprint is None:
        raise NotTrusted(file, (), (f"+ {line}{digest}",))
    if fingerprint.startswith("sha256 ") and fingerprint != digest:
        raise NotTrusted(file, (), (f"- {line}{fingerprint}", f"+ {line}{digest}"))


def _read_source(path: Path) -> bytes:
    try:
        # Links were resolved when the path was checked, so a link here is a change.
        return read_bytes(path, MAX_BYTES, os.O_NOFOLLOW)
    except ConfigurationError as error:
        raise UnsafePath(
            f"the hook file {error.message}",
            where=error.where,
            hint="hooks in orchestration.yaml are files, relative to its folder",
        ) from error
