"""This process's connection to a Temporal server, and clear reasons when there is none."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import threading
import uuid
from collections.abc import Coroutine
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from msgspec import Struct, field
from temporalio.client import (
    Client,
    PayloadLimitsConfig,
    RPCTimeoutOrCancelledError,
    WorkflowUpdateFailedError,
)
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from sequencer.errors import ConfigurationError, NewerSchema, RemoteUnreachable
from sequencer.files.textfile import slug
from sequencer.model.head import Owner
from sequencer.plugins.temporal.wire import EDITION, UPDATE
from sequencer.store.identity import is_proven_dead, this_process

CALL_TIMEOUT = timedelta(seconds=30)
DEFAULT_RUN = "default"
T = TypeVar("T")
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_PEM = {"ca": b"CERTIFICATE--", "cert": b"CERTIFICATE--", "key": b"PRIVATE KEY--"}
"""Text that a file of each kind must contain."""


class FleetOptions(Struct, frozen=True):
    """Where the runs of a project are; see ``store:`` in docs/reference/configuration.md."""

    project: str
    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    tls: tuple[tuple[str, str], ...] | None = None
    """Kind and path of each file of the certificate."""
    api_key: str | None = None
    ttl_s: float = 60.0
    place: str = ""
    """The machine or group of workers that makes the steps of runs started here; empty: any."""

    @property
    def prefix(self) -> str:
        """Return the prefix of the project's queues and of its runs' ids."""
        return f"seq/{self.project}"

    @property
    def queue(self) -> str:
        """Return the queue that workers here serve."""
        return self.queue_at(self.place)

    def queue_at(self, place: str) -> str:
        """Return the queue that workers of this edition at *place* serve.

        >>> FleetOptions("shop").queue_at("gpu1").startswith("seq/shop@")
        True
        """
        return f"{self.prefix}@{EDITION}{place and f'/{place}'}"

    def parse_queue(self, queue: str) -> tuple[int, str]:
        """Return the edition and the place of the workers that serve the project's *queue*.

        >>> shop = FleetOptions("shop")
        >>> shop.parse_queue("seq/shop@3"), shop.parse_queue("seq/shop@3/gpu1")
        ((3, ''), (3, 'gpu1'))
        """
        edition, _, place = queue.removeprefix(f"{self.prefix}@").partition("/")
        return (int(edition), place) if edition.isdecimal() else (0, "")

    def workflow_id(self, run: str | None) -> str:
        """Return the id of the run whose folder is called *run*; None: the default run.

        >>> FleetOptions("shop").workflow_id(None), FleetOptions("shop").workflow_id("nightly")
        ('seq/shop/default', 'seq/shop/nightly')
        """
        part = DEFAULT_RUN if run is None else run
        if run == DEFAULT_RUN:
            part = slug(f"{run}\0")
        return f"{self.prefix}/{part}"


class Inquiry(Struct):
    """A request to a run; it keeps its number until the run answers."""

    update: str
    argument: Any
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    is_unknown: bool = False
    """The first try got no answer, so the run may have accepted it already."""


def identity() -> str:
    """Return the name of this process among workers.

    The part after the ``#`` lets its own machine, and no other, prove that it is gone.
    """
    process = this_process()
    proof = (process.machine, process.boot_id, process.pid_ns, str(process.pid_start))
    return f"{process.pid}@{socket.gethostname()}#{'/'.join(proof)}"


_PROOF = re.compile(r"(\d{1,9})@([^#]*)#([^/]*)/([^/]*)/([^/]*)/(\d{1,18})")


def is_gone(who: str) -> bool:
    """Return whether the process with the `identity` *who* is provably gone from this machine."""
    match = _PROOF.fullmatch(who)
    if match is None:
        return False
    pid, host, machine, boot, namespace, start = match.groups()
    owner = Owner(
        host=host, machine=machine, boot_id=boot, pid_ns=namespace, pid=int(pid),
        pid_start=int(start), nonce="",
    )  # fmt: skip
    return is_proven_dead(owner)


class Connection:
    """This process's connection to one server: an event loop in a thread, and a client on it."""

    is_open: ClassVar[bool] = False
    """Whether this process had one: it must then exit without the interpreter's shutdown."""

    def __init__(self, options: FleetOptions) -> None:
        """Start the loop; the first call of `connect` connects."""
        self._options = options
        self._client: Client | None = None
        self._loop = asyncio.new_event_loop()
        Connection.is_open = True
        threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start *work* on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what *work* returns.

        Raises:
            RemoteUnreachable: the server does not answer, or refuses this user.
            NewerSchema: the run's worker can't read the request.
        """
        return self.wait_for_result(self.submit(work))

    def wait_for_result(self, work: Future[T]) -> T:
        """Wait for *work*, which `submit` started, and return its result.

        Raises: see `call`.
        """
        try:
            return work.result()
        except (RPCError, RPCTimeoutOrCancelledError) as error:
            raise make_unreachable_error(error, self._options) from error
        except WorkflowUpdateFailedError as error:
            # Callers handle the refusals that they expect, so this one is unexpected.
            raise NewerSchema(f"the run does not accept it: {error.cause}", hint=UPDATE) from error

    async def connect(self) -> Client:
        """Return the client, connected.

        Raises:
            ConfigurationError: an address or a file can't be used.
            RemoteUnreachable: see `call`.
        """
        if self._client is None:
            options = self._options
            _ensure_key_hidden(options)
            try:
                self._client = await Client.connect(
                    options.address,
                    namespace=options.namespace,
                    tls=_tls(options.tls),
                    api_key=options.api_key,
                    identity=identity(),
                    payload_limits=PayloadLimitsConfig(memo_warn_size=0),
                    runtime=_runtime(),
                )
            except ValueError as error:
                text = f"{options.address!r} is not the address of a server: {error}"
                raise ConfigurationError(text, where="store.address", hint="HOST:PORT") from error
            except RuntimeError as error:
                raise make_unreachable_error(error, options) from error
        return self._client


@functools.cache
def _runtime() -> Runtime:
    """Return the client library's threads, without logging: it would go to our standard output."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


