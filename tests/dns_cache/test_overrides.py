"""Names that are answered here: the operator's and special ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.reversename
import pytest
from agentfw.config import load_config
from agentfw.errors import ConfigError
from agentfw.plugins import PluginManager
from agentfw.runtime import Runtime
from agentfw.testing import make_agent
from agentfw_dns_cache import DnsConfig, Plugin
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import Bench, addresses, bench

TWO = ["192.0.2.1", "2001:db8::1", "192.0.2.2"]


@bench(hosts={"Api.Test": "127.0.0.1", "two.test": TWO})
async def test_overrides_ask_nobody(b: Bench) -> None:
    assert addresses(await b.ask("API.test")) == ["127.0.0.1"]
    assert (await b.ask("api.test", "AAAA")).answer == []
    assert (await b.ask("api.test", "HTTPS")).rcode() == dns.rcode.NOERROR
    assert addresses(await b.ask("two.test")) == ["192.0.2.1", "192.0.2.2"]
    assert addresses(await b.ask("two.test", "AAAA")) == ["2001:db8::1"]
    assert addresses(await b.ask("localhost")) == ["127.0.0.1"]
    assert b.dns.seen == []
    assert b.statistics()["override_hits"] == 6


@bench(hosts={"*.wild.test": "192.0.2.1", "*.deep.wild.test": "192.0.2.2", "exact.wild.test": "192.0.2.3"})
async def test_wildcards_are_for_all_names_below_and_the_most_particular_entry_wins(b: Bench) -> None:
    want = {"a.wild.test": 1, "a.b.wild.test": 1, "x.deep.wild.test": 2, "deep.wild.test": 1, "exact.wild.test": 3}
    for name, number in want.items():
        assert addresses(await b.ask(name)) == [f"192.0.2.{number}"], name
    assert addresses(await b.ask("below.exact.wild.test")) == ["192.0.2.1"]
    assert b.dns.seen == []
    for name in ("wild.test", "awild.test", "wild.test.other.test"):
        assert (await b.ask(name)).rcode() == dns.rcode.NXDOMAIN
    assert len(b.dns.seen) == 3


@bench(hosts={"a.test": TWO, "b.test": "192.0.2.1", "*.wild.test": "192.0.2.9"})
async def test_the_reverse_of_overrides(b: Bench) -> None:
    """RFC 1035, 3.5; RFC 3596, 2.5. Wildcards have none."""
    for address, names in {"192.0.2.1": ["a.test.", "b.test."], "2001:db8::1": ["a.test."]}.items():
        reply = await b.ask(str(dns.reversename.from_address(address)), "PTR")
        assert [item.to_text() for item in reply.answer[0]] == names
    assert b.dns.seen == []
    assert (await b.ask("9.2.0.192.in-addr.arpa", "PTR")).rcode() == dns.rcode.NXDOMAIN
    assert b.dns.asked("9.2.0.192.in-addr.arpa", "PTR") == 1


@bench
async def test_special_names_stay_here(b: Bench) -> None:
    """RFC 6761, 6.3 and 6.4; RFC 7686; RFC 9462, 6.4."""
    assert addresses(await b.ask("localhost", "AAAA")) == ["::1"]
    assert addresses(await b.ask("db.localhost")) == ["127.0.0.1"]
    for name in ("invalid", "a.invalid", "expyuzz4wqqyqhjn.onion"):
        assert (await b.ask(name)).rcode() == dns.rcode.NXDOMAIN
    reply = await b.ask("_dns.resolver.arpa", "SVCB")
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert b.dns.seen == []


HOSTS = """
# a comment
192.0.2.10\tone.test  One-Alias.test # and another
2001:db8::10 one.test
fe80::1%eth0 link.test
192.0.2.11 told.test
"""


def runtime_with(directory: Path, text: str) -> Runtime:
    (directory / "agentfw.toml").write_text(text)
    config = load_config(directory / "agentfw.toml")
    manager = PluginManager(config)
    manager.add("dns", Plugin(config.plugin("dns", DnsConfig)))
    manager.compile()
    return Runtime(asyncio.get_running_loop(), manager, config)


def resolved(runtime: Runtime, name: str) -> Any:
    query = dns.message.make_query(name, "A").to_wire()
    return runtime.plugins.resolve(make_agent(), name, 1, query)


def test_hosts_files_lie_beside_the_configuration_and_the_table_wins(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "hosts").write_text(HOSTS)
        runtime = runtime_with(tmp_path, "[dns]\nupstream = []\nhosts_files = ['hosts']\nhosts = {'told.test' = '192.0.2.99'}\n")
        await runtime.start()
        for name, address in {"one.test": "192.0.2.10", "one-alias.test": "192.0.2.10", "told.test": "192.0.2.99"}.items():
            assert addresses(dns.message.from_wire(await resolved(runtime, name))) == [address]
        await runtime.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("192.0.2.1 ok.test\nx y.test\n", "hosts:2: bad"),
        ("192.0.2.1 a..b\n", "hosts:1: bad host"),
        ("".join(f"2001:db8::{number:x} a.test\n" for number in range(300)), "hosts:257: bad host 'a.test': more than 256"),
    ],
)
def test_a_bad_hosts_file_stops_the_start_with_its_line(tmp_path: Path, text: str | None, message: str) -> None:
    async def run() -> None:
        if text is not None:
            (tmp_path / "hosts").write_text(text)
        runtime = runtime_with(tmp_path, "[dns]\nupstream = []\nhosts_files = ['hosts']\n")
        with pytest.raises(ConfigError, match=message) as caught:
            await runtime.start()
        assert (caught.value.key, caught.value.line) == ("dns.hosts_files.0", 3)

    asyncio.run(run())


@pytest.mark.parametrize("hosts", [{"1.2.3.4": "192.0.2.1"}, {"*": "192.0.2.1"}, {"a.test": "b.test"}, {"*.*.test": "::1"}])
def test_bad_overrides_name_their_key(hosts: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        DnsConfig(hosts=hosts)
    assert caught.value.key == f"hosts.{next(iter(hosts))}"


def test_an_address_of_thousands_of_names_has_a_reverse(tmp_path: Path) -> None:
    """A file that blocks names has one address for all of them. It is told with the first ones, each once."""

    async def run() -> None:
        (tmp_path / "hosts").write_text("".join(f"192.0.2.1 n{number // 2}.test\n" for number in range(10_000)))
        runtime = runtime_with(tmp_path, "[dns]\nupstream = []\nhosts_files = ['hosts']\n")
        await runtime.start()
        name = "1.2.0.192.in-addr.arpa"
        query = dns.message.make_query(name, "PTR")
        reply = dns.message.from_wire(await runtime.plugins.resolve(make_agent(), name, 12, query.to_wire()) or b"")
        assert [item.to_text() for item in reply.answer[0]] == [f"n{number}.test." for number in range(16)]
        await runtime.stop()

    asyncio.run(run())


LABEL = st.from_regex(r"[a-z0-9]{1,3}", fullmatch=True)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.lists(LABEL, min_size=1, max_size=3).map(".".join), st.booleans(), max_size=6), st.data())
def test_look_ups_agree_with_a_search(entries: dict[str, bool], data: st.DataObject) -> None:
    """As the page says it: the exact entry, else the wildcard with the longest suffix."""
    from agentfw_dns_cache.overrides import Overrides

    entries = {name: wild for name, wild in entries.items() if not name.rpartition(".")[2][0].isdigit()}
    hosts = {("*." if wild else "") + name: f"192.0.2.{number}" for number, (name, wild) in enumerate(entries.items())}
    made = Overrides.make(hosts)
    parents = st.sampled_from(sorted(entries) or ["zz"])
    name = data.draw(st.one_of(parents, st.tuples(LABEL, parents).map(".".join), st.just("other.zz")))
    want = hosts.get(name)
    if want is None:
        above = [text[2:] for text in hosts if text.startswith("*.") and name.endswith(text[1:])]
        want = hosts["*." + max(above, key=len)] if above else None
    found = made.find(name)
    assert (found and found[1][0][1][3]) == (want and int(want.rpartition(".")[2]))
