"""Random sequences of calls on pipes, eventfds, unix sockets, refused connections and epoll sets that watch them: the same results in a guest as natively.

Two programs that live for the whole test, one here and one in a VM, are sent the same steps.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import COMMAND

pytestmark = pytest.mark.kvm

PROGRAM = Path(__file__).parents[1] / "guest/socket_steps.py"
INDEX = st.integers(0, 11)
SIZE = st.sampled_from(
    [1, 3, 8, 100, 600]
)  # not 0: kernels differ in whether an empty message that nobody read resets its sender
IN, OUT, RDHUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLRDHUP
EVENTS = st.sampled_from(
    [
        IN,
        OUT,
        IN | OUT,
        IN | RDHUP,
        IN | select.EPOLLET,
        IN | RDHUP | select.EPOLLET,
        IN | select.EPOLLONESHOT,
        IN | OUT | select.EPOLLONESHOT,
    ]
)
STEP = st.one_of(
    st.tuples(st.just("make"), st.sampled_from(["stream", "dgram", "seqpacket", "pipe", "event", "set", "refused"])),
    st.tuples(st.sampled_from(["write", "read"]), INDEX, SIZE),
    st.tuples(st.just("send"), INDEX, SIZE, st.just(-1) | INDEX),
    st.tuples(st.just("receive"), INDEX, SIZE, st.sampled_from([0, 2, 0x20, 0x22])),
    st.tuples(st.just("shutdown"), INDEX, st.integers(0, 2)),
    st.tuples(st.sampled_from(["close", "dup", "remove", "error"]), INDEX),
    st.tuples(st.sampled_from(["add", "change"]), INDEX, EVENTS),
    st.tuples(st.just("join"), INDEX, INDEX, EVENTS),
    st.tuples(st.just("leave"), INDEX, INDEX),
    st.tuples(st.just("inner"), INDEX),
    st.tuples(st.sampled_from(["poll", "wait"])),
)


class Runner:
    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, str(PROGRAM)], stdin=pipe, stdout=pipe, text=True, env=environment)

    def results(self, steps: list[tuple[object, ...]]) -> list[object]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(steps), file=self.process.stdin, flush=True)
        told: list[object] = json.loads(self.process.stdout.readline())  # (nothing: it ended)
        return told

    def close(self) -> None:
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def runners(agentfw_environment: dict[str, str]) -> Iterator[tuple[Runner, Runner]]:
    with (
        closing(Runner([sys.executable], agentfw_environment)) as native,
        closing(Runner([*COMMAND, "run", "--no-config", "--plugins", ""], agentfw_environment)) as guest,
    ):
        yield native, guest


@settings(max_examples=400, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=10, max_size=60))
def test_same_steps_same_results(runners: tuple[Runner, Runner], steps: list[tuple[object, ...]]) -> None:
    steps = [("make", "stream"), ("make", "pipe"), *steps, ("poll",), ("wait",)]
    native, guest = (runner.results(steps) for runner in runners)
    assert guest == native
