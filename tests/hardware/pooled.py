"""On a hardware KVM: jobs in VMs of a pool that slept until then, whose small writable pieces are not cut out yet (islands.c)."""

from __future__ import annotations

import asyncio

from agentfw import Code, Pool

#: Static types in the data of shared objects: each reference is a write to it
WRITES = """
import asyncio, datetime, decimal, io, os, pickle
kinds = [datetime.timedelta, decimal.Decimal, asyncio.Future, pickle.Pickler, decimal.Context, datetime.datetime]
held = [kind for kind in kinds for _ in range(1000)]
print(decimal.Decimal(2) ** 100, pickle.loads(pickle.dumps(datetime.timedelta(3))), len(held), os.urandom(8).hex())
"""
FORBIDDEN = """
import ctypes, decimal
at = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value
ctypes.memset(at, 0, 1)
"""


async def main() -> None:
    async with Pool(size=6, idle=6) as pool:
        results = await asyncio.gather(*(pool.run(Code(WRITES)) for _ in range(6)))
        texts = [str(result.check().stdout).split() for result in results]
        if len({tuple(text[:-1]) for text in texts}) != 1 or len({text[-1] for text in texts}) != 6:
            raise SystemExit(f"unexpected: {texts}")
        bad = await pool.run(Code(FORBIDDEN))
        if bad.ended.signal != 11:
            raise SystemExit(f"a write to code ended it with {bad!r}")
        (await pool.run(Code(WRITES))).check()
    print("six jobs in a pool, a write to code refused")


if __name__ == "__main__":
    asyncio.run(main())
