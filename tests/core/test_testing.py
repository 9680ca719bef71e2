"""`agentfw.testing` without a virtual machine: what its FakeServer and `fetch` show is what an agent would get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agentfw import Agent, Denied, Destination, RequestHead, ResponseHead, hookimpl
from agentfw.errors import ConnectError
from agentfw.testing import FakeServer, PathError, Request, Response, fetch, make_agent, running, vm
from agentfw.upstream import TlsInfo, TlsRequest

from .support import async_test


class Marks:
    """A header on requests, another on responses, and a transform."""

    name = "marks"

    @hookimpl
    def request(self, head: RequestHead, tls: TlsInfo | None) -> None:
        head.headers.set("x-verified", str(tls is not None and tls.verified))

    @hookimpl
    def response(self, head: ResponseHead) -> None:
        head.headers.set("x-seen", "yes")
        head.transforms.append(lambda piece, last: piece.upper())


@async_test
async def test_a_request_goes_through_all_hooks() -> None:
    server = FakeServer(lambda request: Response(201, {"x-made": "here"}, request.body[::-1]))
    async with running(Marks(), server) as runtime:
        response = await fetch(runtime, "https://api.example:8443/v1?q=1", method="POST", body=b"abc", headers={"x-mine": "1"})
    assert (response.status, response.body) == (201, b"CBA")
    assert response.headers.get("x-made") == "here" and response.headers.get("x-seen") == "yes"
    (request,) = server.requests
    assert (request.method, request.target, request.body) == ("POST", "/v1?q=1", b"abc")
    assert request.destination == Destination.make("https", "api.example", 8443)
    assert request.headers.get("host") == "api.example:8443" and request.headers.get("x-mine") == "1"
    assert request.headers.get("x-verified") == "True"


@async_test
async def test_plain_http_unverified_peers_and_many_requests() -> None:
    async with running(Marks(), FakeServer(verified=False)) as runtime:
        await asyncio.gather(*(fetch(runtime, f"https://{n}.example/", agent=make_agent(str(n))) for n in range(20)))
    server = FakeServer()
    async with running(Marks(), server) as runtime:
        assert (await fetch(runtime, "http://api.example/")).body == b"OK"
        assert (await fetch(runtime, "http://api.example/", method="HEAD")).body == b""
    assert [request.headers.get("x-verified") for request in server.requests] == ["False", "False"]


@pytest.mark.parametrize("form", ["list", "async"])
@async_test
async def test_streams(form: str) -> None:
    seen: list[bytes] = []

    class Counts:
        @hookimpl
        def response(self, head: ResponseHead) -> None:
            def count(piece: bytes, last: bool) -> bytes:
                seen.append(piece)
                return piece

            head.transforms.append(count)

    async def pieces() -> AsyncIterator[bytes]:
        for text in (b"one", b"two", b"three"):
            await asyncio.sleep(0)
            yield text

    async def answer(request: Request) -> Response:
        return Response(body=[b"one", b"two", b"three"] if form == "list" else pieces())

    async with running(Counts(), FakeServer(answer)) as runtime:
        assert (await fetch(runtime, "https://api.example/")).body == b"onetwothree"
    assert [piece for piece in seen if piece] == [b"one", b"two", b"three"], "each piece came by itself"


class Refuses:
    def __init__(self, scheme: str, error: Exception) -> None:
        self.scheme = scheme
        self.error = error

    @hookimpl
    def allow(self, destination: Destination) -> None:
        if destination.scheme == self.scheme and not destination.is_address:
            raise self.error


@async_test
async def test_refusals_are_what_an_agent_would_see() -> None:
    denied = Denied("rule 7", "never")
    async with running(Refuses("dns", denied), FakeServer()) as runtime:
        with pytest.raises(PathError, match=r"dns: REFUSED: .*rule 7.*Refuses"):
            await fetch(runtime, "https://api.example/")
    async with running(Refuses("https", denied), FakeServer()) as runtime:
        with pytest.raises(PathError, match=r"tls: AGENTFW_DENIED: .*rule 7"):
            await fetch(runtime, "https://api.example/")
    async with running(Refuses("http", denied), FakeServer()) as runtime:
        response = await fetch(runtime, "http://api.example/")
        assert response.status == 403 and response.error["rule"] == "rule 7" and response.error["plugin"] == "Refuses"
    async with running(Refuses("https", KeyError("secret")), FakeServer()) as runtime:
        with pytest.raises(PathError, match="connect: ECONNREFUSED"):
            await fetch(runtime, "https://api.example/")
    async with running(FakeServer(hosts=["api.example"])) as runtime:
        assert (await fetch(runtime, "https://api.example/")).body == b"ok"
        with pytest.raises(PathError, match="dns: NXDOMAIN"):
            await fetch(runtime, "https://other.example/")
        with pytest.raises(PathError, match="connect: EACCES"):
            await fetch(runtime, "https://127.0.0.1/")


@async_test
async def test_other_plugins_come_before_the_server() -> None:
    class Broken:
        @hookimpl
        async def connect(self, agent: Agent, destination: Destination, tls: TlsRequest | None) -> None:
            raise ConnectError(destination, 111)

    async with running(FakeServer(), Broken()) as runtime:
        with pytest.raises(PathError, match=r"tls: AGENTFW_UPSTREAM: .*ECONNREFUSED"):
            await fetch(runtime, "https://api.example/")


def test_without_kvm_tests_are_skipped_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["agentfw.testing.pytest_plugin"]\n')
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom agentfw.testing import run_agent, vm\n"
        "vm.kvm_trouble = lambda: '/dev/kvm: not here'\n"
        "def test_runs():\n    run_agent('print(1)')\n    assert False\n"
        "def test_fixture(kvm):\n    assert False\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "2 skipped" in done.stdout, done.stdout
    assert "did NOT run, /dev/kvm: not here: test_it.py::test_runs" in done.stdout
    assert "did NOT run, /dev/kvm: not here: test_it.py::test_fixture" in done.stdout
    monkeypatch.setattr(vm, "kvm_trouble", lambda: "/dev/kvm: not here")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with pytest.raises(vm.KvmMissing, match="not here"):
        vm.run_agent("print(1)")
