"""Access tokens by the OAuth 2.0 client credentials grant (RFC 6749, 4.4): one for the whole fleet, minted when it is first
needed and renewed before it expires. The token endpoint is reached as everything else is: resolved and verified by the other
plugins."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from ipaddress import ip_network
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec
from agentfw import ConfigError, Destination, Headers, RequestHead, TlsRequest
from agentfw.agents import Operator
from agentfw.errors import AgentfwError, ProtocolError
from agentfw.http1 import BodyReader, find_head_end, parse_response, response_framing

from .config import OAuthConfig
from .renewed import Renewed, Unavailable
from .sources import Source
from .values import check_secret

MAX_ANSWER = 65536
SHORTEST_LIFE = 5.0
"""Seconds; a token that claims less is taken to live so long, or every request would mint one."""
_ERROR = re.compile(r"[a-z_]{1,40}\Z")


class _Answer(msgspec.Struct):
    """RFC 6749, 5.1 and 5.2; what else there is does not matter."""

    access_token: str = ""
    token_type: str = "bearer"
    expires_in: float | str | None = None
    error: str = ""


_decode = msgspec.json.Decoder(_Answer).decode


class OAuth(Renewed):
    """A token. `secret`: where the client's secret comes from."""

    keeps = False

    def __init__(self, name: str, config: OAuthConfig, secret: Source) -> None:
        """ConfigError: keys within the table."""
        super().__init__(f"oauth:{name}")
        self.config = config
        self.secret = secret
        self.destination, self._target = _parse_url(config.token_url)
        try:
            networks = tuple(ip_network(each) for each in config.allow_addresses)
        except ValueError as error:
            raise ConfigError("allow_addresses", str(error)) from None
        self._as = Operator("credentials", f"credentials: {name}", {"tenant": "credentials"}, networks)

    async def _renew(self) -> tuple[str, float]:
        secret = await self.secret.get()
        if secret is None:
            raise Unavailable("the client's secret cannot be had")
        try:
            async with asyncio.timeout(self.config.timeout):
                status, body = await self._post(*self._request(secret))
        except TimeoutError:
            raise Unavailable(f"{self.destination.host} gave no answer within {self.config.timeout:g} s") from None
        except (AgentfwError, OSError) as error:
            raise Unavailable(f"{self.destination.host} cannot be asked: {error}") from None
        try:
            answer = _decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            answer = _Answer()
        if status != 200 or not answer.access_token:
            if status in (400, 401):
                self.secret.rejected(secret)
            why = f" ({answer.error})" if _ERROR.match(answer.error) else ""
            raise Unavailable(f"{self.destination.host} gave no token: status {status}{why}")
        if status == 200:
            self.secret.accepted(secret)
        if answer.token_type.lower() != "bearer":
            raise Unavailable(f"{self.destination.host} gave a token that is no bearer token")
        try:
            token = check_secret(answer.access_token, "the token")
        except ConfigError as error:
            raise Unavailable(error.message) from None
        return token, self._life(answer.expires_in)

    def _life(self, told: float | str | None) -> float:
        try:
            seconds = float(told) if told is not None else self.config.ttl
        except ValueError:
            seconds = self.config.ttl
        return min(max(seconds, SHORTEST_LIFE), 86_400.0) if seconds == seconds else self.config.ttl

    def _request(self, secret: str) -> tuple[RequestHead, bytes]:
        config = self.config
        fields: dict[str, str] = {"grant_type": "client_credentials"}
        if config.scope:
            fields["scope"] = config.scope
        if config.audience:
            fields["audience"] = config.audience
        fields |= config.parameters
        headers = Headers([("Host", self.destination.authority), ("Accept", "application/json"), ("Connection", "close")])
        if config.auth == "basic":  # RFC 6749, 2.3.1: both are form-encoded first
            pair = f"{quote_plus(config.client_id)}:{quote_plus(secret)}"
            headers.set("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
        else:
            fields |= {"client_id": config.client_id, "client_secret": secret}
        body = urlencode(fields).encode()
        headers.set("Content-Type", "application/x-www-form-urlencoded")
        headers.set("Content-Length", str(len(body)))
        return RequestHead("POST", self._target, headers), body

    async def _post(self, head: RequestHead, body: bytes) -> tuple[int, bytes]:
        """(status, body) of the answer. AgentfwError, OSError."""
        runtime = self._runtime
        assert runtime is not None, "start() has not been called"
        name = None if self.destination.is_address else self.destination.host
        upstream = await runtime.connect(self._as, self.destination, TlsRequest(name, ("http/1.1",)))
        try:
            if upstream.tls is None or not upstream.tls.verified:
                raise ProtocolError("its TLS was not verified")
            await upstream.send(head.encode() + body)
            data = b""
            while True:
                while (end := find_head_end(data)) < 0:
                    piece = await upstream.receive()
                    if not piece:
                        raise ProtocolError("it closed the connection before it answered")
                    data += piece
                answer, data = parse_response(data[:end]), data[end:]
                if answer.status >= 200:
                    break
            reader = BodyReader(response_framing(answer, "POST"), 502)
            content = reader.feed(data)
            while not reader.done and len(content) <= MAX_ANSWER:
                piece = await upstream.receive()
                if not piece:
                    reader.end()
                    break
                content += reader.feed(piece)
            if len(content) > MAX_ANSWER:
                raise ProtocolError("its answer is too long")
            return answer.status, content
        finally:
            upstream.release()


def _parse_url(text: str) -> tuple[Destination, str]:
    try:
        url = urlsplit(text)
        if url.scheme != "https":
            raise ConfigError("token_url", "must begin https://: a client's secret is sent there")
        if url.username is not None or url.password is not None or url.fragment or not url.hostname:
            raise ConfigError("token_url", "must be https://HOST[:PORT]/PATH")
        destination = Destination.make("https", url.hostname, 443 if url.port is None else url.port)
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        RequestHead("POST", target, Headers()).encode()
    except ValueError as error:
        raise ConfigError("token_url", str(error)) from None
    return destination, target


def make_oauth(configs: Mapping[str, OAuthConfig], name: str, secret: Source) -> OAuth:
    """ConfigError with the key within [credentials]."""
    try:
        return OAuth(name, configs[name], secret)
    except ConfigError as error:
        raise ConfigError(f"oauth.{name}.{error.key}", error.message, hint=error.hint) from None
