"""A door with a lock before a Temporal server: TLS on loopback, with certificates of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hpack

_FRAME, _HEADERS, _CONTINUATION = 9, 1, 9
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Seen = Callable[[bytes], None]
_PADDED, _PRIORITY, _END = 0x8, 0x20, 0x4


class Authority:
    """Somebody who signs certificates; all that it makes is in *folder*."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.ca = folder, folder / "ca.pem"
        _openssl(
            *f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "
            f"{folder / 'ca.key'} -out {self.ca} -days 2 -subj /CN=authority".split()
        )

    def sign(self, name: str, *more: str) -> Path:
        """Return the certificate of *name* on this machine; its key is beside it."""
        made = self.folder / f"{name}.pem"
        key, request, san = (made.with_suffix(end) for end in (".key", ".csr", ".san"))
        san.write_text("subjectAltName=IP:127.0.0.1\n")
        curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1"
        _openssl(*f"req {curve} -nodes -keyout {key} -out {request} -subj /CN={name}".split())
        signed = f"x509 -req -in {request} -CA {self.ca} -CAkey {self.folder / 'ca.key'}"
        signed += f" -CAcreateserial -out {made} -extfile {san}"
        _openssl(*signed.split(), *(more or ("-days", "2")))
        return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


def locked(certificate: Path, clients: Path | None = None) -> ssl.SSLContext:
    """Return a lock that shows *certificate*, and asks for one that *clients* have signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsProxy:
    """Takes TLS in and gives what is in it to a server; what was asked stands in `authorized`."""

    def __init__(self, server: str, context: ssl.SSLContext) -> None:
        self._host, _, self._port = server.rpartition(":")
        self._context = context
        context.set_alpn_protocols(["h2"])
        self.address = ""
        self.authorized: set[str | None] = set()
        """The headers of that name, of all calls; None: a call had none."""
        self._loop = asyncio.new_event_loop()

    @contextlib.contextmanager
    def opened(self) -> Iterator[TlsProxy]:
        """Let it be open while the block lasts."""
        self._loop.set_exception_handler(lambda *_: None)
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(
            self._pass, "127.0.0.1", 0, ssl=self._context, ssl_handshake_timeout=5
        )
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _shut(self) -> None:
        self._server.close()
        others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection(self._host, int(self._port))
        calls = _Calls(self.authorized)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, out, calls.read))
                both.create_task(_pump(there, writer, lambda _: None))
        except* (OSError, ssl.SSLError):
            pass
        finally:
            for one in (writer, out):
                one.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> None:
    while data := await reader.read(65_536):
        seen(data)
        writer.write(data)
        await writer.drain()
    writer.close()


class _Calls:
    """Reads the headers of calls out of one side of an HTTP/2 connection."""

    def __init__(self, authorized: set[str | None]) -> None:
        self._authorized, self._left = authorized, b""
        self._decoder, self._block, self._is_new = hpack.Decoder(), b"", True

    def read(self, data: bytes) -> None:
        self._left += data
        if self._is_new and len(self._left) >= len(_PREFACE):
            self._left, self._is_new = self._left.removeprefix(_PREFACE), False
        while not self._is_new and len(self._left) >= _FRAME:
            size = int.from_bytes(self._left[:3], "big")
            if len(self._left) < _FRAME + size:
                return
            kind, flags = self._left[3], self._left[4]
            frame, self._left = self._left[_FRAME : _FRAME + size], self._left[_FRAME + size :]
            if kind in (_HEADERS, _CONTINUATION):
                self._headers(frame, flags, kind)

    def _headers(self, frame: bytes, flags: int, kind: int) -> None:
        if kind == _HEADERS:
            padding = frame[0] if flags & _PADDED else 0
            begin = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
            frame = frame[begin : len(frame) - padding]
        self._block += frame
        if flags & _END:
            headers = {str(name): str(value) for name, value in self._decoder.decode(self._block)}
            self._block = b""
            self._authorized.add(headers.get("authorization"))
