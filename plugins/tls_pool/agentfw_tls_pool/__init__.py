"""Plugin `tls`: verified TLS connections, opened once, held and lent to one agent's exchange at a time."""

from .config import TlsConfig
from .plugin import Plugin

__all__ = ["Plugin", "TlsConfig"]
