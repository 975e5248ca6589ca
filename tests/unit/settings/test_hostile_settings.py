"""Whatever stands in the file or in a variable: settings, or a refusal that names its place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.files.keys import annotation_at, is_mapping, iter_leaves
from sequencer.files.textfile import locate
from sequencer.model.sequence.order import describe
from sequencer.project.legacy import tables
from sequencer.project.schema import Schema
from sequencer.project.settings import Settings, load
from sequencer.project.sources import to_program_path, variable_name
from tests.property.amounts import FACTOR, RULES, in_memory

AMOUNT = RULES * int(os.environ.get(FACTOR, "1"))
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

odd_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "standard", "review_cadence", "claude", "auto", "../x", "/etc", "a.md", "inf", "nan"]
    ),
    st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8),
)
odd_keys = st.sampled_from(
    sorted(
        set(Schema.model_fields)
        | {str(path[-1]) for path, _ in iter_leaves(Schema)}
        | {"steps", "review", "every", "step", "kind", "argv", "nonsense", "name", "executor"}
    )
)
odd_values = st.recursive(
    odd_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(odd_keys, inner, max_size=4)
    ),
    max_leaves=12,
)
old_keys = sorted(tables().ignored_keys.union(tables().flat_keys))
top_keys = st.sampled_from([*Schema.model_fields, *old_keys, "rooter"])


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with in_memory() as made:
        yield made


def loaded(
    folder: Path, data: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> Settings | list[ConfigurationError]:
    text = yaml.dump(dict(data), Dumper=_Dumper, allow_unicode=True)
    (folder / "orchestration.yaml").write_text(text, encoding="utf-8")
    try:
        return load(folder, env=env or {})
    except ConfigurationErrors as refused:
        return list(refused.errors)
    except ConfigurationError as refused:
        return [refused]


@pytest.mark.slow
@settings(max_examples=AMOUNT)
@given(data=st.dictionaries(top_keys, odd_values, max_size=4))
def test_any_values_give_settings_or_errors_with_places(folder: Path, data: dict[str, Any]) -> None:
    found = loaded(folder, data)
    if isinstance(found, list):
        for error in found:
            assert str(error.where).startswith(str(folder / "orchestration.yaml"))
            assert len(str(error)) < 2_000
        return
    assert describe(found.default_workflow(), 10**6).iteration == 10**6 + 1
    assert all(path.is_absolute() for path in (found.prompts_dir, found.logs_dir))
    assert locate(folder, None, {}).state_path == found.state_file
    assert [key for key, _, _ in found.rows()]


@settings(max_examples=AMOUNT // 5)
@given(
    good=st.fixed_dictionaries(
        {},
        optional={
            "limits": st.just({"max_steps": 5}),
            "agents": st.just({"tests": {"kind": "command"}}),
            "workflows": st.just({"w": {"steps": ["a", "b"]}}),
            "run": st.just({"max_steps": 3}),
        },
    ),
    bad=st.dictionaries(
        st.sampled_from(["rooter", "colour", "max_step", "Workflow"]),
        odd_values,
        min_size=1,
        max_size=4,
    ),
)
def test_each_unknown_key_is_one_problem_and_valid_keys_add_none(
    folder: Path, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    found = loaded(folder, good | bad)
    assert isinstance(found, list)
    assert sorted(error.message for error in found) == sorted(f"unknown key {key!r}" for key in bad)


scalar_paths = st.sampled_from(
    [path for path, _ in iter_leaves(Schema) if not is_mapping(annotation_at(Schema, path))]
)


@settings(max_examples=AMOUNT)
@given(
    path=scalar_paths,
    text=st.one_of(
        st.sampled_from(["1", "0", "-1", "true", "standard", "[", "{", "{a: b}", "[a, b]", "x,y"]),
        st.text(
            alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]),
            min_size=1,
            max_size=20,
        ),
    ),
)
def test_any_text_in_a_variable_is_read_or_refused_by_its_name(
    folder: Path, path: tuple[str | int, ...], text: str
) -> None:
    found = loaded(folder, {}, {variable_name(path): text})
    if isinstance(found, list):
        assert all(variable_name(path) in str(error.where) for error in found)
    else:
        assert found.sources[to_program_path(path)].name == variable_name(path)
