"""Plugin `tls`: verified TLS connections, opened once, held and lent to one agent's exchange at a time."""

from .plugin import Plugin, TlsConfig

__all__ = ["Plugin", "TlsConfig"]
