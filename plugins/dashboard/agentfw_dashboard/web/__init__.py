"""The dashboard's web server: who may look (`access`, `door`), what there is to see (`shared`, `events`, `files`), and the server
itself. It takes anything that answers as `shared.Source` does.
"""

from .access import Access
from .server import WebServer
from .shared import Source

__all__ = ["Access", "Source", "WebServer"]
