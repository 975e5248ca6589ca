"""A server behind TLS: who it is, who we are, and the key that no one else may see."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("hpack")

from tests.fleet.fleet_projects import CYCLE, FleetProject
from tests.fleet.tls_proxy import Authority, TlsProxy, locked

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the program openssl is missing"),
]
KEY = "canary-key-77c1e0a94b"
Make = Callable[..., FleetProject]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def there(tmp_path: Path) -> Make:
    """Return what makes a project whose server is at an address, with these lines more."""

    def make(address: str, *more: str) -> FleetProject:
        lines = [f'kind: temporal, address: "{address}", project: {tmp_path.name}, ttl_s: 3', *more]
        return FleetProject(tmp_path / "here", CYCLE, f"store: {{{', '.join(lines)}}}")

    return make


@pytest.fixture
def door(address: str, authority: Authority) -> Iterator[TlsProxy]:
    """Return a door that asks for a certificate of ours."""
    with TlsProxy(address, locked(authority.sign("server"), authority.ca)).opened() as door:
        yield door


def test_client_and_server_identify_themselves(
    there: Make, authority: Authority, door: TlsProxy
) -> None:
    mine = authority.sign("mine")
    here = there(
        door.address, f"tls: {{ca: {authority.ca}, cert: {mine}, key: {mine.with_suffix('.key')}}}"
    )
    with here.worker():
        ended = here.cli("run", "--max-steps", "3")
        assert ended.returncode == 0, ended.stderr
    assert here.facts("status")["step_index"] == 3
    assert door.authorized == {None}


def test_a_rejected_client_gets_the_reason(
    there: Make, authority: Authority, door: TlsProxy
) -> None:
    tls = f"tls: {{ca: {authority.ca}}}"
    ended = there(door.address, tls).cli("status")
    assert ended.returncode == 3, ended.stderr
    assert "ends the connection" in ended.stderr or "refuses yours" in ended.stderr
    assert "see store.tls.cert and store.tls.key" in ended.stderr


@pytest.mark.parametrize("what", ["another authority", "expired", "another machine's"])
def test_an_impostor_server_gets_no_requests(
    there: Make, authority: Authority, address: str, tmp_path: Path, what: str
) -> None:
    ca, shown = authority.ca, authority.sign("server")
    if what == "another authority":
        ca = Authority(tmp_path / "other").ca
    elif what == "expired":
        shown = authority.sign("old", "-days", "-1")
    with TlsProxy(address, locked(shown)).opened() as door:
        where = door.address
        if what == "another machine's":
            where = where.replace("127.0.0.1", "localhost")
        ended = there(where, f"tls: {{ca: {ca}}}", "api_key_env: SEQ_KEY").cli("status")
        assert ended.returncode == 3, ended.stderr
        assert "shows a certificate that is not trusted" in ended.stderr
        assert door.authorized == set()


def test_a_server_without_tls_is_distinguished_from_one_with_it(
    there: Make, authority: Authority, address: str, tmp_path: Path
) -> None:
    ended = there(address, f"tls: {{ca: {authority.ca}}}").cli("status")
    assert ended.returncode == 3
    assert "does not speak TLS" in ended.stderr
    with TlsProxy(address, locked(authority.sign("server"))).opened() as door:
        (tmp_path / "here").rename(tmp_path / "before")
        ended = there(door.address).cli("status")
        assert ended.returncode == 3
        assert "ask for TLS: see store.tls" in ended.stderr


def test_files_that_are_not_certificates_are_named(there: Make, address: str) -> None:
    for files, told in (
        ("{ca: /nowhere.pem}", "/nowhere.pem can't be read: No such file"),
        ("{ca: agent.py}", "agent.py has no certificate in PEM form"),
    ):
        here = there(address, f"tls: {files}")
        ended = here.cli("status")
        assert ended.returncode in (2, 3), ended.stderr
        assert told in ended.stderr
        shutil.rmtree(here.folder)


def test_the_key_reaches_only_the_server(
    there: Make, authority: Authority, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SERVER", KEY)
    with TlsProxy(address, locked(authority.sign("server"))).opened() as door:
        here = there(door.address, f"tls: {{ca: {authority.ca}}}", "api_key_env: OUR_SERVER")
        agent = here.folder / "agent.py"
        agent.write_text(agent.read_text() + 'print("seen", os.environ.get("OUR_SERVER"))\n')
        said = ""
        with here.worker() as worker:
            for words in ("run --max-steps 3", "status --json", "history --json", "log", "check"):
                ended = here.cli(*words.split())
                assert ended.returncode == 0, ended.stderr
                said += ended.stdout + ended.stderr
            worker.terminate()
            said += worker.communicate(timeout=30)[0]
        assert door.authorized == {f"Bearer {KEY}"}
    assert KEY not in said
    kept = [path for path in here.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if KEY.encode() in path.read_bytes()]


def test_a_key_is_not_sent_without_tls(there: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_SERVER", KEY)
    here = there("temporal.example.net:7233", "api_key_env: OUR_SERVER")
    ended = here.cli("status")
    assert ended.returncode == 2, ended.stderr
    assert "store.tls" in ended.stderr
    assert KEY not in ended.stderr
