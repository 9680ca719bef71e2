"""One call of a model, as the `model_call` hook is told it. Recognising and reading calls is a plugin's (`inspect`)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .destination import Destination


class ModelCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything is known when it is told: the response has ended, been cut, or did not come. None: nobody said.

    `input_tokens` are all that went in, those of the cache among them; `output_tokens` all that came out, reasoning among them.
    """

    exchange: int
    """As `ExchangeReport.exchange`."""
    provider: str
    """ "openai", "anthropic" or "gemini": whose dialect it is."""
    operation: str
    """ "chat", "completion", "response", "embedding", "message", "generate"."""
    destination: Destination
    requested_model: str
    """As the agent named it; "" if that was not found."""
    model: str
    """As the response named it, else `requested_model`. At most 128 characters, printable."""
    streamed: bool
    status: int
    """The response's; 0: none came."""
    started: float
    """loop.time() at the request's head."""
    seconds: float
    first_token: float | None
    """Seconds to the first piece of generated content, of streamed calls only."""
    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int | None = None
    estimated: bool = False
    """Some count is an estimate: the stream was cut, or the server was not asked for usage and did not say."""
    complete: bool = False
    """The response ended as the provider's responses end."""
    cost: float | None = None
    """In `currency`, by the operator's table; None: no price for this model, or no counts."""
    currency: str = ""
    error_type: str = ""
    """The provider's word for what went wrong ("rate_limit_error"), or ours ("cut", "upstream")."""
    error: str = ""
    """Its message, one line, cut."""
    rate_limits: Mapping[str, str] = {}
    """Rate-limit headers of the response, names in lower case."""

    @property
    def failed(self) -> bool:
        return bool(self.error_type) or not 200 <= self.status < 400
