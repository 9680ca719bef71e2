"""What a pool counts, as Prometheus reads it: `expose(values, accept)` makes the text of `/metrics` out of statistics.

    body, content_type = expose(await backend.metrics(), request.headers.get("Accept", ""))

Statistics are numbers by dotted name ("dns.hits"), from workers, plugins and the router; `catalog.CATALOG` says which metric each
of them is, with type, unit, help and labels. docs/reference/metrics.md is made of it (`python docs/generate.py`).
"""

from .exposition import expose

__all__ = ["expose"]
