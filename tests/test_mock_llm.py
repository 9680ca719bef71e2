"""The mock model server, spoken to by blocking and asynchronous clients and by the providers' own SDKs."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from agentfw.mock_llm import MockLLM, MockLLMThread, MockOptions
from agentfw.mock_llm.fixtures import KEY, mock_llm  # noqa: F401  (a fixture)
from agentfw.mock_llm.model import tokenize

BEARER = {"authorization": f"Bearer {KEY}"}
CLAUDE = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello there"}]}
DEEP = '{"model":' * 100_000
MESSAGE = {"model": "claude-mock", "max_tokens": 100, "messages": [{"role": "user", "content": "hello there"}]}


@contextlib.contextmanager
def connection(server: MockLLMThread, name: str = "api.openai.com") -> Iterator[http.client.HTTPSConnection]:
    """To the server as `name`, with the name verified."""
    client = http.client.HTTPSConnection(name, context=ssl.create_default_context(cadata=server.ca_pem), timeout=10)
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    client.sock = client._context.wrap_socket(raw, server_hostname=name)  # type: ignore[attr-defined]
    try:
        yield client
    finally:
        client.close()


def ask(
    client: http.client.HTTPSConnection, method: str, path: str, body: object = None, headers: dict[str, str] = BEARER
) -> tuple[http.client.HTTPResponse, bytes]:
    client.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body), headers)
    response = client.getresponse()
    return response, response.read()


@pytest.mark.parametrize("text", ["", " ", "a", "hello there", "  lead", "trail  ", "x" * 100, "a\n\nb\tc", "ünï cødé 漢字"])
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


def test_openai_plain(mock_llm: MockLLMThread) -> None:  # noqa: F811
    with connection(mock_llm) as client:
        response, body = ask(client, "POST", "/v1/chat/completions", CHAT)
        document = json.loads(body)
        assert response.status == 200
        assert document["object"] == "chat.completion"
        assert document["choices"][0]["message"] == {
            "role": "assistant", "content": "echo: hello there", "refusal": None, "annotations": []
        }  # fmt: skip
        usage = document["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] == len(tokenize("echo: hello there"))
        assert response.headers["x-ratelimit-remaining-requests"] == "9999"
        response, body = ask(client, "POST", "/v1/chat/completions", CHAT | {"max_tokens": 2})
        assert json.loads(body)["choices"][0]["finish_reason"] == "length"
        response, body = ask(client, "GET", "/v1/models")
        assert [model["id"] for model in json.loads(body)["data"]]
    assert mock_llm.stats()["connections"] == mock_llm.stats()["handshakes"] == 1
    assert mock_llm.stats()["paths"] == {"/v1/chat/completions": 2, "/v1/models": 1}
    assert mock_llm.stats()["server_names"] == {"api.openai.com": 1}


def events(body: bytes) -> list[tuple[str | None, Any]]:
    """Of a server-sent event stream: (event, data), data decoded unless it is [DONE]."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        match = re.fullmatch(r"(?:event: ([\w.]+)\n)?data: (.*)", block)
        assert match, block
        found.append((match[1], match[2] if match[2] == "[DONE]" else json.loads(match[2])))
    return found


@pytest.mark.parametrize("with_usage", [False, True])
def test_openai_streamed(mock_llm: MockLLMThread, with_usage: bool) -> None:  # noqa: F811
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    with connection(mock_llm) as client:
        response, body = ask(client, "POST", "/v1/chat/completions", CHAT | {"stream": True} | options)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    chunks = [data for _, data in events(body)]
    assert chunks.pop() == "[DONE]"
    assert [len(chunk["choices"]) for chunk in chunks] == [1] * (len(chunks) - with_usage) + [0] * with_usage
    if with_usage:
        usage = chunks.pop()["usage"]
        assert usage["completion_tokens"] == len(tokenize("echo: hello there"))
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "echo: hello there"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_anthropic_streamed_and_plain_agree(mock_llm: MockLLMThread) -> None:  # noqa: F811
    with connection(mock_llm, "api.anthropic.com") as client:
        _, plain_body = ask(client, "POST", "/v1/messages", MESSAGE, CLAUDE)
        response, body = ask(client, "POST", "/v1/messages", MESSAGE | {"stream": True}, CLAUDE)
    plain = json.loads(plain_body)
    stream = events(body)
    assert all(event == data["type"] for event, data in stream)
    kinds = [event for event, _ in stream if event != "ping"]
    deltas = [data["delta"]["text"] for event, data in stream if event == "content_block_delta"]
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * len(deltas),
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert "".join(deltas) == plain["content"][0]["text"] == "echo: hello there"
    assert stream[0][1]["message"]["usage"]["input_tokens"] == plain["usage"]["input_tokens"]
    assert stream[-2][1]["usage"]["output_tokens"] == plain["usage"]["output_tokens"]
    assert stream[-2][1]["delta"]["stop_reason"] == plain["stop_reason"] == "end_turn"
    assert response.headers["anthropic-ratelimit-requests-limit"] == "10000"


