"""Which requests are calls of a model, in every spelling of their path."""

from __future__ import annotations

import pytest
from agentfw import ConfigError, Destination
from agentfw_inspect import RouteConfig
from agentfw_inspect.routes import Routes, normal_path
from hypothesis import given
from hypothesis import strategies as st

OPENAI, ANTHROPIC, GOOGLE = "api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com"


def match(
    host: str, path: str, routes: Routes | None = None, method: str = "POST", port: int = 443
) -> tuple[str, str, str] | None:
    found = (routes or Routes()).match(Destination("https", host, port), method, path)
    return None if found is None else (found.provider, found.operation, found.model)


@pytest.mark.parametrize(
    ("host", "path", "provider", "operation", "model"),
    [
        (OPENAI, "/v1/chat/completions", "openai", "chat", ""),
        (OPENAI, "/v1/chat/completions?x=1", "openai", "chat", ""),
        (OPENAI, "/v1/completions", "openai", "completion", ""),
        (OPENAI, "/v1/responses", "openai", "response", ""),
        (OPENAI, "/v1/embeddings", "openai", "embedding", ""),
        ("eu.api.openai.com", "/v1/responses", "openai", "response", ""),
        (ANTHROPIC, "/v1/messages", "anthropic", "message", ""),
        (ANTHROPIC, "/v1/messages?beta=true", "anthropic", "message", ""),
        (GOOGLE, "/v1beta/models/gemini-2.5-pro:generateContent", "gemini", "generate", "gemini-2.5-pro"),
        (GOOGLE, "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", "gemini", "generate", "gemini-2.5-pro"),
        (GOOGLE, "/v1beta/models/gemini-embedding-001:embedContent", "gemini", "embedding", "gemini-embedding-001"),
        (GOOGLE, "/v1beta/models/gemini-embedding-001:batchEmbedContents", "gemini", "embedding", "gemini-embedding-001"),
        (GOOGLE, "/v1beta/openai/chat/completions", "openai", "chat", ""),
        ("us-central1-aiplatform.googleapis.com", "/v1/projects/p/locations/l/publishers/google/models/g-1:generateContent",
         "gemini", "generate", "g-1"),
        ("us-central1-aiplatform.googleapis.com", "/v1/projects/p/locations/l/publishers/anthropic/models/c:streamRawPredict",
         "anthropic", "message", "c"),
        ("mine.openai.azure.com", "/openai/deployments/My-4o/chat/completions?api-version=1", "openai", "chat", "My-4o"),
        ("mine.openai.azure.com", "/openai/v1/responses", "openai", "response", ""),
    ],
)  # fmt: skip
def test_built_in(host: str, path: str, provider: str, operation: str, model: str) -> None:
    assert match(host, path) == (provider, operation, model)


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (ANTHROPIC, "/v1/messages/count_tokens"),
        (ANTHROPIC, "/v1/messages/batches"),
        (OPENAI, "/v1/models"),
        (OPENAI, "/v1/responses/resp_1/cancel"),
        (OPENAI, "/v1/chat/completions/x"),
        (OPENAI, "/"),
        ("evil-api.openai.com.example", "/v1/chat/completions"),
        ("notapi.openai.com", "/v1/chat/completions"),
        ("openai.azure.com", "/openai/v1/responses"),
        ("example.org", "/v1/chat/completions"),
    ],
)
def test_no_calls(host: str, path: str) -> None:
    assert match(host, path) is None


def test_only_post() -> None:
    assert match(OPENAI, "/v1/chat/completions", method="GET") is None
    assert match(OPENAI, "/v1/chat/completions", method="post") is not None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/%63hat/completions",
        "/V1/Chat/Completions",
        "/v1/x/../chat/completions",
        "/v1/./chat/completions",
        "/v1/%2e%2e/v1/chat/completions",
        "/v1/chat\\completions",
        "/v1/chat;a=b/completions",
        "/v1/chat/completions;x",
        "/v1/chat/completions?/v1/models",
    ],
)
def test_other_spellings_of_a_call_are_one(path: str) -> None:
    assert match(OPENAI, path) == ("openai", "chat", "")


@given(st.text("/.%2eEfFaz;\\", max_size=24))
def test_normal_paths(path: str) -> None:
    once = normal_path("/" + path)
    assert once.startswith("/") and "//" not in once and "/../" not in once + "/" and "/./" not in once + "/"


def test_the_operators_own() -> None:
    routes = Routes([
        RouteConfig("llm.internal:8000", "openai", "/gateway"),
        RouteConfig("*.models.example", "anthropic"),
        RouteConfig("10.0.0.5", "gemini"),
    ])  # fmt: skip
    assert match("llm.internal", "/gateway/v1/chat/completions", routes, port=8000) == ("openai", "chat", "")
    assert match("llm.internal", "/gateway/v1/chat/completions", routes) is None
    assert match("llm.internal", "/gatewayx/chat/completions", routes, port=8000) is None
    assert match("a.models.example", "/v1/messages", routes) == ("anthropic", "message", "")
    assert match("models.example", "/v1/messages", routes) is None
    assert match("10.0.0.5", "/v1/models/g:generateContent", routes) == ("gemini", "generate", "g")
    assert routes.covers(Destination("https", "llm.internal", 8000)) and not routes.covers(Destination("https", "x.y", 443))


@pytest.mark.parametrize(
    ("route", "key"),
    [
        (RouteConfig("a b", "openai"), "route.0.host"),
        (RouteConfig("", "openai"), "route.0.host"),
        (RouteConfig("x.example", "openai", "v1"), "route.0.path"),
        (RouteConfig("x.example", "openai", "/%41"), "route.0.path"),
    ],
)
def test_bad_routes(route: RouteConfig, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Routes([route])
    assert caught.value.key == key


def test_hosts_remembered_are_bounded() -> None:
    routes = Routes()
    for n in range(5000):
        routes.covers(Destination("https", f"h{n}.example", 443))
    assert len(routes._known) <= 1024
