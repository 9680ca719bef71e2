"""Uses wheels as they come from PyPI, one function each; run in a VM and natively. Prints `name ok` or `name FAILED what`, a line each.

What is computed is compared with what is known, not only run.
"""

import asyncio
import datetime
import io
import json
import sys
import tempfile
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def numpy():
    import numpy as np

    matrix = np.arange(9.0).reshape(3, 3) + np.eye(3) * 10
    assert np.allclose(np.linalg.inv(matrix) @ matrix, np.eye(3))
    assert np.allclose(np.linalg.solve(matrix, matrix @ [1, 2, 3]), [1, 2, 3])
    values, vectors = np.linalg.eigh(matrix + matrix.T)
    assert np.allclose(vectors @ np.diag(values) @ vectors.T, matrix + matrix.T)
    signal = np.sin(np.arange(256) * 2 * np.pi * 8 / 256)
    assert int(np.abs(np.fft.rfft(signal)).argmax()) == 8
    big = np.random.default_rng(1).random((300, 300))
    assert abs((big @ big).trace() - np.einsum("ij,ji->", big, big)) < 1e-6  # BLAS, and without it
    with io.BytesIO() as file:
        np.save(file, big)
        file.seek(0)
        assert (np.load(file) == big).all()


def pandas():
    import pandas as pd

    frame = pd.DataFrame({"who": ["a", "b", "a", "c"], "n": [1, 2, 3, 4]}, index=pd.date_range("2026-01-01", periods=4))
    assert frame.groupby("who").n.sum().to_dict() == {"a": 4, "b": 2, "c": 4}
    assert frame.merge(pd.DataFrame({"who": ["a"], "x": [9]}), on="who").x.tolist() == [9, 9]
    assert pd.read_csv(io.StringIO(frame.to_csv())).n.tolist() == [1, 2, 3, 4]
    assert frame.n.rolling(2).mean().tolist()[1:] == [1.5, 2.5, 3.5]
    assert frame.n.resample("2D").sum().tolist() == [3, 7]


def pydantic():
    import pydantic

    class Item(pydantic.BaseModel):
        name: str
        price: float = pydantic.Field(gt=0)
        tags: list[str] = []

    assert Item.model_validate_json('{"name": "x", "price": "1.5"}').model_dump() == {"name": "x", "price": 1.5, "tags": []}
    try:
        Item(name="x", price=-1)
    except pydantic.ValidationError as error:
        assert error.errors()[0]["type"] == "greater_than"
    else:
        raise AssertionError("a negative price")
    assert Item.model_json_schema()["required"] == ["name", "price"]


def orjson():
    import orjson

    document = {"a": [1, 2.5, None, True, "ü\n"], "b": {"c": list(range(100))}}
    assert orjson.loads(orjson.dumps(document)) == document
    assert orjson.dumps({2: 1}, option=orjson.OPT_NON_STR_KEYS) == b'{"2":1}'
    try:
        orjson.loads("{")
    except orjson.JSONDecodeError:
        return
    raise AssertionError("half a document")


def cryptography():
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import NameOID

    key = ed25519.Ed25519PrivateKey.generate()
    key.public_key().verify(key.sign(b"message"), b"message")
    try:
        key.public_key().verify(key.sign(b"message"), b"another")
    except InvalidSignature:
        pass
    else:
        raise AssertionError("a wrong signature")
    curve = ec.generate_private_key(ec.SECP256R1())
    curve.public_key().verify(curve.sign(b"m", ec.ECDSA(hashes.SHA256())), b"m", ec.ECDSA(hashes.SHA256()))
    large = rsa.generate_private_key(65537, 2048)
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    large.public_key().verify(large.sign(b"m", pss, hashes.SHA256()), b"m", pss, hashes.SHA256())
    for kind in (AESGCM, ChaCha20Poly1305):
        box = kind(bytes(32))
        assert box.decrypt(bytes(12), box.encrypt(bytes(12), b"text", b"more"), b"more") == b"text"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "wheels.test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(curve.public_key())
    builder = (
        builder.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
    )
    names = x509.SubjectAlternativeName([x509.DNSName("wheels.test")])
    certificate = builder.add_extension(names, critical=False).sign(curve, hashes.SHA256())
    read = x509.load_pem_x509_certificate(certificate.public_bytes(Encoding.PEM))
    read.verify_directly_issued_by(read)
    assert read.extensions.get_extension_for_class(type(names)).value == names
    fernet = Fernet(Fernet.generate_key())
    assert fernet.decrypt(fernet.encrypt(b"text")) == b"text"
    digest = hashes.Hash(hashes.SHA256())
    digest.update(b"abc")  # FIPS 180-2, B.1
    assert digest.finalize().hex().startswith("ba7816bf8f01cfea414140de5dae2223")


