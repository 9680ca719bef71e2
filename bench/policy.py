"""What the policy costs: `allow` and `request` with few and with many rules, known and new destinations; metering a piece; check.

Medians of 7 runs. "new": a destination that was not asked about before, which is what a look-up among the rules costs.
"""

from __future__ import annotations

import asyncio

import common
import msgspec
from agentfw import Destination, Headers, RequestHead
from agentfw.metering import Meter, MeteredFlow, Traffic
from agentfw.testing import MemoryFlow, make_agent
from agentfw_policy import Config, Plugin
from agentfw_policy.lint import lint

CALLS = 20_000
AGENT = make_agent("bench")


def plugin(rules: int) -> Plugin:
    """A third each: names, networks, hosts with methods and paths; limits for all."""
    third = rules // 3
    table = {
        "allow": [f"host{i}.example" for i in range(third)],
        "deny": [f"10.{i >> 8}.{i & 255}.0/24" for i in range(third)],
        "rule": [
            {"action": "allow", "host": f"api{i}.example", "port": 443, "methods": ["GET", "POST"], "paths": ["/v1"]}
            for i in range(rules - 2 * third)
        ],
        "limits": {"requests_per_second": 1e9, "requests": 1 << 60, "bytes": "1T"},
    }
    return Plugin(msgspec.convert(table, Config))


def measure(rules: int) -> list[float]:
    policy = plugin(rules)
    plain = Destination.make("https", "host1.example", 443)
    conditional = Destination.make("https", "api1.example", 443)
    head = RequestHead("POST", "/v1/chat/completions", Headers([("accept", "*/*"), ("content-type", "application/json")]))
    numbers = iter(range(10**9))

    def allow() -> None:
        for _ in range(CALLS):
            policy.allow(AGENT, plain)

    def new() -> None:
        rule_set = policy._state(AGENT).rules
        for _ in range(1000):
            rule_set._decide(Destination("https", f"x{next(numbers)}.host1.example", 443))

    def new_address() -> None:
        rule_set = policy._state(AGENT).rules
        for _ in range(1000):
            number = next(numbers)
            rule_set._against(plain, f"11.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", False)

    def request(destination: Destination) -> None:
        for _ in range(CALLS):
            policy.request(AGENT, destination, head)

    def empty() -> None:
        for _ in range(CALLS):
            pass

    loop = common.per_call(empty, CALLS)
    return [
        common.per_call(allow, CALLS) - loop,
        common.per_call(new, 1000),
        common.per_call(new_address, 1000),
        common.per_call(lambda: request(plain), CALLS) - loop,
        common.per_call(lambda: request(conditional), CALLS) - loop,
    ]


def metering(meters: int) -> float:
    """Nanoseconds that counting a piece adds to receiving it."""
    traffic = Traffic()

    def refuse(what: str) -> None:
        raise AssertionError(what)

    for _ in range(meters):
        traffic.attach(Meter(refuse, max_bytes=1 << 60))
    flow = MeteredFlow(MemoryFlow("192.0.2.1", 1), traffic)

    def count() -> None:
        for _ in range(CALLS):
            flow._count(1400, 0, True)

    return common.per_call(count, CALLS)


def main() -> None:
    names = ["allow, known", "look-up, new name", "look-up, new address", "request, no conditions", "request, method and path"]
    sizes = (10, 100, 10_000)
    columns = [measure(size) for size in sizes]
    print(f"{'ns a call, with so many rules':<30}" + "".join(f"{size:>10,}" for size in sizes) + "   most / least")
    for row, name in enumerate(names):
        values = [column[row] for column in columns]
        print(f"{name:<30}" + "".join(f"{value:>10.0f}" for value in values) + f"{values[-1] / values[0]:>12.1f}")
    print(f"{'metering a piece, no meter':<30}{metering(0):>10.0f}\n{'  one, two':<30}{metering(1):>10.0f}{metering(2):>10.0f}")
    policy = plugin(10_000)
    for what, function in (
        ("compile 10,000 rules", lambda: plugin(10_000)),
        ("check 10,000 rules", lambda: lint(policy._policy)),
    ):
        print(f"{what:<30}{common.per_call(function, 1) / 1e6:>10.0f} ms")


async def _main() -> None:
    main()


if __name__ == "__main__":
    common.parser(__doc__).parse_args()
    asyncio.run(_main())
