"""What agents may call themselves, their hosts, files and models, to be shown harmless. Each would act if it were believed."""

from __future__ import annotations

from tests.hostile import TEXTS

MARK = "pwned"
"""In each text that would act: as the name of a variable, an attribute or a host that must never come to be."""

MARKUP = [
    f"<img src=x onerror=window.{MARK}=1>",
    f"<script>window.{MARK}=1</script>",
    f"</script><script>window.{MARK}=1</script>",
    f"</title></textarea></style><svg/onload=window.{MARK}=1>",
    f"\"><iframe srcdoc='<script>parent.{MARK}=1</script>'>",
    f"javascript:window.{MARK}=1",
    f"{{{{constructor.constructor('window.{MARK}=1')()}}}}",
    f"<a href=https://{MARK}.example/>click</a>",
    f"<link rel=stylesheet href=//{MARK}.example/x.css><style>*{{display:none}}</style>",
    f"<form action=https://{MARK}.example/><input name=q autofocus onfocus=window.{MARK}=1>",
    "&lt;b&gt;&amp;&#x41;&nbsp;",
    "__proto__",
    "constructor",
]

TERMINAL = [
    "\x1b[2J\x1b[1;1Hcleared",
    f"\x1b]0;{MARK}\x07title",
    f"\x1b]8;;https://{MARK}.example/\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31mred by C1",
    "\x1b[31mred\x1b[0m",
    "\x08\x08\x08\x7fback",
]

LAYOUT = [
    "line\nfeed\r\nand\rreturn\ttab\vvertical\fform",
    "\u202egnp.txt.exe\u202c",  # right-to-left override
    "\u2066isolate\u2069\u200fmark\u061c",
    "zero\u200bwidth\u200djoin\ufeffbom\u2060word\u00adsoft",
    "para\u2028graph\u2029separators\u0085nel",
    "Z\u0336a\u0336l\u0336g\u0336o\u0300\u0301\u0302\u0303" + "\u0301" * 200,
    "tags\U000e0041\U000e0042\U000e007f",
    "\ufffd\ufffd lone surrogates, replaced",
    "\x00nul\x00",
    " ",
    "",
    "e" * 300,
    "\U0001f9ea\U0001f469\u200d\U0001f52c emoji",
]

LONG = "A" * 500_000 + "<b>" + "\u202e" + "B" * 500_000
"""A megabyte."""

NAMES = [*MARKUP, *TERMINAL, *LAYOUT, *(text[:60] for text in TEXTS)]

OUTPUT = (
    b"starting\n"
    b"\x1b[1;32mgreen\x1b[0m and \x1b[38;5;208mcoloured\x1b[0m text\n"
    b"\x1b[2J\x1b[H\x1b]0;pwned\x07\x1b]8;;https://pwned.example/\x1b\\link\x1b]8;;\x1b\\\n"
    b"<script>window.pwned=1</script><img src=x onerror=window.pwned=1>\n"
    b"\xff\xfe not UTF-8 \xed\xa0\x80\n"
    b"\xe2\x80\xaereversed\xe2\x80\xac\n"
    b"progress 1%\rprogress 50%\rprogress 100%\n" + b"x" * 20_000 + b"\n"
    b"end\n"
)
