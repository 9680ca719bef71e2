"""Loading plugins, calling hooks, and agentfw.toml."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from pathlib import Path

import msgspec
import pytest
from agentfw import Agent, ConfigError, Denied, Destination, ExitReport, hookimpl
from agentfw.config import Config, load_config
from agentfw.errors import HookError, PluginError, UnknownPlugin
from agentfw.plugins import PluginManager, available, load_plugins, without_effect
from agentfw.plugins.loading import known_tables
from agentfw.testing import make_agent
from agentfw_credentials import Config as CredentialsConfig

from .support import async_test

WHERE = Destination.make("tcp", "a.example", 1)
AGENT = make_agent()
GOOD = "[[credentials.rule]]\nhost = 'a.example'\nheader = 'x'\nvalue = 'a-secret-value'\n\n"


def manager(*plugins: object) -> PluginManager:
    made = PluginManager()
    for i, plugin in enumerate(plugins):
        made.add(f"p{i}", plugin)
    made.compile()
    return made


def write(directory: Path, text: str) -> Path:
    file = directory / "agentfw.toml"
    file.write_text(text)
    return file


# -- configuration


@pytest.mark.parametrize(
    ("text", "key", "line", "message"),
    [
        ("[run]\nmemory = '1G'\nmemroy = '2G'\n", "run.memroy", 3, "unknown key"),
        ("# x\n[run]\ntimeout = 'soon'\n", "run.timeout", 3, "expected number, got text"),
        ("[policy]\nallow = ['a.example']\ndefault = 'maybe'\n", "policy.default", 3, 'expected "allow" | "deny", got "maybe"'),
        ("[policy]\nallow = ['a.example', 5]\n", "policy.allow.1", 2, "expected text, got integer"),
        ("[policy]\nallow = ['a.example', 'b c']\n", "policy.allow.1", 2, "bad host"),
        (GOOD + "[[credentials.rule]]\nhost = 'b.example'\nheadr = 'x'\n",
         "credentials.rule.1.headr", 8, "unknown key"),
        (GOOD + "[[credentials.rule]]\nhost = 'b.example'\n",
         "credentials.rule.1", 6, "needs exactly one of"),
        ("[[credentials.rule]]\nhost = 'a.example'\nheader = 'x'\nvalue = '${env:AGENTFW_TEST_MISSING}'\n",
         "credentials.rule.0.value", 4, "AGENTFW_TEST_MISSING is not set"),
        ("[run]\n\n[polcy]\nallow = []\n", "polcy", 3, "unknown table"),
        ("memory = '1G'\n", "memory", 1, "unknown table"),
        ("policy = 3\n", "policy", 1, "must be a table"),
        ("[run]\nplugins = ['dns',\n", "", 3, "not TOML"),
    ],
)  # fmt: skip
def test_mistakes_name_key_file_and_line(tmp_path: Path, text: str, key: str, line: int, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_plugins(["policy", "credentials", "native", "audit"], load_config(file))
    error = caught.value
    assert (error.key, error.file) == (key, str(file)) and message in str(error), str(error)
    assert error.line == line or (key == "" and error.line in (2, 3)), str(error)
    assert str(error).startswith(f"{file}:{error.line}: {key}") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "key", "line", "message", "hint"),
    [
        ("[policy]\nallow = 'a.example'\n", "policy.allow", 2, "expected list of text, got text", 'write `["..."]`'),
        ("[policy]\nalow = []\n", "policy.alow", 2, "unknown key", "did you mean `allow`?"),
        ("[native]\nzzz = 1\n", "native.zzz", 2, "unknown key (known: resolve, ", ""),
        ("[polcy]\n", "polcy", 1, "unknown table (known: ", "did you mean `policy`?"),
        ("[[policy.rule]]\nhost = 'a.example'\n", "policy.rule.0", 1, "the key `action` is missing", ""),
        ("[[policy.rule]]\naction = 'alow'\n", "policy.rule.0.action", 2,
         'expected "allow" | "deny", got "alow"', 'did you mean "allow"?'),
        ("[run]\nmemory = 512\n", "run.memory", 2, "expected text, got integer", ""),
        ("[policy.profile.a]\nallow = []\n[policy.profile.b]\nlimit = {}\n", "policy.profile.b.limit", 4,
         "unknown key", "did you mean `limits`?"),
        ("[policy.profile.b]\n[[policy.profile.b.rule]]\naction = 'deny'\n[[policy.profile.b.rule]]\naction = 5\n",
         "policy.profile.b.rule.1.action", 5, "got integer", ""),
        ("[credentials.command.vault]\nargv = 'vault'\n", "credentials.command.vault.argv", 2,
         "expected list of text, got text", 'write `["..."]`'),
        ("[native]\nttl = '300'\n", "native.ttl", 2, "got text", "write 300, without quotes"),
        ("[native]\nttl = '5m'\n", "native.ttl", 2, "got text", ""),  # minutes, not MiB
        ("[policy]\n[audit]\nfile = 'a'\nmax_bytes = '2K'\n", "audit.max_bytes", 4, "got text", "write 2048, without quotes"),
        ("[native]\nttl = -1\n", "native.ttl", 2, "expected integer >= 0", ""),
        ("[policy]\nallow = ['https://a.example/v1']\n", "policy.allow.0", 2, "a URL; wanted is just the host", ""),
        ("[policy]\nallow = ['a.example/v1']\n", "policy.allow.0", 2, "a network, without a path", ""),
        ("[[credentials.rule]]\nhost = 'https://a.example'\nheader = 'x-key'\nvalue = '0123456789'\n",
         "credentials.rule.0.host", 2, "a URL; wanted is just the host", ""),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_the_words_of_toml(tmp_path: Path, text: str, key: str, line: int, message: str, hint: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_plugins(["policy", "credentials", "native", "audit"], load_config(file))
    error = caught.value
    assert (error.key, error.line, error.hint) == (key, line, hint) and message in error.message, (str(error), error.hint)
    assert "`str`" not in str(error) and "object" not in str(error) and "null" not in str(error)


@pytest.mark.parametrize("named", [False, True])
def test_relative_paths_begin_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    place = tmp_path / "project"
    (place / "inner").mkdir(parents=True)
    (place / "mine.py").write_text("from agentfw import hookimpl\nclass Plugin:\n    pass\n")
    (place / "key").write_text("file-secret-0123456789")
    (place / "print").write_text("#!/bin/sh\n")
    write(
        place,
        """
