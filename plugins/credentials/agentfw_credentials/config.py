"""Table [credentials] of agentfw.toml. Values may be secrets: no repr shows one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from agentfw import ConfigError
from agentfw.config import path_beside
from msgspec.structs import replace

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
PLACEHOLDER = "sk-agentfw-placeholder"

KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "apikey", "x-access-token")
KEY_PARAMETERS = ("key", "api_key", "apikey", "api-key", "access_token", "auth_token", "x-api-key", "client_secret")


class BasicConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """User and password of HTTP Basic authentication (RFC 7617); sources are filled in, in both."""

    user: str
    password: str

    def __repr__(self) -> str:
        return "BasicConfig(...)"


class RuleConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [[credentials.rule]]: where (`host`, `path`, `labels`), what as (`header`, `basic` or `query`), and which secret."""

    host: str
    header: str = ""
    value: str = ""
    placeholder: str = PLACEHOLDER
    basic: BasicConfig | None = None
    query: str = ""
    path: str = ""
    labels: dict[str, str] = {}
    env: str = ""
    require: bool = False
    cookies: bool = False

    def __repr__(self) -> str:  # the value may be literal
        return f"RuleConfig(host={self.host!r}, header={self.header!r})"


class CommandConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [credentials.command.NAME]: a program of the operator's that prints the secret."""

    argv: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    ttl: Seconds = 300.0
    timeout: Seconds = 10.0

    def __repr__(self) -> str:
        return "CommandConfig(...)"


class OAuthConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One [credentials.oauth.NAME]: tokens by the client credentials grant (RFC 6749, 4.4)."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str = ""
    audience: str = ""
    parameters: dict[str, str] = {}
    auth: Literal["basic", "body"] = "basic"
    timeout: Seconds = 10.0
    ttl: Seconds = 300.0
    allow_addresses: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"OAuthConfig(token_url={self.token_url!r})"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The table."""

    rule: tuple[RuleConfig, ...] = ()
    command: dict[str, CommandConfig] = {}
    oauth: dict[str, OAuthConfig] = {}
    require_hosts: tuple[str, ...] = ()
    grace: Annotated[float, msgspec.Meta(ge=0, le=604_800)] = 3600.0
    scan_body: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 65536
    key_headers: tuple[str, ...] = KEY_HEADERS
    key_parameters: tuple[str, ...] = KEY_PARAMETERS

    def beside(self, directory: Path) -> Config:
        """Files and programs are where agentfw.toml is, wherever it is used from."""

        def text(value: str) -> str:
            return re.sub(r"\$\{file:([^}]+)\}", lambda match: f"${{file:{path(match[1])}}}", value)

        def path(given: str) -> str:
            found = path_beside(directory, given)
            if "}" in found and "}" not in given:
                raise ConfigError("", "a directory with `}` in its name cannot be that of a `${file:...}`")
            return found

        def rule(each: RuleConfig) -> RuleConfig:
            basic = each.basic and BasicConfig(text(each.basic.user), text(each.basic.password))
            return replace(each, value=text(each.value), basic=basic)

        def command(each: CommandConfig) -> CommandConfig:
            program = each.argv[0]
            return replace(each, argv=(path_beside(directory, program), *each.argv[1:])) if "/" in program else each

        return replace(
            self,
            rule=tuple(map(rule, self.rule)),
            command={name: command(each) for name, each in self.command.items()},
            oauth={name: replace(each, client_secret=text(each.client_secret)) for name, each in self.oauth.items()},
        )
