"""What the drivers for Ascend products share.

    from cachecore_ascend_runtime import AscendDriver, load

    runtime = load()                  # once a process; typed errors: not found, not loadable, does not start
    runtime.soc_name                  # "Ascend910B4"
    runtime.missing_symbols           # {"aclrtMemcpyBatch": "copies between host and device are ..."}
    device = runtime.device(0)        # bind_thread, bound, describe, allocate, copy, memory_info
    class MyDriver(AscendDriver): ... # see `driver`

| module | subject |
|---|---|
| `loader` | where libascendcl is looked for, `load` |
| `runtime` | `Runtime`: SoC, devices, versions, missing functions |
| `device` | `Device`: contexts of threads, memory, copies; `MallocPolicy` |
| `memory` | the rules by which memory is told apart; `MemoryFacts`, `Location` |
| `driver` | `AscendDriver`, the base class of product drivers |
| `detection`, `products` | which devices there are, and which SoC belongs where |
| `codes`, `explain` | error codes in words |
| `errors` | the errors of this distribution |
| `symbols` | what a missing function switches off |

Importing it loads no library of the vendor.
"""

from cachecore_ascend_runtime.codes import Code
from cachecore_ascend_runtime.detection import detect
from cachecore_ascend_runtime.device import Device, MallocPolicy
from cachecore_ascend_runtime.driver import AscendDriver
from cachecore_ascend_runtime.errors import (
    AscendError,
    AscendOutOfMemoryError,
    EmulatorNotInstalledError,
    RuntimeNotFoundError,
    RuntimeNotLoadableError,
    RuntimeStartError,
)
from cachecore_ascend_runtime.explain import Explanation, explain
from cachecore_ascend_runtime.loader import load
from cachecore_ascend_runtime.memory import Location, MemoryFacts
from cachecore_ascend_runtime.runtime import Runtime

__all__ = [
    "AscendDriver",
    "AscendError",
    "AscendOutOfMemoryError",
    "Code",
    "Device",
    "EmulatorNotInstalledError",
    "Explanation",
    "Location",
    "MallocPolicy",
    "MemoryFacts",
    "Runtime",
    "RuntimeNotFoundError",
    "RuntimeNotLoadableError",
    "RuntimeStartError",
    "detect",
    "explain",
    "load",
]
