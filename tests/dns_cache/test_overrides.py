"""Names that are answered here: the operator's and special ones."""

from __future__ import annotations

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from .support import Bench, addresses, bench


@bench(hosts={"Api.Test": "127.0.0.1", "two.test": ["192.0.2.1", "2001:db8::1", "192.0.2.2"]})
async def test_overrides_ask_nobody(b: Bench) -> None:
    assert addresses(await b.ask("API.test")) == ["127.0.0.1"]
    assert (await b.ask("api.test", "AAAA")).answer == []
    assert (await b.ask("api.test", "HTTPS")).rcode() == dns.rcode.NOERROR
    assert addresses(await b.ask("two.test")) == ["192.0.2.1", "192.0.2.2"]
    assert addresses(await b.ask("two.test", "AAAA")) == ["2001:db8::1"]
    assert addresses(await b.ask("localhost")) == ["127.0.0.1"]
    assert b.dns.seen == []
