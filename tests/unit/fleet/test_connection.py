"""What the client library says of a server that can't be reached comes to people in our words."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from sequencer.errors import ConfigurationError
from sequencer.plugins.temporal.connection import Connection, FleetOptions, make_unreachable_error

TRANSPORT = "Failed client connect: Server connection error: tonic::transport::Error(Transport, {})"
REFUSED = (
    'ConnectError(ConnectError("tcp connect error", 127.0.0.1:1, Os { code: 111, kind: '
    'ConnectionRefused, message: "Connection refused" }))'
)
UNKNOWN = (
    'ConnectError(ConnectError("dns error", Custom { kind: Uncategorized, error: '
    '"failed to lookup address information: Name or service not known" }))'
)
UNTRUSTED = "ConnectError(Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) })"
NO_TLS = "ConnectError(Custom { kind: InvalidData, error: InvalidMessage(InvalidContentType) })"
OPTIONS = FleetOptions("p", address="there:7233", namespace="shop")


def rpc(text: str, status: RPCStatusCode) -> RPCError:
    return RPCError(text, status, b"")


@pytest.mark.parametrize(
    ("error", "words", "hint"),
    [
        (RuntimeError(TRANSPORT.format(REFUSED)), "connection refused", "sequencer worker --trial"),
        (RuntimeError(TRANSPORT.format(UNKNOWN)), "no machine has this name", "store.address"),
        (RuntimeError(TRANSPORT.format(UNTRUSTED)), "not trusted", "store.tls.ca"),
        (RuntimeError(TRANSPORT.format(NO_TLS)), "does not speak TLS", "store.tls"),
        (RuntimeError(TRANSPORT.format("Odd(1)")), "does not answer", "store.address"),
        (rpc("tcp connect error", RPCStatusCode.UNAVAILABLE), "does not answer", "worker --trial"),
        (rpc("Timeout expired", RPCStatusCode.CANCELLED), "in time", "worker --trial"),
        (WorkflowUpdateRPCTimeoutOrCancelledError(), "in time", "worker --trial"),
        (rpc("x", RPCStatusCode.PERMISSION_DENIED), "does not let anyone in", "store.api_key_env"),
        (
            rpc("Namespace shop is not found.", RPCStatusCode.NOT_FOUND),
            "no namespace 'shop'",
            "store.namespace",
        ),
        (rpc("too many pollers", RPCStatusCode.RESOURCE_EXHAUSTED), ": too many pollers", ""),
    ],
)
def test_the_reason_a_server_is_unreachable_is_reported(
    error: Exception, words: str, hint: str
) -> None:
    told = make_unreachable_error(error, OPTIONS)
    assert words in told.message
    assert hint in (told.hint or "")
    assert told.where == "there:7233"
    assert "::" not in str(told)
    assert "Error(" not in str(told)


def test_a_refused_key_is_reported_as_refused() -> None:
    refused = rpc("Request unauthorized.", RPCStatusCode.UNAUTHENTICATED)
    told = make_unreachable_error(refused, FleetOptions("p", api_key="k-1"))
    assert "refuses the key" in told.message
    assert told.is_denied
    assert "k-1" not in str(told)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (FleetOptions("p", address="127.0.0.1:port"), "store.address"),
        (FleetOptions("p", tls=(("ca", "nowhere/ca.pem"),)), "store.tls.ca"),
    ],
)
def test_an_unusable_option_names_its_key(
    options: FleetOptions, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    connection = Connection(options)
    with pytest.raises(ConfigurationError) as caught:
        connection.call(connection.connect())
    assert caught.value.where == where