[run]
plugins = ["./mine.py", "mine.py", "dns", "/abs/x.py"]
mount = ["./data:/data:rw", "data", "/abs:/abs"]
[[credentials.rule]]
host = "a.example"
header = "x-key"
value = "Bearer ${file:key}"
[[credentials.rule]]
host = "b.example"
basic = { user = "robot", password = "${file:../project/key}" }
[[credentials.rule]]
host = "c.example"
query = "key"
value = "${command:here}${command:path}"
[credentials.command.here]
argv = ["./print", "./argument"]
[credentials.command.path]
argv = ["vault"]
""",
    )
    monkeypatch.chdir(tmp_path if named else place / "inner")
    config = load_config(Path("project/agentfw.toml") if named else None)
    here = "project" if named else str(place)
    assert config.run.plugins == (f"{here}/mine.py", f"{here}/mine.py", "dns", "/abs/x.py")
    assert config.run.mount == (f"{here}/data:/data:rw", f"{here}/data", "/abs:/abs")
    loaded = load_plugins([config.run.plugins[0], "credentials"], config)
    assert loaded.names == ["mine", "credentials"]
    table = config.plugin("credentials", CredentialsConfig)
    assert table.command["here"].argv == (f"{here}/print", "./argument") and table.command["path"].argv == ("vault",)


def test_the_file_is_found_upward(tmp_path: Path) -> None:
    write(tmp_path, "[run]\nmemory = '1G'\nenv = {A = 'b'}\n")
    (tmp_path / "a/b").mkdir(parents=True)
    assert load_config(directory=tmp_path / "a/b").run.memory == "1G"
    assert load_config(directory=tmp_path / "a/b").run.env == {"A": "b"}
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml")
    assert Config().run.memory is None


def test_the_file_may_be_a_pipe_whose_writer_does_not_stay(tmp_path: Path) -> None:
    """It waits for a reader, writes, and is gone, all before the reader's next line."""
    os.mkfifo(tmp_path / "pipe")
    found: queue.Queue[str | None] = queue.Queue()
    for number in range(20):
        text = f"[run]\nmemory = '{number + 100}M'\n"
        writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=[text], daemon=True)
        writer.start()
        reader = threading.Thread(target=lambda: found.put(load_config(tmp_path / "pipe").run.memory), daemon=True)
        reader.start()
        assert found.get(timeout=20) == f"{number + 100}M"
        writer.join(30)


