"""The three ways in which a runtime can be unusable, an older runtime, and what is never done to a runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

STUB = Path(__file__).with_name("stub.c")

LOAD = """
from cachecore_ascend_runtime import load
from cachecore_ascend_runtime.loader import candidates
try:
    runtime = load()
except Exception as error:
    answer([type(error).__name__, str(error), [one.how for one in candidates()]])
else:
    answer([runtime.soc_name, runtime.device_count, runtime.library, runtime.how_found, dict(runtime.missing_symbols),
            runtime.initialised_here, runtime.emulated, runtime.current_device()])
"""


def test_no_library_anywhere_is_no_device_and_an_error_that_lists_the_places(in_process, tmp_path: Path) -> None:
    quiet = """
import sys
from cachecore_ascend_runtime import detect
found = detect()
maps = open("/proc/self/maps").read()
answer([found, "ascendcl" in maps, [name for name in sys.modules if name.startswith(("torch", "cachecore_ascend_emulator"))]])
"""
    assert in_process(quiet, ASCEND_HOME_PATH=None) == [[], False, []]
    name, text, _ = in_process(LOAD, ASCEND_HOME_PATH=str(tmp_path), ASCEND_TOOLKIT_HOME=None)
    assert name == "RuntimeNotFoundError"
    assert str(tmp_path) in text and "$ASCEND_TOOLKIT_HOME (not set)" in text and "set_env.sh" in text


def test_a_library_that_cannot_be_loaded_is_named_with_the_reason(in_process, compile_c, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged" / "lib64"
    damaged.mkdir(parents=True)
    (damaged / "libascendcl.so").write_text("this is no library")
    foreign = tmp_path / "foreign.c"
    foreign.write_text("int aclInit(const char *config) { (void)config; return 0; }")
    (tmp_path / "other" / "lib64").mkdir(parents=True)
    compile_c(tmp_path / "other" / "lib64" / "libascendcl.so", foreign, "-fvisibility=default")
    name, text, hows = in_process(
        LOAD, ASCEND_HOME_PATH=str(tmp_path / "damaged"), ASCEND_TOOLKIT_HOME=str(tmp_path / "other")
    )
    assert name == "RuntimeNotLoadableError"
    assert hows == [
        f"ASCEND_HOME_PATH ({tmp_path / 'damaged'})",
        f"ASCEND_TOOLKIT_HOME ({tmp_path / 'other'})",
    ]
    assert "invalid ELF header" in text or "file too short" in text
    assert "lacks aclrtGetSocName, aclrtGetDeviceCount, " in text


def test_a_library_that_cannot_be_loaded_does_not_hide_the_next(in_process, stub, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged" / "lib64"
    damaged.mkdir(parents=True)
    (damaged / "libascendcl.so").write_text("this is no library")
    stub(tmp_path / "good" / "lib64")
    answer = in_process(LOAD, ASCEND_HOME_PATH=str(tmp_path / "damaged"), ASCEND_TOOLKIT_HOME=str(tmp_path / "good"))
    assert answer[:4] == [
        "Ascend910B4",
        8,
        str(tmp_path / "good" / "lib64" / "libascendcl.so"),
        f"ASCEND_TOOLKIT_HOME ({tmp_path / 'good'})",
    ]


@pytest.mark.parametrize(
    ("macros", "words"),
    [
        (("STUB_INIT=507033", "STUB_NEWER"), ("aclInit failed with 507033", "the stub does not start", "npu-smi")),
        (("STUB_SOC=NULL",), ("aclrtGetSocName gives no name", "/dev/davinci")),
        (("STUB_COUNT=207006",), ("aclrtGetDeviceCount failed with 207006 (not permitted)", "HwHiAiUser")),
    ],
)
def test_a_library_that_does_not_start_says_which_function_and_why(in_process, stub, tmp_path, macros, words) -> None:
    library = stub(tmp_path / "lib64", *macros)
    name, text, _ = in_process(LOAD, ASCEND_HOME_PATH=str(tmp_path))
    assert name == "RuntimeStartError"
    assert str(library) in text
    for word in words:
        assert word in text


def test_a_runtime_that_somebody_else_started_is_taken_as_it_is(in_process, stub, tmp_path: Path) -> None:
    stub(tmp_path / "lib64", "STUB_INIT=100002")
    answer = in_process(LOAD, ASCEND_HOME_PATH=str(tmp_path))
    assert answer[0] == "Ascend910B4"
    assert answer[5] is False


def test_an_old_runtime_is_loaded_and_says_what_is_switched_off(in_process, stub, tmp_path: Path) -> None:
    stub(tmp_path / "lib64")
    missing = in_process(LOAD, ASCEND_HOME_PATH=str(tmp_path))[4]
    assert set(missing) == {
        "aclGetRecentErrMsg", "aclrtSynchronizeStreamWithTimeout", "aclrtStreamAbort", "aclrtStreamWaitEvent",
        "aclmdlRICaptureThreadExchangeMode", "aclrtPointerGetAttributes", "aclrtMemGetAddressRange",
        "aclrtMemRetainAllocationHandle", "aclrtFreePhysical", "aclrtMemcpyBatch", "aclrtMemcpyBatchAsync",
        "aclrtGetMemInfo", "aclrtGetVersion", "aclsysGetVersionStr",
    }  # fmt: skip
    assert all(len(cost) > 20 for cost in missing.values())


def test_a_library_without_any_wait_is_refused(in_process, stub, tmp_path: Path) -> None:
    stub(tmp_path / "lib64", "STUB_WITHOUT_SYNCHRONIZE")
    name, text, _ = in_process(LOAD, ASCEND_HOME_PATH=str(tmp_path))
    assert name == "RuntimeNotLoadableError"
    assert "aclrtSynchronizeStreamWithTimeout or aclrtSynchronizeStream" in text


def test_nothing_of_a_runtime_is_reset_or_finalised(in_process, stub, tmp_path: Path) -> None:
    stub(tmp_path / "lib64", "STUB_NEWER")
    code = """
