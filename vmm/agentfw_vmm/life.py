"""What a cell's worker side keeps of one life of a VM."""

from __future__ import annotations

import asyncio

from . import sites
from .flows import GuestFlow
from .turns import Turns

JOB = 3  # the job stream


class Life:
    """From a VM's boot or restore to the next."""

    __slots__ = (
        "flows",
        "live",
        "looker",
        "notes",
        "ruled",
        "rules",
        "sites",
        "standers",
        "stands",
        "turns",
        "unconnected",
        "under_rules",
    )

    def __init__(self) -> None:
        self.live = True
        self.flows: dict[int, GuestFlow] = {}
        """Streams are in it once somebody asked for them."""
        self.sites = sites.Budget()
        self.turns = Turns()
        self.notes = 0
        self.unconnected = False
        """Rules refuse flows: so does the worker, should the cell forget to."""
        self.ruled = False
        """It has got its rules, or will get none."""
        self.rules = b""
        """Their table."""
        self.looker: asyncio.Future[None] | None = None
        """Until the cell has said how it stands."""
        self.under_rules: asyncio.Future[None] | None = None
        """Until the cell has put them into force."""
        self.stands = True
        """False: the cell is making it ready to run, and that is all it is to do."""
        self.standers: asyncio.Future[None] | None = None

    def enforce(self) -> None:
        """The rules are in force, or the VM is gone: its job may be sent."""
        if self.under_rules is not None and not self.under_rules.done():
            self.under_rules.set_result(None)
            self.flows[JOB].gate = None

    def looked(self) -> None:
        """The cell has said how it stands, or it is gone."""
        looker, self.looker = self.looker, None
        if looker is not None and not looker.done():
            looker.set_result(None)

    def stand(self) -> bool:
        """It is ready to run, or gone. False: that is known."""
        if self.stands:
            return False
        self.stands = True
        if self.standers is not None:
            self.standers.set_result(None)
        return True

    async def standing(self) -> None:
        """Until then."""
        if not self.stands:
            if self.standers is None:
                self.standers = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.standers)
