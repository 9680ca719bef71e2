"""The page of a process: where it listens, its token's file, what a reload does to both, and what keeps it from starting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from agentfw import ConfigError, Denied, Destination
from agentfw.config import Config as File
from agentfw.plugins import load_plugins
from agentfw.pool.client import HttpBackend
from agentfw.pool.jobs import PoolError
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw_dashboard.config import Config
from agentfw_dashboard.machine import check
from agentfw_dashboard.page import Page

from tests.core.support import async_test, running

from .fake import FakeObservatory


@asynccontextmanager
async def page(config: Config | None = None, beside: Path | None = None) -> AsyncIterator[Page]:
    async with running() as runtime:
        found = Page(config or Config(), runtime, FakeObservatory(5), beside=beside)
        await found.start()
        try:
            yield found
        finally:
            await found.close()
            await found.close()
            assert runtime.listeners == ()


async def status(url: str, token: str = "") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@async_test
async def test_it_listens_here_and_agents_do_not_reach_it() -> None:
    async with page() as found:
        ((host, port),) = found.addresses
        assert host == "127.0.0.1" and found.url == f"http://127.0.0.1:{port}"
        assert await status(f"{found.url}/data/overview") == 401
        assert await status(f"{found.url}/data/overview", found.server.access.token) == 200
        assert await status(found.login_url()) == 200
        with pytest.raises(Denied, match="operators"):
            found._runtime.check_address(make_agent(), Destination.make("tcp", host, port), host)


@async_test
async def test_agents_do_not_reach_it_while_it_is_closed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async with page() as found:
        close, kept = found.server.close, []

        async def closing() -> None:
            kept.append(found._runtime.listeners)
            await close()

        monkeypatch.setattr(found.server, "close", closing)
        await found.close()
        assert kept == [tuple(found.addresses)]


@async_test
async def test_who_takes_it_for_the_control_api_is_told() -> None:
    async with page() as found, HttpBackend(url=found.url, token=found.server.access.token) as pool:
        for asked in (pool.prometheus, pool.describe):
            with pytest.raises(PoolError, match="is a pool's page, not its control API") as caught:
                await asked()
            assert "`--listen`" in caught.value.hint


@async_test
async def test_no_page(tmp_path: Path) -> None:
    async with page(Config(listen="")) as found:
        assert found.url == found.login_url() == "" and found.addresses == []


@async_test
async def test_a_port_that_somebody_has_names_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"dashboard\.listen: cannot listen at 127\.0\.0\.1:{port}: [Aa]ddress") as caught:
            async with page(Config(listen=f"127.0.0.1:{port}")):
                pass
        assert "listen" in caught.value.key and caught.value.hint
        (found,) = check(File({"dashboard": {"listen": f"127.0.0.1:{port}"}}))
        assert found[0] == "warn" and str(port) in found[1] and "[dashboard]" in found[2]
    assert [row[0] for row in check(File())] == ["ok"]
    assert [row[0] for row in check(File({"dashboard": {"listen": ""}}))] == ["ok"]
    assert [row[0] for row in check(File({"dashboard": {"listen": "0.0.0.0:0"}}))] == ["warn"]


@async_test
async def test_the_token_is_in_a_file_that_goes_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pool.sock.dashboard-token"
    file.write_text("of a pool that was killed")
    async with page(beside=tmp_path / "pool.sock") as found:
        assert file.read_text().strip() == found.server.access.token
        assert file.stat().st_mode & 0o777 == 0o600
    assert not file.exists()
    async with page(beside=tmp_path / "pool.sock"):
        file.unlink()
        file.write_text("somebody else's")
    assert file.read_text() == "somebody else's"


@async_test
async def test_a_token_file_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "pool.sock.dashboard-token").mkdir()
    with pytest.raises(ConfigError, match="dashboard-token"):
        async with page(beside=tmp_path / "pool.sock"):
            pass
    token = tmp_path / "token"
    for text, mode in (("short", 0o600), ("x" * 40, 0o644)):
        token.write_text(text)
        token.chmod(mode)
        with pytest.raises(ConfigError, match="token_file"):
            async with page(Config(token_file=str(token))):
                pass


@async_test
async def test_a_reload_changes_the_token_and_moves_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-first-token-0123456789")
    token.chmod(0o600)
    async with page(Config(token_file=str(token))) as found:
        before, session = found.url, found.server.access.new_session()
        token.write_text("the-other-token-0123456789")
        config = Config(token_file=str(token), listen=f"127.0.0.1:{free_port()}", names=("pool.example",))
        found.adopt(config, found.check(config))
        await found.move()
        assert found.url != before and found.url == f"http://{config.listen}"
        assert await status(f"{found.url}/data/overview", "the-first-token-0123456789") == 401
        assert await status(f"{found.url}/data/overview", "the-other-token-0123456789") == 200
        assert not found.server.access.is_session(session) and "pool.example" in found.server.door.names
        assert found._runtime.listeners == tuple(found.addresses)
        with pytest.raises(aiohttp.ClientConnectorError):
            await status(before)
        same = found.url
        found.adopt(config, found.check(config))
        await found.move()
        assert found.url == same
        none = Config(token_file=str(token), listen="")
        found.adopt(none, found.check(none))
        await found.move()
        assert found.url == "" and not found.server.listening and found._runtime.listeners == ()
        found.adopt(config, found.check(config))
        await found.move()
        assert await status(f"{found.url}/data/overview", "the-other-token-0123456789") == 200


@async_test
async def test_a_reload_to_the_same_port_elsewhere() -> None:
    async with page(Config(listen=f"127.0.0.1:{free_port()}")) as found:
        port = found.addresses[0][1]
        config = Config(listen=f"0.0.0.0:{port}")
        found.adopt(config, found.check(config))
        await found.move()
        assert found.addresses == [("0.0.0.0", port)] and found.url == f"http://127.0.0.1:{port}"
        assert await status(f"{found.url}/data/overview", found.server.access.token) == 200


@async_test
async def test_a_reload_that_cannot_be() -> None:
    async with page() as found:
        before = found.url
        with socket.create_server(("127.0.0.1", 0)) as other:
            config = Config(listen=f"127.0.0.1:{other.getsockname()[1]}")
            with pytest.raises(ConfigError, match="cannot listen"):
                found.check(config)
            found.adopt(config, b"x" * 20)  # it was free when it was checked
            await found.move()
            assert found.trouble and found.url == before
            assert await status(f"{found.url}/data/overview", "x" * 20) == 200
        await found.move()
        assert not found.trouble and found.url == f"http://{config.listen}"


@async_test
async def test_what_a_reload_refuses_has_the_line_of_the_file_that_is_read(tmp_path: Path) -> None:
    """Not of the one that still counts."""
    file = tmp_path / "agentfw.toml"
    before = File.parsed('[dashboard]\nurl = "https://dash.example"\nlisten = "127.0.0.1:0"\n', file)
    manager = load_plugins(["dashboard"], before)
    runtime = Runtime(asyncio.get_running_loop(), manager, before)
    await runtime.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=rf"agentfw\.toml:2: dashboard\.listen: cannot listen at 127.0.0.1:{port}"):
                await runtime.reload(File.parsed(f'[dashboard]\nlisten = "127.0.0.1:{port}"\n', file))
        with pytest.raises(ConfigError, match=r"agentfw\.toml:3: dashboard\.token_file: .*/nowhere: cannot be read") as caught:
            await runtime.reload(File.parsed('[dashboard]\n\ntoken_file = "nowhere"\n', file))
        assert caught.value.hint
    finally:
        await runtime.stop()


def test_why_nothing_can_listen_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        elsewhere = ("192.0.2.1:8701", "no such address"), ("no-host.invalid:8701", "an address")
        for listen, word in ((taken, "a pool of yours"), *elsewhere):
            ((status, _, hint),) = check(File({"dashboard": {"listen": listen}}))
            assert status == "warn" and word in hint


@async_test
async def test_a_reload_to_an_address_that_is_not_this_machines() -> None:
    """With the port that the page has already: it gives that up before it can know."""
    first = Config(listen=f"127.0.0.1:{free_port()}")
    async with page(first) as found:
        before = found.url
        config = Config(listen=f"192.0.2.1:{found.addresses[0][1]}")
        with pytest.raises(ConfigError, match="cannot listen at 192"):
            found.check(config)
        token = found.server.access.token
        for _ in range(2):  # each reload tries again
            found.trouble = ""
            found.adopt(config, token.encode())  # the machine had it when it was checked
            await found.move()
            assert found.trouble and found.url == before
            assert await status(f"{found.url}/data/overview", token) == 200
        found.adopt(first, found.check(first))
        await found.move()
        assert not found.trouble and found.url == before


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"listen": "8701"}, "listen"),
        ({"listen": "127.0.0.1:70000"}, "listen"),
        ({"listen": "http://127.0.0.1:8701"}, "listen"),
        ({"listen": "::1:8701"}, "listen"),
        ({"listen": "/run/x.sock"}, "listen"),
        ({"names": ["a:1"]}, "names"),
        ({"names": ["*"]}, "names"),
        ({"url": "dash.example"}, "url"),
        ({"url": "https://dash.example/pool"}, "url"),
        ({"url": "https://u:p@dash.example"}, "url"),
        ({"url": "ftp://dash.example"}, "url"),
        ({"url": "https://dash.example:x"}, "url"),
        ({"port": 1}, "port"),
    ],
)
def test_tables_that_are_none(table: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        File({"dashboard": table}).plugin("dashboard", Config)
    assert caught.value.key.startswith(f"dashboard.{key}")


def test_paths_begin_beside_the_file(tmp_path: Path) -> None:
    file = File({"dashboard": {"token_file": "t"}}, tmp_path / "agentfw.toml")
    assert file.plugin("dashboard", Config).token_file == str(tmp_path / "t")
    assert Config(listen="[::1]:1").address == ("::1", 1) and Config(listen="localhost:0").address == ("localhost", 0)


@async_test
async def test_names_of_several_addresses_have_one_port() -> None:
    async with page(Config(listen="localhost:0")) as found:
        assert len({port for _, port in found.addresses}) == 1


@async_test
async def test_at_an_ipv6_address() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error.strerror}")
    async with page(Config(listen="[::1]:0")) as found:
        ((host, port),) = found.addresses
        assert host == "::1" and found.url == f"http://[::1]:{port}"
        assert await status(f"{found.url}/data/overview", found.server.access.token) == 200
        assert await status(found.login_url()) == 200
