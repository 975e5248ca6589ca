"""What Python loads in place of the text of an agent's module: nothing of it runs unseen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_trust import Clone

FORGE = """\
import marshal, pathlib
code = compile("X = 'forged'", "helper.py", "exec")
for path in pathlib.Path("__pycache__").glob("helper.*.pyc"):
    path.write_bytes(path.read_bytes()[:16] + marshal.dumps(code))
"""
"""Byte code with the time and the size of its text, and other content."""


@pytest.fixture
def module(tmp_path: Path) -> Clone:
    """Return a project whose agent is a module, which imports another one."""
    clone = Clone(tmp_path / "clone", tmp_path / "state", tmp_path / "canary")
    clone.folder.mkdir()
    clone.configure(
        agents=f"{{script: {{kind: command, argv: [{sys.executable}, -m, tool]}}}}",
        steps="[{name: one, text: Do it.}]",
    )
    (clone.folder / "tool.py").write_text("import helper\nprint('it is', helper.X)\n")
    (clone.folder / "helper.py").write_text("X = 'trusted'\n")
    return clone


def ran(clone: Clone, *python: str) -> str:
    """Run Python in the project as a person does, who lets it keep byte code."""
    kept = {k: v for k, v in clone.environment().items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.check_output([sys.executable, *python], cwd=clone.folder, env=kept, text=True)


def forge(clone: Clone) -> None:
    assert ran(clone, "-m", "tool") == "it is trusted\n"
    ran(clone, "-c", FORGE)
    assert ran(clone, "-m", "tool") == "it is forged\n"


@pytest.mark.parametrize("is_link", [False, True])
def test_forged_byte_code_never_runs(module: Clone, is_link: bool) -> None:
    module.trust()
    cache = module.folder / "__pycache__"
    for _ in range(2):
        forge(module)
        if is_link:
            cache.rename(module.folder / "real")
            cache.symlink_to("real")
            assert ran(module, "-m", "tool") == "it is forged\n"
        module.cli("tick")
        assert "it is trusted" in module.cli("log").stdout
        assert "it is forged" not in module.cli("log").stdout
        if is_link:
            assert len(list((module.folder / "real").iterdir())) == 2, (
                "nothing behind it is touched"
            )
            shutil.rmtree(module.folder / "real")


def test_byte_code_of_other_modules_is_not_removed(module: Clone) -> None:
    module.trust()
    (module.folder / "other.py").write_text("")
    ran(module, "-c", "import other, helper")
    module.cli("tick")
    kept = {path.name.partition(".")[0] for path in (module.folder / "__pycache__").iterdir()}
    assert "other" in kept


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("name", ["helper.so", "helper.abi3.so", "helper/__init__.pyc"])
def test_a_file_python_loads_instead_of_a_module_needs_trust(module: Clone, name: str) -> None:
    module.trust()
    module.cli("tick")
    path = module.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    assert f"+ agents.script, file {name}: " in module.cli("tick", code=2).stderr
    module.trust()
    path.write_bytes(b"y")
    assert f"+ agents.script, file {name}: " in module.cli("tick", code=2).stderr
