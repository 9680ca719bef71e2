"""A pool from Python: `agentfw.Pool`, and `agentfw.SyncPool` for programs without asyncio.

    async with agentfw.Pool() as pool:
        result = await pool.run("agent.py", ["x"])

`programs`: from what a caller names to a Job; `pool`, `handle`, `mapping`: the pool, one job, many; `results`, `errors`: how jobs
ended; `sync`: the same on a loop of its own, in a thread; `progress`: the bar of `map`. All of it knows the pool by
`agentfw.pool.backend.Backend` only.
"""

from .errors import JobBroken, JobFailed, JobHostile, JobKilled, JobSignaled, JobTimeout, OutOfMemory, TooMuchOutput
from .handle import Handle
from .mapping import Results
from .pool import Pool
from .programs import Code, Input, JobOptions, Module, Mounted
from .results import Result
from .sync import SyncHandle, SyncPool, SyncResults

__all__ = [
    "Code",
    "Handle",
    "Input",
    "JobBroken",
    "JobFailed",
    "JobHostile",
    "JobKilled",
    "JobOptions",
    "JobSignaled",
    "JobTimeout",
    "Module",
    "Mounted",
    "OutOfMemory",
    "Pool",
    "Result",
    "Results",
    "SyncHandle",
    "SyncPool",
    "SyncResults",
    "TooMuchOutput",
]
