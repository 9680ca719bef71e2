"""OpenAI's /v1/embeddings. The same text always has the same vector."""

from __future__ import annotations

import base64
import hashlib
import struct

from .model import BadRequest, tokenize
from .reply import Reply, json_reply
from .usage import Usage

DIMENSIONS = 64
MAX_DIMENSIONS = 3072


def embed(request: dict[str, object], model: str) -> Reply:
    given = request.get("input")
    texts = given if isinstance(given, list) and not all(isinstance(each, int) for each in given) else [given]
    dimensions = request.get("dimensions", DIMENSIONS)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= MAX_DIMENSIONS:
        raise BadRequest(f"dimensions: from 1 to {MAX_DIMENSIONS}")
    encoded = request.get("encoding_format", "float") == "base64"
    data, tokens = [], 0
    for index, text in enumerate(texts):
        if isinstance(text, str) and text:
            tokens += len(tokenize(text))
        elif isinstance(text, list) and text and all(isinstance(each, int) for each in text):
            tokens += len(text)
        else:
            raise BadRequest("input: must be text, tokens, or a list of them")
        vector = _vector(repr(text), dimensions)
        packed = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode() if encoded else vector
        data.append({"object": "embedding", "index": index, "embedding": packed})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    reply = json_reply(200, {"object": "list", "data": data, "model": model, "usage": usage})
    reply.model, reply.usage = model, Usage(tokens)
    return reply


def _vector(text: str, dimensions: int) -> list[float]:
    """Of length 1."""
    bits = hashlib.shake_256(text.encode("utf-8", "surrogatepass")).digest(dimensions)
    values = [byte / 127.5 - 1 for byte in bits]
    length = sum(value * value for value in values) ** 0.5
    return [value / length for value in values]
