"""`agentfw policy check` and `explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentfw.cli import _main

FILE = """\
[policy]
allow = ["api.example", "*.wide.example:443",
  "x.wide.example:443",
  "gone.example"]
deny = ["*.gone.example", "gone.example"]
allow_addresses = ["127.0.0.1", "169.254.0.0/16"]

[policy.limits]
requests_per_minute = 60

[[policy.rule]]
name = "files"
action = "allow"
host = "files.example"
methods = ["GET"]
paths = ["/public"]

[[policy.rule]]
action = "allow"
host = "api.example"
paths = ["/v1"]

[policy.profile.red]
labels = { team = "red" }
allow = ["*"]
default = "allow"

[policy.profile.red2]
labels = { team = "red", stage = "test" }
mode = "report"
"""
CLEAN = '[policy]\nallow = ["api.example"]\n[[policy.rule]]\naction = "allow"\nhost = "b.example"\npaths = ["/v1"]\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, text: str = FILE) -> tuple[int, str, str]:
        (tmp_path / "agentfw.toml").write_text(text)
        status = _main(["policy", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return command


WARNINGS = """\
3: policy.allow: x.wide.example:443: has no effect beside policy.allow: *.wide.example:443
4: policy.allow: gone.example: has no effect, since policy.deny: gone.example denies all of it
18: policy.rule: allow api.example /v1: its methods and paths do not matter, since policy.allow: api.example allows all
6: policy.allow_addresses: 169.254.0.0/16: has the cloud's metadata service, which hands out credentials, in it
25: policy.profile.red.allow: *: allows every name, also those to which secrets could be sent
25: policy.profile.red.allow: *: has no effect, since `default = "allow"`
26: policy.profile.red.default: "allow": every name may be talked to, also those to which secrets could be sent
30: policy.profile.red2.mode: "report": nothing is refused but addresses that are not public
28: policy.profile.red2: is never chosen by its `labels` and `agents`, since policy.profile.red before it fits too
"""


def test_check(run: Any) -> None:
    status, out, _ = run("check")
    *lines, last = out.splitlines()
    assert status == 0 and last == "agentfw.toml: 9 rules, 2 profiles, 9 warnings"
    assert sorted(lines) == sorted(f"agentfw.toml:{line.replace(': ', ': warning: ', 1)}" for line in WARNINGS.splitlines())
    assert run("check", "--strict")[0] == 1
    assert run("check", "--strict", text=CLEAN)[:2] == (0, "agentfw.toml: 2 rules, 0 profiles, 0 warnings\n")
    document = json.loads(run("check", "--json")[1])
    assert document["valid"] and len(document["warnings"]) == 9 and document["warnings"][0]["where"] == "agentfw.toml:3"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('[policy]\nallow = ["a b"]\n', "agentfw.toml:2: policy.allow.0: "),
        ('[policy]\n[[policy.rule]]\naction = "permit"\n', "agentfw.toml:3: policy.rule.0.action: "),
        ('[policy]\n[policy.profile.x]\nextends = "y"\n', "agentfw.toml:3: policy.profile.x.extends: "),
        ("[policy\n", "agentfw.toml:1: not TOML"),
    ],
)
def test_check_of_what_is_wrong(run: Any, text: str, where: str) -> None:
    status, out, err = run("check", text=text)
    assert status in (1, 125) and where in out + err
    if status == 1:
        document = json.loads(run("check", "--json", text=text)[1])
        assert document["valid"] is False and where.split(": ")[1] == document["error"]["key"]


EXPLAINED = """
0 api.example
https://api.example:443: allowed
connect   allowed by policy.allow: api.example (agentfw.toml:2)
request   GET / allowed by policy.allow: api.example (agentfw.toml:2)
limits    policy.limits.requests_per_minute: 60 (agentfw.toml:9), each agent

0 API.example.:8443/v1
https://api.example:8443: allowed
request   GET /v1 allowed by policy.allow: api.example

0 files.example/public/x
request   GET /public/x allowed by policy.rule: files (agentfw.toml:11)
raw TCP   denied by policy.rule: files
own TLS   deny (policy.rule: files (agentfw.toml:11))

1 --method PUT https://files.example/public/x
request   PUT /public/x denied by policy.default: deny

1 files.example/public/%2e%2e/x
servers read this path differently

1 x.wide.example:80
http://x.wide.example:80: denied
connect   denied by policy.default: deny

0 tcp://api.example:22
tcp://api.example:22: allowed

1 gone.example api.example
denied by policy.deny: gone.example (agentfw.toml:5)
https://api.example:443: allowed

1 10.0.0.1
address   denied by addresses: public only

1 0x7f.1
denied by the parser of names and addresses

0 any.example --label team=red
profile   red
connect   allowed by policy.profile.red.allow: * (agentfw.toml:25)

0 any.example --label policy=red2
reported: policy.profile.red2.default: deny
allowed by report-only mode
"""


@pytest.mark.parametrize("case", EXPLAINED.strip().split("\n\n"))
def test_explain(run: Any, case: str) -> None:
    first, *lines = case.splitlines()
    status, *arguments = first.split()
    got, out, _ = run("explain", *arguments)
    assert got == int(status), out
    for line in lines:
        assert line in out, out


def test_explain_as_json_and_mistakes(run: Any) -> None:
    status, out, _ = run("explain", "--json", "api.example", "nope.example")
    first, second = json.loads(out)["targets"]
    assert status == 1 and first["allowed"] and first["own_tls"] == "passthrough" and not second["allowed"]
    assert second["connect"] == {
        "allowed": False, "by": "policy.default: deny (agentfw.toml:1)",
        "reason": "nope.example port 443 is not on the allow list",
        "reported": [],
    }  # fmt: skip
    assert first["limits"][0]["name"] == "requests_per_minute"
    assert run("explain", "api.example", "--label", "policy=rde")[0] == 2
    assert run("explain", "api.example", "--label", "x")[0] == 2
    assert run("explain")[0] == 2
    assert run("explain", "--config", "nowhere.toml", "a.example")[0] == 125
    assert "leaves the policy plugin out" in run("explain", "api.example", text='[run]\nplugins = ["dns"]\n' + CLEAN)[2]


def test_hostile_text_is_shown_escaped(run: Any) -> None:
    _, out, _ = run("explain", "\x1b]0;x\x07evil", "a.example/\x1b[31m")
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[polcy]\nallow = []\n", "agentfw.toml:1: warning: polcy: unknown table (did you mean `policy`?)"),
        ("policy_x = 3\n" + CLEAN, "agentfw.toml:1: warning: policy_x: unknown table"),
        ('[run]\nplugins = ["dns", "native"]\n' + CLEAN,
         "agentfw.toml:2: warning: run.plugins: `policy` is not among them: nothing of [policy] has an effect"),
        ('[run]\nplugins = ["policy", "./mine.py"]\n[mine]\n' + CLEAN, ""),
        ('[run]\nplugins = ["dns"]\n', ""),
    ],
)  # fmt: skip
def test_check_warns_of_what_keeps_the_policy_from_having_an_effect(run: Any, text: str, warning: str) -> None:
    status, out, _ = run("check", "--strict", text=text)
    assert status == bool(warning) and out.splitlines()[0].startswith(warning) and ("warning: " in out) == bool(warning), out


def test_check_says_what_was_probably_meant(run: Any) -> None:
    status, out, _ = run("check", text="[policy]\nalow = []\n")
    assert status == 1 and out.splitlines()[1] == "hint: did you mean `allow`?"
