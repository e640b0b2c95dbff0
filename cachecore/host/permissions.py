"""Why the kernel does not let one process read another, in words that help."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["advice", "setting_of_seccomp", "setting_of_yama"]

_YAMA = {
    "0": "any process of the same user may read another",
    "1": "only ancestors, and readers that were named, may read a process",
    "2": "only administrators may read a process",
    "3": "nobody may read a process",
}


def advice(pid: int) -> str:
    """What the kernel checks before it lets this process read process `pid`, with what can be seen from here."""
    found = [_scope(), _users(pid), _filter()]
    return (
        f"The kernel refuses to let process {os.getpid()} read process {pid}. It checks, in this order: "
        f"{'; '.join(part for part in found if part)}; whether the owner may be inspected at all (a process that "
        "changed its user id, or cannot read its own program file, may not: prctl PR_SET_DUMPABLE). Where "
        "ptrace_scope is 1, the owner of the memory allows its readers with the option 'local.allow_reader' ('any', "
        "or a process id); memory that cachecore allocated itself (allocate_cache, the host driver) needs none of this"
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:")), "")


def setting_of_yama() -> tuple[str, str]:
    """The value of ptrace_scope, empty where the kernel has no Yama module, and what it means."""
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    return scope, _YAMA.get(scope, "not known") if scope else ""


def setting_of_seccomp() -> str:
    """The seccomp mode of this process: "0" none, "2" a filter; empty when the system does not say."""
    return _field(_read("/proc/self/status"), "Seccomp")


def _scope() -> str:
    scope, meaning = setting_of_yama()
    if not scope:
        return "the Yama module's ptrace_scope (not present in this kernel)"
    return f"the Yama module's ptrace_scope ({scope} here: {meaning})"


def _users(pid: int) -> str:
    ours, theirs = _field(_read("/proc/self/status"), "Uid"), _field(_read(f"/proc/{pid}/status"), "Uid")
    here = " ".join(ours.split()) or "not known"
    there = " ".join(theirs.split()) or "not known"
    return f"the user ids (real, effective, saved, file: {here} here and {there} there; they must be one user)"


def _filter() -> str:
    state = "a filter is active here, as containers have" if setting_of_seccomp() == "2" else "no filter is active here"
    return f"a seccomp filter ({state}; it must allow process_vm_readv and process_vm_writev)"
