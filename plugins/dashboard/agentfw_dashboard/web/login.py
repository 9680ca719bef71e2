"""The two pages that are not the dashboard: where one logs in, and the way on from there."""

from __future__ import annotations

import base64
import hashlib
import html

from aiohttp import web

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { display: grid; place-content: center; min-height: 90vh; margin: 0; padding: 1rem; }
main { max-width: 28rem; }
form { display: flex; gap: .5rem; flex-wrap: wrap; }
input { flex: 1 1 14rem; } input, button { font: inherit; padding: .4rem .6rem; }
.trouble { color: #b3261e; } @media (prefers-color-scheme: dark) { .trouble { color: #ffb4ab; } }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": POLICY,
    # With "no-referrer" browsers say `Origin: null` with a form (W3C Referrer Policy; Fetch, "append a request `Origin` header").
    "Referrer-Policy": "same-origin",
}


def page(trouble: str, *, status: int = 401) -> web.Response:
    """A form for the token or a code."""
    said = f'<p class="trouble" role="alert">{html.escape(trouble)}</p>' if trouble else ""
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>agentfw: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>
<body><main><h1>agentfw</h1>
<p>On the pool's machine, <code>agentfw dashboard</code> opens this page and logs you in; <code>agentfw dashboard
--print-url</code> prints a link that does so once. Or give the token, or the code of such a link:</p>{said}
<form method="post" action="/login" autocomplete="off">
<input name="token" type="password" aria-label="Token or code" required maxlength="512" autofocus>
<button>Log in</button></form></main></body></html>
"""
    return web.Response(status=status, text=text, headers=_HEADERS)


def onward() -> web.Response:
    """To the dashboard, by a request of our own page's: a browser that came by another page's link sends the cookie with that."""
    text = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/"><title>agentfw</title></head>
<body><p><a href="/">The dashboard</a></p></body></html>
"""
    return web.Response(text=text, headers=_HEADERS)
