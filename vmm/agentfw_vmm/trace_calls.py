"""System calls' arguments, and a call as strace(1) writes it. Forms: trace_forms.py; order of arguments: Linux's (man 2)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from . import trace_names as names
from .syscalls import NUMBERS
from .trace import BYTES, COUNTED, RESULT, TEXT, VECTOR, Copy
from .trace_forms import FD_SET, FORMS, Form, View, fds
from .trace_text import EINTR, RESTARTBLOCK, RESTARTNOHAND, flags, hexadecimal, result

#: `name form...`, `= form` what it returns: hex, mode, none (it does not); else a number. `@n`: counted by
#: argument n; `#n`: it is argument n; `/word`: shown if the condition holds.
_TABLE = """
read fd buf>@2 size
write fd buf@2 size
open path open mode/creat
close fd
stat path stat>
fstat fd stat>
lstat path stat>
poll pollfds@1 size int
lseek fd long whence
mmap ptr size prot map fd hex = hex
mprotect ptr size prot
munmap ptr size
brk ptr = hex
rt_sigaction signal sigaction sigaction> size
rt_sigprocmask how sigset sigset> size
rt_sigreturn frame
ioctl fd ioctl ioctlarg>/ioctl
pread64 fd buf>@2 size long
pwrite64 fd buf@2 size long
readv fd iov>@2 size
writev fd iov@2 size
access path access
pipe two>
select int fds fds fds timeval
sched_yield
mremap ptr size size mremap ptr/fixed = hex
msync ptr size hex
madvise ptr size madvise
dup fd
dup2 fd fd
pause
nanosleep timespec ptr
getitimer which itimer>
alarm int
setitimer which itimer itimer>
getpid
sendfile fd fd ptr size
socket family socktype ipproto
connect fd addr@2 int
accept fd addr>@2 len>
sendto fd buf@2 size msgflags addr@5 int
recvfrom fd buf>@2 size msgflags addr>@5 len>
sendmsg fd msg msgflags
recvmsg fd msg> msgflags
shutdown fd shut
bind fd addr@2 int
listen fd int
getsockname fd addr>@2 len>
getpeername fd addr>@2 len>
socketpair family socktype ipproto two>
setsockopt fd level option optval@4 int
getsockopt fd level option optval>@4 len>
clone clone ptr ptr ptr ptr
fork
vfork
execve path ptr ptr
exit int = none
wait4 int ptr wait ptr
kill int signal
uname uname>
fcntl fd fcntl fcntlarg/fcntl
flock fd lock
fsync fd
fdatasync fd
truncate path size
ftruncate fd size
getcwd text> size
chdir path
fchdir fd
rename path path
mkdir path mode
rmdir path
creat path mode
link path path
unlink path
symlink path path
readlink path buf>@2 size
chmod path mode
fchmod fd mode
chown path int int
fchown fd int int
lchown path int int
umask mode = mode
gettimeofday timeval> timezone>
getrlimit resource rlimit>
getrusage rusage rusage>
sysinfo ptr
times tms>
getuid
getgid
setuid int
setgid int
geteuid
getegid
setpgid int int
getppid
getpgrp
setsid
getpgid int
getsid int
rt_sigpending sigset> size
rt_sigtimedwait sigset siginfo> timespec size = signal
rt_sigsuspend sigset size
sigaltstack altstack altstack>
utime path ptr
statfs path ptr
fstatfs fd ptr
prctl prctl hex hex hex hex
arch_prctl archprctl ptr
setrlimit resource rlimit
getpriority prio int
setpriority prio int int
sync
gettid
readahead fd size size
setxattr path path ptr size hex
getxattr path path ptr size
listxattr path ptr size
fgetxattr fd path ptr size
tkill int signal
time ptr
futex ptr futex int timespec/futex hex#3/requeue ptr#4/futex2 match#5/bitset
sched_setaffinity int size ptr
sched_getaffinity int size cpus>
epoll_create int
getdents64 fd ptr> size
set_tid_address ptr
fadvise64 fd long size fadvise
clock_gettime clock timespec>
clock_getres clock timespec>
clock_nanosleep clock abstime timespec ptr
exit_group int = none
epoll_wait fd epollevents> int int
epoll_ctl fd epollctl fd epollevent
tgkill int int signal
waitid int int ptr wait ptr
inotify_init
openat dirfd path open mode/creat
mkdirat dirfd path mode
fchownat dirfd path int int at
newfstatat dirfd path stat> at
unlinkat dirfd path at
renameat dirfd path dirfd path
linkat dirfd path dirfd path at
symlinkat path dirfd path
readlinkat dirfd path buf>@3 size
fchmodat dirfd path mode
faccessat dirfd path access
pselect6 int fds fds fds timespec ptr
ppoll pollfds@1 size timespec sigset size
set_robust_list ptr size
splice fd ptr fd ptr size hex
utimensat dirfd path times at
epoll_pwait fd epollevents> int int sigset size
signalfd fd sigset size
timerfd_create clock tfd
eventfd int
fallocate fd falloc long long
timerfd_settime fd abstime itimerspec itimerspec>
timerfd_gettime fd itimerspec>
accept4 fd addr>@2 len> sockflags
signalfd4 fd sigset size hex
eventfd2 int efd
epoll_create1 epollflags
dup3 fd fd pipe
pipe2 two> pipe
inotify_init1 hex
preadv fd iov>@2 size long
pwritev fd iov@2 size long
recvmmsg fd ptr size msgflags timespec
prlimit64 int resource rlimit rlimit>
syncfs fd
sendmmsg fd ptr size msgflags
getcpu int> int> ptr
renameat2 dirfd path dirfd path rename
seccomp int hex ptr
getrandom random> size grnd
memfd_create path mfd
execveat dirfd path ptr ptr at
membarrier int hex int
copy_file_range fd ptr fd ptr size hex
preadv2 fd iov>@2 size long rwf#5
pwritev2 fd iov@2 size long rwf#5
statx dirfd path at statxmask ptr
rseq ptr size hex hex
clone3 cloneargs size
close_range int int hex
openat2 dirfd path ptr size
faccessat2 dirfd path access faccess
epoll_pwait2 fd epollevents> int timespec sigset size
"""


def _creates(view: View, index: int) -> bool:
    return bool(view.args[index - 1] & 0x40) or view.args[index - 1] & 0x410000 == 0x410000


def _futex(view: View) -> int:
    return view.args[1] & 0x7F


def _futex_times(view: View, index: int) -> bool:
    return _futex(view) in (0, 6, 9, 11, 13)


#: Whether an argument is one at all.
_CONDITIONS: Mapping[str, Callable[[View, int], bool]] = {
    "creat": _creates,
    "fixed": lambda view, index: bool(view.args[3] & 2),
    "ioctl": lambda view, index: view.args[1] & 0xFFFFFFFF not in (0x5450, 0x5451),  # FIONCLEX, FIOCLEX
    "fcntl": lambda view, index: view.args[1] & 0xFFFFFFFF not in (1, 3, 9, 11, 1025, 1032, 1034),
    "futex": _futex_times,
    "requeue": lambda view, index: _futex(view) in (3, 4, 5, 12),  # the fourth argument is a number then
    "futex2": lambda view, index: _futex(view) in (3, 4, 5, 11, 12),
    "bitset": lambda view, index: _futex(view) in (4, 5, 9, 10, 12),
}


@dataclass(frozen=True)
class _Argument:
    form: Form
    place: int  # of the six registers
    counter: int
    condition: str


@dataclass(frozen=True)
class Call:
    """One of Linux's calls: its arguments in order, and what it returns."""

    name: str
    number: int
    arguments: tuple[_Argument, ...]
    returns: str = "int"

    def copies(self, limit: int) -> Iterator[Copy]:
        """What memory it needs, with strings of `limit` bytes."""
        for argument in self.arguments:
            form, index = argument.form, argument.place
            if not form.kind:
                continue
            size = form.size or limit + 1
            strings = form.kind in (COUNTED, RESULT, VECTOR) and not form.size
            counter = argument.counter if form.kind in (COUNTED, VECTOR) or argument.counter else index
            yield Copy(self.number, form.late, form.kind, index, counter, size, 1 if strings else form.unit)
            if form.early:
                yield Copy(self.number, False, BYTES, index, 0, form.early)
        if self.name in ("poll", "ppoll"):
            yield Copy(self.number, True, COUNTED, 0, 1, 8 * 32, 8)
        elif self.name in ("select", "pselect6"):
            yield from (Copy(self.number, True, BYTES, index, 0, FD_SET) for index in (1, 2, 3))
        elif self.name == "getcwd":
            yield Copy(self.number, True, TEXT, 0, 0, 4096)


