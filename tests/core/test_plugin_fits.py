"""What was meant as a hook is called, or the plugin is not loaded. A policy that nobody asks permits everything."""

from __future__ import annotations

import asyncio
import functools
import logging
import types
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentfw import Agent, Denied, Destination, hookimpl
from agentfw.config import Config
from agentfw.errors import PluginError
from agentfw.plugins import PluginManager, load_plugins
from agentfw.plugins.describe import describe
from agentfw.plugins.fitting import check_fit
from agentfw.testing import make_agent

from .support import async_test

WHERE = Destination.make("tcp", "a.example", 1)


def manager(plugin: object) -> PluginManager:
    made = PluginManager()
    made.add("mine", plugin)
    made.compile()
    return made


def refuse(agent: Agent, destination: Destination) -> None:
    raise Denied("mine", f"{agent.name} to {destination.host}")


async def permits(plugin: object) -> bool:
    """Not PluginError: it was loaded, and asked."""
    try:
        await manager(plugin).allow(make_agent(), WHERE)
    except Denied as error:
        assert (error.rule, error.plugin, error.reason) == ("mine", "mine", "test to a.example")
        return False
    return True


# -- what is called


class Plain:
    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class Inherits(Plain):
    pass


class Static:
    @staticmethod
    @hookimpl
    def allow(agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class OfTheClass:
    @classmethod
    @hookimpl
    def allow(cls, destination: Destination, agent: Agent) -> None:
        refuse(agent, destination)


class NoSelf:
    @hookimpl
    def allow(this, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class ByAnotherName:
    @hookimpl(specname="allow")
    def check(self, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class InInit:
    def __init__(self) -> None:
        self.allow = hookimpl(lambda agent, destination: refuse(agent, destination))


class Lends:
    def __init__(self) -> None:
        self.allow = Plain().allow


class InASlot:
    __slots__ = ("allow", "dial")

    def __init__(self) -> None:
        self.allow = Plain().allow


class Later:
    @hookimpl
    async def allow(self, agent: Agent, destination: Destination) -> None:
        await asyncio.sleep(0)
        refuse(agent, destination)


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: object) -> Any:
        return function(*args)

    return inner


class Decorated:
    @hookimpl
    @told
    def allow(self, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class DecoratedOver:
    @told
    @hookimpl
    def allow(self, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class WithItsOwn:
    """Arguments that are no hook's may have defaults."""

    @hookimpl
    def allow(self, agent: Agent, destination: Destination, how: Any = refuse, *, twice: bool = False) -> None:
        how(agent, destination)


def a_module() -> types.ModuleType:
    made = types.ModuleType("made")
    vars(made)["allow"] = hookimpl(lambda agent, destination: refuse(agent, destination))
    return made


CALLED = [Plain, Inherits, Static, OfTheClass, NoSelf, ByAnotherName, InInit, Lends, InASlot, Later, Decorated, DecoratedOver,
          WithItsOwn, a_module]  # fmt: skip


@pytest.mark.parametrize("make", CALLED)
@async_test
async def test_a_hook_is_called(make: Callable[[], object]) -> None:
    assert not await permits(make())


# -- what is an error


class Guard:
    """As a compiled function is to Python: something that can be called, and bound, and is no function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __get__(self, instance: object, owner: type) -> Any:
        return types.MethodType(self, instance)

    def __call__(self, *args: object) -> Any:
        return self.function(*args)


def allow(self: object, agent: Agent, destination: Destination) -> None:
    refuse(agent, destination)


marked = hookimpl(allow)
"""(It is `allow` itself that is marked.)"""


def unmarked(self: object, agent: Agent, destination: Destination) -> None:
    refuse(agent, destination)


class Unmarks(Plain):
    def allow(self, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class UnmarksAnother(ByAnotherName):
    def check(self, agent: Agent, destination: Destination) -> None:
        refuse(agent, destination)


class Hides(Plain):
    """The commonest of all: the table's key is called as the hook is."""

    def __init__(self) -> None:
        self.allow = ("a.example",)  # type: ignore[assignment, method-assign]


class Delegates:
    def __getattr__(self, name: str) -> Any:
        return getattr(Plain(), name)


class Unseen(Plain):
    def __dir__(self) -> list[str]:
        return []


class InInitUnmarked:
    def __init__(self) -> None:
        self.allow = refuse


class InInitPartial:
    def __init__(self) -> None:
        self.allow = functools.partial(marked, self)


def of_class(value: object, name: str = "allow") -> Callable[[], object]:
    return type("Mine", (), {name: value})


LOST: dict[str, tuple[Callable[[], object], str]] = {
    "no @hookimpl": (of_class(unmarked), "named as a hook, but is none"),
    "no @hookimpl, static": (of_class(staticmethod(unmarked)), "named as a hook, but is none"),
    "a lambda, unmarked": (of_class(lambda *args: refuse(*args)), "named as a hook, but is none"),
    "a callable object": (of_class(Guard(marked)), "is a Guard"),
    "a callable object, unmarked": (of_class(Guard(unmarked)), "is a Guard"),
    "a callable object, of another name": (of_class(Guard(marked), "check"), "is a Guard"),
    "of C": (of_class(weakref.ref), "is a type"),
    "of C, a method": (of_class(dict.get), "is a method_descriptor"),
    "of C, a function": (of_class(isinstance), "is a builtin_function_or_method"),
    "partial": (of_class(functools.partial(marked, None)), "is a partial"),
    "partialmethod": (of_class(functools.partialmethod(marked)), "is a partialmethod"),
    "partialmethod, of another name": (of_class(functools.partialmethod(marked), "check"), "is a partialmethod"),
    "cached": (of_class(functools.lru_cache(marked)), "is a _lru_cache_wrapper"),
    "property": (of_class(property(lambda self: refuse)), "is a property"),
    "property, marked": (of_class(property(marked), "check"), "is a property"),
    "cached_property": (of_class(functools.cached_property(lambda self: refuse)), "is a cached_property"),
    "@hookimpl before @staticmethod": (of_class(hookimpl(staticmethod(unmarked))), "stands before `@staticmethod`"),
    "@hookimpl before @classmethod": (of_class(hookimpl(classmethod(unmarked))), "stands before `@classmethod`"),
    "overridden": (Unmarks, "named as a hook, but is none"),
    "overridden, of another name": (UnmarksAnother, "`check` is named as a hook, but is none"),
    "hidden": (Hides, "hidden by a value"),
    "delegated": (Delegates, "comes out of `__getattr__`"),
    "not in dir()": (Unseen, "is not seen by pluggy"),
    "set in __init__, unmarked": (InInitUnmarked, "named as a hook, but is none"),
    "set in __init__, partial": (InInitPartial, "is a partial"),
    "a class": (lambda: Plain, "is a class"),
}  # fmt: skip


@pytest.mark.parametrize("what", LOST)
@async_test
async def test_what_would_never_be_called_is_not_loaded(what: str) -> None:
    make, message = LOST[what]
    with pytest.raises(PluginError, match="plugin `mine`") as caught:
        await permits(make())
    assert message in str(caught.value) and (caught.value.hint or what == "a class")


def test_a_property_is_not_asked_when_a_plugin_is_looked_at() -> None:
    class Raises:
        @property
        def later(self) -> object:
            raise RuntimeError("not yet")

    check_fit("mine", Raises())


class Holds:
    """Values that have hooks' names, and cannot be meant as hooks."""

    tables = ()
    environment: dict[str, str] = {}  # noqa: RUF012
    exit = None

    def __init__(self) -> None:
        self.request: object = None
        self.statistics = {"calls": 1}
        self.meters = [1, 2]


class Without(Plain):
    """It says itself that it has no such hook."""

    allow = None  # type: ignore[assignment]


@async_test
async def test_values_are_no_hooks() -> None:
    assert await permits(Holds()) and await permits(Without())
    assert check_fit("mine", Holds) == [] and check_fit("mine", InASlot) == []


# -- arguments, and kinds of functions


def args(self: object, *args: object) -> None: ...
def keywords(self: object, **given: object) -> None: ...
def default(self: object, agent: Agent, destination: Destination | None = None) -> None: ...
def by_name(self: object, agent: Agent, *, destination: Destination) -> None: ...
def by_name_default(self: object, *, destination: Destination | None = None) -> None: ...
def strange(self: object, agent: Agent, destinaton: Destination) -> None: ...
def strange_by_name(self: object, agent: Agent, *, how: str) -> None: ...
def generator(self: object, agent: Agent) -> Iterator[None]:
    yield


async def async_generator(self: object, agent: Agent) -> AsyncIterator[None]:
    yield


async def coroutine(self: object, agent: Agent) -> None: ...


@pytest.mark.parametrize(
    ("hook", "function", "marks", "message"),
    [
        ("allow", args, {}, "has `*args`, which would be given nothing"),
        ("exchange_end", args, {}, "has `*args`, which would be given nothing"),
        ("allow", keywords, {}, "has `**given`, which would be given nothing"),
        ("allow", default, {}, "`destination` of the hook `allow` has a default: it would never be given"),
        ("allow", by_name, {}, "`destination` of the hook `allow` can be given by name only"),
        ("allow", by_name_default, {}, "`destination` of the hook `allow` has a default"),
        ("allow", strange, {}, "no argument `destinaton`"),
        ("allow", strange_by_name, {}, "no argument `how`"),
        ("allow", generator, {}, "has a `yield`"),
        ("allow", async_generator, {}, "has a `yield`"),
        ("dial", coroutine, {}, "is `async`, but that hook is never awaited"),
        ("redact", coroutine, {}, "no argument `agent`"),
        ("exchange_end", coroutine, {}, "is `async`, but that hook is never awaited"),
        ("meters", coroutine, {}, "is `async`, but that hook is never awaited"),
        ("allow", generator, {"wrapper": True}, "wrappers are not supported"),
        ("allow", generator, {"hookwrapper": True}, "wrappers are not supported"),
        ("allow", coroutine, {"tryfirst": True, "trylast": True}, "both first and last"),
        ("alow", coroutine, {}, "no hook `alow`"),
        ("allow", coroutine, {"specname": "alow"}, "no hook `alow`"),
    ],
)  # fmt: skip
def test_hooks_that_would_do_nothing_are_not_loaded(hook: str, function: Any, marks: dict[str, Any], message: str) -> None:
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    plugin = type("Mine", (), {hook: hookimpl(**marks)(made)})
    for given in (plugin, plugin()):  # as `agentfw plugins show` looks at it, and as it is loaded
        with pytest.raises(PluginError) as caught:
            check_fit("mine", given)
        if "`async`" in message or hook != "redact":
            assert message in str(caught.value)
    with pytest.raises(PluginError):
        manager(plugin())


def test_an_optional_hook_that_is_none_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = manager(type("Mine", (), {"alow": hookimpl(optionalhook=True)(allow)})())
    assert caplog.messages == ["plugin `mine`: no hook is called `alow`, so nobody calls it (did you mean `allow`?)"]
    assert made.hooks("mine") == []


@pytest.mark.parametrize("decorated", [True, False])
def test_a_hook_beside_the_class_is_not_loaded(tmp_path: Path, decorated: bool) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentfw import hookimpl\n"
        + ("@hookimpl\ndef allow(agent, destination): raise RuntimeError\n" if decorated else "")
        + "class Plugin:\n    @hookimpl\n    def dial(self): return True\n"
    )
    if decorated:
        with pytest.raises(PluginError, match="the hook `allow` stands outside of its class"):
            load_plugins([str(tmp_path / "mine.py")], Config())
    else:
        assert load_plugins([str(tmp_path / "mine.py")], Config()).hooks("mine") == ["dial"]


def test_a_hook_is_shown_whatever_its_method_is_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentfw import hookimpl\nclass Plugin:\n"
        "    @hookimpl(specname='allow', tryfirst=True)\n    async def check(self, agent): ...\n"
        "    @staticmethod\n    @hookimpl\n    def dial(): ...\n"
    )
    uses = describe(str(tmp_path / "mine.py")).hooks
    assert [(use.name, use.order, use.awaitable) for use in uses] == [("allow", "first", True), ("dial", "", False)]


@pytest.mark.parametrize("form", ["async def", "def"])
def test_a_check_of_the_guest_that_says_something_has_failed(form: str) -> None:
    space: dict[str, Any] = {}
    result = "raise RuntimeError" if form == "async def" else "return True"
    exec(f"class Mine:\n    {form} check_guest(self, file, environment, sees): {result}\n", space)
    with pytest.raises(PluginError, match=r"`mine` failed in check_guest\(\): returned (coroutine|bool)"):
        manager(space["Mine"]()).check_guest(Config(), {}, lambda path: False)