def test_tables_of_plugins_that_are_not_loaded_are_known(tmp_path: Path) -> None:
    load_plugins(["policy"], load_config(write(tmp_path, "[native]\nttl = 5\n")))
    with pytest.raises(ConfigError, match="mine"):
        load_plugins(["policy"], load_config(write(tmp_path, "[mine]\n")))


def test_tables_without_effect_are_named() -> None:
    config = Config({"run": {}, "pool": {}, "plugins": {}, "policy": {}, "native": {}, "dashboard": {}, "credentials": {}})
    assert without_effect(config, ["native"]) == [
        "[policy] has no effect: `policy` is not among the plugins",
        "[credentials] has no effect: `credentials` is not among the plugins",
    ]


class LaxRule(msgspec.Struct):
    hosts: tuple[str, ...] = ()


class LaxConfig(msgspec.Struct):
    """Somebody else's, who has not thought of it."""

    rule: tuple[LaxRule, ...] = ()
    by_name: dict[str, LaxRule] = {}
    one: LaxRule | None = None
    named: str = msgspec.field(name="given", default="")
    free: dict[str, str] = {}


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("rul = []", "mine.rul", "did you mean `rule`?"),
        ("zzz = 'a'", "mine.zzz", ""),
        ("[[mine.rule]]\n[[mine.rule]]\nhots = ['a']", "mine.rule.1.hots", "did you mean `hosts`?"),
        ("[mine.by_name.a]\nhots = ['a']", "mine.by_name.a.hots", "did you mean `hosts`?"),
        ("one = { hots = ['a'] }", "mine.one.hots", "did you mean `hosts`?"),
    ],
)
def test_a_key_that_a_plugin_would_pass_over_is_unknown(tmp_path: Path, text: str, key: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f"[mine]\n{text}\n")).plugin("mine", LaxConfig)
    assert (caught.value.key, caught.value.hint) == (key, hint) and "unknown key" in caught.value.message
    good = "given = 'a'\nfree.x = 'y'\none.hosts = []\nby_name.a.hosts = ['a']\nrule = [{ hosts = ['a'] }, {}]"
    assert load_config(write(tmp_path, f"[mine]\n{good}\n")).plugin("mine", LaxConfig).rule[0].hosts == ("a",)


def test_the_table_of_a_plugin_has_the_name_that_it_gives_itself(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE + "    name = 'yours'\n")
    loaded = load_plugins([str(file)], load_config(write(tmp_path, "[yours]\nword = 'never'\n")))
    assert getattr(loaded.get("yours"), "config").word == "never"  # noqa: B009
    assert "yours" in known_tables([str(file)], load_config(write(tmp_path, "[yours]\n")))
    assert "yours" not in known_tables([str(file)], load_config(write(tmp_path, "[policy]\n"))), "nobody was asked"
    assert "yours" not in known_tables([str(tmp_path / "none.py")], load_config(write(tmp_path, "[yours]\n")))
    with pytest.raises(ConfigError, match=r"mine: this plugin calls itself `yours`: its table is \[yours\]"):
        load_plugins([str(file)], load_config(write(tmp_path, "[mine]\nword = 'never'\n")))


# -- loading


def test_shipped_plugins_are_entry_points() -> None:
    assert {"dns", "tls", "policy", "credentials", "native"} <= set(available())


def test_unknown_plugins_are_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownPlugin) as caught:
        load_plugins(["polcy"], Config())
    assert "`polcy`" in str(caught.value) and "policy" in str(caught.value) and "\n" not in str(caught.value)


