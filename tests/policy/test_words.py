"""The rules in words: every one of every profile, with all that limits it."""

from __future__ import annotations

from .support import policy


def test_every_rule_is_said() -> None:
    plugin = policy(
        allow=["api.openai.com:443", "*.pypi.org"],
        deny=["evil.pypi.org"],
        allow_addresses=["10.0.0.0/8"],
        limits={"requests": 100, "bytes": "10M"},
        rule=[
            {
                "action": "allow", "host": "api.github.com", "ports": [443, "8000-8010"], "methods": ["POST", "GET"],
                "paths": ["/repos"], "labels": {"team": ["red", "blue"]}, "mode": "report",
            }
        ],
        profile={"open": {"default": "allow", "mode": "report", "labels": {"run": "7"}, "agents": ["browse-*"]}, "bare": {}},
    )  # fmt: skip
    assert (
        plugin.in_words()
        == """\
Agents that no profile is meant for:
  what no rule speaks of is denied, and deny goes before allow
  allow api.openai.com:443  (allow.0)
  allow *.pypi.org  (allow.1)
  deny  evil.pypi.org  (deny.0)
  allow api.github.com; port 443, 8000-8010; only GET, POST; below /repos; for team=red|blue; only reported  (rule.0)
  names may lead to 10.0.0.0/8
  an agent: bytes 10485760, requests 100

Profile open, for agents labelled policy=open, or run=7 and called browse-*:
  what no rule speaks of is allowed, and deny goes before allow
  what would be denied is only reported
  deny  evil.pypi.org  (deny.0)
  an agent: bytes 10485760, requests 100

Profile bare, for agents labelled policy=bare:
  what no rule speaks of is denied, and deny goes before allow
  deny  evil.pypi.org  (deny.0)
  an agent: bytes 10485760, requests 100
"""
    )


def test_no_rules_at_all() -> None:
    assert policy().in_words() == "Agents:\n  what no rule speaks of is denied\n"


def test_many_are_counted() -> None:
    text = policy(allow=[f"h{number}.example" for number in range(600)]).in_words()
    assert text.endswith("  allow h499.example  (allow.499)\n  and 100 more rules\n")
