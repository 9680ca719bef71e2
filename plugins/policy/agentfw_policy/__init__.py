"""Who may be talked to, how, and how much: lists and rules, profiles of agents, limits.

    [policy]
    allow = ["api.openai.com", "*.anthropic.com:443", "10.1.2.3:5432"]
    deny = ["internal.anthropic.com", "192.88.0.0/16"]
    allow_addresses = ["127.0.0.1/32"]     # addresses that are not public but that allowed names may resolve to

    [[policy.rule]]
    action = "allow"
    host = "files.example"
    methods = ["GET"]
    paths = ["/public"]

Deny wins. `patterns`: hosts, networks and ports; `paths`: one reading of a path or none; `rules`: what they say of a destination,
an address, a request; `profiles`: whose rules; `limits`: how much; `reporting`: report-only; `explain`, `lint`, `cli`: for
people; `plugin`: the hooks. Spellings are normalised by the same parser as the agents' (`agentfw.destination`).
"""

from .config import Config, LimitsConfig, ProfileConfig, RuleConfig
from .plugin import Plugin

__all__ = ["Config", "LimitsConfig", "Plugin", "ProfileConfig", "RuleConfig"]
