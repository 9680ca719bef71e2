"""Cells and their VMs, from Python. Knows of memory, processes and byte streams; nothing of HTTP, TLS, DNS or plugins."""

from .cell import Cell
from .config import CellConfig, Mount
from .errors import CellError
from .flows import GuestFlow
from .handler import CellHandler
from .report import VmExit, VmStatistics
from .saved import SavedVm
from .sight import OpenedFile, Sight, SyscallCount

__all__ = [
    "Cell",
    "CellConfig",
    "CellError",
    "CellHandler",
    "GuestFlow",
    "Mount",
    "OpenedFile",
    "SavedVm",
    "Sight",
    "SyscallCount",
    "VmExit",
    "VmStatistics",
]
