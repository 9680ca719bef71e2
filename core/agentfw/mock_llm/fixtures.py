"""pytest fixtures: `from agentfw.mock_llm.fixtures import mock_llm` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .options import MockOptions
from .server import MockLLMThread

KEY = "sk-mock-0123456789abcdef"


@pytest.fixture
def mock_llm() -> Iterator[MockLLMThread]:
    """A model server on 127.0.0.1 that takes the key `KEY` only; in a thread, so that it serves blocking clients too."""
    with MockLLMThread(MockOptions(keys=(KEY,))) as server:
        yield server
