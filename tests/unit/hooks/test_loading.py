"""Hook files are found inside the project only, loaded without a trace, or refused in words."""

from __future__ import annotations

import marshal
import os
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError, NotTrusted, UnsafePath
from sequencer.hooks.loading import MAX_BYTES, MODULE_PREFIX
from sequencer.project.project import load_hooks
from sequencer.project.settings import load
from sequencer.project.trust import list_owned_files
from tests.unit.hooks.hook_files import HEADING, write

PROMPT = """
@hookimpl
def sequencer_prompt(context, text):
    return text + "!"
"""


def refused(project: Path, *names: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as found:
        load_hooks(names, project)
    return found.value


def test_pluggy_is_not_imported_without_hooks(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, sequencer, sequencer.project.project as project\n"
        "project.load_hooks((), pathlib.Path('.'))\n"
        "assert 'pluggy' not in sys.modules, 'pluggy'\n"
        "sequencer.hookimpl\n"
        "assert 'pluggy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize("name", ["../own.py", "/etc/own.py", "link.py", "folder/own.py"])
def test_a_path_outside_the_project_is_refused(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    write(tmp_path, PROMPT, "own.py")
    (project / "link.py").symlink_to("../own.py")
    (project / "folder").symlink_to("..")
    error = refused(project, name)
    assert isinstance(error, UnsafePath)
    assert error.where == "hooks[0]"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope.py", "No such file"),
        ("hooks.txt", "is not a Python file"),
        ("", "expected a path"),
        ("a\0.py", "expected a path"),
        ("folder.py", "not a regular file"),
        ("fifo.py", "not a regular file"),
        ("large.py", "more than 1048576 bytes"),
    ],
)
def test_anything_but_a_hook_file_is_refused_at_once(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "large.py").write_bytes(b"#" * (MAX_BYTES + 1))
    assert said in str(refused(tmp_path, name))


@pytest.mark.parametrize("again", ["hooks.py", "./hooks.py", "link.py", "sub/../hooks.py"])
def test_a_file_listed_twice_is_refused(tmp_path: Path, again: str) -> None:
    write(tmp_path, PROMPT)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link.py").symlink_to("hooks.py")
    error = refused(tmp_path, "hooks.py", again)
    assert "same file as 'hooks.py'" in str(error)
    assert error.where == "hooks[1]"


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("def f(:\n", 4, "SyntaxError"),
        ("\nimport nothing_of_this_name\n", 5, "ModuleNotFoundError"),
        ("raise SystemExit(3)\n", 4, "SystemExit: 3"),
        ("\n\ndef f():\n    return 1 / 0\nf()\n", 7, "ZeroDivisionError"),
        ("class E(Exception):\n    def __str__(self): return 1\nraise E\n", 6, "E: <exception str"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_named_with_its_line(
    tmp_path: Path, source: str, line: int, said: str
) -> None:
    error = refused(tmp_path, write(tmp_path, source))
    assert error.where == f"{tmp_path / 'hooks.py'}:{line}"
    assert said in error.message
    assert "\n" not in error.message
    assert error.hint == "fix it, or remove it from hooks in orchestration.yaml"
    left = [m for name, m in sys.modules.items() if name.startswith(MODULE_PREFIX)]
    assert not [module for module in left if module.__file__ == str(tmp_path / "hooks.py")]


def test_a_keyboard_interrupt_while_loading_passes_through(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_hooks([write(tmp_path, "raise KeyboardInterrupt\n")], tmp_path)
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("written", ["hooks.py", "{a: b}", "[3]", "['']", "true"])
def test_anything_but_a_list_of_files_is_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "orchestration.yaml").write_text(f"hooks: {written}\n")
    with pytest.raises(ConfigurationError, match=r"orchestration\.yaml:1:.*hooks"):
        load(tmp_path, env={})


# --- installed packages -------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which packages can be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, package: str, source: str, **entries: str) -> None:
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(HEADING + source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    listed = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[sequencer.hooks]\n{listed}")


@pytest.mark.parametrize(
    ("source", "value", "said"),
    [
        ("raise ValueError('broken\\nin two')", "hooks_four", "ValueError: broken in two"),
        ("import sys; sys.exit(2)", "hooks_four", "SystemExit: 2"),
        ("x = 1", "hooks_four:y", "AttributeError"),
        ("x = 1", "hooks_nowhere", "ModuleNotFoundError"),
        ("class C: pass", "hooks_four:C", "not a class"),
        ("x = 1", "hooks_four", "it has no hooks"),
        (PROMPT.replace("_prompt", "_promt"), "hooks_four", "unknown hook 'sequencer_promt'"),
    ],
)
def test_a_package_that_is_broken_is_named(
    site: Path, tmp_path: Path, source: str, value: str, said: str
) -> None:
    install(site, "hooks-four", source, own=value)
    sys.modules.pop("hooks_four", None)
    error = refused(tmp_path)
    assert said in str(error)
    assert "hooks-four" in str(error) or "hooks_four.py:5" in str(error)


def test_one_object_under_two_names_is_refused(site: Path, tmp_path: Path) -> None:
    sys.modules.pop("hooks_five", None)
    install(site, "hooks-five", PROMPT, a="hooks_five", b="hooks_five")
    assert "already registered" in str(refused(tmp_path))


def test_a_file_changed_since_it_was_trusted_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "hooks.py"
    path.write_text("import pathlib\npathlib.Path(__file__).with_name('canary').touch()\n")
    with pytest.raises(NotTrusted, match=r"hooks\.py"):
        load_hooks(["hooks.py"], tmp_path, {path.resolve(): "sha256 0"})
    assert not (tmp_path / "canary").exists()


def test_an_untrusted_hook_file_is_not_run_even_if_others_are_trusted(tmp_path: Path) -> None:
    write(tmp_path, PROMPT, "other.py")
    with pytest.raises(NotTrusted, match=r"other\.py"):
        load_hooks(["other.py"], tmp_path, {tmp_path / "hooks.py": "sha256 0"})


def _canary_as(text: str, module: Path) -> None:
    """Write *text* as *module*, and byte code that claims to be of it and does another thing."""
    module.parent.mkdir(exist_ok=True)
    module.write_text(text)
    at = module.stat()
    module.write_text(f"CAN = 1\nopen({str(module.parent / 'canary')!r}, 'w')\n")
    py_compile.compile(str(module), doraise=True)
    cached = next((module.parent / "__pycache__").iterdir())
    # The header of byte code has the time and the size of its source.
    head = cached.read_bytes()[:8] + int(at.st_mtime).to_bytes(4, "little")
    head += at.st_size.to_bytes(4, "little")
    cached.write_bytes(head + cached.read_bytes()[16:])
    module.write_text(text)
    os.utime(module, ns=(at.st_atime_ns, at.st_mtime_ns))


@pytest.mark.parametrize("module", ["hooks_helper", "hooks_pack.below"])
def test_byte_code_beside_a_module_that_a_hook_imports_never_runs(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{module.replace('.', '/')}.py"
    _canary_as("CAN = 2\n", path)
    if "." in module:
        (path.parent / "__init__.py").touch()
    write(tmp_path, f"import {module}\nassert {module}.CAN == 2\n{PROMPT}", "hooks.py")
    for name in (module, module.partition(".")[0]):
        monkeypatch.delitem(sys.modules, name, raising=False)
    load_hooks(["hooks.py"], tmp_path)
    assert not (path.parent / "canary").exists()


def test_a_module_a_hook_imports_is_verified_when_it_is_read(tmp_path: Path) -> None:
    module = tmp_path / "hooks_changed.py"
    module.write_text("import pathlib\npathlib.Path(__file__).with_name('canary').touch()\n")
    hooks = tmp_path / "hooks.py"
    hooks.write_text("import hooks_changed\n")
    known = f"sha256 {sha256(hooks.read_bytes()).hexdigest()}"
    with pytest.raises(NotTrusted, match=r"hooks_changed\.py"):
        load_hooks(["hooks.py"], tmp_path, {hooks.resolve(): known, module.resolve(): "sha256 0"})
    assert not (tmp_path / "canary").exists()


def planted(tmp_path: Path, module: str, imports: str = "import helper") -> dict[Path, str]:
    """Write a hook file that *imports*, its *module*, and a canary of the same looks as byte code.

    Return what was trusted: the hook file and helper.py.
    """
    (tmp_path / "hooks.py").write_text(f"{HEADING}{imports}\n{PROMPT}")
    honest = tmp_path / "helper.py"
    honest.write_text("VALUE = 1\n")
    code = f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'canary').touch()\n"
    source = tmp_path / f"{module}.py"
    if not source.exists():
        source.write_text(code)
    compiled = compile(code, str(source), "exec")
    facts = source.stat()
    target = Path(cache_from_source(str(source)))
    target.parent.mkdir(exist_ok=True)
    header = MAGIC_NUMBER + b"\0" * 4
    header += int(facts.st_mtime).to_bytes(4, "little") + facts.st_size.to_bytes(4, "little")
    target.write_bytes(header + marshal.dumps(compiled))
    paths = (tmp_path / "hooks.py", honest)
    return {one.resolve(): f"sha256 {sha256(one.read_bytes()).hexdigest()}" for one in paths}


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    yield
    for name in ("helper", "other"):
        sys.modules.pop(name, None)


def test_byte_code_in_the_project_is_not_run_in_place_of_the_source(tmp_path: Path) -> None:
    trusted = planted(tmp_path, "helper")
    load_hooks(["hooks.py"], tmp_path, trusted)
    assert not (tmp_path / "canary").exists()
    assert sys.modules["helper"].VALUE == 1


def test_a_compiled_library_does_not_take_the_place_of_a_module(tmp_path: Path) -> None:
    trusted = planted(tmp_path, "helper")
    (tmp_path / f"helper{EXTENSION_SUFFIXES[0]}").write_bytes(b"no library")
    load_hooks(["hooks.py"], tmp_path, trusted)
    assert sys.modules["helper"].VALUE == 1


def test_an_untrusted_module_is_not_imported(tmp_path: Path) -> None:
    """Even if no import statement names it: an installed package may look for it."""
    trusted = planted(tmp_path, "other", "import importlib\nimportlib.import_module('other')")
    with pytest.raises(ConfigurationError, match="not among the files that were trusted"):
        load_hooks(["hooks.py"], tmp_path, trusted)
    assert not (tmp_path / "canary").exists()


def test_a_module_that_changed_since_it_was_trusted_is_not_imported(tmp_path: Path) -> None:
    trusted = planted(tmp_path, "helper")
    (tmp_path / "helper.py").write_text("VALUE = 2\n")
    with pytest.raises(NotTrusted, match=r"helper\.py"):
        load_hooks(["hooks.py"], tmp_path, trusted)
    assert "helper" not in sys.modules


def test_modules_of_a_package_are_trusted_wherever_it_imports_them_from(tmp_path: Path) -> None:
    package = tmp_path / "helper"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "a.py").write_text("from ..b import VALUE\n")
    (package / "b.py").write_text("VALUE = 3\n")
    (tmp_path / "hooks.py").write_text(f"{HEADING}from helper.inner.a import VALUE\n{PROMPT}")
    ((_, trusted),) = (one for one in list_owned_files({"hooks": ["hooks.py"]}, tmp_path) if one[1])
    load_hooks(["hooks.py"], tmp_path, trusted)
    assert sys.modules["helper.inner.a"].VALUE == 3
    for name in [name for name in sys.modules if name.startswith("helper.")]:
        del sys.modules[name]
