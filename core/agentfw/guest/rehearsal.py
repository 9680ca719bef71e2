"""What a rehearsal runs (agentfw.rehearsal): what every program has in it and no more; then, when standard input ends, imports.

How a program ends does not belong to what is populated when it begins: it is killed while it sleeps.
"""

import contextlib
import importlib
import os
import sys
import time

IMPORTS = (
    *("sqlite3", "xml.dom.minidom", "tomllib", "unittest.mock", "http.server", "multiprocessing.pool", "pydoc"),
    *("doctest", "xml.sax.handler", "cProfile", "http.cookiejar", "xmlrpc.client", "wsgiref.simple_server"),
    *("importlib.resources", "email.mime.text"),
)


def main() -> None:
    print("rehearsed", flush=True)
    os.read(0, 1)
    for name in IMPORTS:
        if name not in sys.modules:
            with contextlib.suppress(ImportError):  # of an interpreter that has not all
                importlib.import_module(name)
    print("imported", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    main()