def test_keys_are_checked_in_each_shape(mock_llm: MockLLMThread) -> None:  # noqa: F811
    with connection(mock_llm) as client:
        for headers in ({}, {"authorization": "Bearer sk-wrong"}, {"authorization": KEY}, {"authorization": "Bearer "}):
            response, body = ask(client, "POST", "/v1/chat/completions", CHAT, headers)
            assert response.status == 401
            assert json.loads(body)["error"]["type"] == "invalid_request_error"
        for headers in ({"anthropic-version": "2023-06-01"}, CLAUDE | {"x-api-key": "wrong"}):
            response, body = ask(client, "POST", "/v1/messages", MESSAGE, headers)
            assert response.status == 401
            document = json.loads(body)
            assert (document["type"], document["error"]["type"]) == ("error", "authentication_error")
            assert document["request_id"] == response.headers["request-id"]
        assert b"wrong" not in body
    assert mock_llm.stats()["unauthorized"] == 6


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/v1/chat/completions", BEARER, DEEP, 400),
        ("/v1/messages", CLAUDE, DEEP, 400),
        ("/v1/chat/completions", BEARER, {"messages": []}, 400),
        ("/v1/chat/completions", BEARER, [], 400),
        ("/v1/chat/completions", BEARER, CHAT | {"messages": [{"role": "user", "content": 5}]}, 400),
        ("/v1/chat/completions", BEARER, CHAT | {"max_tokens": True}, 400),
        ("/v1/nothing", BEARER, {}, 404),
        ("/v1/nothing", CLAUDE, {}, 404),
        ("/v1/messages", CLAUDE, {"model": "m", "messages": [{"role": "user", "content": "x"}]}, 400),
        ("/v1/messages", {"x-api-key": KEY}, MESSAGE, 400),
    ],
)
def test_bad_requests(mock_llm: MockLLMThread, path: str, headers: dict[str, str], body: object, status: int) -> None:  # noqa: F811
    with connection(mock_llm) as client:
        response, answer = ask(client, "POST", path, body, headers)
        assert response.status == status
        assert json.loads(answer)["error"]["message"]


def test_failures_and_closing_as_told() -> None:
    with MockLLMThread(MockOptions(fail_every=2, max_requests=2)) as server:
        with connection(server) as client:
            first, _ = ask(client, "POST", "/v1/chat/completions", CHAT)
            second, _ = ask(client, "POST", "/v1/chat/completions", CHAT)
            assert client.sock is None  # "connection: close" was said
        assert (first.status, second.status) == (200, 429)
        assert second.headers["retry-after-ms"] == "20"


def test_control_requests_do_not_count() -> None:
    with MockLLMThread() as server:
        with connection(server) as client:
            ask(client, "POST", "/v1/chat/completions", CHAT)
            with connection(server, "localhost") as other:
                _, body = ask(other, "GET", "/_mock/stats")
        stats = json.loads(body)
        assert stats["connections"] == stats["handshakes"] == stats["requests"] == 1
        assert stats["control_connections"] == 1


def test_pipelined_requests_are_answered_in_order() -> None:
    async def run() -> None:
        async with MockLLM(MockOptions(latency=0.01)) as server:
            context = ssl.create_default_context(cadata=server.ca_pem)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="localhost")
            for number in range(5):
                body = json.dumps(CHAT | {"messages": [{"role": "user", "content": f"n{number}"}], "stream": number % 2 == 1})
                head = (
                    f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\ncontent-length: {len(body)}\r\n"
                )
                writer.write((head + "\r\n" + body).encode())
            writer.write(b"GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            everything = (await asyncio.wait_for(reader.read(), 10)).decode()
            writer.close()
            found = re.findall(r'"content":" ?(n\d)|"content":"echo: (n\d)|(Invalid URL)', everything)
            assert ["".join(groups) for groups in found] == ["n0", "n1", "n2", "n3", "n4", "Invalid URL"]
        assert server.stats()["open"] == 0

    asyncio.run(run())


def test_close_ends_streams_in_progress() -> None:
    async def run() -> None:
        async with MockLLM(MockOptions(tokens_per_second=1, reply="one two three")) as server:
            context = ssl.create_default_context(cadata=server.ca_pem)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="localhost")
            body = json.dumps(CHAT | {"stream": True})
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            writer.write((head + body).encode())
            await reader.readuntil(b"assistant")
        with contextlib.suppress(ConnectionError):
            assert b"[DONE]" not in await asyncio.wait_for(reader.read(), 5)
        assert server.stats()["aborted"] == 1
        writer.close()

    asyncio.run(run())