def _word(text: str, index: int) -> _Argument:
    text, _, condition = text.partition("/")
    text, _, place = text.partition("#")
    text, _, counter = text.partition("@")
    if condition and condition not in _CONDITIONS:
        raise ValueError(condition)
    return _Argument(FORMS[text], int(place or index), int(counter or 0), condition)


def _calls() -> Mapping[int, Call]:
    found = {}
    for line in _TABLE.strip().splitlines():
        text, _, returns = line.partition(" = ")
        name, *words = text.split()
        found[NUMBERS[name]] = Call(
            name, NUMBERS[name], tuple(_word(word, index) for index, word in enumerate(words)), returns.strip() or "int"
        )
    return found


CALLS = _calls()
_NAMES = {number: name for name, number in NUMBERS.items()}


def name_of(number: int) -> str:
    """`openat`, or `syscall_0x1000` for one that Linux does not have."""
    return _NAMES.get(number, f"syscall_{number:#x}")


def count(number: int) -> int:
    """Arguments that are printed."""
    call = CALLS.get(number)
    return 6 if call is None else len(call.arguments)


def begun(number: int, view: View) -> tuple[str, int]:
    """`openat(AT_FDCWD, "x", O_RDONLY` as far as it is known when the call begins, and how many arguments that are."""
    call = CALLS.get(number)
    if call is None:
        return f"{name_of(number)}({', '.join(map(hexadecimal, view.args))}", len(view.args)
    parts: list[str] = []
    done = 0
    for argument in call.arguments:
        if argument.form.late:
            break
        done += 1
        if _holds(argument, view):
            parts.append(argument.form.show(view, argument.place, argument.counter))
    return f"{call.name}({', '.join(parts)}", done


