"""Jobs and [pool] as they come from outside: what is refused, and that nothing is lost on the wire."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from agentfw.config import Config
from agentfw.errors import ConfigError
from agentfw.pool.config import PoolConfig
from agentfw.pool.jobs import MAX_FILES, MAX_LABELS, MAX_PAYLOAD, Job, JobResult, Limits, PoolError


@pytest.mark.parametrize(
    "job",
    [
        Job(mode="script", target=""),
        Job(mode="module", target="a\0b"),
        Job(mode="code", target="pass", args=("\0",)),
        Job(mode="code", target="pass", env={"": "x"}),
        Job(mode="code", target="pass", env={"A=B": "x"}),
        Job(mode="code", target="pass", env={"A": "x\0"}),
        Job(mode="code", target="pass", files={"../x": b""}),
        Job(mode="code", target="pass", files={"/x": b""}),
        Job(mode="code", target="pass", files={"a//x": b""}),
        Job(mode="code", target="pass", files={"a/./x": b""}),
        Job(mode="code", target="pass", files={"": b""}),
        Job(mode="code", target="pass", files={"x" * 256: b""}),
        Job(mode="code", target="pass", files={"\0": b""}),
        Job(mode="code", target="pass", files={"a/b/c": b"", "a": b""}),
        Job(mode="code", target="pass", tenant=""),
        Job(mode="code", target="pass", tenant="\0spare"),
        Job(mode="code", target="pass", tenant="a/b"),
        Job(mode="code", target="pass", files={str(number): b"" for number in range(MAX_FILES + 1)}),
        Job(mode="code", target="pass", files={"x": bytes(MAX_PAYLOAD)}),
        Job(mode="code", target="pass", labels={"policy": "open"}),
        Job(mode="code", target="pass", labels={"tenant": "other"}),
        Job(mode="code", target="pass", labels={"": "x"}),
        Job(mode="code", target="pass", labels={"x": "a\nb"}),
        Job(mode="code", target="pass", labels={f"x{number}": "" for number in range(MAX_LABELS + 1)}),
        Job(mode="code", target="pass", policy="x" * 129),
        # Made here, not decoded: what the types say was not looked at.
        Job(mode="code", target="pass", limits=Limits(seconds=float("nan"))),
        Job(mode="code", target="pass", limits=Limits(cpu=0)),
        Job(mode="code", target="pass", limits=Limits(output=1 << 63)),
        Job(mode="code", target="pass", limits={"seconds": 1}),  # type: ignore[arg-type]
        Job(mode="code", target="pass", retries=10**30),
        Job(mode="code", target="pass", name="x" * 129),
        Job(mode="code", target="pass", stdin="text"),  # type: ignore[arg-type]
        Job(mode="code", target="pass", env={"A": 1}),  # type: ignore[dict-item]
        Job(mode="code", target="pass", files={"a": "text"}),  # type: ignore[dict-item]
        Job(mode="code", target="pass", isolation="none"),  # type: ignore[arg-type]
        Job(mode="shell", target="pass"),  # type: ignore[arg-type]
        Job(mode="code", target="\udcff"),
        Job(mode="code", target="pass", args=("\udcff",)),
        Job(mode="code", target="pass", env={"A": "\udcff"}),
        Job(mode="code", target="pass", files={"\udcff": b""}),
        Job(mode="code", target="pass", name="\udcff"),
        Job(mode="code", target="pass", policy="\udcff"),
        Job(mode="code", target="pass", template="\udcff"),
    ],
)
def test_what_the_types_do_not_exclude(job: Job) -> None:
    with pytest.raises(PoolError) as caught:
        job.check()
    assert caught.value.code == "bad_job"


@pytest.mark.parametrize(
    "text",
    [
        '{"mode": "shell", "target": "x"}',
        '{"mode": "code", "target": "x", "tenant": "../a"}',
        '{"mode": "code", "target": "x", "tenant": ""}',
        '{"mode": "code", "target": "x", "tenant": "a\\n"}',
        '{"mode": "code", "target": "x", "limits": {"seconds": 0}}',
        '{"mode": "code", "target": "x", "limits": {"seconds": 1e400}}',
        '{"mode": "code", "target": "x", "limits": {"cpu": 2}}',
        '{"mode": "code", "target": "x", "retries": 1000}',
        '{"mode": "code", "target": "x", "unknown": 1}',
        '{"mode": "code"}',
    ],
)
def test_what_the_types_exclude(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Job)


def test_a_job_survives_the_wire() -> None:
    files = {"a.py": b"\x00\xff", "d/b": b""}
    job = Job(mode="script", target="a.py", files=files, stdin=b"\xff", labels={"run": "7"}, tenant="t-1")
    job.check()
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=Job) == job


def test_status_is_the_commands() -> None:
    found = {kind: JobResult(kind=kind).status for kind in ("killed", "memory", "hostile", "output", "timeout", "internal")}  # type: ignore[arg-type]
    assert found == {"killed": 137, "memory": 137, "hostile": 137, "output": 137, "timeout": 124, "internal": 125}
    assert JobResult(kind="code", code=3).status == 3
    assert JobResult(kind="signal", signal=11).status == 139


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"idle": 20, "size": 10}, "pool.idle"),
        ({"listen": "127.0.0.1:1"}, "pool.listen"),
        ({"templates": {"a/b": {}}}, "pool.templates"),
        ({"tenants": {"..": {}}}, "pool.tenants"),
        ({"tenants": {"a": {"share": 0}}}, "pool.tenants.a.share"),
        ({"isolation": "none"}, "pool.isolation"),
        ({"workers": 0}, "pool.workers"),
        ({"colour": 1}, "pool.colour"),
        ({"templates": {"x": {"env": {"A=B": ""}}}}, "pool.templates.x.env.A=B"),
        ({"templates": {"x": {"env": {"A": "\0"}}}}, "pool.templates.x.env.A"),
        ({"tenants": {"x": {"share": 5e-324}}}, "pool.tenants.x.share"),
    ],
)
def test_a_bad_table_names_the_key(table: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({"pool": table}).plugin("pool", PoolConfig)
    assert caught.value.key == key


def test_a_small_pool_keeps_no_more_warm_than_it_has() -> None:
    def warm(**table: int) -> int:
        return Config({"pool": table}).plugin("pool", PoolConfig).warm

    assert (warm(), warm(size=16), warm(size=40), warm(size=16, idle=3), warm(idle=0)) == (32, 16, 32, 3, 0)
    assert Config({"pool": {"size": 500}}).with_keys("pool", {"size": 4}).plugin("pool", PoolConfig).warm == 4


def test_paths_begin_at_the_file() -> None:
    table = {"socket": "s", "token_file": "/t", "listen": "127.0.0.1:1", "templates": {"x": {"mount": ["data:/data:rw"]}}}
    found = Config({"pool": table}, Path("/etc/agentfw.toml")).plugin("pool", PoolConfig)
    assert (found.socket, found.token_file) == ("/etc/s", "/t")
    assert found.templates["x"].mount == ("/etc/data:/data:rw",)
    assert found.template("default") is not None
    assert found.template("y") is None
