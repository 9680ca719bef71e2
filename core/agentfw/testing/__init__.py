"""For tests of plugins: their hooks alone, whole exchanges without a virtual machine, and programs in a real one.

    runtime = make_runtime(Plugin(Config()))               a plugin's hooks, called as the core calls them:
    await runtime.plugins.allow(make_agent(team="red"), Destination.make("https", "api.example"))

    server = FakeServer(lambda request: b"hello")          an agent's request through the whole path, and an internet that is
    async with running(Plugin(Config()), server) as runtime:                                        one function
        response = await fetch(runtime, "https://api.example/v1")

    run = run_agent("import urllib.request; ...", plugins=["./my_policy.py", server])       the same from a program in a VM;
    assert run.stdout == "..."                                                              skipped if there is no /dev/kvm

With `pytest_plugins = ["agentfw.testing.pytest_plugin"]` in a conftest.py, tests that were skipped for want of /dev/kvm are told
at the end in red.
"""

from .flows import MemoryFlow
from .http import FakeServer, Fetched, PathError, Request, Response, fetch
from .runtimes import make_agent, make_runtime, running
from .vm import AgentRun, KvmMissing, run_agent, run_agent_async

__all__ = [
    "AgentRun",
    "FakeServer",
    "Fetched",
    "KvmMissing",
    "MemoryFlow",
    "PathError",
    "Request",
    "Response",
    "fetch",
    "make_agent",
    "make_runtime",
    "run_agent",
    "run_agent_async",
    "running",
]