MINE = """
import msgspec
from agentfw import Denied, hookimpl

class Config(msgspec.Struct, forbid_unknown_fields=True):
    word: str = "no"

class Plugin:
    config_type = Config

    def __init__(self, config):
        self.config = config

    @hookimpl
    def allow(self, destination):
        raise Denied("mine", self.config.word)
"""


@async_test
async def test_a_file_is_a_plugin(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    loaded = load_plugins([str(file), "policy"], load_config(write(tmp_path, "[mine]\nword = 'never'\n")))
    assert loaded.names == ["mine", "policy"] and loaded.hooks("mine") == ["allow"]
    with pytest.raises(Denied) as caught:
        await loaded.allow(AGENT, WHERE)
    assert (caught.value.rule, caught.value.reason, caught.value.plugin) == ("mine", "never", "mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no class `Plugin`"),
        ("1/0", "does not import: ZeroDivisionError"),
        ("class Plugin:\n    def __init__(self): raise KeyError('x')", "does not start: KeyError"),
        ("from agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n    def alow(self): pass", "alow"),
        ("from agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n    def allow(self, dest): pass", "dest"),
        ("from agentfw import hookimpl\nclass Plugin:\n    @hookimpl(wrapper=True)\n    def allow(self): yield", "wrappers"),
    ],
)
def test_broken_plugins_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(PluginError) as caught:
        load_plugins([str(file)], Config())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_missing_files_and_doubles(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="does not exist"):
        load_plugins([str(tmp_path / "none.py")], Config())
    with pytest.raises(PluginError, match="twice"):
        load_plugins(["policy", "policy"], Config())


# -- calling


class Answers:
    """Implements what a test asks of it."""

    def __init__(self, result: object = None, log: list[str] | None = None, name: str = "") -> None:
        self.result = result
        self.log = log if log is not None else []
        self.name = name

    def answer(self) -> object:
        self.log.append(self.name)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class Sync(Answers):
    @hookimpl
    def allow(self) -> object:
        return self.answer()

    @hookimpl
    def resolve(self, name: str) -> object:
        return self.answer()

    @hookimpl
    def dial(self) -> object:
        return self.answer()

    @hookimpl
    def connect(self) -> object:
        return self.answer()

    @hookimpl
    def start(self, runtime: object) -> object:
        return self.answer()

    @hookimpl
    def stop(self) -> object:
        return self.answer()

    @hookimpl
    def exit(self, report: ExitReport) -> object:
        return self.answer()

    @hookimpl
    def statistics(self) -> object:
        return self.answer()


class Later(Answers):
    @hookimpl
    async def resolve(self, name: str) -> object:
        await asyncio.sleep(0)
        return self.answer()


class First(Answers):
    @hookimpl(tryfirst=True)
    def resolve(self) -> object:
        return self.answer()


@async_test
async def test_order_and_first_result() -> None:
    log: list[str] = []
    made = manager(
        Sync(None, log, "a"),
        Later(None, log, "b"),
        Later(b"reply", log, "c"),
        Sync(b"not asked", log, "d"),
        First(None, log, "e"),
    )
    assert await made.resolve(AGENT, "x", 1, b"") == b"reply"
    assert log == ["e", "a", "b", "c"]
    assert await manager().resolve(AGENT, "x", 1, b"") is None and manager().dial(AGENT, WHERE, "1.2.3.4") is None
    assert not manager().implemented("resolve") and made.implemented("resolve")


@async_test
async def test_failing_hooks_name_plugin_and_hook() -> None:
    for result, reason in ((RuntimeError("secret"), "RuntimeError"), (["text"], "returned list"), (7, "returned int")):
        made = manager(Sync(None), Sync(result))
        for call in (made.allow(AGENT, WHERE), made.resolve(AGENT, "x", 1, b""), made.connect(AGENT, WHERE, None)):
            with pytest.raises(HookError) as caught:
                await call
            assert caught.value.plugin == "p1" and str(caught.value).endswith(reason)
        with pytest.raises(HookError):
            made.dial(AGENT, WHERE, "1.2.3.4")
    with pytest.raises(HookError, match="ValueError"):
        await manager(Later(ValueError())).resolve(AGENT, "x", 1, b"")


