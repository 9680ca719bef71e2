"""Secrets that agents use and never hold: set by the runtime, on the routes that the operator names.

    [[credentials.rule]]
    host = "api.openai.com"                     # exact; another port than 443 as "host:port"
    header = "authorization"                    # or basic = {user = "u", password = "${file:...}"}, or query = "key"
    value = "Bearer ${env:OPENAI_API_KEY}"      # or ${file:PATH}, ${command:NAME}, ${oauth:NAME}
    placeholder = "sk-agentfw-placeholder"      # what agents are given as their "key"
    env = "OPENAI_API_KEY"                      # ... in this variable

Only over TLS that the host verified. An agent's own key on such a route, a placeholder on its way to anywhere else, and a secret
in anything that an agent sends are refused. A secret that comes back in a response (an echo, an error page) is masked. Secrets
live in this plugin only; no repr, message or counter shows them. A file they were read from, agentfw.toml itself for a literal
one, must not be among what the agents see, nor a secret among their variables: that stops the command.

rules.py: what a rule is · sources.py, renewed.py, oauth.py: where secrets come from · values.py: all of them · search.py: finding
them in any form · placeholders.py: what agents may not send · redact.py, websocket.py: what they may not see · state.py
"""

from .config import BasicConfig, CommandConfig, Config, OAuthConfig, RuleConfig
from .plugin import Plugin

__all__ = ["BasicConfig", "CommandConfig", "Config", "OAuthConfig", "Plugin", "RuleConfig"]
