"""One exchange as it is met, and the HAR entry that becomes of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from agentfw import RequestHead, ResponseHead
from agentfw.http1 import Headers
from agentfw.reports import ExchangeReport

from . import har, masks

MARGIN = 20_000
"""Bytes of a body that are kept beyond what is shown, so that a secret that is cut there is seen whole, and masked."""

LARGE = 8192
"""Characters of both bodies."""


class Body:
    """The beginning of one, as it streams."""

    __slots__ = ("_most", "data", "size")

    def __init__(self, most: int) -> None:
        self._most = most + MARGIN
        self.data = bytearray()  # not a list of pieces: an agent may write a thousand of two bytes each
        self.size = 0

    def add(self, piece: bytes, room: bool = True) -> int:
        """-> bytes that were kept. `room` False: none, nor any after them."""
        self.size += len(piece)
        if not room:
            self._most = len(self.data)
        kept = piece[: self._most - len(self.data)]
        self.data += kept
        return len(kept)

    @property
    def cut(self) -> bool:
        return self.size > len(self.data)


class Exchange:
    """`agent`: its id. `held`: bytes of bodies."""

    def __init__(self, agent: str, most: int) -> None:
        self.agent = agent
        self.began = 0.0
        """Seconds since 1970."""
        self.request: RequestHead | None = None
        """As the agent wrote it: a copy."""
        self.response: ResponseHead | None = None
        """As it is sent to the agent, once it was: hooks may still change it."""
        self.sent = Body(most)
        self.received = Body(most)
        self.held = 0
        self.report: ExchangeReport | None = None


def encoded(exchange: Exchange, most: int, redact: Callable[[bytes], bytes]) -> bytes:
    """The entry as it is written. `redact` raises what the hook raises; ValueError if what it masked was not within one text."""
    made = entry(exchange, most, redact)
    post, content = made.request.postData, made.response.content
    bodies = (post.text if post is not None else ""), content.text
    large = len(bodies[0]) + len(bodies[1] or "") > LARGE
    if large:  # PERF: they are masked; to look through a large one again costs more than to put it aside
        content.text = None
        if post is not None:
            post.text = ""
    data = har.encode(made)
    masked = redact(data)  # PERF: all texts at once
    if masked != data:
        made = msgspec.json.decode(masked, type=har.Entry)
    if not large:
        return masked
    made.response.content.text = bodies[1]
    if made.request.postData is not None:
        made.request.postData.text = bodies[0]
    return har.encode(made)


def entry(exchange: Exchange, most: int, redact: Callable[[bytes], bytes]) -> har.Entry:
    """With bodies masked, since they are cut after that, and no other text."""
    report = exchange.report
    assert report is not None
    connected = report.connected
    first = report.first_byte
    waits = max(0.0, (first if first is not None else report.seconds) - (connected or 0.0))
    timings = har.Timings(
        connect=-1.0 if connected is None or report.reused else round(connected * 1000, 3),
        send=0.0,
        wait=round(waits * 1000, 3),
        receive=round(max(0.0, report.seconds - first) * 1000, 3) if first is not None else 0.0,
    )
    return har.Entry(
        pageref=exchange.agent,
        startedDateTime=har.moment(exchange.began),
        time=round(sum(part for part in (timings.connect, timings.send, timings.wait, timings.receive) if part > 0), 3),
        request=_request(exchange, report, most, redact),
        response=_response(exchange, report, most, redact),
        cache={},
        timings=timings,
        comment=_comment(report),
        exchange=report.exchange,
        error=report.error,
        rule=report.denied_rule,
    )


def _comment(report: ExchangeReport) -> str:
    if report.denied_rule:
        return "Refused by a rule; the server never saw it."
    if report.upgraded:
        return "It became another protocol, of which nothing is kept."
    return ""


def _request(exchange: Exchange, report: ExchangeReport, most: int, redact: Callable[[bytes], bytes]) -> har.Request:
    head = exchange.request
    target = masks.target(head.target if head is not None else report.target)
    headers = head.headers if head is not None else Headers()
    kind = headers.get("content-type", "") or ""
    post = None
    if exchange.sent.size or (head is not None and "content-length" in headers):
        data, notes = _shown(exchange.sent, headers.tokens("content-encoding"), most, redact)
        text, encoding = har.text_of(masks.form(data, kind))
        post = har.PostData(mimeType=kind, text=text, encoding=encoding, comment=notes)
    asked = target
    return har.Request(
        method=report.method,
        url=f"{report.destination.scheme}://{report.destination.authority}{asked}",
        httpVersion=f"HTTP/{head.version}" if head is not None else "HTTP/1.1",
        cookies=_cookies(headers, "cookie"),
        headers=_headers(headers),
        queryString=[har.Pair(name=name, value=value) for name, value in masks.pairs(asked.partition("?")[2])],
        headersSize=-1,
        bodySize=exchange.sent.size,
        postData=post,
    )


def _response(exchange: Exchange, report: ExchangeReport, most: int, redact: Callable[[bytes], bytes]) -> har.Response:
    head = exchange.response
    if head is None or report.status != head.status:  # ours, or none
        why = "made by agentfw" if report.status else "none came"
        content = har.Content(size=0, mimeType="application/json" if report.status else "", comment=why)
        return har.Response(
            status=report.status, statusText="", httpVersion="HTTP/1.1", cookies=[], headers=[], content=content, redirectURL="",
            headersSize=-1, bodySize=-1,
        )  # fmt: skip
    encodings = head.headers.tokens("content-encoding")
    data, notes = _shown(exchange.received, encodings, most, redact)
    text, encoding = har.text_of(data)
    whole = exchange.received.size
    plain = not encodings or encodings == ["identity"]
    content = har.Content(
        size=whole if plain else len(data),
        mimeType=head.headers.get("content-type", "") or "",
        compression=None if plain or notes else len(data) - whole,
        text=text,
        encoding=encoding,
        comment=notes,
    )
    return har.Response(
        status=head.status,
        statusText=head.reason,
        httpVersion=f"HTTP/{head.version}",
        cookies=_cookies(head.headers, "set-cookie"),
        headers=_headers(head.headers),
        content=content,
        redirectURL=masks.target(head.headers.get("location", "") or ""),
        headersSize=-1,
        bodySize=whole,
    )


def _shown(body: Body, encodings: list[str], most: int, redact: Callable[[bytes], bytes]) -> tuple[bytes, str]:
    """(the body as it is shown, what is to be said about it)."""
    data, note = har.inflated(bytes(body.data), encodings, most + MARGIN)
    cut = body.cut or note == "cut"
    data = redact(data)
    notes = [note] if note and note != "cut" else []
    # Its end may be a part of a secret, which nobody knows for one.
    shown = data[: max(0, min(most, len(data) - MARGIN))] if cut else data[:most]
    if cut or len(data) > most:
        notes.append(f"the first {len(shown)} bytes")
    return shown, "; ".join(notes)


def _headers(headers: Headers) -> list[har.Pair]:
    return [har.Pair(name=name, value=masks.header(name, value)) for name, value in headers]


def _cookies(headers: Headers, name: str) -> list[har.Pair]:
    names = masks.cookie_names(headers.get_all(name), set_=name == "set-cookie")
    return [har.Pair(name=each, value=masks.MASKED) for each in names]
