"""What cannot work in a VM, for it is one process, says why: fork, exec and posix_spawn."""

from __future__ import annotations

import collections.abc
import errno
import functools
import sys
import types
import typing

ONE_PROCESS = (
    "a guest of agentfw is one process: no fork, no exec (inside it use threads or asyncio; "
    "for more agents `agentfw submit` or agentfw.Pool, for copies of this one the pool's fork)"
)


def _word(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _plain(path: object = "", words: object = ("a",), variables: object = types.MappingProxyType({})) -> bool:
    """Whether exec and posix_spawn take these for sure."""
    return (
        _word(path)
        and isinstance(words, list | tuple)
        and all(map(_word, words))
        and bool(words and words[0])
        and isinstance(variables, collections.abc.Mapping)
        and all(_word(name) and "=" not in name and _word(text) for name, text in variables.items())
    )


class _Refused:
    """A call that cannot work, with the reason. Like the interpreter's own it is nobody's method. `own_arguments`: they are the
    interpreter's, not the program's, and not looked at."""

    def __init__(self, call: typing.Callable[..., object], own_arguments: bool) -> None:
        functools.update_wrapper(self, call)
        self.__text_signature__ = getattr(call, "__text_signature__", None)
        self._call, self._own_arguments = call, own_arguments

    def __call__(self, *arguments: object, **more: object) -> object:
        if self._own_arguments or (not more and len(arguments) <= 3 and _plain(*arguments)):
            raise OSError(errno.ENOSYS, ONE_PROCESS)
        try:
            return self._call(*arguments, **more)  # says what is wrong; if nothing is, the shim refuses, and writes a line
        except OSError as error:
            if error.errno == errno.ENOSYS:
                raise OSError(errno.ENOSYS, ONE_PROCESS) from None
            raise


def install() -> None:
    """What cannot work says why, instead of the bare errno that the system call gives. Wrong arguments are told before that."""
    for module in ("os", "posix", "_posixsubprocess", "subprocess"):
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve", "fork_exec", "_fork_exec"):
            call = getattr(sys.modules.get(module), name, None)
            if call is not None:
                setattr(sys.modules[module], name, _Refused(call, module == "subprocess"))
