"""HAR 1.2 (http://www.softwareishard.com/blog/har-12-spec/, W3C's draft of 2012), as far as it is written here. Names and order
are the format's; custom fields begin with `_`."""

from __future__ import annotations

import base64
import zlib
from datetime import UTC, datetime
from importlib.metadata import version

import msgspec


class _Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    pass


class Pair(_Part, omit_defaults=False):
    name: str
    value: str


class PostData(_Part):
    mimeType: str
    text: str
    encoding: str = msgspec.field(default="", name="_encoding")
    """ "base64"; the format has none here."""
    comment: str = ""


class Content(_Part):
    size: int
    """Bytes of the body, decoded, as far as they were seen."""
    mimeType: str
    compression: int | None = None
    text: str | None = None
    encoding: str = ""
    comment: str = ""


class Request(_Part):
    method: str
    url: str
    httpVersion: str
    cookies: list[Pair]
    headers: list[Pair]
    queryString: list[Pair]
    headersSize: int
    bodySize: int
    postData: PostData | None = None


class Response(_Part):
    """Status 0: the agent was sent none."""

    status: int
    statusText: str
    httpVersion: str
    cookies: list[Pair]
    headers: list[Pair]
    content: Content
    redirectURL: str
    headersSize: int
    bodySize: int


class Timings(_Part):
    """Milliseconds; -1: does not apply."""

    connect: float
    send: float
    wait: float
    receive: float


class Entry(_Part):
    pageref: str
    startedDateTime: str
    time: float
    request: Request
    response: Response
    cache: dict[str, str]
    timings: Timings
    exchange: int = msgspec.field(name="_exchange")
    comment: str = ""
    error: str = msgspec.field(default="", name="_error")
    rule: str = msgspec.field(default="", name="_rule")


class Page(_Part):
    """An agent."""

    startedDateTime: str
    id: str
    title: str
    pageTimings: dict[str, float]


encode = msgspec.json.Encoder().encode

ABOUT = "Recorded by agentfw: requests as agents wrote them, responses as they were sent them. Credentials are masked."
GOES_ON = " It goes on: if its writer was killed, what was said last is missing."
TORN = " Its writer was killed amid a write: what was said last is missing, and the names of agents."
_HEAD, _ENTRIES = b'{"log":{"version":"1.2",', b'"entries":['

def head() -> bytes:
    """The file up to its entries."""
    creator = encode({"name": "agentfw", "version": version("agentfw")})
    return b'{"log":{"version":"1.2","creator":%b,"entries":[' % creator


def tail(pages: list[Page], comment: str) -> bytes:
    """And from them on. (JSON does not care that `pages` come behind: so they can be written last.)"""
    return b'\n],"pages":%b,"comment":%b}}\n' % (encode(pages), encode(comment))


class _Said(msgspec.Struct):
    """Of an entry, which must be JSON as a whole."""

    pageref: str
    startedDateTime: str


_said = msgspec.json.Decoder(_Said).decode


def mended(data: bytes) -> bytes | None:
    """Of a file that was torn amid a write, its entries up to there; each is a line. None: not even its head is whole."""
    first, begin, rest = data.partition(_ENTRIES)
    if not (first.startswith(_HEAD) and begin):
        return None
    entries: list[bytes] = []
    pages: dict[str, Page] = {}
    for line in rest.split(b"\n")[1:]:
        entry = line.removesuffix(b",")
        try:
            said = _said(entry)
        except ValueError:
            break
        entries.append(entry)
        begins = said.startedDateTime
        pages.setdefault(said.pageref, Page(startedDateTime=begins, id=said.pageref, title=said.pageref, pageTimings={}))
    body = b"\n" + b",\n".join(entries) if entries else b""
    return first + begin + body + tail(list(pages.values()), ABOUT + TORN)


def moment(seconds: float) -> str:
    """ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def text_of(data: bytes) -> tuple[str, str]:
    """(text, encoding) of a body: as it is, if it is UTF-8 without NUL, else base64."""
    if b"\0" not in data:
        try:
            return data.decode(), ""
        except UnicodeDecodeError as error:
            if error.start >= len(data) - 3 and error.reason == "unexpected end of data":  # cut amid a letter
                return data[: error.start].decode(), ""
    return base64.b64encode(data).decode(), "base64"


def inflated(data: bytes, encodings: list[str], most: int) -> tuple[bytes, str]:
    """(the body with its content coding undone, at most so many bytes; what is to be said about it)."""
    if not encodings or encodings == ["identity"]:
        return data, ""
    if len(encodings) != 1 or encodings[0] not in ("gzip", "x-gzip", "deflate"):
        return data, f"in the coding {', '.join(encodings)[:64]}, as it came"
    for bits in (47, -15):  # gzip or zlib by their heads; what some send as "deflate"
        stream = zlib.decompressobj(bits)
        try:
            return stream.decompress(data, most), "cut" if stream.unconsumed_tail else ""
        except zlib.error:
            continue
    return data, f"in the coding {encodings[0]}, broken, as it came"