import ctypes
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(3)
device.free(device.allocate(64))
device.trim()
stub = ctypes.CDLL(runtime.library)
def at_exit():
    answer([ctypes.c_int.in_dll(stub, "stub_finalised").value, ctypes.c_int.in_dll(stub, "stub_resets").value])
import atexit
atexit.register(at_exit)
"""
    assert in_process(code, ASCEND_HOME_PATH=str(tmp_path)) == [0, 0]


def test_the_library_of_the_process_is_preferred_to_one_on_disk(in_process, stub, compile_c, tmp_path: Path) -> None:
    """torch_npu may have loaded another CANN than the one that the environment names; a process has one runtime."""
    loaded = stub(tmp_path / "loaded")
    stub(tmp_path / "home" / "lib64", 'STUB_SOC="Ascend950PR_9599"')
    code = f"import ctypes\nctypes.CDLL({str(loaded)!r})\n{LOAD}"
    # The loader knows a loaded library by its name only where the library says it itself.
    compile_c(loaded, STUB, "-Wl,-soname,libascendcl.so")
    answer = in_process(code, ASCEND_HOME_PATH=str(tmp_path / "home"))
    assert answer[0] == "Ascend910B4"
    assert answer[2:4] == [str(loaded), "loaded in this process already"]


def test_a_library_given_by_name_is_used_and_only_one_in_a_process(in_process, stub, tmp_path: Path) -> None:
    first, second = stub(tmp_path / "a"), stub(tmp_path / "b")
    code = f"""
from cachecore_ascend_runtime import load
from cachecore.errors import BackendError
one = load({str(first)!r})
assert load() is one and load({str(first)!r}) is one
try:
    load({str(second)!r})
except BackendError as error:
    answer([one.library, one.how_found, str(error)])
"""
    library, how, text = in_process(code)
    assert (library, how) == (str(first), "given by name")
    assert str(second) in text and str(first) in text


def test_emulation_without_the_emulator_says_how_to_get_it(in_process, stub, tmp_path: Path) -> None:
    stub(tmp_path / "lib64")  # must not be taken instead
    code = f"import sys\nsys.modules['cachecore_ascend_emulator'] = None\n{LOAD}"
    # A module that is None makes the import fail as it does when the distribution is missing.
    name, text, _ = in_process(code, CACHECORE_EMULATE="Ascend910B4", ASCEND_HOME_PATH=str(tmp_path))
    assert name == "EmulatorNotInstalledError"
    assert "pip install --find-links WHEELHOUSE cachecore-ascend-emulator" in text


def test_a_forked_child_is_refused_at_once(in_process) -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
from cachecore.errors import ForkedProcessError
from cachecore_ascend_runtime import load
runtime = load()
device = runtime.device(0)
def refused(call):
    try:
        call()
    except ForkedProcessError:
        return True
    return False
read, write = os.pipe()
child = os.fork()
if child == 0:
    calls = [load, runtime.current_device, lambda: runtime.device(0), device.bind_thread, lambda: device.allocate(64),
             lambda: device.describe([(1, 1)]), device.trim]
    os.write(write, bytes(refused(call) for call in calls))
    os._exit(0)
os.waitpid(child, 0)
answer(list(os.read(read, 100)))
"""
    assert in_process(code, CACHECORE_EMULATE="Ascend910B4") == [1] * 7
