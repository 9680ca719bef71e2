"""A model server that answers like OpenAI's and Anthropic's, over TLS, on this machine: for examples, tests and benchmarks.

    async with MockLLM(MockOptions(keys=("sk-test",))) as server:
        ... https://127.0.0.1:{server.port}, trusting server.ca_pem ...
        server.stats()

Names in its certificate: api.openai.com, api.anthropic.com, localhost, 127.0.0.1, and those asked for.
"""

from .authority import CertificateAuthority
from .options import MockOptions
from .server import MockLLM, MockLLMThread

__all__ = ["CertificateAuthority", "MockLLM", "MockLLMThread", "MockOptions"]
