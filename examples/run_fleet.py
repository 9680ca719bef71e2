"""What `make run` does: a fleet of agents against a local model server, and a look at what came of it.

Starts a name server and `agentfw mock-llm`, writes an agentfw.toml for them, runs `agentfw run -n 20` with the dns, tls, policy
and credentials plugins, prints what each agent got and what was counted, and checks both. Exit status 1 if something is not as
it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentfw.mock_dns import MockDNSThread

HERE = Path(__file__).resolve().parent
AGENTFW = [sys.executable, "-P", "-c", "from agentfw.cli import main; main()"]

CONFIG = """\
[policy]
allow = ["api.openai.com:{port}"]
allow_addresses = ["127.0.0.1/32"]

[dns]
upstream = ["{dns}"]
timeout = {timeout}

[tls]
ca_files = ["{ca}"]
shared = ["api.openai.com:{port}"]
patience = {patience}

[[credentials.rule]]
host = "api.openai.com:{port}"
header = "authorization"
value = "Bearer ${{env:MODEL_KEY}}"
"""


@contextlib.contextmanager
def model(directory: Path, key: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`agentfw mock-llm` and its port; it ends with the block."""
    command = [*AGENTFW, "mock-llm", "--json", "--key", key, "--ca-out", str(directory / "ca.pem"), "--latency", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["port"]
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--count", type=int, default=20)
    parser.add_argument("--agent", default=str(HERE / "agent_stdlib.py"))
    parser.add_argument("--slow", type=float, default=1, metavar="FACTOR", help="longer time-outs, for an emulated machine")
    options = parser.parse_args()
    key = "sk-mock-" + secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="agentfw-example-") as name:
        directory = Path(name)
        with MockDNSThread({"api.openai.com": "127.0.0.1"}) as dns, model(directory, key) as (server, port):
            config = directory / "agentfw.toml"
            config.write_text(
                CONFIG.format(
                    port=port, dns=dns.address, ca=directory / "ca.pem", timeout=options.slow, patience=options.slow / 20
                )
            )
            done = subprocess.run(
                [*AGENTFW, "run", "--config", str(config), "-n", str(options.count), "--json",
                 "--plugins", "dns,tls,policy,credentials",
                 "--env", f"OPENAI_BASE_URL=https://api.openai.com:{port}/v1", "--env", "OPENAI_API_KEY=sk-agentfw-placeholder",
                 "--timeout", f"{60 * options.slow:.0f}", options.agent, "Say", "hello."],
                env={**os.environ, "MODEL_KEY": key}, stdout=subprocess.PIPE, text=True)  # fmt: skip
            server.send_signal(signal.SIGINT)
            served = json.loads((server.communicate(timeout=10)[0] or "{}").splitlines()[-1])
            asked = dns.asked("api.openai.com", "A")
    if not done.stdout:
        return done.returncode or 1
    return report(json.loads(done.stdout), served, asked, options.count, key)


def report(ran: dict, served: dict, asked: int, count: int, key: str) -> int:
    for agent in ran["agents"]:
        text = (agent["stdout"] if agent["status"] == 0 else agent["stderr"] or agent["text"]).strip().splitlines()
        print(f"{agent['name']:<9} {agent['seconds']:6.3f} s  {' | '.join(text)[-200:]}")
    vms, counted = ran["vms"], ran["statistics"]
    print(f"\n{count} agents in {ran['seconds']:.2f} s")
    print(f"system call sites rewritten {vms['sites']}, backstop hits {vms['n_backstop']}, VM exits {vms['exits']}")
    print(f"system calls answered in the guest {vms['n_local']}, forwarded {vms['n_ring']}, unknown {vms['n_enosys']}")
    for name, value in sorted(counted.items()):
        if value and not name.startswith("hooks.") and "_seconds." not in name:  # those are in `--stats` and `--json`
            print(f"{name:<28} {value:g}")
    print(f"the name server was asked {asked} time(s) for the model's address")
    print(
        "the model server saw",
        ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in served.items() if isinstance(value, int)),
    )

    wrong = [f"{agent['name']} ended with {agent['status']}: {agent['text']}" for agent in ran["agents"] if agent["status"]]
    wrong += [
        f"{agent['name']} got no answer"
        for agent in ran["agents"]
        if not agent["status"] and "hello" not in agent["stdout"].lower()
    ]
    if key in json.dumps(ran):
        wrong.append("the key is in what the agents wrote")
    if asked != 1:
        wrong.append(f"{asked} DNS queries went out for one name")
    if served.get("handshakes", count) >= max(count, 2):
        wrong.append(f"{served.get('handshakes')} TLS handshakes for {count} agents: connections were not shared")
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
