"""What a process in the cell's jail can and cannot do, tried in it."""

import signal
import subprocess

import pytest

from . import bare

WORKS, EPERM, EACCES, KILLED = 0, 10, 11, -signal.SIGSYS

ATTEMPTS = {
    **dict.fromkeys(
        ("socket", "socketpair", "execve", "fork", "clone", "clone3", "ptrace", "kill", "tgkill", "io_uring", "bpf"), KILLED
    ),
    **dict.fromkeys(("mount", "unshare", "process_vm_writev", "other_thread", "int80"), KILLED),
    **dict.fromkeys(("x32", "prctl", "personality", "setrlimit", "executable", "make_executable"), EPERM),
    **dict.fromkeys(("tiocsti", "fioasync", "kvm_create_device"), EPERM),
    **dict.fromkeys(
        ("openat", "signal_owner", "signal_number", "signal_async", "pkey_mprotect", "open_by_handle", "mknod"), EPERM
    ),
    **dict.fromkeys(("timer_create", "shmget", "splice", "set_affinity"), EPERM),
    **dict.fromkeys(("kvm_run", "read_mount", "write_mount", "rename", "symlink", "memfd", "copy_descriptor"), WORKS),
}
LANDLOCK = {
    **dict.fromkeys(
        ("getdents_root", "etc_shadow", "proc_self_mem", "write_read_only", "make_read_only", "unlink_read_only", "above"), EACCES
    ),
}


@pytest.fixture(scope="module")
def jailed(tmp_path_factory):
    """jailed(attempt) -> return code"""
    out = tmp_path_factory.mktemp("jail")
    includes = [f"-I{bare.ROOT}/{path}" for path in ("shim", "vmm/native", "vmm/native/cell")]
    sources = [bare.HERE / "jail_probe.c", bare.ROOT / "vmm/native/cell/jail.c"]
    bare.run(
        "cc",
        "-O1",
        "-g",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        *includes,
        "-o",
        out / "probe",
        *sources,
    )

    def run(attempt):
        for name in ("ro", "rw"):
            (out / name).mkdir(exist_ok=True)
        (out / "ro/file").write_text("x")
        (out / "rw/a").write_text("x")
        (out / "outside").write_text("x")
        return subprocess.run([out / "probe", out / "ro", out / "rw", attempt], timeout=20, check=False).returncode

    return run


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_seccomp(jailed, attempt):
    if attempt == "int80" and jailed(attempt) == -signal.SIGSEGV:
        pytest.skip("this kernel has no 32-bit calls")
    assert jailed(attempt) == ATTEMPTS[attempt]


@pytest.mark.parametrize("attempt", LANDLOCK)
def test_landlock(jailed, attempt):
    if not jailed("bits") & 4:
        pytest.skip("this kernel has no Landlock")
    assert jailed(attempt) == LANDLOCK[attempt]


def test_root_keeps_only_its_powers_over_files(jailed):
    assert jailed("powers") == WORKS


def test_what_it_says_of_itself(jailed):
    assert jailed("bits") & ~4 == 0b1011
