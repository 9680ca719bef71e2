"""File rules: what they refuse, how it looks, and that there is no way around them."""

import errno
import os
import stat
import struct
from pathlib import Path

import pytest
from agentfw_vmm.rules import FileRule, compile_rules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import SECRET, MakeVfs
from .driver import BUFFER, CWD, OUT, PATH1, WRITABLE, Vfs


def rule(vfs: Vfs, **patterns: str | list[str]) -> None:
    """rule(vfs, deny="/a/**", hide=[...], read=...)"""
    lists = {action: [found] if isinstance(found, str) else found for action, found in patterns.items()}
    files = [FileRule(pattern, action) for action, found in lists.items() for pattern in found]  # type: ignore[arg-type]
    assert vfs.rules(compile_rules(files)) == 0


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """work/{pub, key -> vault/key.txt, vault/{key.txt, deep/key2}, notes.txt, .env, sub/.env, sub/.envrc}"""
    work = tmp_path / "work"
    (work / "vault/deep").mkdir(parents=True)
    (work / "sub").mkdir()
    (work / "pub").mkdir()
    for path in ("vault/key.txt", "vault/deep/key2", ".env", "sub/.env"):
        (work / path).write_bytes(SECRET)
    for path in ("notes.txt", "sub/.envrc", "pub/a"):
        (work / path).write_bytes(b"public")
    (work / "key").symlink_to("vault/key.txt")
    (work / "there").symlink_to("vault")
    return tmp_path


# -- what is seen


def test_denied_is_seen_as_a_file_of_mode_000(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    rule(vfs, deny=["/w/vault", "**/.env"])
    assert set(vfs.listdir("/w")) == {"pub", "key", "there", "vault", "notes.txt", ".env", "sub"}
    assert stat.S_IMODE(vfs.stat("/w/.env").mode) == stat.S_IMODE(vfs.lstat("/w/vault").mode) == 0
    assert vfs.stat("/w/.env").size == len(SECRET)
    assert vfs.access("/w/.env", os.F_OK) and not vfs.access("/w/.env", os.R_OK) and not vfs.access("/w/.env", os.W_OK)
    for path in ("/w/.env", "/w/sub/.env", "/w/vault", "/w/vault/key.txt", "/w/vault/deep/key2", "/w/vault/none"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_PATH, os.O_RDONLY | os.O_TRUNC):
            assert vfs.error("open", path, flags) == "EACCES", (path, flags)
        assert vfs.error("readlink", path) == vfs.error("chmod", path, 0o777) == vfs.error("unlink", path) == "EACCES"
        assert vfs.error("rename", path, "/w/pub/x") == vfs.error("link", path, "/w/pub/x") == "EACCES"
        assert vfs.error("rename", "/w/notes.txt", path) == vfs.error("link", "/w/notes.txt", path) == "EACCES"
        assert vfs.error("symlink", "x", path) == vfs.error("mkdir", path) == "EACCES"
        assert vfs.error("utime", path, (0, 0)) == vfs.error("rmdir", path) == "EACCES"
    for path in ("/w/vault/key.txt", "/w/vault/none", "/w/vault/deep/key2", "/w/vault/.."):
        assert vfs.error("stat", path) == "EACCES"
    assert vfs.error("chdir", "/w/vault") == "EACCES"
    assert vfs.read("/w/sub/.envrc") == b"public"
    vfs.write("/w/pub/new", b"x")
    assert (tree / "work/.env").read_bytes() == SECRET


def test_hidden_is_not_there(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)}, files={"/etc/a": b"a", "/etc/b": b"b"})
    rule(vfs, hide=["/w/vault", "**/.env", "/etc/b", "/tmp/h*", "/proc/self/maps"])
    assert set(vfs.listdir("/w")) == {"pub", "key", "there", "notes.txt", "sub"}
    assert vfs.listdir("/w/sub") == [".envrc"]
    assert vfs.listdir("/etc") == ["a"]
    assert "maps" not in vfs.listdir("/proc/self") and vfs.error("read", "/proc/4711/maps") == "ENOENT"
    for path in ("/w/vault", "/w/vault/key.txt", "/w/.env", "/w/sub/.env", "/w/key", "/w/there/key.txt", "/etc/b"):
        for call in ("stat", "open", "chdir", "read"):
            assert vfs.error(call, path) == "ENOENT", (call, path)
    for path in ("/w/vault", "/w/.env"):
        assert vfs.error("unlink", path) == vfs.error("lstat", path) == "ENOENT"
    for path in ("/w/.env", "/w/pub/.env", "/tmp/hat"):  # there or not cannot be told apart
        assert vfs.error("write", path, b"x") == vfs.error("mkdir", path) == vfs.error("symlink", "y", path) == "EACCES"
        assert vfs.error("rename", "/w/notes.txt", path) == vfs.error("link", "/w/notes.txt", path) == "EACCES"
    assert not (tree / "work/pub/.env").exists()
    handle = vfs.open("/w/sub", os.O_DIRECTORY)
    assert vfs.error("open", ".env", base=handle) == vfs.error("open", "../vault/key.txt", base=handle) == "ENOENT"
    for name in ("kept", "hid"):
        assert vfs.error("write", f"/tmp/{name}", b"") == ("EACCES" if name == "hid" else None)
    assert vfs.listdir("/tmp", 24 + 8) == ["kept"]


