"""An Observatory that is made up: any number of agents, every field filled, moving, hostile ones among them."""

from __future__ import annotations

import time
from random import Random
from typing import Any

from agentfw.views import (
    WARMUP_BUCKETS,
    AgentRow,
    AgentStory,
    AgentTable,
    Denial,
    Loaded,
    LoadedPlugin,
    OpenedFile,
    Overview,
    Sample,
    SeenDestination,
    SeenModelCall,
    SeenName,
    Spread,
    Step,
    Syscall,
)
from msgspec.structs import replace

from . import hostile

TENANTS = ["research", "evals", "support", "batch"]
TASKS = ["swe-bench", "browse", "triage", "summarise", "rollout", "codegen", "refactor", "translate"]
MODELS = [("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5-mini"), ("google", "gemini-2.5-flash")]
HOSTS = {"anthropic": "api.anthropic.com", "openai": "api.openai.com", "google": "generativelanguage.googleapis.com"}
LAST = [
    "model call to claude-sonnet-4-5",
    "resolved api.openai.com",
    "GET pypi.org/simple/",
    "opened /workspace/main.py",
    "reads",
]
CALLS = [
    "read",
    "write",
    "mmap",
    "openat",
    "futex",
    "clock_gettime",
    "epoll_wait",
    "close",
    "fstat",
    "lseek",
    "brk",
    "getdents64",
]
STARTED = 40 * 60.0
"""Seconds before the fake's begin that its pool started."""


