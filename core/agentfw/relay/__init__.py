"""A flow's life: what a guest's socket speaks is found out, and its bytes go the way of that protocol.

`dns` answers questions, `preface` is the TLS offload's handshake, `own_tls` decides about TLS that agents make
themselves (`hello` reads its ClientHello, `tls_flow` is the inside of what is intercepted), `http` relays HTTP/1
request by request, `raw` everything else. `flow.relay()` is the entry; it never raises but for cancellation.
"""

from .flow import relay

__all__ = ["relay"]
