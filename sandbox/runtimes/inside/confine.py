"""Confines itself by landlock and seccomp, then becomes a program: the walls of the ``process`` runtime.

Usage: ``confine.py CONFIG PROGRAM ARGUMENTS…``; CONFIG is JSON: ``read``, ``write`` (paths), ``seccomp`` (hex).
Standard library only. Both filters survive the exec and cannot be taken off. Sources: linux/landlock.h,
the landlock(7) and seccomp(2) manual pages.
"""

# ruff: noqa: PTH112, S606

import ctypes
import errno
import json
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
SYS_CREATE_RULESET, SYS_ADD_RULE, SYS_RESTRICT_SELF = 444, 445, 446
QUERY_VERSION, RULE_PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
FOLDER_RIGHTS = 0x1FFF
"""Everything of the first ABI."""
REFER, TRUNCATE = 1 << 13, 1 << 14
TCP_RIGHTS, SCOPES = 3, 3
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Apply both filters and exec."""
    config = json.loads(sys.argv[1])
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    landlock(config["read"], config["write"])
    filter_calls(bytes.fromhex(config["seccomp"]))
    os.execv(sys.argv[2], sys.argv[2:])


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument; OSError when refused."""
    check(libc.prctl(option, value, 0, 0, 0))


def landlock(readable: "list[str]", writable: "list[str]") -> None:
    """Forbid every path but those named; a kernel without landlock is left to the host's own report."""
    version = libc.syscall(SYS_CREATE_RULESET, None, 0, QUERY_VERSION)
    if version < 1:
        return
    rights = FOLDER_RIGHTS | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("<QQQ", rights, TCP_RIGHTS, SCOPES)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = check(libc.syscall(SYS_CREATE_RULESET, attributes, len(attributes), 0))
    for path in readable:
        allow(ruleset, path, EXECUTE | READ_FILE | READ_DIR)
    for path in writable:
        allow(ruleset, path, rights)
    check(libc.syscall(SYS_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def allow(ruleset: int, path: str, rights: int) -> None:
    """Add one path to a ruleset, if it exists; a file gets only the rights that files have."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
    rule = struct.pack("<Qi", rights, opened)
    check(libc.syscall(SYS_ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0))
    os.close(opened)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter given as an array of sock_filter."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0))


def check(result: int) -> int:
    """The result of a system call, or OSError."""
    if result < 0:
        code = ctypes.get_errno() or errno.EIO
        raise OSError(code, os.strerror(code))
    return result


if __name__ == "__main__":
    main()
