"""A path counts only if nobody reads it differently: against models of what servers do to paths."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable
from urllib.parse import unquote, unquote_plus

import pytest
from agentfw_policy.paths import below, below_folded, canonical_path, folded, parse_prefix
from hypothesis import given, settings
from hypothesis import strategies as st

from .support import asked, policy

# What one server or another does before it looks a path up, alone or one after the other.
READERS: dict[str, Callable[[str], str]] = {
    "decode": lambda path: unquote(path, errors="replace"),
    "decode as latin-1": lambda path: unquote(path, "latin-1"),
    "overlong": lambda path: unquote(re.sub("%[cC]0%([aA][0-9a-fA-F])", lambda m: chr(int(m[1], 16) & 0x7F), path)),
    "decode plus": lambda path: unquote_plus(path, errors="replace") if "%" in path else path,
    "backslashes": lambda path: path.replace("\\", "/"),
    "parameters": lambda path: re.sub(r";[^/]*", "", path),
    "slashes": lambda path: re.sub("/+", "/", path),
    "dots": lambda path: posixpath.normpath(path) + ("/" if path.endswith("/") and path.strip("/.") else ""),
    "query": lambda path: re.split(r"[?#]", path)[0],
    "ends": lambda path: "/".join(part.rstrip(" .") if part.strip(".") else part for part in path.split("/")),
    "spaces": lambda path: "/".join(part.strip() for part in path.split("/")),
    "compatibility": lambda path: unicodedata.normalize("NFKC", path),
    "NUL ends": lambda path: path.split("\0")[0],
    "invisible": lambda path: "".join(c for c in path if unicodedata.category(c)[0] != "C"),
}
PIECES = ["/", "/", "/", "//", ".", "..", "...", "%2e", "%2E%2e", "%252e", "%2f", "%2F", "%252f", "%5c", "\\", ";", "%3b",
";x=1", "%00", "%0a",
          "%09", "%20", "%3f", "%23", "%25", "%", "%zz", "%e2%80%8b", "%ef%bc%8f", "%EF%BC%8E", "%c0%af", "%c0%ae", "%c1%9c",
          "%e3%80%82",
          "%2", "+", "*", "~", ":", "@", "=", "&", "a", "x", "admin", "ADMIN", "aDmin", "%61dmin", "%41dmin", "adm%69n",
          "admin.", "public",
          "%70ublic", "Public", "admin.json", "administrators", "%c5%bf", "%e2%84%aa", "k"]  # fmt: skip


CHANGES = ["case", "encode", "encode twice"]


def disguised(base: str, changes: list[tuple[int, str]]) -> str:
    """`base` with something put in, a character put otherwise, or its case changed, here and there."""
    for at, piece in changes:
        at %= len(base)
        if piece == "case":
            base = base[:at] + base[at].swapcase() + base[at + 1 :]
        elif piece == "encode":
            base = base[:at] + f"%{ord(base[at]):02x}" + base[at + 1 :]
        elif piece == "encode twice":
            base = base[:at] + f"%25{ord(base[at]):02X}" + base[at + 1 :]
        else:
            base = base[:at] + piece + base[at:]
    return base if base.startswith("/") else "/" + base


targets = st.one_of(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map(lambda parts: "/" + "".join(parts)),
    st.builds(
        disguised,
        st.sampled_from(
            ["/admin", "/admin/x", "/admin/", "/public/../admin", "/./admin", "/public/x", "/x/../public", "/public"]
        ),
        st.lists(st.tuples(st.integers(0, 20), st.sampled_from([*PIECES, *CHANGES * 12])), min_size=1, max_size=3),
    ),
)
READINGS = [[], *([one] for one in READERS), *([one, two] for one in READERS for two in READERS)]


def read(target: str, readers: list[str]) -> str:
    path = target.partition("?")[0]
    for name in readers:
        path = READERS[name](path)
    return path


@given(targets)
@settings(max_examples=200, deadline=None)
def test_what_is_not_ambiguous_is_read_alike_by_all(target: str) -> None:
    path = canonical_path(target)
    if path is None:
        return
    dots = [part.count(".") for part in path.split("/")]
    for readers in READINGS:
        seen = read(target, ["decode", *readers])
        if not {"compatibility", "decode plus"} & set(readers):
            assert seen == path
        assert [part.count(".") for part in seen.split("/")] == dots, readers


DENYING = policy(allow=["api.example"], rule=[{"action": "deny", "paths": ["/admin"]}])
ALLOWING = policy(rule=[{"action": "allow", "host": "api.example", "paths": ["/public"]}])


@given(targets)
@settings(max_examples=400, deadline=None)
def test_no_reading_of_a_passing_path_is_denied(target: str) -> None:
    denying, allowing = (asked(plugin, f"GET {target}") == "allowed" for plugin in (DENYING, ALLOWING))
    if not denying and not allowing:
        return
    for readers in READINGS:
        for first in ("decode", "decode as latin-1", "overlong"):
            seen = read(target, [first, *readers])
            folded_ = seen.lower()
            if denying:
                assert folded_ != "/admin" and not folded_.startswith(("/admin/", "/admin.")), readers
            if allowing:
                assert seen == "/public" or seen.startswith("/public/"), readers


@pytest.mark.parametrize(
    "target",
    ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/.%2E/admin", "//admin", "/v1//x", "/%2fadmin", "/v1%2fadmin", "/v1/..;/admin",
    "/;/admin", "/admin;x",
     "/v1\\..\\admin", "/v1%5c..%5cadmin", "/%252e%252e/admin", "/%61%", "/admin%00", "/admin%20", "/admin.", "/./admin",
     "/v1/.", "/v1/..",
     "/%c0%ae%c0%ae/admin", "/%ef%bc%8e%ef%bc%8e/admin", "/a%ef%bc%8fadmin", "/adm%e2%80%8bin", "/a%0d%0ab", "/a|b", "/a%ff",
     "/.../a", "/ a", ""],
)  # fmt: skip
def test_ambiguous(target: str) -> None:
    assert canonical_path(target) is None
    assert asked(DENYING, f"GET {target}") == "policy.rule: deny every host /admin"
    assert asked(ALLOWING, f"GET {target}") == "policy.rule: allow api.example /public"
    assert asked(policy(allow=["api.example"]), f"GET {target}") == "allowed", "without rules for paths they do not matter"


@pytest.mark.parametrize(
    ("target", "path"),
    [("/", "/"), ("/a/b", "/a/b"), ("/a/", "/a/"), ("/a?x=//../;", "/a"), ("/%41%7e", "/A~"), ("/caf%c3%a9", "/caf\u00e9"),
    ("/a%20b", "/a b"),
     ("/a.b/.c", "/a.b/.c"), ("/v1/models/gpt-4o:generate", "/v1/models/gpt-4o:generate"), ("*", "*"), ("/@x/+1,2(3)",
     "/@x/+1,2(3)")],
)  # fmt: skip
def test_plain(target: str, path: str) -> None:
    assert canonical_path(target) == path


def test_prefixes() -> None:
    assert parse_prefix("/caf\u00e9") == parse_prefix("/caf%C3%A9") == "/caf\u00e9" and parse_prefix("/a b") == "/a b"
    assert below("/v1", "/v1") and below("/v1/x", "/v1") and not below("/v10", "/v1") and not below("/V1", "/v1")
    assert below("/v1/x", "/v1/") and not below("/v1", "/v1/") and below("/x", "/") and below("/", "/")
    for path in ("/Admin", "/ADMIN/", "/admin/x", "/admin.JSON"):
        assert below_folded(folded(path), "/admin") and below_folded(folded(path), "/admin/")
    assert not below_folded("/administrators", "/admin") and below_folded("/anything", "/")
    for bad in ("", "a", "/a?b", "/a//b", "/a/..", "/a\\b", "/a;b", "/a#b", "/a%2fb"):
        with pytest.raises(ValueError):
            parse_prefix(bad)
