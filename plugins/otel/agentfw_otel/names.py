"""Names of attributes: OpenTelemetry's semantic conventions for generative AI, as of 0.1.0 (all of them "Development"; since 1.41
they have a place of their own, https://github.com/open-telemetry/semantic-conventions-genai), and its general ones.

Written down here, as OpenTelemetry's own package of names has those that are not stable in modules that come and go.
"""

from __future__ import annotations

import functools

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_ID = "agentfw.agent.id"
"""The conventions' own is that of a hosted agent, which lives on: not one of a run."""
AGENT_NAME = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE = "gen_ai.usage.cache_write.input_tokens"
REASONING = "gen_ai.usage.reasoning.output_tokens"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
STATUS = "http.response.status_code"
EXIT_CODE = "process.exit.code"

INVOKE_AGENT = "invoke_agent"
OPERATIONS = {
    "chat": "chat", "message": "chat", "response": "chat", "completion": "text_completion", "embedding": "embeddings",
    "generate": "generate_content",
}  # fmt: skip
"""`ModelCall.operation` -> what the conventions call it."""
PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "gcp.gemini"}
"""By whose dialect it is."""
HOSTS = {
    "aiplatform.googleapis.com": "gcp.vertex_ai", "-aiplatform.googleapis.com": "gcp.vertex_ai",
    "generativelanguage.googleapis.com": "gcp.gemini", ".openai.azure.com": "azure.ai.openai",
    ".cognitiveservices.azure.com": "azure.ai.openai", ".services.ai.azure.com": "azure.ai.inference",
    "api.deepseek.com": "deepseek", "api.groq.com": "groq", "api.mistral.ai": "mistral_ai", "api.moonshot.ai": "moonshot_ai",
    "api.perplexity.ai": "perplexity", "api.x.ai": "x_ai",
}  # fmt: skip
"""By where, or by how that ends: others speak OpenAI's and Gemini's dialects, too."""


@functools.lru_cache(maxsize=256)
def provider(dialect: str, host: str) -> str:
    """What the conventions call it; `dialect` itself if they do not know it."""
    if dialect in ("openai", "gemini"):
        for end, name in HOSTS.items():
            if host.endswith(end) if end[0] in ".-" else host == end:
                return name
    return PROVIDERS.get(dialect, dialect)
