"""Finding and loading libascendcl, once for each process.

    runtime = load()
    runtime.soc_name, runtime.device_count, runtime.library, runtime.how_found, runtime.emulated

Three things can be wrong, and each has an error of its own: the library is nowhere (`RuntimeNotFoundError`), it is
there and cannot be loaded (`RuntimeNotLoadableError`), it was loaded and does not start (`RuntimeStartError`). Where
CACHECORE_EMULATE is set, the emulator's library is loaded instead, in the same way; without it never.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cachecore.errors import BackendError, ForkedProcessError
from cachecore_ascend_runtime import _runtime
from cachecore_ascend_runtime.errors import (
    AscendError,
    EmulatorNotInstalledError,
    RuntimeNotFoundError,
    RuntimeNotLoadableError,
    RuntimeStartError,
)
from cachecore_ascend_runtime.runtime import Runtime

__all__ = ["EMULATE", "LIBRARY", "Candidate", "candidates", "emulated_soc", "load"]

_log = logging.getLogger("cachecore")

#: Names the SoC to emulate: "Ascend910B4", or "Ascend910B4:2" for two devices.
EMULATE: Final = "CACHECORE_EMULATE"
LIBRARY: Final = "libascendcl.so"

_LOADER_CACHE: Final = Path("/etc/ld.so.cache")
_LOADER_FOLDERS: Final = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_INSTALLED: Final = ("/usr/local/Ascend/ascend-toolkit/latest/lib64", "/usr/local/Ascend/cann/lib64")


@dataclass(frozen=True)
class Candidate:
    """A library that may be loaded.

    Attributes:
        name: A file, or the plain name that the dynamic loader knows.
        how: Why it was considered, for people.
    """

    name: str
    how: str


def emulated_soc() -> str:
    """What CACHECORE_EMULATE asks for, empty when nothing is to be emulated."""
    return os.environ.get(EMULATE, "").strip()


def candidates() -> list[Candidate]:
    """Where a libascendcl is, best first. Looks at files only; loads and imports nothing."""
    found = []
    loaded = _runtime.loaded_library(LIBRARY)
    if loaded is not None:
        found.append(Candidate(loaded, "loaded in this process already"))
    found += [Candidate(path, f"LD_LIBRARY_PATH ({folder})") for folder, path in _files(_library_path())]
    if _in_loader_cache():
        found.append(Candidate(LIBRARY, f"the loader's search path ({_LOADER_CACHE})"))
    found += [Candidate(path, f"the loader's search path ({folder})") for folder, path in _files(_LOADER_FOLDERS)]
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        home = os.environ.get(variable)
        if home:
            found += [Candidate(path, f"{variable} ({home})") for _, path in _files([os.path.join(home, "lib64")])]
    found += [Candidate(path, folder) for folder, path in _files(_INSTALLED)]
    return list({candidate.name: candidate for candidate in reversed(found)}.values())[::-1]


def _library_path() -> list[str]:
    return [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


def _files(folders: list[str] | tuple[str, ...]) -> list[tuple[str, str]]:
    paths = [(folder, os.path.join(folder, LIBRARY)) for folder in folders]
    return [(folder, path) for folder, path in paths if os.path.isfile(path)]


def _in_loader_cache() -> bool:
    try:
        return LIBRARY.encode() + b"\0" in _LOADER_CACHE.read_bytes()
    except OSError:  # a system without the cache, musl for example
        return False


def _places() -> tuple[str, ...]:
    homes = tuple(
        f"${name}/lib64 ({os.environ[name]})" if os.environ.get(name) else f"${name} (not set)"
        for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
    )
    return ("LD_LIBRARY_PATH", "the loader's search path", *homes, *_INSTALLED)


_lock = threading.Lock()
_loaded: Runtime | None = None
_pid = 0


def load(library: str | None = None) -> Runtime:
    """The runtime of this process, loaded and started by the first call.

    Args:
        library: A libascendcl to use; None = the emulator's where CACHECORE_EMULATE is set, else the first of
            `candidates` that can be loaded.

    Raises:
        RuntimeNotFoundError: There is none; lists where it was looked for.
        RuntimeNotLoadableError: None that was found can be loaded; says the loader's reason for each.
        RuntimeStartError: aclInit, aclrtGetSocName or aclrtGetDeviceCount failed.
        EmulatorNotInstalledError: CACHECORE_EMULATE is set without the emulator.
        BackendError: Another library is in use already.
        ForkedProcessError: It was loaded before fork(); device contexts do not survive into the child.
    """
    global _loaded, _pid
    with _lock:
        if _loaded is not None:
            if os.getpid() != _pid:
                raise ForkedProcessError(
                    f"the Ascend runtime was started by process {_pid} and used by its fork {os.getpid()}: device contexts "
                    "do not survive a fork. Start the child with the method 'spawn'"
                )
            if library is not None and os.path.realpath(library) != os.path.realpath(_loaded.library):
                raise BackendError(
                    f"library is {library!r} and this process uses {_loaded.library} already; a process has one runtime"
                )
            return _loaded
        runtime = _start(*_open(library))
        _loaded, _pid = runtime, os.getpid()
        if runtime.emulated:
            _log.warning("%s: emulated, because %s is set; no NPU is used", runtime.soc_name, EMULATE)
        return runtime


def _open(library: str | None) -> tuple[_runtime.Library, str, bool]:
    """The opened library, how it was found, and whether it is the emulator's."""
    if library is not None:
        return (*_first([Candidate(library, "given by name")]), False)
    if emulated_soc():
        return (*_first([Candidate(_emulator_library(), EMULATE)]), True)
    found = candidates()
    if not found and "torch_npu" in sys.modules:
        # Whoever imported it has the library, under whatever name: the loader may know more than we do.
        found = [Candidate(LIBRARY, "torch_npu is imported")]
    if not found:
        places = _places()
        raise RuntimeNotFoundError(
            f"{LIBRARY} was not found; looked in {', '.join(places)}. Install CANN and run its set_env.sh, or set "
            f"{EMULATE}=Ascend910B4 to try without an NPU",
            places=places,
        )
    return (*_first(found), False)