def test_listings_in_small_pieces_skip_what_is_hidden(make: MakeVfs, tmp_path: Path) -> None:
    names = [f"{'secret' if i % 3 == 0 else 'f'}{i}" for i in range(300)]
    for directory in ("w", "other", "third"):
        (tmp_path / directory).mkdir()
    for name in names:
        (tmp_path / "w" / name).touch()
    mounts = {"/w": (tmp_path / "w", 0), "/w/secret-mount": (tmp_path / "other", 0), "/w/f-mount": (tmp_path / "third", 0)}
    for more in ({}, {"/again": (tmp_path / "w", 0)}):  # the second with files of two names each
        vfs = make(mounts={**mounts, **more})
        for name in names:
            vfs.write(f"/tmp/{name}", b"")
        rule(vfs, hide=["/w/secret*", "/tmp/secret*"])
        expected = sorted(name for name in names if name[0] == "f")
        for size in (64, 100, 4096, 32768):
            assert vfs.listdir("/w", size) == sorted(["f-mount", *expected])
            assert vfs.listdir("/tmp", size) == expected
            assert not more or vfs.listdir("/again", size) == expected


def test_read_only_cannot_be_changed(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})

    def state() -> dict[Path, tuple[int, ...]]:  # all but the time of the last access
        found = {path: path.lstat() for path in (tree / "work").rglob("*")}
        return {path: (s.st_mode, s.st_ino, s.st_nlink, s.st_size, s.st_mtime_ns) for path, s in found.items()}

    before = state()
    rule(vfs, read=["/w/vault", "/w/notes.txt", "/tmp/ro"])
    assert vfs.read("/w/vault/key.txt") == SECRET and vfs.listdir("/w/vault") == ["deep", "key.txt"]
    for path in ("/w/vault/key.txt", "/w/notes.txt", "/w/vault/new", "/w/key"):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT):
            assert vfs.error("open", path, flags) in ("EROFS", "ENOENT"), path
        assert not vfs.access(path, os.W_OK)
    for path in ("/w/vault/key.txt", "/w/notes.txt"):
        assert vfs.access(path, os.R_OK)
        assert vfs.error("unlink", path) == vfs.error("chmod", path, 0o777) == vfs.error("utime", path, (0, 0)) == "EROFS"
        assert vfs.error("rename", path, "/w/pub/x") == vfs.error("rename", "/w/pub/a", path) == "EROFS"
        assert vfs.error("rename", path, "/w/pub/a", 2) == vfs.error("rename", "/w/pub/a", path, 2) == "EROFS"  # exchange
        assert vfs.error("link", path, "/w/pub/x") == "EXDEV"  # it could be written by that name
        handle = vfs.open(path, os.O_RDONLY)
        for result in (
            vfs.raw("fchmod", handle, 0o777),
            vfs.raw("utimens", 0, 0, 0, 0, handle),
            vfs.raw("utimens", 0, 0, 0, 0, vfs.open(path, os.O_PATH)),
        ):
            assert result == -errno.EROFS
        assert vfs.raw("mapfile", handle, 0x700000, 4096, 3, 1, 0) == -errno.EACCES  # shared, writable
        assert vfs.raw("mapfile", handle, 0x700000, 4096, 3, 2, 0) == 0
        assert vfs.raw("truncate", handle, 0) == -errno.EINVAL and vfs.raw("pwrite", handle, BUFFER, 1, 0) == -errno.EBADF
        assert vfs.raw("flock", handle, 2) == vfs.raw("fsync", handle) == 0
        assert vfs.raw("statfs", handle, OUT) == 0 and struct.unpack("<15q", vfs.peek(OUT, 120))[10] & 1
    for path in ("/w/vault/new", "/w/vault/deep/new", "/tmp/ro"):
        assert vfs.error("mkdir", path) == vfs.error("symlink", "x", path) == vfs.error("link", "/w/pub/a", path) == "EROFS"
    assert vfs.error("rmdir", "/w/vault/deep") == vfs.error("rmdir", "/w/vault") == "EROFS"
    assert vfs.error("open", "/w/vault", os.O_TMPFILE | os.O_RDWR) == "EROFS"
    handle = vfs.open("/w/vault", os.O_DIRECTORY)
    assert vfs.error("open", "new", os.O_CREAT | os.O_WRONLY, base=handle) == "EROFS"
    assert state() == before