class FakeObservatory:
    """`agents` of them (hostile ones first), as they are at `now`; `step()` lets time pass, with `steps_itself` each question."""

    def __init__(
        self, agents: int = 40, *, hostile_names: bool = True, seed: int = 7, now: float | None = None, steps_itself: bool = False
    ) -> None:
        self.time = time.time() if now is None else now
        self.started = self.time - STARTED
        self.state = "ready"
        self.steps_itself = steps_itself
        self.revision = 1
        self._random = Random(seed)
        self._next = 0
        self._rows: dict[str, AgentRow] = {}
        self._changed: dict[str, int] = {}
        self._gone: list[tuple[int, str]] = []
        self._denials = 0
        self._recent: list[Denial] = []
        self._history: list[Sample] = []
        self._warmup = [self._bar(index) for index in range(WARMUP_BUCKETS)]
        for name in [*hostile.NAMES, hostile.LONG][:agents] if hostile_names else []:
            self._add(name, hostile_one=True)
        while len(self._rows) < agents:
            self._add()
        for row in [row for row in self._rows.values() if row.denials][:40]:
            self.deny(row.id, "collector.example:443")
        for second in range(300, 0, -1):
            self._history.append(self._sample(self.time - second))

    # What the web server asks, the same as of the Observatory.

    async def overview(self) -> Overview:
        self._by_itself()
        rows = list(self._rows.values())
        states = [row.state for row in rows]
        ended = [row for row in rows if row.state == "done"]
        questions = sum(row.questions for row in rows)
        hits, misses = int(questions * 0.97), int(questions * 0.03)
        running = states.count("running")
        memory = 180_000_000 + 700_000 * (running + 12)
        return Overview(
            time=self.time,
            started=self.started,
            state=self.state,
            workers=2,
            running=running,
            idle=12,
            warming=states.count("starting"),
            queued=states.count("queued"),
            done=len(ended),
            failed=sum(row.how != "code 0" for row in ended),
            warmup=self._warmup,
            memory=memory,
            agents_per_gb=(running + 12) / (memory / 2**30),
            dns_questions=questions,
            dns_hits=hits,
            dns_misses=misses,
            dns_hit_rate=hits / (hits + misses) if hits + misses else None,
            dispatch=Spread(count=len(rows), p50=0.00082, p95=0.0021, p99=0.0047, most=0.012),
            connect=Spread(count=4 * len(rows), p50=0.0000031, p95=0.0009, p99=0.0312, most=0.21),
            first_call=Spread(count=len(rows), p50=0.0021, p95=0.0083, p99=0.041, most=0.34),
            tls_sessions=max(1, running // 5),
            tls_agents=running,
            agents_per_session=running / max(1, running // 5),
            bytes_up=sum(row.bytes_up for row in rows),
            bytes_down=sum(row.bytes_down for row in rows),
            requests=sum(row.requests for row in rows),
            model_calls=sum(row.model_calls for row in rows),
            model_calls_failed=len(rows) // 25,
            input_tokens=sum(row.input_tokens for row in rows),
            output_tokens=sum(row.output_tokens for row in rows),
            cost=sum(row.cost or 0.0 for row in rows),
            currency="USD",
            denials=self._denials,
            recent_denials=self._recent[:100],
            history=self._history[-600:],
        )

    async def agents(self, since: int) -> AgentTable:
        self._by_itself()
        whole = since <= 0 or since > self.revision
        rows = [row for row in self._rows.values() if whole or self._changed[row.id] > since]
        gone = [] if whole else [id for at, id in self._gone if at > since]
        return AgentTable(time=self.time, since=self.revision, whole=whole, rows=rows, gone=gone, total=len(self._rows))

    async def agent(self, id: str) -> AgentStory | None:
        row = self._rows.get(id)
        return None if row is None else _story(row, self.time)

    async def loaded(self) -> Loaded:
        return Loaded(
            file="/etc/agentfw/agentfw.toml",
            plugins=[
                LoadedPlugin(
                    name="policy",
                    version="0.1.0",
                    hooks=["allow", "guest_rules", "request_start"],
                    table='default = "deny"\nrules = [\n  { allow = "*.anthropic.com:443" },\n  { allow = "pypi.org:443" },\n]\n',
                    counters={"allowed": 18342.0, "denied": float(self._denials), "limited": 0.0, "seconds.bucket.1": 3.0},
                ),
                LoadedPlugin(
                    name="dns", version="0.1.0", hooks=["resolve"], table="max_names = 65536\n", counters={"hits": 97123.0}
                ),
                LoadedPlugin(
                    name="inspect", version="0.1.0", hooks=["request_end", "response_body"], counters={"model_calls": 811.0}
                ),
                LoadedPlugin(
                    name=hostile.MARKUP[2], version=hostile.TERMINAL[0], hooks=[hostile.MARKUP[0]], table=hostile.MARKUP[1]
                ),
                LoadedPlugin(name="dashboard", version="0.1.0", hooks=["agent_start", "agent_exit"], table="port = 0\n"),
            ],
            policy="deny everything but:\n  allow *.anthropic.com:443\n  allow pypi.org:443  # packages\n"
            + hostile.MARKUP[1]
            + "\n",
        )

    # Time.

    def _by_itself(self) -> None:
        """In seconds of the clock, if it is to move by itself."""
        while self.steps_itself and time.time() - self.time >= 1.0:
            self.step(1.0)

    def step(self, seconds: float = 1.0) -> None:
        """`seconds` pass: some agents do something, some end, others begin, something is denied."""
        self.time += seconds
        self.revision += 1
        self._history.append(self._sample(self.time))
        del self._history[:-600]
        for row in self._random.sample(list(self._rows.values()), max(1, len(self._rows) // 10)):
            self.set(row.id, **self._moved(row))
        if self._random.random() < 0.5:
            self.deny(self._random.choice(list(self._rows)), "collector.example:443")

    def set(self, id: str, **fields: Any) -> AgentRow:
        """An agent's row, changed."""
        self._rows[id] = replace(self._rows[id], **fields)
        self._changed[id] = self.revision
        return self._rows[id]

    def add(self, name: str | None = None, **fields: Any) -> AgentRow:
        """One more agent, seen from the next question on."""
        self.revision += 1
        return self.set(self._add(name), **fields)

    def forget(self, id: str) -> None:
        """An agent is no longer known."""
        self.revision += 1
        del self._rows[id], self._changed[id]
        self._gone.append((self.revision, id))

    def deny(self, id: str, destination: str) -> None:
        """An agent was refused something."""
        self._denials += 1
        row = self._rows[id]
        denial = Denial(
            time=self.time,
            agent_id=id,
            agent=row.name[:2000],
            destination=destination,
            rule="default: deny",
            plugin="policy",
            reason="no rule",
        )
        self._recent.insert(0, denial)
        del self._recent[100:]
        self.set(id, denials=row.denials + 1, last=f"denied {destination}", last_at=self.time)

    def rows(self) -> list[AgentRow]:
        return list(self._rows.values())

    def output(self, id: str) -> bytes:
        """What the agent wrote so far."""
        row = self._rows[id]
        if _is_hostile(row):
            return hostile.OUTPUT
        return "".join(f"step {step}: done in {step * 7 % 13} ms\n" for step in range(row.requests + 3)).encode()

    def _add(self, name: str | None = None, *, hostile_one: bool = False) -> str:
        number, random = self._next, self._random
        self._next += 1
        id = f"j{number:05d}{random.getrandbits(24):06x}"
        state = "running" if hostile_one else random.choices(["running", "done", "queued", "starting"], [62, 30, 6, 2])[0]
        submitted = self.time - random.uniform(5, STARTED)
        started = None if state == "queued" else submitted + random.uniform(0.001, 0.4)
        ended = None if state != "done" or started is None else min(self.time, started + random.expovariate(1 / 60))
        ran = 0.0 if started is None else (ended or self.time) - started
        calls = int(ran // 9)
        task = random.choice(TASKS)
        bad = name if hostile_one else None
        self._rows[id] = AgentRow(
            id=id,
            name=f"{task}-{number:04d}" if name is None else name,
            tenant=random.choice(TENANTS) if bad is None else bad[:200],
            template="default" if number % 3 else "wheels",
            labels={"task": task, "run": str(number % 9)} if bad is None else {bad[:100] or "label": bad[:200], "hostile": "yes"},
            state=state,
            worker=None if state == "queued" else number % 2,
            submitted=submitted,
            started=started,
            ended=ended,
            cpu_seconds=ran * random.uniform(0.01, 0.2),
            memory=0 if state in ("queued", "done") else random.randrange(700_000, 60_000_000),
            exits=int(ran * 90),
            questions=calls + 2 if ran else 0,
            connections=calls and 1 + calls // 5,
            requests=calls * 2,
            model_calls=calls,
            input_tokens=calls * random.randrange(500, 9000),
            output_tokens=calls * random.randrange(50, 900),
            cost=calls * random.uniform(0.001, 0.03) if ran else None,
            denials=random.choices([0, 1, 7], [90, 7, 3])[0] if ran else 0,
            bytes_up=calls * random.randrange(2_000, 40_000),
            bytes_down=calls * random.randrange(8_000, 400_000),
            last=(random.choice(LAST) if bad is None else bad[:500]) if ran else "",
            last_at=(ended or self.time - random.uniform(0, 9)) if ran else None,
            how=random.choices(["code 0", "code 1", "signal 11", "timeout"], [85, 9, 3, 3])[0] if ended else "",
        )
        self._denials += self._rows[id].denials
        self._changed[id] = self.revision
        if bad is not None:
            self.deny(id, bad[:300] or "(nothing)")
        return id

    def _moved(self, row: AgentRow) -> dict[str, Any]:
        random = self._random
        if row.state == "queued":
            return {"state": "starting", "started": self.time, "worker": random.randrange(2)}
        if row.state == "starting":
            return {"state": "running", "memory": 900_000, "last": "first system call", "last_at": self.time}
        if row.state == "done":
            return {}
        if not _is_hostile(row) and random.random() < 0.1:
            how = random.choice(["code 0", "code 0", "code 0", "code 1"])
            return {"state": "done", "ended": self.time, "how": how, "memory": 0, "last": "ended", "last_at": self.time}
        return {
            "cpu_seconds": row.cpu_seconds + random.uniform(0, 0.1),
            "memory": max(700_000, row.memory + random.randrange(-500_000, 600_000)),
            "exits": row.exits + random.randrange(200),
            "questions": row.questions + 1,
            "requests": row.requests + 1,
            "model_calls": row.model_calls + 1,
            "input_tokens": row.input_tokens + random.randrange(500, 9000),
            "output_tokens": row.output_tokens + random.randrange(50, 900),
            "cost": (row.cost or 0.0) + random.uniform(0.001, 0.03),
            "bytes_up": row.bytes_up + random.randrange(2_000, 40_000),
            "bytes_down": row.bytes_down + random.randrange(8_000, 400_000),
            "last": row.last if _is_hostile(row) else random.choice(LAST),
            "last_at": self.time,
        }

    def _sample(self, at: float) -> Sample:
        random = self._random
        running = sum(row.state == "running" for row in self._rows.values())
        calls = running / 9 * random.uniform(0.7, 1.3)
        return Sample(
            time=at,
            running=int(running * random.uniform(0.95, 1.0)),
            started=running / 60 * random.uniform(0.2, 2),
            ended=running / 60 * random.uniform(0.2, 2),
            questions=calls * 1.2,
            requests=calls * 2,
            model_calls=calls,
            tokens=calls * random.uniform(3000, 6000),
            denials=random.choices([0.0, 1.0, 3.0], [80, 15, 5])[0],
            bytes_up=calls * random.uniform(10_000, 30_000),
            bytes_down=calls * random.uniform(50_000, 250_000),
            memory=180_000_000 + int(700_000 * running * random.uniform(0.95, 1.0)),
        )

    def _bar(self, index: int) -> int:
        if index == WARMUP_BUCKETS - 1:
            return 3
        return max(0, int(self._random.gauss(0, 6) + 420 * 0.72 ** abs(index - 4)))


def _is_hostile(row: AgentRow) -> bool:
    return row.labels.get("hostile") == "yes"


def _story(row: AgentRow, now: float) -> AgentStory:
    """A life that fits a row: the same whenever it is asked for, longer as the agent goes on."""
    random = Random(row.id)
    bad = row.name[:2000] if _is_hostile(row) else None
    if row.started is None:
        return AgentStory(row=row, timeline=[Step(at=0.0, kind="queued", text="queued")])
    began = row.started - row.submitted
    steps = [
        Step(at=0.0, kind="queued", text="waits for a VM", seconds=began),
        Step(at=began, kind="dispatch", text=f"VM of worker {row.worker}", seconds=0.0008),
        Step(at=began + 0.0009, kind="first_syscall", text="openat /workspace/main.py"),
    ]
    models: list[SeenModelCall] = []
    at = began + 0.012
    for number in range(min(row.model_calls, 60)):
        provider, model = MODELS[number % 3]
        host = HOSTS[provider]
        if number < 3:
            steps.append(Step(at=at, kind="resolve", text=bad or f"{host} A", seconds=0.0000009 if number else 0.0021))
            steps.append(Step(at=at + 0.003, kind="connect", text=f"{host}:443", seconds=0.0007 + 0.02 * (number == 0)))
        took, first, failed = random.uniform(0.4, 7), random.uniform(0.1, 0.4), random.random() < 0.05
        steps.append(Step(at=at + 0.03, kind="request", text=f"POST {host}/v1/messages", seconds=0.0012, ok=not failed))
        if not failed:
            steps.append(Step(at=at + 0.03 + first, kind="first_token", text=bad or model))
            steps.append(Step(at=at + 0.03, kind="model_call", text=bad or f"{provider} {model}", seconds=took))
        steps.append(
            Step(at=at + 0.03 + (took if not failed else 0.1), kind="response", text="429" if failed else "200", ok=not failed)
        )
        models.append(
            SeenModelCall(
                at=at + 0.03,
                provider=provider,
                model=bad or model,
                operation="messages",
                status=429 if failed else 200,
                seconds=0.1 if failed else took,
                first_token=None if failed else first,
                input_tokens=None if failed else random.randrange(500, 9000),
                output_tokens=None if failed else random.randrange(50, 900),
                cost=None if failed else random.uniform(0.001, 0.03),
                estimated=number % 7 == 6,
                error="rate limited" if failed else "",
            )
        )
        at += took + random.uniform(0.5, 4)
    denied = bad or "collector.example:443"
    denials = [
        Denial(
            time=row.started + 1 + number,
            agent_id=row.id,
            agent=row.name[:2000],
            destination=denied,
            rule="default: deny",
            plugin="policy",
            reason=bad or "no rule permits it",
            count=1 + number % 3,
        )
        for number in range(min(row.denials, 20))
    ]
    steps += [Step(at=each.time - row.submitted, kind="denied", text=each.destination, ok=False) for each in denials]
    if row.ended is not None:
        steps.append(Step(at=row.ended - row.submitted, kind="exit", text=row.how, ok=row.how == "code 0"))
    counts = sorted((random.randrange(3, 90_000) for _ in CALLS), reverse=True)
    return AgentStory(
        row=row,
        timeline=sorted(steps, key=lambda step: step.at),
        syscalls=[
            Syscall(name=name, count=count, host_count=count // 40, host_seconds=count * 2e-6, errors=count % 5)
            for name, count in zip(CALLS, counts, strict=True)
        ],
        files=[
            OpenedFile(path=bad or "/workspace/main.py"),
            OpenedFile(path="/workspace/out.json", mode="w", count=3),
            OpenedFile(path="/usr/lib/python3.11/json/__init__.py", count=1),
            OpenedFile(path="/etc/shadow", mode="r", count=2, error="ENOENT"),
            OpenedFile(path=bad or "/workspace/.env", mode="", error="EACCES", rule="deny **/.env"),
        ],
        names=[
            SeenName(name=bad or "api.anthropic.com", qtype="A", count=row.questions, answer="160.79.104.10", seconds=0.0021),
            SeenName(name="collector.example", qtype="AAAA", count=1, answer="NXDOMAIN", denied_rule="default: deny"),
        ],
        destinations=[
            SeenDestination(
                destination=bad or "api.anthropic.com:443",
                connections=row.connections,
                requests=row.requests,
                errors=1,
                bytes_up=row.bytes_up,
                bytes_down=row.bytes_down,
            ),
            SeenDestination(destination="collector.example:443", denials=row.denials),
        ],
        model_calls=models,
        denials=denials,
        dropped={"files": 212, "timeline": 40} if row.model_calls > 60 else {},
        exit_text="" if row.ended is None else (bad or f"ended with {row.how}"),
        exit_kind="" if row.ended is None else row.how.split()[0],
        exit_code=1 if row.how == "code 1" else 0,
        exit_signal=11 if row.how == "signal 11" else 0,
        counters={
            "exits": row.exits,
            "pages_private": 212,
            "pages_shared": 1801,
            "ring_bells": row.exits // 3,
            "syscalls_shim": row.exits * 40,
        },
    )