def ended(number: int, view: View, done: int) -> str:
    """The rest, behind what begun() wrote: other arguments, `) = ` and the result."""
    call = CALLS.get(number)
    if call is None:
        return f") = {result(view.result)}"
    parts: list[str] = []
    for argument in call.arguments[done:]:
        if _holds(argument, view):
            parts.append(argument.form.show(view, argument.place, argument.counter))
    head = (", " if done and parts else "") + ", ".join(parts)
    returns = "hex" if call.name == "fcntl" and view.args[1] & 0xFFFFFFFF in (1, 3) else call.returns
    return f"{head}) = {result(view.result, returns, _interrupted(call.name, view))}{_remark(call.name, view)}"


def gone() -> str:
    """Behind a call that does not return, as its program has ended."""
    return ") = ?"


def returns(number: int) -> bool:
    """False for exit and exit_group."""
    call = CALLS.get(number)
    return call is None or call.returns != "none"


def _holds(argument: _Argument, view: View) -> bool:
    return not argument.condition or _CONDITIONS[argument.condition](view, argument.place)


def _interrupted(name: str, view: View) -> int:
    """What Linux's kernel has for a call that a signal interrupts and that is not begun again (its program sees EINTR)."""
    if name in ("pause", "rt_sigsuspend", "ppoll", "select", "pselect6") or (name == "clock_nanosleep" and view.args[1] & 1):
        return RESTARTNOHAND
    return RESTARTBLOCK if name in ("nanosleep", "clock_nanosleep", "poll", "futex") else EINTR


def _remark(name: str, view: View) -> str:
    """What strace puts behind some results: which descriptors are ready."""
    if view.failed:
        return ""
    if name in ("poll", "ppoll"):
        if not view.result:
            return " (Timeout)"
        chunk = view.after.get(0)
        ready = []
        for at in range(0, len(chunk.data) - 7 if chunk else 0, 8):
            fd, _, revents = struct.unpack_from("<iHH", chunk.data, at) if chunk else (0, 0, 0)
            if revents:
                ready.append(f"{{fd={fd}, revents={flags(revents, names.POLL)}}}")
        return f" ([{', '.join(ready)}])"
    if name in ("select", "pselect6"):
        return f" ({', '.join(_selected(view))})" if view.result else " (Timeout)"
    if name == "fcntl" and view.args[1] == 1:
        return f" (flags {flags(view.result, names.FD)})" if view.result else ""
    if name == "fcntl" and view.args[1] == 3:
        access = names.ACCESS_MODES[view.result & 3]
        return f" (flags {access}|{flags(view.result & ~3, names.OPEN)})" if view.result & ~3 else f" (flags {access})"
    return ""


def _selected(view: View) -> Iterator[str]:
    """What select() says is ready."""
    for index, word in ((1, "in"), (2, "out"), (3, "except")):
        chunk = view.after.get(index)
        ready = fds(chunk.data, view.args[0]) if chunk is not None else []
        if ready:
            yield f"{word} [{' '.join(map(str, ready))}]"