def test_the_strictest_rule_counts_and_deeper_ones_add(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    rule(vfs, read="/w/**", deny="/w/vault/*", hide="/w/vault/deep")
    assert vfs.read("/w/notes.txt") == b"public" and vfs.error("write", "/w/new", b"") == "EROFS"
    assert vfs.listdir("/w/vault") == ["key.txt"] and vfs.error("read", "/w/vault/key.txt") == "EACCES"
    assert vfs.error("read", "/w/vault/deep/key2") == "ENOENT"
    assert vfs.rules(b"") == 0
    assert vfs.read("/w/vault/deep/key2") == SECRET
    vfs.write("/w/new", b"")


def test_the_root_and_everything(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    for pattern in ("/", "/**", "**"):
        rule(vfs, read=pattern)
        assert vfs.read("/w/notes.txt") == b"public"
        assert vfs.error("write", "/w/new", b"") == vfs.error("write", "/tmp/new", b"") == "EROFS"
    rule(vfs, deny="/")
    assert vfs.error("read", "/w/notes.txt") == vfs.error("listdir", "/") == "EACCES"


# -- no way around


def test_no_spelling_leads_to_what_is_denied(make: MakeVfs, tree: Path) -> None:
    (tree / "work/sub/up").symlink_to("../vault")
    (tree / "work/sub/abs").symlink_to("/w/vault/key.txt")
    (tree / "work/sub/chain").symlink_to("up/deep/../key.txt")
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    spellings = [
        "/w/vault/key.txt",
        "//w//vault///key.txt",
        "/w/./vault/./key.txt",
        "/w/sub/../vault/key.txt",
        "/../w/pub/../sub/../vault/key.txt",
        "/w/key",
        "/w/there/key.txt",
        "/w/there/../vault/key.txt",
        "/w/sub/up/key.txt",
        "/w/sub/abs",
        "/w/sub/chain",
        "/proc/self/cwd/vault/key.txt",
        "/proc/self/root/w/vault/key.txt",
        "vault/key.txt",
        "sub/../vault/key.txt",
        "/dev/fd/../../w/vault/key.txt",
    ]
    vfs.chdir("/w")
    before = vfs.open("/w/sub", os.O_DIRECTORY)
    for action, expected in (("deny", "EACCES"), ("hide", "ENOENT")):
        for pattern in ("/w/vault", "/w/vault/**", "/w/vault/key.txt", "/w/v*/k??.[st]xt", "**/key.txt", "/*/vault/*.txt"):
            rule(vfs, **{action: pattern})
            for path in spellings:
                assert vfs.error("open", path) in (expected, "ENOENT"), (pattern, path)
                assert vfs.error("read", path) in (expected, "ENOENT"), (pattern, path)
            assert vfs.error("open", "../vault/key.txt", base=before) == expected
            assert vfs.error("open", "up/key.txt", base=before) == expected
            assert vfs.raw("access", *vfs.path("/w/vault/key.txt"), os.R_OK, 0, CWD) == -getattr(errno, expected)
    rule(vfs, deny="/w/vault/key.txt")
    handle = vfs.open("/w/vault", os.O_DIRECTORY)  # itself it is not denied
    assert vfs.error("open", "key.txt", base=handle) == "EACCES"
    assert vfs.error("open", f"/proc/self/fd/{handle}/key.txt") in ("EACCES", "ENOENT")


def test_what_is_open_when_it_is_moved(make: MakeVfs, tree: Path) -> None:
    """A directory that is moved comes under its new path's rules, for handles too; nothing leaves its rules."""
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    rule(vfs, deny=["/w/vault/deep/key2", "/w/pub/x/**"])
    for old, new in (
        ("/w/vault", "/w/other"),
        ("/w/vault", "/w/pub/vault"),
        ("/w/vault/deep", "/w/deep"),
        ("/w/vault/deep", "/w/pub/deep"),
        ("/w/pub", "/w/public"),  # it is on the way to /w/pub/x, there or not
    ):
        assert vfs.error("rename", old, new) == "EACCES", old
        assert vfs.error("rename", old, "/w/sub", 2) == vfs.error("rename", "/w/sub", old, 2) == "EACCES"
    handle = vfs.open("/w/sub", os.O_DIRECTORY)
    vfs.rename("/w/sub", "/w/sub2")
    vfs.mkdir("/w/sub2/x")
    vfs.write("/w/sub2/x/mine", b"m")
    inner = vfs.open("/w/sub2/x", os.O_DIRECTORY)
    vfs.rename("/w/sub2/x", "/w/pub/x")
    assert vfs.error("open", "mine", base=inner) == "EACCES"
    assert vfs.read("/w/sub2/.env") == SECRET and vfs.error("open", ".env", base=handle) is None
    rule(vfs, hide="**/.env")
    vfs.rename("/w/sub2", "/w/sub3")  # it stays hidden wherever it goes
    assert vfs.listdir("/w/sub3") == [".envrc"]
    rule(vfs, hide="/w/*/.env")
    vfs.rename("/w/sub3", "/w/sub4")
    assert vfs.error("rename", "/w/sub4", "/w/pub/sub4") == "EACCES"
    vfs.mkdir("/w/pub/sub5")
    vfs.rename("/w/pub/sub5", "/tmp/sub5") if vfs.error("rename", "/w/pub/sub5", "/tmp/sub5") is None else None
    assert vfs.error("rename", "/w/pub/sub5", "/w/sub5") is None  # into rules: no harm


def test_links_that_a_pattern_goes_through(make: MakeVfs, tree: Path) -> None:
    """The operator names a place by a symlink: what it leads to has the rule, and the link stays."""
    vfs = make(mounts={"/w": (tree / "work", WRITABLE), "/lib64": (tree / "work/pub", 0)}, symlinks={"/link": "w/there"})
    for pattern in ("/w/there/**", "/link/key.txt", "/link/**/key.txt", "/w/key", "/w/there/key.txt", "/link/k*"):
        rule(vfs, deny=pattern)
        assert vfs.error("read", "/w/vault/key.txt") == "EACCES", pattern
        assert vfs.error("read", "/w/there/key.txt") == "EACCES", pattern
    rule(vfs, deny="/w/there/**")
    assert vfs.error("unlink", "/w/there") == vfs.error("rename", "/w/there", "/w/x") == "EROFS"
    assert vfs.error("rename", "/w/pub", "/w/there") == "EROFS"
    rule(vfs, deny=["/w/there/none/yet", "/w/loop/x"])
    assert vfs.error("write", "/w/vault/none/yet", b"") == "ENOENT"
    vfs.mkdir("/w/vault/none")
    assert vfs.error("write", "/w/vault/none/yet", b"") == "EACCES"


def test_mounts_that_show_the_same_files(make: MakeVfs, tree: Path) -> None:
    mounts = {
        "/w": (tree / "work", WRITABLE),
        "/again": (tree / "work", WRITABLE),
        "/inner": (tree / "work/vault", WRITABLE),
        "/one": (tree / "work/vault/key.txt", 0),
    }
    vfs = make(mounts=mounts)
    names = ["/w/vault/key.txt", "/again/vault/key.txt", "/inner/key.txt", "/one", "/w/key"]
    for pattern in ("/w/vault/key.txt", "/again/vault/*.txt", "/inner/**", "/one", "/inner", "/w/vault"):
        rule(vfs, deny=pattern)
        for name in names:
            assert vfs.error("read", name) == "EACCES", (pattern, name)
        rule(vfs, hide=pattern)
        for name in names:
            assert vfs.error("read", name) == "ENOENT", (pattern, name)
        for directory in ("/w/vault", "/again/vault", "/inner"):
            assert vfs.error("listdir", directory) == "ENOENT" or "key.txt" not in vfs.listdir(directory)
        rule(vfs, read=pattern)
        for name in names:
            assert vfs.error("open", name, os.O_WRONLY) == "EROFS", (pattern, name)
    rule(vfs, deny="/inner/deep")
    moves = [("/w/vault/deep", "/w/deep"), ("/again/vault", "/again/v"), ("/w/vault", "/w/v"), ("/inner/deep", "/inner/d")]
    for old, new in moves:
        assert vfs.error("rename", old, new) == "EACCES", old
    vfs.rename("/w/sub", "/w/sub2")
    assert vfs.read("/again/sub2/.env") == SECRET


def test_a_directory_above_a_second_mount_stays(make: MakeVfs, tree: Path) -> None:
    """Moved, its files would have a third name that nobody has a rule for."""
    vfs = make(mounts={"/w": (tree, WRITABLE), "/inner": (tree / "work/vault", WRITABLE)})
    rule(vfs, deny="/inner/key.txt")
    assert vfs.error("rename", "/w/work", "/w/other") == "EACCES"
    assert vfs.error("read", "/w/work/vault/key.txt") == "EACCES"
    vfs.mkdir("/w/more")
    assert vfs.error("rename", "/w/more", "/w/work", 2) == vfs.error("rename", "/w/work", "/w/more", 2) == "EACCES"


def test_rules_are_counted_and_bounded(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    many = [FileRule(f"/w/none/{i}/**", "deny") for i in range(512)]
    assert vfs.rules(compile_rules(many)) == 0
    assert vfs.read("/w/vault/key.txt") == SECRET
    with pytest.raises(ValueError, match="512"):
        compile_rules([*many, FileRule("/x", "deny")])
    with pytest.raises(ValueError, match="bytes of at most"):
        compile_rules([FileRule("/" + "/".join([f"{i:03}" + "x" * 200] * 30), "deny") for i in range(20)])


@pytest.mark.parametrize("names", [0, 6])
def test_deep_paths_do_not_take_for_ever(make: MakeVfs, tmp_path: Path, names: int) -> None:
    """A thousand directories, walked slowly, and 500 rules that may begin at any depth; also where all has six names."""
    vfs = make(mounts={f"/w{i}": (tmp_path, WRITABLE) for i in range(names)})
    top, depth = ("/w0", 300) if names else ("/tmp", 1000)
    vfs.chdir(top)
    for _ in range(depth):
        vfs.mkdir("d")
        vfs.chdir("d")
    vfs.write("f", b"")
    deep = f"{top}/..{top}" + "/d" * depth
    rule(vfs, deny=[f"**/{'e' * (i + 1)}/**" for i in range(200)], hide=[f"**/x{i}" for i in range(300)])
    for _ in range(3):
        assert vfs.error("stat", f"{deep}/f") is None
        assert vfs.error("stat", f"{deep}/x7") == vfs.error("stat", f"{deep}/eee/f") == "ENOENT"


# -- the table


def test_damaged_tables_are_refused(make: MakeVfs) -> None:
    """Every byte of a table changed, and cut everywhere: an error or another table, never a crash (AddressSanitizer looks on)."""
    vfs = make()
    table = compile_rules([FileRule("/w/**/a?c[!x-z]*d/é", "deny"), FileRule("/tmp/x", "hide")], ["symlink"], ["link"])
    assert vfs.rules(table) == 0
    bad = 0
    for at in range(len(table)):
        for change in (1, 0x80, 0xFF):
            damaged = bytearray(table)
            damaged[at] ^= change
            result = vfs.rules(bytes(damaged))
            assert result in (0, -errno.EINVAL)
            bad += result != 0
            vfs.error("stat", "/w/x/abcwd/é/y")
    assert bad > len(table)
    for size in range(1, len(table)):
        assert vfs.rules(table[:size]) == -errno.EINVAL
    assert vfs.rules(table + b"\0") == -errno.EINVAL


def reference(pattern: str, path: str) -> bool:
    """Does `pattern` match `path` or a directory above it? Slowly, and by the book."""
    names = [os.fsencode(name) for name in path.split("/") if name]
    parts = [part for part in pattern.removeprefix("/").rstrip("/").split("/") if part]
    while parts[-2:] == ["**", "**"]:
        parts.pop()
    if parts[-1:] == ["**"]:
        parts[-1] = "*"

    def character(name: bytes, at: int) -> int:
        end = at + 1
        while end < len(name) and name[end] & 0xC0 == 0x80:
            end += 1
        return end

    def fits(part: str, name: bytes, at: int = 0) -> bool:
        if not part:
            return at == len(name)
        head, rest = part[0], part[1:]
        if head == "*":
            return any(fits(rest, name, i) for i in range(at, len(name) + 1))
        if head == "?":
            return at < len(name) and fits(rest, name, character(name, at))
        if head == "[":
            close = rest.index("]", 1)
            inside, rest = rest[:close], rest[close + 1 :]
            negated = inside[0] == "!"
            members = set(inside[1:] if negated else inside)
            if at == len(name):
                return False
            found = name[at] < 128 and chr(name[at]) in members
            return found != negated and fits(rest, name, character(name, at))
        raw = os.fsencode(head)
        return name[at : at + len(raw)] == raw and fits(rest, name, at + len(raw))

    def match(p: int, n: int) -> bool:
        if p == len(parts):
            return True  # it, or something above it
        if parts[p] == "**":
            return match(p + 1, n) or (n < len(names) and match(p, n + 1))
        return n < len(names) and fits(parts[p], names[n]) and match(p + 1, n + 1)

    return match(0, 0)


NAMES = st.text("ab.é\udce9", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
GLOBS = st.one_of(
    st.just("**"),
    st.lists(st.sampled_from(["a", "b", ".", "é", "*", "?", "[ab]", "[!a]", "[.b]"]), min_size=1, max_size=5)
    .map("".join)
    .filter(lambda part: "**" not in part and part not in (".", "..")),
)


@pytest.fixture(scope="module")
def matcher(programs):
    vfs = Vfs(programs[True], tmp=None)
    yield vfs
    vfs.close()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(GLOBS, min_size=1, max_size=5), st.lists(NAMES, min_size=0, max_size=6))
def test_patterns_match_as_the_reference_does(matcher: Vfs, parts: list[str], names: list[str]) -> None:
    pattern, path = "/" + "/".join(parts), "/" + "/".join(names)
    table = compile_rules([FileRule(pattern, "deny")])
    result = matcher.check(matcher.command(13, struct.pack("<I", len(table)) + table + os.fsencode(path))[0])
    assert (result & 0xFF == 2) == reference(pattern, path)
    above = "/" + "/".join(names[:-1])
    assert (result >> 8 == 2) == (bool(names) and reference(pattern, above) and (above != "/" or pattern == "/"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(GLOBS, min_size=1, max_size=4),
    st.lists(NAMES, min_size=1, max_size=3),
    st.lists(NAMES, min_size=1, max_size=3),
    st.lists(NAMES, min_size=1, max_size=3),
)
def test_a_directory_that_may_move_keeps_what_is_below_it_under_its_rules(
    matcher: Vfs, parts: list[str], old: list[str], new: list[str], below: list[str]
) -> None:
    pattern = "/" + "/".join(parts)
    before, after = "/" + "/".join(old), "/" + "/".join(new)
    table = compile_rules([FileRule(pattern, "deny")])
    payload = struct.pack("<I", len(table)) + table + os.fsencode(before) + b"\0" + os.fsencode(after)
    if matcher.check(matcher.command(14, payload)[0]):
        rest = "/" + "/".join(below)
        assert not reference(pattern, before + rest) or reference(pattern, after + rest)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("secrets", "begins neither"),
        ("~/x", "begins neither"),
        ("!/x", "begins neither"),
        ("", "begins neither"),
        ("/a/../b", "canonical"),
        ("/a/./b", "canonical"),
        ("/a//b", "empty"),
        ("/a**", "whole name"),
        ("/a/{b,c}", "nothing special"),
        ("/a\\*", "escapes"),
        ("/[a", "without"),
        ("/[z-a]", "backwards"),
        ("/[é]", "ASCII"),
        ("/a\0b", "NUL"),
        ("/" + "x" * 256, "255"),
        ("/a" * 61, "60"),
        ("/" + "*a" * 1000, "too long"),
    ],
)
def test_patterns_that_nobody_can_mean(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_rules([FileRule(pattern, "deny")])


def test_names_with_odd_bytes(make: MakeVfs, tmp_path: Path) -> None:
    for name in (b"caf\xc3\xa9", b"caf\xe9", b"a[b", b"x*y"):
        (tmp_path / os.fsdecode(name)).write_bytes(SECRET)
    vfs = make(mounts={"/w": (tmp_path, 0)})
    for pattern, denied in (
        ("/w/caf?", {b"caf\xc3\xa9", b"caf\xe9"}),
        ("/w/café", {b"caf\xc3\xa9"}),
        ("/w/caf[!a-z]", {b"caf\xc3\xa9", b"caf\xe9"}),
        ("/w/a[[]b", {b"a[b"}),
        ("/w/x[*]y", {b"x*y"}),
        ("/w/????", {b"caf\xc3\xa9", b"caf\xe9"}),
    ):
        rule(vfs, deny=pattern)
        found = {name for name in (b"caf\xc3\xa9", b"caf\xe9", b"a[b", b"x*y") if vfs.error("open", b"/w/" + name) == "EACCES"}
        assert found == denied, pattern


def test_paths_that_end_oddly(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/w": (tree / "work", WRITABLE)})
    rule(vfs, deny=["/w/vault", "/w/there"])
    for path in ("/w/there/", "/w/there/.", "/w/there/..", "/w/vault/x/..", "/w/there/key.txt"):
        assert vfs.error("stat", path) in ("EACCES", "ENOENT"), path
    assert vfs.error("lstat", "/w/there") is None and vfs.error("readlink", "/w/there") == "EACCES"
    assert vfs.raw("stat", *vfs.path("/w/there/", PATH1), 0x100, OUT, CWD) == -errno.EACCES
    assert vfs.raw("unlink", *vfs.path("/w/vault/", PATH1), 0x200, 0, CWD) == -errno.EACCES


def test_what_may_be_written_and_made(make: MakeVfs, tree: Path) -> None:
    """Bytes and names in writable mounts are counted once, whatever comes of them; /tmp has its own limits."""
    vfs = make(mounts={"/w": (tree / "work", WRITABLE), "/one": (tree / "work/notes.txt", WRITABLE)})
    assert vfs.rules(compile_rules(write_bytes=1000, creates=4)) == 0
    handle = vfs.open("/w/new", os.O_CREAT | os.O_RDWR)
    assert vfs.pwrite(handle, b"x" * 600, 0) == 600
    assert vfs.raw("truncate", handle, 10) == 0 and vfs.raw("truncate", handle, 110) == 0  # 100 bytes that were not there
    assert vfs.raw("truncate", handle, 10_000) == -errno.EDQUOT and vfs.fstat(handle).size == 110
    assert vfs.raw("fallocate", handle, 1, 0, 200) == 0  # KEEP_SIZE
    assert vfs.raw("fallocate", handle, 0, 0, 1 << 62) == -errno.EDQUOT
    assert vfs.raw("fallocate", handle, 3, 0, 50) == 0  # PUNCH_HOLE
    assert vfs.raw("pwrite", handle, 16 << 20, 50, 0) == -errno.EFAULT  # nothing was written: nothing is taken
    assert vfs.pwrite(handle, b"y" * 70, -1) == 70
    one = vfs.open("/one", os.O_RDWR)
    assert vfs.pwrite(one, b"z" * 100, 0) == 30  # a short write, then none
    assert vfs.raw("pwrite", one, BUFFER, 1, 0) == vfs.raw("pwrite", handle, BUFFER, 1, -1) == -errno.EDQUOT
    assert vfs.raw("pwrite", handle, BUFFER, 0, 0) == 0
    vfs.mkdir("/w/d")
    vfs.symlink("x", "/w/s")
    vfs.link("/w/new", "/w/l")
    for path in ("/w/more", "/w/d/more"):
        assert (
            vfs.error("open", path, os.O_CREAT | os.O_RDWR)
            == vfs.error("mkdir", path)
            == vfs.error("symlink", "x", path)
            == "EDQUOT"
        )
        assert vfs.error("link", "/w/new", path) == "EDQUOT"
    vfs.unlink("/w/l")
    vfs.rename("/w/s", "/w/t")
    assert vfs.error("link", "/w/new", "/w/l") == "EDQUOT"
    assert vfs.error("open", "/w/new", os.O_CREAT | os.O_RDWR) is None
    vfs.mkdir("/tmp/d")
    vfs.write("/tmp/f", b"t" * 5000)
    assert vfs.rules(compile_rules(creates=0)) == 0
    assert vfs.error("mkdir", "/w/x") == "EDQUOT" and vfs.pwrite(handle, b"n" * 5000, 0) == 5000


def test_what_cannot_be_made_takes_no_name(make: MakeVfs, tmp_path: Path) -> None:
    """As in a directory of somebody else, where Python tries to keep what it compiled at each import; here where nobody can."""
    vfs = make(mounts={"/w": (tmp_path, WRITABLE), "/p": (Path("/dev/pts"), WRITABLE)})
    vfs.write("/w/a", b"")
    assert vfs.rules(compile_rules(creates=1)) == 0
    for _ in range(3):
        assert vfs.error("open", "/p/x", os.O_CREAT | os.O_WRONLY) in ("EACCES", "EROFS")
        assert vfs.error("mkdir", "/p/x") == vfs.error("symlink", "y", "/p/x") in ("EPERM", "EROFS", "EACCES")
    vfs.mkdir("/w/d")
    assert vfs.error("mkdir", "/w/e") == vfs.error("link", "/w/a", "/w/b") == "EDQUOT"


def test_rules_about_calls_are_not_about_files(make: MakeVfs, tree: Path) -> None:
    """Mounts that overlap keep nothing where it is, if no rule is about files."""
    vfs = make(mounts={"/w": (tree, WRITABLE), "/inner": (tree / "work/vault", WRITABLE)})
    assert vfs.rules(compile_rules(deny=["symlink"], write_bytes=1000)) == 0
    vfs.rename("/w/work", "/w/other")
    assert vfs.read("/w/other/vault/key.txt") == vfs.read("/inner/key.txt") == SECRET


def test_a_hole_is_written_too(make: MakeVfs, tmp_path: Path) -> None:
    """One byte far behind the end, and what is before it could be filled through a mapping."""
    vfs = make(mounts={"/w": (tmp_path, WRITABLE)})
    assert vfs.rules(compile_rules(write_bytes=10_000)) == 0
    handle = vfs.open("/w/new", os.O_CREAT | os.O_RDWR)
    assert vfs.raw("pwrite", handle, BUFFER, 1, 1 << 40) == vfs.raw("pwrite", handle, BUFFER, 10, 10_000) == -errno.EDQUOT
    assert vfs.raw("pwrite", handle, BUFFER, 1, (1 << 63) - 1) == -errno.EDQUOT
    assert vfs.fstat(handle).size == 0
    assert vfs.raw("fallocate", handle, 0, 1 << 40, 1) == vfs.raw("fallocate", handle, 0x10, 1 << 40, 1) == -errno.EDQUOT
    assert vfs.raw("truncate", handle, 1 << 40) == -errno.EDQUOT and vfs.fstat(handle).size == 0
    assert vfs.pwrite(handle, b"x" * 10, 5000) == 10
    assert vfs.pwrite(handle, b"y" * 100, 4000) == 100  # over what is there
    assert vfs.pwrite(handle, b"z" * 100, 9890) == 10  # 4880 to there, and 10 are left
    assert vfs.raw("pwrite", handle, BUFFER, 1, 0) == -errno.EDQUOT and vfs.fstat(handle).size == 9900


def test_too_long_under_another_name(make: MakeVfs, tree: Path) -> None:
    """A path so long that its other name, which a rule is about, would be no path any more: refused."""
    vfs = make(mounts={"/w": (tree / "work", WRITABLE), "/pro": (tree / "work", WRITABLE)})
    rule(vfs, deny="/pro/**/.env")
    path = "/w"
    while len(path) + 201 + len("/sub/.env") < 4096:
        path += "/" + "d" * 200
        vfs.mkdir(path)
    path += "/" + "e" * (4095 - len(path) - 1 - len("/sub/.env"))
    vfs.mkdir(path)
    vfs.chdir(path)
    assert vfs.error("read", "/w/sub/.env") == "EACCES"
    vfs.rename("/w/sub", "sub")
    assert vfs.error("read", "sub/.env") == "EACCES"


def test_what_the_process_is_called(make: MakeVfs) -> None:
    vfs = make()
    for pattern in ("/proc/self/status", "/proc/4711/status", "/proc/1/status"):
        rule(vfs, hide=pattern)
        assert vfs.error("read", "/proc/self/status") == vfs.error("read", "/proc/4711/status") == "ENOENT"
        assert vfs.error("read", "/proc/thread-self/status") is None
    rule(vfs, hide="/proc/thread-self/status")
    assert vfs.error("read", "/proc/thread-self/status") == "ENOENT" and vfs.error("read", "/proc/self/status") is None
    rule(vfs, hide="/proc/self")
    assert vfs.error("read", "/proc/self/status") == vfs.error("read", "/proc/thread-self/status") == "ENOENT"
    assert vfs.error("read", "/proc/meminfo") is None


def test_a_mount_of_one_file_has_a_position_a_handle(make: MakeVfs, tree: Path) -> None:
    vfs = make(mounts={"/one": (tree / "work/notes.txt", WRITABLE)})
    first, second = vfs.open("/one"), vfs.open("/one")
    assert vfs.pread(first, 3, -1) == b"pub" and vfs.pread(second, 3, -1) == b"pub" and vfs.pread(first, 9, -1) == b"lic"


def test_hidden_mounts_are_in_no_table(make: MakeVfs, tree: Path) -> None:
    work = tree / "work"
    vfs = make(mounts={"/w": (work / "pub", 0), "/w/secret-place": (work / "vault", 0), "/other": (work / "sub", 0)})
    for name in ("mounts", "mountinfo"):
        rule(vfs, hide="/none")
        assert b"/w/secret-place" in vfs.read(f"/proc/self/{name}")
        rule(vfs, hide="/w/secret*")
        text = vfs.read(f"/proc/self/{name}")
        assert b"secret" not in text and b" /w " in text and b" /other " in text
