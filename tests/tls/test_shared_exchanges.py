"""The short form of bench/shared_exchanges.py: no byte of one agent reaches another. And what it takes for that to be noticed."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvloop
from agentfw_tls_pool.connection import Connection
from agentfw_tls_pool.pool import Pool

FILE = Path(__file__).parents[2] / "bench" / "shared_exchanges.py"


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> ModuleType:
    caplog.set_level(logging.ERROR)  # a line for each connection that is retired
    spec = importlib.util.spec_from_file_location("shared_exchanges", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_no_byte_of_one_agent_reaches_another(bench: ModuleType, loop: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        figures = runner.run(bench.run(4000, 24, 24, seed=2, seconds=15))
    assert figures["exchanges"] > 500
    assert figures["answered"] > 0.8 * figures["exchanges"]
    assert figures["tls_reused"] > 3 * figures["tls_handshakes"]
    for kind in ("late_sent", "twice", "bytes_behind", "cut_short", "two_framings", "closed_behind"):
        assert figures[f"server_{kind}"] > 0, kind
    assert figures["tls_retired_dirty"] > 0
    assert figures["cancelled_answers"] > 0


def test_a_pool_that_does_not_look_is_found_out(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(connection: Connection) -> str:
        return "closed" if connection.closed or connection._eof or connection._error else ""

    monkeypatch.setattr(Connection, "soiled", blind)
    monkeypatch.setattr(Pool, "_idle_event", lambda *_: None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(AssertionError, match="asked with"):
        runner.run(bench.run(50000, 24, 24, seed=1, seconds=60))
