"""The system calls that code in a box may not make, as a classic BPF program built in pure Python.

A deny list, because ordinary programs (subprocesses, threads, multiprocessing, asyncio, numpy) must keep
working: it closes kernel surfaces that have been ways out of user namespaces, and memory that belongs to no
process and no sized file system (System V IPC, memory files), which a watcher could not count. ``clone3``
answers ENOSYS, so that the C library falls back to ``clone``, whose flags a filter can read; new namespaces
are refused.

Sources: linux/filter.h, linux/seccomp.h, linux/audit.h, the syscall tables of x86_64 and of asm-generic
(aarch64), and Docker's default profile for the choice of calls.
"""

import errno
import platform
import struct
from dataclasses import dataclass

from core.errors import MachineError

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000

NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME (as in sched.h)."""
TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX."""
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_TYPE_MASK = 1, 0xF

DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy": (238, 237),
    "fanotify_init": (300, 262),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_create": (319, 279),
    "unshare": (272, 97),
    "setns": (308, 268),
}
"""Name → number on x86_64 and on aarch64 (None: not there); each answers EPERM."""


@dataclass(frozen=True)
class Machine:
    """What the filter must know of a processor architecture."""

    audit_arch: int
    column: int
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int
    x32: bool


MACHINES = {
    "x86_64": Machine(0xC000003E, 0, clone=56, clone3=435, socket=41, socketpair=53, ioctl=16, x32=True),
    "aarch64": Machine(0xC00000B7, 1, clone=220, clone3=435, socket=198, socketpair=199, ioctl=29, x32=False),
}


def deny_list(machine: str | None = None, *, sockets: bool = True) -> bytes:
    """The filter as an array of ``struct sock_filter``, for ``bwrap --seccomp`` or ``prctl``.

    ``sockets=False`` is for boxes without a network namespace of their own: it leaves connected stream pairs
    and nothing else. Raises MachineError on an architecture without a table.
    """
    name = machine or platform.machine()
    if name not in MACHINES:
        raise MachineError(f"no system-call filter for {name}", hint=f"run on {' or '.join(MACHINES)}")
    traits = MACHINES[name]
    refused = ERRNO | errno.EPERM
    program = [_step(_LOAD, OFFSET_ARCH), _step(_JUMP_EQUAL, traits.audit_arch, 1, 0), _step(_RETURN, KILL)]
    program.append(_step(_LOAD, OFFSET_NUMBER))
    if traits.x32:
        program += [_step(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _step(_RETURN, ERRNO | errno.ENOSYS)]
    for numbers in DENIED.values():
        number = numbers[traits.column]
        if number is not None:
            program += _when(number, [_step(_RETURN, refused)])
    program += _when(traits.clone3, [_step(_RETURN, ERRNO | errno.ENOSYS)])
    program += _when(traits.clone, _refuse_bits(0, NAMESPACE_FLAGS, refused))
    program += _when(traits.ioctl, _refuse_values(1, TERMINAL_INJECTION, refused))
    # Other families reach the host past the network namespace (AF_VSOCK) or are kernel surface for nothing.
    families = (AF_UNIX, AF_INET, AF_INET6) if sockets else ()
    program += _when(traits.socket, _only_values(0, families, ERRNO | errno.EAFNOSUPPORT))
    if not sockets:
        # A datagram pair could still send to any address of the host's; a stream pair cannot.
        stream = [
            _step(_AND, _SOCK_TYPE_MASK),
            _step(_JUMP_EQUAL, _SOCK_STREAM, 1, 0),
            _step(_RETURN, refused),
        ]
        program += _when(traits.socketpair, [_argument(1), *stream, _step(_RETURN, ALLOW)])
    program.append(_step(_RETURN, ALLOW))
    return b"".join(program)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _argument(index: int) -> bytes:
    """Load the low half of an argument; every value looked at here is 32 bits wide for the kernel."""
    return _step(_LOAD, OFFSET_ARGUMENTS + 8 * index)


def _when(number: int, block: list[bytes]) -> list[bytes]:
    """Run ``block``, which must end in a return, when the call's number is ``number``."""
    return [_step(_JUMP_EQUAL, number, 0, len(block)), *block]


def _refuse_bits(index: int, bits: int, answer: int) -> list[bytes]:
    return [_argument(index), _step(_JUMP_ANY_BIT, bits, 0, 1), _step(_RETURN, answer), _step(_RETURN, ALLOW)]


def _refuse_values(index: int, values: tuple[int, ...], answer: int) -> list[bytes]:
    tests = [step for value in values for step in (_step(_JUMP_EQUAL, value, 0, 1), _step(_RETURN, answer))]
    return [_argument(index), *tests, _step(_RETURN, ALLOW)]


def _only_values(index: int, values: tuple[int, ...], answer: int) -> list[bytes]:
    tests = [step for value in values for step in (_step(_JUMP_EQUAL, value, 0, 1), _step(_RETURN, ALLOW))]
    return [_argument(index), *tests, _step(_RETURN, answer)]