def _ensure_key_hidden(options: FleetOptions) -> None:
    """Check that no one on the network can read our key.

    Raises:
        ConfigurationError: it would be sent unencrypted.
    """
    host = options.address.rpartition(":")[0].strip("[]")
    if options.api_key is None or options.tls is not None or _LOOPBACK.fullmatch(host):
        return
    raise ConfigurationError(
        "the server's key would be sent without TLS, so anyone on the network could read it",
        where="store.tls",
        hint="use 'tls: {}' if a public authority has signed the server's certificate",
    )


def _tls(files: tuple[tuple[str, str], ...] | None) -> TLSConfig | bool:
    if files is None:
        return False
    data: dict[str, bytes] = {}
    for name, path in files:
        try:
            data[name] = Path(path).read_bytes()
        except OSError as error:
            text = f"{path} can't be read: {error.strerror}"
            raise ConfigurationError(text, where=f"store.tls.{name}") from error
        if _PEM[name] not in data[name]:
            text = f"{path} has no {_PEM[name].strip(b'-').decode().lower()} in PEM form"
            raise ConfigurationError(text, where=f"store.tls.{name}")
    if ("cert" in data) != ("key" in data):
        message = "a certificate and its key belong together: cert and key"
        raise ConfigurationError(message, where="store.tls")
    return TLSConfig(
        server_root_ca_cert=data.get("ca"),
        client_cert=data.get("cert"),
        client_private_key=data.get("key"),
    )


@functools.cache
def get_connection(options: FleetOptions) -> Connection:
    """Return the connection of this process to the server of *options*."""
    return Connection(options)


# --- why it can't be reached -------------------------------------------------------


class _Cause(Struct, frozen=True):
    pattern: str
    """Found in the client library's text."""
    words: str
    hint: str


_START = "'sequencer worker --trial' starts one for a trial; store.address names another"
_TLS = "store.tls.ca names who signed its certificate; store.tls.cert and .key are yours"
_KEY = "store.api_key_env names the variable with the server's key"
_CAUSES = (
    _Cause(r"connection refused", "does not answer: connection refused", _START),
    _Cause(
        r"dns error|lookup address",
        "does not answer: no machine has this name",
        "look at store.address",
    ),
    _Cause(
        r"reset by peer|connection ?reset|broken ?pipe|unexpected.?eof",
        "ends the connection",
        "",
    ),
    _Cause(
        r"certificate",
        "shows a certificate that is not trusted, or refuses yours",
        _TLS,
    ),
    _Cause(
        r"InvalidContentType|CorruptMessage",
        "does not speak TLS",
        "leave store.tls out, or name the port that does",
    ),
    _Cause(r"\btls\b|handshake|private key|pem\b", "can't be reached over TLS", _TLS),
    _Cause(
        r"unreachable|no route",
        "does not answer: there is no route to its machine",
        "look at store.address, and at this machine's network",
    ),
    _Cause(r"tcp connect error|transport error", "does not answer", _START),
    _Cause(r"timed? ?out|deadline|timeout", "does not answer in time", _START),
    _Cause(
        r"closed|h2 protocol|http2|frame",
        "ends the connection",
        "",
    ),
)
_AWAY = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    # A connection that broke.
    RPCStatusCode.UNKNOWN,
    RPCStatusCode.INTERNAL,
)
_DENIED = (RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.PERMISSION_DENIED)


def make_unreachable_error(error: Exception, options: FleetOptions) -> RemoteUnreachable:
    """Return the client library's *error* in plain words, with a hint."""
    text, where = str(error), options.address
    if is_without_namespace(error):
        message = f"the Temporal server has no namespace {options.namespace!r}"
        return RemoteUnreachable(message, where=where, hint="look at store.namespace")
    is_denied = isinstance(error, RPCError) and error.status in _DENIED
    if is_denied:
        key = "refuses the key" if options.api_key else "does not let anyone in without a key"
        message = f"the Temporal server {key}"
        return RemoteUnreachable(message, where=where, hint=_KEY, is_denied=True)
    for cause in _CAUSES:
        if re.search(cause.pattern, text, re.IGNORECASE):
            message = f"the Temporal server {cause.words}"
            return RemoteUnreachable(
                message, where=where, hint=cause.hint or _guess_reason(options)
            )
    # What the server itself says is for people; what the transport says is not.
    reason = f": {text[:300]}" if isinstance(error, RPCError) and "::" not in text else ""
    message = f"the Temporal server does not answer{reason}"
    return RemoteUnreachable(message, where=where, hint=_START)


def is_away(error: Exception) -> bool:
    """Return whether the server may answer later, as opposed to refusing."""
    return not isinstance(error, RPCError) or error.status in _AWAY


def _guess_reason(options: FleetOptions) -> str:
    """Return the likely reason why a server closes connections without a message."""
    if options.tls is None:
        return "it may ask for TLS: see store.tls"
    if any(name == "cert" for name, _ in options.tls):
        return "it may not accept your certificate: see store.tls.cert"
    return "it may ask for your certificate: see store.tls.cert and store.tls.key"


def is_without_namespace(error: Exception) -> bool:
    """Return whether the server does not know our namespace, as opposed to the run."""
    is_unknown = isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND
    return is_unknown and "namespace" in str(error).lower()
