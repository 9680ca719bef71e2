"""The table [tls]."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agentfw.config import Config
from agentfw.destination import Destination
from agentfw.errors import ConfigError
from agentfw.testing import make_runtime
from agentfw_native import Config as NativeConfig
from agentfw_tls_pool import Plugin, TlsConfig

from .support import run


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"shared": ["a b"]}, "tls.shared.0"),
        ({"shared": ["ok.test", "x:99999"]}, "tls.shared.1"),
        ({"preconnect": ["api.openai.com"]}, "tls.preconnect.0"),
        ({"shared": ["api.openai.com:444"], "preconnect": ["api.openai.com"]}, "tls.preconnect.0"),
        ({"min_version": "1.1"}, "tls.min_version"),
        ({"max_connections": 0}, "tls.max_connections"),
        ({"nonsense": 1}, "tls.nonsense"),
    ],
)
def test_bad_configuration_names_the_key(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({"tls": table}).plugin("tls", TlsConfig)
    assert caught.value.key == key


@pytest.mark.parametrize("value", [math.inf, math.nan, 2**63, -1])
@pytest.mark.parametrize("table", [("tls", TlsConfig), ("native", NativeConfig)], ids=lambda table: table[0])
def test_times_and_counts_have_bounds(table: tuple[str, type[msgspec.Struct]], value: float) -> None:
    name, kind = table
    numbers = [field.name for field in msgspec.structs.fields(kind) if type(field.default) in (int, float)]
    assert len(numbers) > 5
    for key in numbers:
        with pytest.raises(ConfigError) as caught:
            Config({name: {key: value}}).plugin(name, kind)
        assert caught.value.key == f"{name}.{key}"


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_bad_ca_files_stop_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content:
        file.write_text(content)

    async def main() -> None:
        runtime = make_runtime(Plugin(TlsConfig(ca_files=(str(file),))))
        with pytest.raises(ConfigError, match=r"tls\.ca_files\.0.*ca\.pem"):
            await runtime.start()

    run(main)


def test_shared_hosts_with_and_without_ports() -> None:
    config = TlsConfig(
        shared=("a.test", "B.test:8443", "[2001:db8::1]", "[2001:db8::2]:444"), preconnect=("a.test:444", "b.test:8443")
    )
    plugin = Plugin(config)
    expected = {
        ("a.test", 443): True, ("a.test", 1): True, ("b.test", 8443): True, ("b.test", 443): False,
        ("2001:db8::1", 9): True, ("2001:db8::2", 444): True, ("2001:db8::2", 443): False, ("c.test", 443): False,
    }  # fmt: skip
    assert {(host, port): plugin.is_shared(Destination.make("https", host, port)) for host, port in expected} == expected
