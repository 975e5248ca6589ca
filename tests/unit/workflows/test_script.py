from __future__ import annotations

from typing import Any

import pytest

from sequencer.errors import ConfigurationError, UnknownName
from sequencer.workflows.simulate import read_script
from tests.flows import graph


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"nods": {}}, "s.json: unknown key 'nods'"),
        ({"nodes": []}, "s.json: nodes: expected a mapping"),
        ({"nodes": {"a": 3}}, "s.json: nodes.a: expected a mapping"),
        ({"nodes": {"a": {"ot": 1}}}, "s.json: nodes.a: unknown key 'ot'"),
        ({"nodes": {"a": {"out": []}}}, "s.json: nodes.a.out: must have at least one"),
        ({"nodes": {"a": {"out": [{"error": 5}]}}}, r"s.json: nodes.a.out\[0\]: expected the err"),
        ({"nodes": {"a": {"ms": [3, -1]}}}, r"s.json: nodes.a.ms\[1\]: .* not -1"),
        ({"nodes": {"a": {"ms": [True]}}}, r"s.json: nodes.a.ms\[0\]: expected a whole number"),
        ({"nodes": {"a": {"ms": 10**12}}}, "s.json: nodes.a.ms"),
        ({"nodes": {"a": {"ms": []}}}, "s.json: nodes.a.ms: must have at least one"),
        ({"nodes": {"a": {"timeout": 0}}}, "s.json: nodes.a.timeout: should be greater than 0"),
        ({"nodes": {"a": {"timeout": "5"}}}, "s.json: nodes.a.timeout: expected a whole number"),
        ({"timeout": 1.5}, "s.json: timeout: expected a whole number, not 1.5"),
        ({"maxIterations": -1}, "s.json: maxIterations: should be greater than or equal to 0"),
        ({"maxIterations": True}, "s.json: maxIterations: expected a whole number"),
        ({"retry": {"maxAttempts": 0}}, "s.json: retry.maxAttempts: should be greater"),
        ({"retry": {"backoff": "slow"}}, "s.json: retry.backoff"),
        ({"retry": {"max": 1}}, "s.json: retry: unknown key 'max'"),
        ({"entry": 5}, "s.json: entry: expected text"),
        ({"onError": ""}, "s.json: onError"),
        ({1: 2}, "s.json: "),
        ([], "s.json: a script is a mapping"),
        ("x", "s.json: a script is a mapping"),
    ],
)
def test_a_wrong_field_is_named(data: Any, where: str) -> None:
    with pytest.raises(ConfigurationError, match=where):
        read_script(data, "s.json")


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_script({"entry": 5, "timeout": 0, "nodes": {"a": {"ms": "x"}}}, "s.json")
    for key in ("entry", "timeout", "nodes.a.ms"):
        assert f"s.json: {key}" in str(refused.value)


def test_an_unknown_node_is_an_error_that_lists_the_known_ones() -> None:
    script = read_script({"nodes": {"revew": {"out": "x"}}}, "s.json")
    with pytest.raises(UnknownName) as refused:
        script.check(graph("review --> publish"))
    assert "s.json: nodes.revew: unknown node 'revew'" in str(refused.value)
    assert "did you mean 'review'?" in str(refused.value)
    assert "known nodes: publish, review" in str(refused.value)


def test_a_time_limit_without_work_is_refused() -> None:
    script = read_script({"nodes": {"m": {"timeout": 5}}}, "s.json")
    with pytest.raises(ConfigurationError, match=r"nodes.m.timeout: a marker does no work"):
        script.check(graph("a --> m((M))"))
    script.check(graph("m{{M}} --> a"))
