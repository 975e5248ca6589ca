"""The doors by which somebody decides about a run, each as a program that tries it.

Run as ``python doors.py WHERE OUT DOOR...`` in a project whose run 'f' asks a question for each
door, called as the door is. OUT gets what each door said. WHERE is the folder with `tests`; the
pages' address and key are in ``web.json``, as a file that agents can read.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

PROGRAM = [sys.executable, "-m", "sequencer"]
SECONDS = 60


def command(node: str) -> str:
    ran = subprocess.run(
        [*PROGRAM, "--run", "f", "answer", node, "yes"],
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    return ran.stdout + ran.stderr


def library(node: str) -> str:
    import sequencer  # noqa: PLC0415 - as an agent's own program does

    try:
        answer = sequencer.commands.AnswerQuestion(node, "yes")
        sequencer.open_run(".", "f", trust=True).do(answer, by="a program")
    except Exception as error:  # noqa: BLE001 - it is told
        return repr(error)
    return "done"


def mcp(node: str) -> str:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    params["clientInfo"] = {"name": "x", "version": "1"}
    given = {"decision": "answer", "run": "f", "node": node, "text": "yes", "token": token(node)}
    messages = (
        {"id": 0, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/call", "params": {"name": "answer", "arguments": given}},
    )
    with subprocess.Popen(
        [*PROGRAM, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        said = ""
        for message in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
            if "id" in message:
                said = server.stdout.readline()
        server.stdin.close()
    return said


def web(node: str) -> str:
    known = json.loads(Path("web.json").read_text())
    url = f"http://127.0.0.1:{known['port']}"
    login = urllib.request.urlopen(f"{url}/login?token={known['key']}")  # noqa: S310
    headers = {"cookie": login.headers["set-cookie"].split(";")[0], "origin": url}
    page = urllib.request.urlopen(urllib.request.Request(url, headers=headers))
    (form,) = (x for x in forms(page.read().decode()) if f'value="{node}"' in x)
    fields = dict(re.findall(r'<input[^>]*name="([^"]+)"[^>]*value="([^"]*)"', form))
    address = html.unescape(re.findall(r'action="([^"]*)"', form)[0])
    data = urllib.parse.urlencode({**fields, "value": "yes"}).encode()
    try:
        asked = urllib.request.Request(url + address, data=data, headers=headers)  # noqa: S310
        return f"{urllib.request.urlopen(asked).status}"  # noqa: S310
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def forms(page: str) -> Iterator[str]:
    yield from re.findall(r"<form.*?</form>", page, re.DOTALL)


def token(node: str) -> int:
    ran = subprocess.run(
        [*PROGRAM, "inbox", "--json"], capture_output=True, text=True, check=True, timeout=SECONDS
    )
    text = ran.stdout
    found = json.loads(text) if text.startswith("[") else [json.loads(x) for x in text.splitlines()]
    return int(next(one["token"] for one in found if one.get("node") == node))


DOORS: dict[str, Callable[[str], str]] = {
    "command": command, "library": library, "mcp": mcp, "web": web
}  # fmt: skip


def main() -> None:
    where, out, *names = sys.argv[1:]
    sys.path.insert(0, where)
    said = {}
    for name in names:
        try:
            said[name] = DOORS[name](name)
        except Exception as error:  # noqa: BLE001 - it is told
            said[name] = repr(error)
    Path(f"{out}.part").write_text(json.dumps(said))
    Path(f"{out}.part").rename(out)


if __name__ == "__main__":
    main()
