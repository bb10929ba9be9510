"""The system-call filter, run by a small interpreter of classic BPF."""

import errno
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import MachineError
from sandbox.runtimes.seccomp import ALLOW, DENIED, ERRNO, KILL, MACHINES, NAMESPACE_FLAGS, deny_list

EPERM = ERRNO | errno.EPERM
ENOSYS = ERRNO | errno.ENOSYS
machines = st.sampled_from(sorted(MACHINES))


def evaluate(
    program: bytes, number: int, arguments: tuple[int, ...] = (), arch: int | None = None, name: str = "x86_64"
) -> int:
    """What the kernel would answer for one call."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, MACHINES[name].audit_arch if arch is None else arch, 0, *padded)
    steps = list(struct.iter_unpack("<HBBI", program))
    position, register = 0, 0
    while True:
        code, if_true, if_false, value = steps[position]
        position += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (register,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            register &= value
        else:
            holds = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[code]
            position += if_true if holds else if_false


@settings(deadline=None)
@given(machines, st.sampled_from(sorted(DENIED)), st.booleans())
def test_denied_calls_answer_eperm(name: str, call: str, sockets: bool) -> None:
    """Every listed call is refused on every architecture that has it, with any arguments."""
    number = DENIED[call][MACHINES[name].column]
    if number is not None:
        assert evaluate(deny_list(name, sockets=sockets), number, (1, 2, 3), name=name) == EPERM


@settings(deadline=None)
@given(machines, st.integers(0, 600))
def test_other_calls_are_allowed(name: str, number: int) -> None:
    """A call that is neither listed nor looked into is allowed."""
    traits = MACHINES[name]
    special = {traits.clone, traits.clone3, traits.socket, traits.socketpair, traits.ioctl}
    listed = {numbers[traits.column] for numbers in DENIED.values()}
    if number not in special | listed:
        assert evaluate(deny_list(name), number, name=name) == ALLOW


@settings(deadline=None)
@given(machines, st.integers(0, 2**64 - 1))
def test_clone_with_namespace_flags_is_refused(name: str, flags: int) -> None:
    """clone is refused exactly when a namespace flag is among its low 32 bits; clone3 does not exist."""
    traits = MACHINES[name]
    wanted = EPERM if flags & NAMESPACE_FLAGS else ALLOW
    assert evaluate(deny_list(name), traits.clone, (flags,), name=name) == wanted
    assert evaluate(deny_list(name), traits.clone3, (flags,), name=name) == ENOSYS


@settings(deadline=None)
@given(machines, st.integers(0, 100), st.integers(0, 2**32 - 1))
def test_socket_families(name: str, family: int, kind: int) -> None:
    """Only unix and internet sockets exist; without a network namespace none, and of pairs only streams."""
    traits = MACHINES[name]
    refused = ERRNO | errno.EAFNOSUPPORT
    assert evaluate(deny_list(name), traits.socket, (family,), name=name) == (
        ALLOW if family in (1, 2, 10) else refused
    )
    closed = deny_list(name, sockets=False)
    assert evaluate(closed, traits.socket, (family,), name=name) == refused
    assert evaluate(closed, traits.socketpair, (1, kind), name=name) == (ALLOW if kind & 0xF == 1 else EPERM)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_foreign_architectures_are_killed(arch: int, number: int) -> None:
    """A call made in another architecture's numbering kills the process; x32 numbers do not exist."""
    if arch != MACHINES["x86_64"].audit_arch:
        assert evaluate(deny_list("x86_64"), number, arch=arch) == KILL
    assert evaluate(deny_list("x86_64"), number | 0x40000000) == ENOSYS


def test_terminal_injection_is_refused() -> None:
    """The ioctls that type into the starter's terminal are refused, others are not."""
    program = deny_list("x86_64")
    assert evaluate(program, 16, (0, 0x5412)) == evaluate(program, 16, (0, 0x541C)) == EPERM
    assert evaluate(program, 16, (0, 0x5401)) == ALLOW


def test_unknown_architecture() -> None:
    """An architecture without a table is a MachineError."""
    with pytest.raises(MachineError, match="riscv64"):
        deny_list("riscv64")