def test_close_does_not_wait_for_handshakes() -> None:
    """A client that connects and says nothing keeps nobody."""

    async def run() -> None:
        async with MockLLM() as server:
            with socket.create_connection(("127.0.0.1", server.port)):
                async with asyncio.timeout(5):
                    while not server.stats()["connections"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    await server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "raw", [b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\nbig: " + b"x" * 70_000]
)
def test_broken_requests_get_400(raw: bytes) -> None:
    with MockLLMThread() as server, connection(server) as client:
        client.sock.sendall(raw)
        assert re.match(rb"HTTP/1.1 4(00|31) ", client.sock.recv(1000))


def test_sdks(mock_llm: MockLLMThread) -> None:  # noqa: F811
    """The real SDKs parse every answer, plain and streamed."""
    anthropic = pytest.importorskip("anthropic")
    openai = pytest.importorskip("openai")
    transport = openai.DefaultHttpxClient(verify=ssl.create_default_context(cadata=mock_llm.ca_pem))
    base = f"https://localhost:{mock_llm.port}"
    with transport:
        chat = openai.OpenAI(api_key=KEY, base_url=f"{base}/v1", http_client=transport, max_retries=0)
        assert chat.chat.completions.create(**CHAT).choices[0].message.content == "echo: hello there"
        stream = chat.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "echo: hello there"
        assert chunks[-1].usage.completion_tokens == len(tokenize("echo: hello there"))
        assert list(chat.models.list())
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(api_key="sk-no", base_url=f"{base}/v1", http_client=transport).chat.completions.create(**CHAT)

        claude = anthropic.Anthropic(api_key=KEY, base_url=base, http_client=transport, max_retries=0)
        assert claude.messages.create(**MESSAGE).content[0].text == "echo: hello there"
        with claude.messages.stream(**MESSAGE) as events:
            assert "".join(events.text_stream) == "echo: hello there"
            assert events.get_final_message().usage.output_tokens == len(tokenize("echo: hello there"))
        assert claude.messages.count_tokens(model="m", messages=MESSAGE["messages"]).input_tokens > 0
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(api_key="no", base_url=base, http_client=transport).messages.create(**MESSAGE)


def test_command(tmp_path: Any) -> None:
    """`agentfw mock-llm` says where it is, writes the authority's certificate, ends at SIGTERM with its counters."""
    ca = tmp_path / "ca.pem"
    code = "from agentfw.mock_llm.cli import mock_llm; mock_llm()"
    process = subprocess.Popen([sys.executable, "-c", code, "--json", "--ca-out", str(ca)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        where = json.loads(process.stdout.readline())
        context = ssl.create_default_context(cafile=str(ca))
        raw = socket.create_connection((where["host"], where["port"]), timeout=10)
        context.wrap_socket(raw, server_hostname="api.anthropic.com").close()
        process.send_signal(signal.SIGTERM)
        counted = json.loads(process.stdout.readline())
        assert (counted["handshakes"], counted["requests"]) == (1, 0)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_an_authority_that_cannot_be_written_is_named(tmp_path: Any) -> None:
    ca = tmp_path / "none" / "ca.pem"
    code = "from agentfw.mock_llm.cli import mock_llm; mock_llm()"
    done = subprocess.run([sys.executable, "-c", code, "--ca-out", str(ca)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and f"--ca-out: {ca}: No such file or directory" in done.stderr


RESPONSE = {"model": "gpt-4.1", "input": "hello there"}


def test_responses_plain_and_streamed_agree(mock_llm: MockLLMThread) -> None:  # noqa: F811
    with connection(mock_llm) as client:
        plain = json.loads(ask(client, "POST", "/v1/responses", RESPONSE)[1])
        assert plain["object"] == "response" and plain["output"][0]["content"][0]["text"] == "echo: hello there"
        found = events(ask(client, "POST", "/v1/responses", RESPONSE | {"stream": True})[1])
        kinds = [event for event, _ in found]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
        assert "".join(data["delta"] for event, data in found if event == "response.output_text.delta") == "echo: hello there"
        assert found[-1][1]["response"]["usage"] == plain["usage"]
        assert plain["usage"]["output_tokens"] == len(tokenize("echo: hello there"))
        cut = json.loads(ask(client, "POST", "/v1/responses", RESPONSE | {"max_output_tokens": 1})[1])
        assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert mock_llm.stats()["model_calls"] == 3
    assert mock_llm.stats()["models"] == {"gpt-4.1": mock_llm.stats()["usage"]}


def test_embeddings_and_completions(mock_llm: MockLLMThread) -> None:  # noqa: F811
    with connection(mock_llm) as client:
        body = {"model": "text-embedding-3-small", "input": ["a b", "a b", "c"], "dimensions": 8}
        document = json.loads(ask(client, "POST", "/v1/embeddings", body)[1])
        vectors = [each["embedding"] for each in document["data"]]
        assert vectors[0] == vectors[1] != vectors[2] and len(vectors[0]) == 8
        assert document["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        assert ask(client, "POST", "/v1/embeddings", body | {"input": [5, {}]})[0].status == 400
        body = {"model": "old", "prompt": "hi", "stream": True, "stream_options": {"include_usage": True}}
        streamed = events(ask(client, "POST", "/v1/completions", body)[1])
        assert streamed[-1] == (None, "[DONE]") and streamed[-2][1]["usage"]["completion_tokens"] == len(tokenize("echo: hi"))
        plain = json.loads(ask(client, "POST", "/v1/completions", body | {"stream": False})[1])
        assert plain["choices"][0]["text"] == "echo: hi" and plain["usage"] == streamed[-2][1]["usage"]


def test_prompts_are_cached_as_the_providers_do() -> None:
    with MockLLMThread(MockOptions(cache_minimum=9)) as server, connection(server) as client:
        first = [{"role": "user", "content": "one two three four five six seven eight nine"}]
        longer = [*first, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]

        def cached(messages: object, model: str = "m") -> int:
            document = json.loads(ask(client, "POST", "/v1/chat/completions", {"model": model, "messages": messages})[1])
            return int(document["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached(first), cached(longer), cached(longer), cached(first, "n")] == [0, 12, 20, 0]
        part = {"type": "text", "text": first[0]["content"], "cache_control": {"type": "ephemeral"}}
        message = MESSAGE | {"system": [part], "messages": [{"role": "user", "content": "x"}]}
        usages = [json.loads(ask(client, "POST", "/v1/messages", message, CLAUDE)[1])["usage"] for _ in range(2)]
        assert [(u["input_tokens"], u["cache_creation_input_tokens"], u["cache_read_input_tokens"]) for u in usages] == [
            (4, 9, 0),
            (4, 0, 9),
        ]
        assert server.stats()["usage"]["cache_read_tokens"] == 32 + 9 and server.stats()["usage"]["cache_write_tokens"] == 9


def test_streams_are_cut_and_calls_fail_by_chance() -> None:
    with MockLLMThread(MockOptions(cut_every=2, seed=1)) as server:
        for cut in (False, True):
            with connection(server) as client:
                client.request("POST", "/v1/chat/completions", json.dumps(CHAT | {"stream": True}), BEARER)
                response = client.getresponse()
                if cut:
                    with pytest.raises(http.client.IncompleteRead):
                        response.read()
                else:
                    assert response.read().endswith(b"data: [DONE]\n\n")
        assert server.stats()["cut"] == 1
    with MockLLMThread(MockOptions(error_rate=0.5, seed=3)) as server, connection(server) as client:
        answers = [ask(client, "POST", "/v1/chat/completions", CHAT)[0] for _ in range(40)]
        failed = [answer for answer in answers if answer.status == 429]
        assert 5 < len(failed) < 35 and all(answer.headers["retry-after"] for answer in failed)
        assert server.stats()["model_calls"] == 40 - len(failed)


def test_it_runs_in_uvloop() -> None:
    import uvloop

    async def body() -> bytes:
        async with MockLLM(MockOptions(latency=0.001)) as server:
            context = ssl.create_default_context(cadata=server.ca_pem)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname="localhost")
            text = json.dumps(CHAT | {"stream": True})
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nConnection: close\r\n"
                f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
            )
            got = await reader.read()
            writer.close()
            return got

    assert uvloop.run(body()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
