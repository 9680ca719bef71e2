"""Cells and their VMs, from Python. Knows of memory, processes and byte streams; nothing of HTTP, TLS, DNS or plugins."""

from .cell import Cell, CellHandler
from .config import CellConfig, Mount
from .errors import CellError
from .flows import GuestFlow
from .report import VmExit, VmStatistics

__all__ = ["Cell", "CellConfig", "CellError", "CellHandler", "GuestFlow", "Mount", "VmExit", "VmStatistics"]
