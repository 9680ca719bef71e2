"""No agent is connected to where operators are served, however the address is written, whatever plugins say."""

from __future__ import annotations

import pytest
from agentfw import Denied, Destination, hookimpl
from agentfw.own_listeners import reached
from agentfw.testing import make_agent

from .support import async_test, running

LOOPBACK = ("127.0.0.1", 8701)
ALL = ("0.0.0.0", 8702)
SIX = ("::1", 8703)
ALL_SIX = ("::", 8704)
LINK = ("fe80::1%eth0", 8705)
LISTENERS = (LOOPBACK, ALL, SIX, ALL_SIX, LINK)


@pytest.mark.parametrize(
    ("address", "port", "expected"),
    [
        ("127.0.0.1", 8701, LOOPBACK),
        ("0.0.0.0", 8701, LOOPBACK),  # connect() takes it for this host
        ("::", 8701, LOOPBACK),
        ("::ffff:127.0.0.1", 8701, LOOPBACK),
        ("64:ff9b::7f00:1", 8701, LOOPBACK),  # NAT64
        ("::127.0.0.1", 8701, LOOPBACK),
        ("2002:7f00:1::", 8701, LOOPBACK),  # 6to4
        ("127.0.0.2", 8701, None),  # nobody is there
        ("127.0.0.1", 8700, None),
        ("192.0.2.1", 8701, None),
        ("127.0.0.1", 8702, ALL),
        ("127.9.9.9", 8702, ALL),
        ("0.0.0.0", 8702, ALL),
        ("192.0.2.1", 8702, None),
        ("fe80::1%eth0", 8705, LINK),
        ("fe80::1%2", 8705, LINK),
        ("::1", 8703, SIX),
        ("::", 8703, SIX),
        ("0.0.0.0", 8703, SIX),
        ("2001:db8::1", 8703, None),
        ("::1", 8704, ALL_SIX),
        ("::", 8704, ALL_SIX),
        ("fe80::1", 8705, LINK),
        ("fe80::2", 8705, None),
    ],
)
def test_what_is_reached(address: str, port: int, expected: object) -> None:
    assert reached(address, port, LISTENERS) == expected


def test_an_address_of_this_host_is_reached_where_all_are_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentfw.addresses.is_own", lambda address: address in ("192.0.2.1", "2001:db8::1"))
    assert [reached("192.0.2.1", port, LISTENERS) for port in range(8701, 8705)] == [None, ALL, None, ALL_SIX]
    assert reached("2001:db8::1", 8704, LISTENERS) == ALL_SIX and reached("64:ff9b::c000:201", 8702, LISTENERS) == ALL
    assert reached("192.0.2.2", 8702, LISTENERS) is None


class _Everything:
    """A policy that permits all there is, and would be asked first."""

    name = "everything"

    @hookimpl(tryfirst=True)
    def dial(self) -> bool:
        return True


@async_test
async def test_whatever_a_policy_permits() -> None:
    async with running(_Everything()) as runtime:
        agent = make_agent()
        here, elsewhere = Destination.make("tcp", "127.0.0.1", 8701), Destination.make("tcp", "127.0.0.1", 8700)
        runtime.check_address(agent, here, "127.0.0.1")
        runtime.keep_from_agents("dashboard", [LOOPBACK])
        runtime.keep_from_agents("control API", [("127.0.0.1", 9000), LOOPBACK])
        assert runtime.listeners == (LOOPBACK, ("127.0.0.1", 9000))
        with pytest.raises(Denied, match="operators"):
            runtime.check_address(agent, here, "127.0.0.1")
        with pytest.raises(Denied, match="operators"):
            await runtime.dial(agent, here)
        runtime.check_address(agent, elsewhere, "127.0.0.1")
        runtime.keep_from_agents("control API", [])
        runtime.keep_from_agents("dashboard", [])
        runtime.check_address(agent, here, "127.0.0.1")
