"""Names of attributes: OpenTelemetry's semantic conventions for generative AI, as of 1.41 (all of them "Development"), and its
general ones. https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and .../gen-ai-agent-spans/

Written down here, as OpenTelemetry's own package of names has those that are not stable in modules that come and go.
"""

from __future__ import annotations

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_MODEL = "gen_ai.response.model"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION = "gen_ai.usage.cache_creation.input_tokens"
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