@async_test
async def test_a_hook_that_hangs_is_given_up() -> None:
    class Hangs:
        @hookimpl
        async def resolve(self) -> bytes:
            await asyncio.sleep(100)
            return b""

    made = PluginManager(Config({"plugins": {"limits": {"resolve": 0.05}}}))
    made.add("hangs", Hangs())
    made.compile()
    with pytest.raises(HookError, match=r"no answer within 0\.05 s"):
        await made.resolve(AGENT, "x", 1, b"")


@async_test
async def test_start_stops_at_an_error_and_stop_and_exit_do_not(caplog: pytest.LogCaptureFixture) -> None:
    from agentfw.testing import make_runtime

    class Named(Sync):
        pass

    class After(Sync):
        pass

    log: list[str] = []
    good, bad = Named(None, log, "good"), Sync(ConfigError("x", "is wrong"), log, "bad")
    runtime = make_runtime(good, bad, After(None, log, "after"))
    with pytest.raises(ConfigError):
        await runtime.start()
    assert log == ["good", "bad", "bad", "good"], "both started, both stopped although one fails; the third never was"
    log.clear()
    with caplog.at_level(logging.CRITICAL):
        runtime.agent_exited(Agent("1", "x"), ExitReport("code"))
    assert log == ["good", "bad", "after"]


def test_statistics_are_merged() -> None:
    made = manager(Sync({"hits": 1}), Sync({"hits": 2}), Sync(RuntimeError()), Sync(None))
    assert made.statistics() == {"p0.hits": 1, "p1.hits": 2}


def test_the_public_names_are_there() -> None:
    import agentfw

    for name in agentfw.__all__:
        assert getattr(agentfw, name) is not None
    with pytest.raises(AttributeError):
        _ = agentfw.nonsense


def test_config_types_are_not_coerced() -> None:
    class Table(msgspec.Struct, forbid_unknown_fields=True):
        number: int = 0

    with pytest.raises(ConfigError, match="expected integer, got text"):
        Config({"t": {"number": "5"}}).plugin("t", Table)


@pytest.mark.parametrize("what", ["raise SystemExit(7)", "raise asyncio.CancelledError", "raise Strange"])
@pytest.mark.parametrize("form", ["def", "async def"])
@async_test
async def test_whatever_a_hook_raises_costs_that_operation_only(tmp_path: Path, what: str, form: str) -> None:
    (tmp_path / "wild.py").write_text(
        "import asyncio\nfrom agentfw import hookimpl\nclass Strange(BaseException): pass\n"
        f"class Plugin:\n    @hookimpl\n    {form} allow(self, agent, destination): {what}\n"
        f"    @hookimpl\n    def exit(self, agent, report): {what}\n    @hookimpl\n    def statistics(self): {what}\n"
        f"    @hookimpl\n    {form} stop(self): {what}\n"
    )
    manager = load_plugins([str(tmp_path / "wild.py")], Config())
    with pytest.raises(HookError, match="failed in `allow`"):
        await manager.allow(make_agent(), Destination("tcp", "a.example", 1))
    manager.exit(make_agent(), ExitReport("code"))
    assert manager.statistics() == {}
    await manager.stop()


@async_test
async def test_a_cancelled_hook_is_cancelled(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import asyncio\nfrom agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n"
        "    async def allow(self, agent, destination): await asyncio.sleep(60)\n"
    )
    manager = load_plugins([str(tmp_path / "slow.py")], Config())
    task = asyncio.ensure_future(manager.allow(make_agent(), Destination("tcp", "a.example", 1)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("returned", ["5", "{5: 6}", "{'a': object()}", "(_ for _ in ())"])
def test_statistics_are_numbers_by_name(tmp_path: Path, returned: str) -> None:
    (tmp_path / "odd.py").write_text(
        f"from agentfw import hookimpl\nclass Plugin:\n    @hookimpl\n    def statistics(self): return {returned}\n"
    )
    assert load_plugins([str(tmp_path / "odd.py")], Config()).statistics() == {}


@pytest.mark.parametrize("name", ["5", "'a\\nb'", "'a.b'", "object()"])
def test_names_of_plugins_are_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "odd.py").write_text(f"class Plugin:\n    name = {name}\n")
    with pytest.raises(PluginError, match="bad name"):
        load_plugins([str(tmp_path / "odd.py")], Config())
