"""Programs that must do the same under `python` and in a guest: name -> (command line after the interpreter, standard input).

`{dir}` is the directory that `write()` filled. Shared by the native test of the bootstrap and the KVM tests.
"""

from __future__ import annotations

from pathlib import Path

FILES = {
    "hello.py": "print('hello')\n",
    "facts.py": """
        import sys, os
        print(__name__, __file__, __package__, __spec__, __doc__, type(__loader__).__name__, __builtins__)
        print(list(globals()))
        print(sys.argv, sys.path[0], sys.orig_argv[1:], sys.flags, sys.modules["__main__"].__dict__ is globals())
        print(sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors, sys.getrecursionlimit(), sys.dont_write_bytecode)
        print(__cached__ if "__cached__" in globals() else "", "annotations" in globals(), "bootstrap" in str(sys.path))
        x: int = 3
        print(__annotations__ if "__annotations__" in globals() else "")
        print({k: v for k, v in sorted(os.environ.items())}, os.getcwd())
        """,
    "raises.py": """
        def outer():
            try:
                1 / 0
            except ZeroDivisionError as error:
                raise ValueError("second") from error
        print("before", flush=True)
        outer()
        """,
    "syntax.py": "print('never')\ndef f(:\n    pass\n",
    "exits.py": """
        import sys
        codes = {"none": None, "zero": 0, "big": 256 + 7, "minus": -1, "true": True, "text": "words \\u00e9", "list": [1, 2]}
        print("out")
        sys.exit(codes[sys.argv[1]])
        """,
    "interrupt.py": "import signal\nprint('x')\nsignal.raise_signal(signal.SIGINT)\n",
    "catches.py": """
        import signal
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("caught")
        """,
    "hooks.py": """
        import sys, atexit
        atexit.register(print, "atexit")
        def hook(kind, value, trace):
            print("hook", kind.__name__, value, trace.tb_frame.f_code.co_name)
        sys.excepthook = hook
        raise RuntimeError("x")
        """,
    "badhook.py": """
        import sys
        def hook(kind, value, trace):
            raise KeyError("in hook")
        sys.excepthook = hook
        raise RuntimeError("x")
        """,
    "threads.py": """
        import threading, time, atexit
        from concurrent.futures import ThreadPoolExecutor
        atexit.register(print, "last")
        def work():
            time.sleep(0.1)
            print("thread done", threading.main_thread().ident == main, threading.current_thread().name)
        main = threading.get_ident()
        threading.Thread(target=work).start()
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        print(sorted(ThreadPoolExecutor(3).map(len, ["a", "bb", "ccc"])), threading.current_thread() is threading.main_thread())
        """,
    "unflushed.py": """
        import sys, os
        out = open(sys.argv[1], "w")
        out.write("text without close")
        raw = open(sys.argv[1] + ".bin", "wb")
        raw.write(b"bytes")
        class Gone:
            def __del__(self):
                print("gone")
        keep = Gone()
        sys.stdout.write("no newline")
        """,
    "atexit_raises.py": """
        import atexit
        def bad():
            raise OSError("late")
        atexit.register(print, "still runs")
        atexit.register(bad)
        """,
    "input.py": "import sys\nprint(input(), '|', sys.stdin.read())\n",
    "shadow.py": "import secrets, uuid\nprint(secrets.MINE, len(str(uuid.uuid4())))\n",
    "secrets.py": "MINE = 'the one beside the script'\n",
    "package/__init__.py": "",
    "package/__main__.py": "import sys, package\nprint(sys.argv[1:], __package__, __spec__.name, sys.path[0])\nfrom . import other\nraise LookupError('m')\n",
    "package/other.py": "print(__name__)\n",
    "folder/__main__.py": "import sys, beside\nprint(sys.argv, sys.path[0], __package__)\n",
    "folder/beside.py": "print('beside')\n",
    "module_exit.py": "import sys\nsys.exit(9)\n",
    "deep.py": "def f(n):\n    return f(n + 1)\nf(0)\n",
    "warns.py": "import warnings\nwarnings.warn('old', DeprecationWarning)\nwarnings.warn('see', stacklevel=1)\n",
    "stdout_closed.py": "import sys\nsys.stdout.close()\n",
    "bytes_out.py": "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\u20ac', file=sys.stderr)\n",
    "chained.py": """
        import asyncio
        async def main():
            async with asyncio.TaskGroup() as group:
                group.create_task(boom())
        async def boom():
            raise ValueError("in task")
        asyncio.run(main())
        """,
    "pickles.py": """
        import pickle
        class Mine:
            pass
        print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, Mine.__module__)
        """,
    "randoms.py": """
        import random, os, uuid, threading, logging
        logging.basicConfig(format="%(message)s %(process)d")
        print(random.random() != random.random(), logging.getLogger().isEnabledFor(30))
        assert 0 <= logging.LogRecord("", 0, "", 0, "", (), None).relativeCreated < 60000
        """,
}  # fmt: skip

CASES: dict[str, tuple[list[str], str]] = {
    "hello": (["hello.py"], ""),
    "facts": (["facts.py", "a", "--flag", "ü"], ""),
    "facts absolute": (["{dir}/facts.py"], ""),
    "facts in link": (["linked.py"], ""),
    "raises": (["raises.py"], ""),
    "syntax": (["syntax.py"], ""),
    **{f"exit {name}": (["exits.py", name], "") for name in ("none", "zero", "big", "minus", "true", "text", "list")},
    "interrupt": (["interrupt.py"], ""),
    "interrupt -m": (["-m", "interrupt"], ""),
    "interrupt -c": (["-c", "raise KeyboardInterrupt"], ""),
    "catches": (["catches.py"], ""),
    "hooks": (["hooks.py"], ""),
    "badhook": (["badhook.py"], ""),
    "threads": (["threads.py"], ""),
    "atexit raises": (["atexit_raises.py"], ""),
    "input": (["input.py"], "line\nrest\nof it"),
    "input at end": (["input.py"], ""),
    "shadow": (["shadow.py"], ""),
    "module": (["-m", "package", "x", "y"], ""),
    "module missing": (["-m", "no_such_module_here"], ""),
    "module no main": (["-m", "json"], ""),
    "module exit": (["-m", "module_exit"], ""),
    "module stdlib": (["-m", "json.tool"], '{"a": [1, 2]}'),
    "folder": (["folder", "z"], ""),
    "code": (["-c", "import sys; print(sys.argv, repr(sys.path[0]), list(globals())); import hello", "u"], ""),
    "code raises": (["-c", "import os\nos.environ['no such']"], ""),
    "code syntax": (["-c", "1 +"], ""),
    "stdin": (["-", "q"], "import sys\nprint(sys.argv, list(globals()), repr(sys.stdin.read()))\n"),
    "stdin raises": (["-"], "def f():\n    raise OSError('deep')\nf()\n"),
    "stdin empty": (["-"], ""),
    "deep": (["deep.py"], ""),
    "warns": (["warns.py"], ""),
    "warns of its caller": (
        ["-c", "import warnings; warnings.warn('old', DeprecationWarning, 3); warnings.warn('too', DeprecationWarning)"],
        "",
    ),
    "stdout closed": (["stdout_closed.py"], ""),
    "bytes out": (["bytes_out.py"], ""),
    "chained": (["chained.py"], ""),
    "pickles": (["pickles.py"], ""),
    "randoms": (["randoms.py"], ""),
}


def write(directory: Path) -> None:
    import textwrap

    for name, text in FILES.items():
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
    (directory / "linked.py").symlink_to("folder/../facts.py")
