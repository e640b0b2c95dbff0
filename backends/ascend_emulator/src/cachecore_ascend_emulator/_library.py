"""Where the emulated libraries lie."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from types import ModuleType

from cachecore_ascend_emulator._symbols import without_symbols

HIDE = "CACHECORE_EMULATE_HIDE"


def _installed(name: str) -> Path:
    # Through the package's own loader: in an editable installation the libraries lie elsewhere than these files.
    path = Path(str(resources.files("cachecore_ascend_emulator").joinpath(name)))
    if not path.is_file():
        raise FileNotFoundError(f"the emulated runtime {path} is not there; install cachecore-ascend-emulator again")
    return path


@functools.cache
def _with_hidden(names: tuple[str, ...]) -> str:
    folder = Path(tempfile.mkdtemp(prefix="cachecore-emulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = _installed("libascendcl_emulator.so")
    path = folder / library.name
    path.write_bytes(without_symbols(library.read_bytes(), names))
    return str(path)


def library_path() -> str:
    """Path of the library to load in place of ``libascendcl.so``.

    With ``CACHECORE_EMULATE_HIDE`` set, a library in which the named functions are not defined: names between commas,
    or ``newer`` for all that an old runtime lacks. The answer is the same for the whole life of a process, as long as
    the variable is.

    Raises:
        FileNotFoundError: The installation is damaged.
        ValueError: A name to hide is none of the library's functions.
    """
    names = tuple(sorted({name.strip() for name in os.environ.get(HIDE, "").split(",") if name.strip()}))
    if not names:
        return str(_installed("libascendcl_emulator.so"))
    if names == ("newer",):
        return old_library_path()
    return _with_hidden(names)


def old_library_path() -> str:
    """Path of a library without the functions that an older runtime lacks.

    These are aclrtMemcpyBatch, aclrtMemcpyBatchAsync, aclrtPointerGetAttributes, aclrtMemGetAddressRange and
    aclrtMemRetainAllocationHandle.

    Raises:
        FileNotFoundError: The installation is damaged.
    """
    return str(_installed("libascendcl_emulator_old.so"))


def hixl_module() -> ModuleType:
    """The stand-in for ``import hixl``: names, signatures, return shapes and status codes of the vendor's module.

    It works on the same emulated devices as the library of `library_path` in this process.
    """
    return importlib.import_module("cachecore_ascend_emulator.hixl")
