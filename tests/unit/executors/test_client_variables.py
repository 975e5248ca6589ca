"""Which variables of a person's environment reach a client."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.executors.claude import ClaudeExecutor, ClaudeOptions
from sequencer.executors.claude_providers import SWITCHES
from sequencer.executors.client import ClientExecutor
from sequencer.executors.codex import CodexExecutor, CodexOptions
from sequencer.executors.gemini import GeminiExecutor, GeminiOptions
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.opencode import OpencodeExecutor, OpencodeOptions
from sequencer.executors.process import ProcessCore

CLOUDS = {
    "AWS_PROFILE": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_BEARER_TOKEN_BEDROCK": "c",
    "ANTHROPIC_BEDROCK_BASE_URL": "d",
    "CLOUD_ML_REGION": "e",
    "ANTHROPIC_VERTEX_PROJECT_ID": "f",
    "VERTEX_REGION_CLAUDE_4_5_SONNET": "g",
    "GOOGLE_APPLICATION_CREDENTIALS": "h",
    "ANTHROPIC_FOUNDRY_RESOURCE": "i",
    "ANTHROPIC_FOUNDRY_API_KEY": "j",
    "AZURE_CLIENT_SECRET": "k",
}
OF = {"CLAUDE_CODE_USE_BEDROCK": "abcd", "CLAUDE_CODE_USE_VERTEX": "efgh",
      "CLAUDE_CODE_USE_FOUNDRY": "ijk"}  # fmt: skip


def claude(**entry: Any) -> ClaudeExecutor:
    return ClaudeExecutor("claude", ClaudeOptions.model_validate(entry), ProcessCore())


def given(executor: ClientExecutor[Any], names: set[str]) -> set[str]:
    return names & executor.environment().keys()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in CLOUDS.items():
        monkeypatch.setenv(name, value)
    for switch in SWITCHES:
        monkeypatch.delenv(switch, raising=False)
    return monkeypatch


@pytest.mark.parametrize("switch", OF)
@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_a_switch_passes_its_own_providers_variables(
    exported: pytest.MonkeyPatch, switch: str, value: str
) -> None:
    assert given(claude(), {*CLOUDS}) == set()
    exported.setenv(switch, value)
    expected = {name for name, letter in CLOUDS.items() if letter in OF[switch]}
    assert given(claude(), {*CLOUDS, *OF}) == {*expected, switch}


@pytest.mark.parametrize("value", ["", "0", "false", "no", "off", "False"])
def test_a_switch_that_is_off_passes_nothing_but_itself(
    exported: pytest.MonkeyPatch, value: str
) -> None:
    exported.setenv("CLAUDE_CODE_USE_BEDROCK", value)
    assert given(claude(), {*CLOUDS, *OF}) == {"CLAUDE_CODE_USE_BEDROCK"}


def test_a_switch_set_by_an_entry_passes_nothing(
    exported: pytest.MonkeyPatch,
) -> None:
    del exported
    assert given(claude(env={"CLAUDE_CODE_USE_BEDROCK": "1"}), {*CLOUDS}) == set()


PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"}
CERTIFICATES = {"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
CERTIFICATES |= {"AWS_CA_BUNDLE"}


@pytest.mark.parametrize(
    "executor",
    [
        ClaudeExecutor("c", ClaudeOptions(), ProcessCore()),
        CodexExecutor("c", CodexOptions(), ProcessCore()),
        GeminiExecutor("c", GeminiOptions(), ProcessCore()),
        OpencodeExecutor("c", OpencodeOptions(), ProcessCore()),
    ],
    ids=lambda made: str(made.kind),
)
def test_proxies_and_certificates_always_pass(
    executor: ClientExecutor[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {*PROXIES, *map(str.lower, PROXIES), *CERTIFICATES}
    for name in names:
        monkeypatch.setenv(name, "x")
    assert given(executor, names) == names


def test_withheld_variables_look_like_a_providers_and_are_not_passed() -> None:
    environ = {
        "ANTHROPIC_API_KEY": "passes",
        "ANTHROPIC_CUSTOM_HEADERS": "x",
        "GROQ_API_KEY": "x",
        "OPENAI_BASE_URL": "x",
        "HOME": "/",
        "MY_SECRET": "x",
        **CLOUDS,
        "CLAUDE_CODE_USE_VERTEX": "1",
    }
    executor = claude(env={"OPENAI_BASE_URL": "y"}, pass_env=["GROQ_API_KEY"])
    assert executor.withheld_variables(environ) == [
        *("ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS"),
        *("ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_RESOURCE"),
        *("AWS_BEARER_TOKEN_BEDROCK", "AWS_PROFILE", "AWS_SECRET_ACCESS_KEY"),
        "AZURE_CLIENT_SECRET",
    ]


def test_keys_of_providers_only_codex_configures_are_withheld() -> None:
    codex = CodexExecutor("codex", CodexOptions(), ProcessCore())
    environ = {"OPENAI_API_KEY": "passes", "AZURE_OPENAI_API_KEY": "x", "MISTRAL_API_KEY": "x"}
    assert codex.withheld_variables(environ) == ["AZURE_OPENAI_API_KEY", "MISTRAL_API_KEY"]


def test_nothing_is_withheld_where_no_client_is_started() -> None:
    executor = MessagesExecutor("api", MessagesOptions(model="m"), ProcessCore())
    assert executor.withheld_variables({"ANTHROPIC_BASE_URL": "x", "OPENAI_API_KEY": "x"}) == []
