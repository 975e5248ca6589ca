"""A configuration as text, loaded, or what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.project.settings import Settings, load


def loaded(tmp_path: Path, text: str, **more: Any) -> Settings:
    (tmp_path / "orchestration.yaml").write_text(text, encoding="utf-8")
    return load(tmp_path, **{"env": {}, **more})


def refusals(tmp_path: Path, text: str, **more: Any) -> list[ConfigurationError]:
    with pytest.raises(ConfigurationError) as refused:
        loaded(tmp_path, text, **more)
    error = refused.value
    return list(error.errors) if isinstance(error, ConfigurationErrors) else [error]


def refusal(tmp_path: Path, text: str, **more: Any) -> ConfigurationError:
    (only,) = refusals(tmp_path, text, **more)
    return only