def _first(found: list[Candidate]) -> tuple[_runtime.Library, str]:
    reasons = []
    for candidate in found:
        try:
            return _runtime.Library(candidate.name), candidate.how
        except OSError as error:
            reasons.append(f"{candidate.name} (found by {candidate.how}): {error}")
    raise RuntimeNotLoadableError(
        f"{LIBRARY} was found and cannot be loaded: {'; '.join(reasons)}. Where a library is missing, install the NPU "
        "driver or mount it into the container (/usr/local/Ascend/driver), and run CANN's set_env.sh"
    )


def _emulator_library() -> str:
    try:
        emulator = importlib.import_module("cachecore_ascend_emulator")
    except ModuleNotFoundError as error:
        if error.name != "cachecore_ascend_emulator":
            raise
        raise EmulatorNotInstalledError(
            f"{EMULATE}={emulated_soc()} is set and the emulator is not installed: "
            "pip install --find-links WHEELHOUSE cachecore-ascend-emulator, or unset it"
        ) from None
    return str(emulator.library_path())


def _start(library: _runtime.Library, how_found: str, emulated: bool) -> Runtime:
    def failed(what: str) -> RuntimeStartError:
        return RuntimeStartError(f"{library.path} (found by {how_found}) was loaded and does not start: {what}")

    try:
        initialised = library.initialise()
        soc_name = library.soc_name()
        if not soc_name:
            raise failed(
                "aclrtGetSocName gives no name. Look at `npu-smi info` and, in a container, at the mounted /dev/davinci* and "
                "/usr/local/Ascend/driver"
            )
        device_count = library.device_count()
    except AscendError as error:
        raise failed(str(error)) from error
    return Runtime(library, soc_name, device_count, how_found, emulated=emulated, initialised_here=initialised)
