"""Exit statuses of the commands, by the conventions of shells (128 + signal), of timeout(1) (124) and of `docker run` (125 to
127)."""

from __future__ import annotations

TIME_OUT = 124
OWN_FAULT = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
SIGNAL = 128
"""Added to a signal's number."""
KILLED = SIGNAL + 9

PROGRAMS = (
    ("0 to 255", "the program's own: it ended by itself"),
    (f"{SIGNAL}+n", "signal n ended it: 130 Ctrl-C, 134 abort, 137 killed, out of memory, stopped for breaking the VM's protocol "
     "or by a budget, 139 segmentation fault, 143 SIGTERM"),
    (f"{TIME_OUT}", "its time was over: `--timeout`, or a limit of the pool"),
    (f"{OWN_FAULT}", "agentfw's own fault or the pool's, or yours: no /dev/kvm, a bad option, a bad configuration"),
    (f"{NOT_EXECUTABLE}", "the program or the interpreter cannot be executed, or a `--preload` module not imported"),
    (f"{NOT_FOUND}", "the script was not found"),
)  # fmt: skip
"""Of commands that end as a program does: `run`, and `submit --wait` and `wait`."""

OTHERS = (
    ("0", "done; of those that check something: all is well"),
    ("1", "what was asked is not so: `doctor` (the machine cannot run agents), `pool status` (none runs), `policy check` (not "
     "valid), `policy explain` (one is denied), `audit` (some lines could not be read)"),
    ("2", "a bad command line"),
    (f"{TIME_OUT}", "`pool drain --timeout`: jobs still run"),
    (f"{OWN_FAULT}", "it could not be done; stderr says why"),
    ("130", "Ctrl-C"),
    ("141", "who read its output went away, as `| head` does"),
)  # fmt: skip
"""Of all the others."""
