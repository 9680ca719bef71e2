"""Who gets in: tokens, codes, sessions and their ends; and whose requests are looked at, by `Host`, `Origin`, Fetch Metadata."""

from __future__ import annotations

import pytest
from agentfw.pool.jobs import PoolError
from agentfw_dashboard.web import access
from agentfw_dashboard.web.access import Access
from agentfw_dashboard.web.door import Door, bearer
from multidict import CIMultiDict

TOKEN = b"a-token-of-the-tests-0123456789"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_must_be_worth_something() -> None:
    with pytest.raises(ValueError, match="16"):
        Access(b"short")
    assert Access.random().token != Access.random().token
    for given in ("", "a", TOKEN.decode()[:-1], TOKEN.decode() + "x", "x" * 100_000, "\udcff", "é" * 20):
        assert not Access(TOKEN).is_token(given)
    assert Access(TOKEN).is_token(TOKEN.decode())


def test_a_code_is_good_once_and_for_a_while() -> None:
    clock = Clock()
    found = Access(TOKEN, clock=clock)
    code, late = found.new_code(), found.new_code(5)
    clock.now += 6
    assert not found.spend(late) and not found.spend("") and not found.spend("x" * 100_000)
    assert found.spend(code) and not found.spend(code)


def test_codes_and_sessions_are_few() -> None:
    found = Access(TOKEN)
    codes = [found.new_code() for _ in range(access.MAX_CODES + 1)]
    assert not found.spend(codes[0]) and found.spend(codes[1]) and found.spend(codes[-1])
    sessions = [found.new_session() for _ in range(access.MAX_SESSIONS)]
    assert found.is_session(sessions[0])  # now it is not the one that was not used for the longest time
    found.new_session()
    assert found.is_session(sessions[0]) and not found.is_session(sessions[1])
    assert found.sessions == access.MAX_SESSIONS


def test_sessions_end() -> None:
    clock = Clock()
    found = Access(TOKEN, clock=clock)
    idle, used, left = found.new_session(), found.new_session(), found.new_session()
    for _ in range(int(access.LONGEST_SECONDS // access.IDLE_SECONDS) * 2 - 1):
        clock.now += access.IDLE_SECONDS / 2
        assert found.is_session(used)
    assert not found.is_session(idle)
    found.end_session(left)
    assert not found.is_session(left) and not found.is_session("") and not found.is_session("x" * 100_000)
    clock.now += access.IDLE_SECONDS / 2
    assert not found.is_session(used), "however much it was used"
    assert found.sessions == 0


def test_another_token_ends_all_of_the_old_one() -> None:
    found = Access(TOKEN)
    session, code, cookie = found.new_session(), found.new_code(), found.cookie
    found.change_token(TOKEN)
    assert found.is_session(session)
    found.change_token(b"another-token-of-the-tests")
    assert not found.is_session(session) and not found.spend(code) and not found.is_token(TOKEN.decode())
    assert found.cookie != cookie and found.is_token("another-token-of-the-tests")


def test_bearer() -> None:
    given = {"Bearer x": "x", "bearer  x ": "x", "Basic eDp4": "", "Bearer": "", "": ""}
    assert {text: bearer(CIMultiDict({"Authorization": text})) for text in given} == given
    assert bearer(CIMultiDict()) is None


LOCAL = Door()
OUTER = Door.of(["Pool.example"], "https://dash.example")


def knock(door: Door, *, address: str = "127.0.0.1", page: bool = False, **headers: str) -> str:
    try:
        return door.check(CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}), address, page=page)
    except PoolError as error:
        return error.code


@pytest.mark.parametrize("host", ["127.0.0.1:8701", "127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:8701", "127.1.2.3"])
def test_hosts_of_this_machine(host: str) -> None:
    assert knock(LOCAL, Host=host) == "own"


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:8701", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1:99999999",
        "127.0.0.1:x",
        "192.0.2.7", "10.0.0.1:80", "[2001:db8::1]", "user@127.0.0.1", "127.0.0.1 ", " localhost", "localhost,evil.example",
        "2130706433", "0x7f.1", "127.1", "0", "[::1", "::1", "localhost/", "localhost\\@evil.example", "dash.example", "0.0.0.0",
    ],
)  # fmt: skip
def test_other_hosts(host: str) -> None:
    """What a page says whose name was made to resolve to us, and what some take for 127.0.0.1."""
    assert knock(LOCAL, Host=host) == "forbidden"


def test_two_hosts_or_none() -> None:
    for headers in (CIMultiDict(), CIMultiDict([("Host", "localhost"), ("Host", "evil.example")])):
        with pytest.raises(PoolError, match="Host"):
            LOCAL.check(headers, "127.0.0.1")


def test_names_and_addresses_of_a_public_listener() -> None:
    for host in ("pool.example", "POOL.example:8701", "dash.example", "192.0.2.7:8701", "localhost"):
        assert knock(OUTER, Host=host, address="192.0.2.7") == "own"
    assert knock(OUTER, Host="192.0.2.8:8701", address="192.0.2.7") == "forbidden"
    assert knock(LOCAL, Host="192.0.2.7", address="::ffff:192.0.2.7") == "own"


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("127.0.0.1:8701", "http://127.0.0.1:8701", "own"),
        ("127.0.0.1", "http://127.0.0.1", "own"),
        ("127.0.0.1:80", "http://127.0.0.1", "own"),
        ("127.0.0.1:8701", "HTTP://127.0.0.1:8701", "own"),
        ("127.0.0.1:8701", "http://127.0.0.1:3000", "forbidden"),  # another program's page on this host
        ("127.0.0.1:8701", "http://localhost:8701", "forbidden"),
        ("127.0.0.1:8701", "https://127.0.0.1:8701", "forbidden"),
        ("127.0.0.1:8701", "http://evil.example", "forbidden"),
        ("127.0.0.1:8701", "null", "forbidden"),
        ("127.0.0.1:8701", "", "forbidden"),
        ("127.0.0.1:8701", "file://127.0.0.1:8701", "forbidden"),
        ("dash.example", "https://dash.example", "own"),
        ("dash.example", "https://dash.example:443", "own"),
        ("dash.example", "https://dash.example:8443", "forbidden"),
        ("pool.example", "https://pool.example", "forbidden"),
        ("pool.example", "http://pool.example", "own"),
    ],
)
def test_origins(host: str, origin: str, expected: str) -> None:
    assert knock(OUTER, Host=host, Origin=origin) == expected


def test_fetch_metadata() -> None:
    for site in ("same-site", "cross-site", "other", ""):
        assert knock(LOCAL, Host="localhost", Sec_Fetch_Site=site) == "forbidden"
    for site in ("same-origin", "none"):
        assert knock(LOCAL, Host="localhost", Sec_Fetch_Site=site) == "own"
    link = {"Host": "localhost", "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert knock(LOCAL, page=True, **link) == "navigation"
    assert knock(LOCAL, page=False, **link) == "forbidden", "it is for data"
    for other in ({"Sec_Fetch_Dest": "iframe"}, {"Sec_Fetch_Mode": "no-cors"}, {"Origin": "null"}):
        assert knock(LOCAL, page=True, **{**link, **other}) == "forbidden"
    two = CIMultiDict([("Host", "localhost"), ("Sec-Fetch-Site", "none"), ("Sec-Fetch-Site", "cross-site")])
    with pytest.raises(PoolError, match="web pages"):
        LOCAL.check(two, "127.0.0.1")