def lxml():
    from lxml import etree, html

    root = etree.fromstring(b"<r><a n='1'>x</a><a n='2'>y</a></r>")
    assert root.xpath("//a[@n='2']/text()") == ["y"] and root.xpath("sum(//a/@n)") == 3
    style = etree.XML(
        '<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:template match="/">'
        '<o><xsl:value-of select="count(//a)"/></o></xsl:template></xsl:stylesheet>'
    )
    assert etree.tostring(etree.XSLT(style)(root)).endswith(b"<o>2</o>")
    assert html.fromstring("<p>a<br>b<a href=x>c</a>").xpath("//a/@href") == ["x"]
    try:
        etree.fromstring("<a>")
    except etree.XMLSyntaxError:
        return
    raise AssertionError("half a document")


def pillow():
    from PIL import Image, ImageDraw, ImageFilter

    image = Image.new("RGB", (64, 48), (200, 10, 10))
    ImageDraw.Draw(image).rectangle((10, 10, 20, 20), fill=(0, 0, 255))
    for kind, near in (("PNG", 0), ("JPEG", 60), ("WEBP", 60), ("GIF", 60), ("TIFF", 0), ("BMP", 0)):
        with io.BytesIO() as file:
            image.save(file, kind)
            file.seek(0)
            back = Image.open(file).convert("RGB")
            assert back.size == (64, 48), kind
            for at in ((40, 40), (15, 15)):
                assert all(abs(a - b) <= near for a, b in zip(back.getpixel(at), image.getpixel(at), strict=True)), (kind, at)
    assert image.resize((8, 6)).filter(ImageFilter.BLUR).rotate(90, expand=True).size == (6, 8)


class Server:
    """HTTP on a loopback address in this VM: answers with what it was sent."""

    def __enter__(self):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                data = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}/echo"

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def requests():
    import requests

    with Server() as url, requests.Session() as session:
        for size in (3, 100_000):
            assert session.post(url, data=b"x" * size).content == b"x" * size
        assert session.post(url, json={"a": 1}).json() == {"a": 1}


def httpx():
    import httpx

    with Server() as url, httpx.Client() as client:
        assert client.post(url, json={"a": 1}).json() == {"a": 1}

    async def several(url):
        async with httpx.AsyncClient() as client:
            answers = await asyncio.gather(*(client.post(url, json=n) for n in range(10)))
            assert [answer.json() for answer in answers] == list(range(10))

    with Server() as url:
        asyncio.run(several(url))


def aiohttp():
    import aiohttp
    from aiohttp import web

    async def main():
        async def echo(request):
            return web.json_response(await request.json())

        async def socket(request):
            ws = web.WebSocketResponse()
            await ws.prepare(request)
            async for message in ws:
                await ws.send_str(message.data.upper())
            return ws

        app = web.Application()
        app.add_routes([web.post("/echo", echo), web.get("/ws", socket)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            async with session.post(f"http://127.0.0.1:{port}/echo", json={"a": [1]}) as answer:
                assert await answer.json() == {"a": [1]}
            async with session.ws_connect(f"http://127.0.0.1:{port}/ws") as ws:
                await ws.send_str("hello")
                assert (await ws.receive()).data == "HELLO"
        await runner.cleanup()

    asyncio.run(main())


def uvloop():
    import uvloop

    async def serve(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def main():
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()

        async def client(number):
            reader, writer = await asyncio.open_connection(*address)
            for size in (1, 1000, 200_000):
                writer.write(bytes([number]) * size)
                await writer.drain()
                assert await reader.readexactly(size) == bytes([number]) * size
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*(client(number) for number in range(8)))
        assert await asyncio.get_running_loop().run_in_executor(None, sum, range(10)) == 45
        server.close()
        await server.wait_closed()

    uvloop.run(main())


CHAT = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}]}  # fmt: skip
MESSAGE = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hello"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip


def openai():
    """Its model of an answer; the network is the other tests' (test_slice.py)."""
    import openai

    with openai.OpenAI(api_key="none", base_url="http://model.test/v1", http_client=_client(openai, CHAT)) as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        pieces = [
            {**CHAT, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]} for text in "hello"
        ]
        stream = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"
    assert answer.choices[0].message.content == "hello"
    with openai.OpenAI(api_key="none", base_url="http://model.test/v1", http_client=_client(openai, stream)) as client:
        parts = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        assert "".join(part.choices[0].delta.content for part in parts) == "hello"


def anthropic():
    import anthropic

    with anthropic.Anthropic(api_key="none", base_url="http://model.test", http_client=_client(anthropic, MESSAGE)) as client:
        answer = client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert answer.content[0].text == "hello"
    events = [{"type": "message_start", "message": {**MESSAGE, "content": []}},
              {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
              *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in "hello"),
              {"type": "content_block_stop", "index": 0}, {"type": "message_stop"}]  # fmt: skip
    text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
    with (
        anthropic.Anthropic(api_key="none", base_url="http://model.test", http_client=_client(anthropic, text)) as client,
        client.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]) as stream,
    ):
        assert "".join(stream.text_stream) == "hello"


def _client(sdk, document):
    """An HTTP client of the library that the SDK uses (httpx, or httpx2), which answers by itself: a document, or a stream's text."""
    base = next(each for each in sdk.DefaultHttpxClient.__mro__ if each.__name__ == "Client")
    http = sys.modules[base.__module__.partition(".")[0]]
    kind = {"json": document}
    if isinstance(document, str):
        kind = {"text": document, "headers": {"content-type": "text/event-stream"}}
    return http.Client(transport=http.MockTransport(lambda request: http.Response(200, **kind)))


def tiktoken():
    """With ranks of our own: those of the models are downloaded."""
    import tiktoken

    ranks = {bytes([n]): n for n in range(256)} | {b"he": 256, b"ll": 257, b"hell": 258}
    encoding = tiktoken.Encoding("ours", pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens={"<end>": 259})
    assert encoding.encode("hello<end>", allowed_special="all") == [258, ord("o"), 259]
    assert encoding.decode(encoding.encode("any text, ünd more")) == "any text, ünd more"


def sqlite3():
    import sqlite3

    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(f"{folder}/wheels.db")
        with database:
            database.execute("pragma journal_mode=wal")
            database.execute("create table t (a integer primary key, b text)")
            database.executemany("insert into t (b) values (?)", [(str(n),) for n in range(1000)])
        other = sqlite3.connect(f"{folder}/wheels.db")
        assert other.execute("select count(*), sum(cast(b as integer)) from t").fetchone() == (1000, 499500)
        assert other.execute("select json_extract(?, '$.a[1]')", ('{"a": [1, 2]}',)).fetchone() == (2,)
        other.close()
        with database:
            database.execute("create virtual table f using fts5 (text)")
            database.executemany("insert into f values (?)", [("the quick fox",), ("a slow dog",)])
        assert database.execute("select text from f where f match 'qui*'").fetchall() == [("the quick fox",)]
        database.close()


WHEELS = [numpy, pandas, pydantic, orjson, cryptography, lxml, pillow, aiohttp, httpx, requests, openai, anthropic, tiktoken,
          sqlite3, uvloop]  # fmt: skip

if __name__ == "__main__":
    for use in WHEELS:
        try:
            use()
        except ModuleNotFoundError as error:
            print(use.__name__, "MISSING", error.name, flush=True)
        except BaseException:
            traceback.print_exc()
            print(use.__name__, "FAILED", traceback.format_exc().splitlines()[-1], flush=True)
        else:
            print(use.__name__, "ok", flush=True)
