"""The runtime of this process: what was loaded, what it can do, and its devices. Made by `loader.load`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cachecore import _arguments as arguments
from cachecore.driver import UNKNOWN, Capability
from cachecore.errors import BackendError, ForkedProcessError
from cachecore_ascend_runtime import _runtime
from cachecore_ascend_runtime.device import Device
from cachecore_ascend_runtime.symbols import cost

__all__ = ["Runtime"]

_DRIVER_VERSION: Final = Path("/usr/local/Ascend/driver/version.info")


class Runtime:
    """A started libascendcl. For many threads; useless in a forked child, where its methods raise.

    Attributes:
        soc_name: Name of the SoC, for example "Ascend910B4".
        device_count: Number of visible devices, when it was started.
        library: Path of the library.
        how_found: How it was found, for people.
        emulated: Whether the emulator answers.
        initialised_here: Whether aclInit was called here; False: torch_npu or somebody else had.
        missing_symbols: Function that the library lacks -> what that switches off.
        versions: "acl" (the interface), "runtime", "driver" -> version, those that are known.
    """

    def __init__(
        self,
        library: _runtime.Library,
        soc_name: str,
        device_count: int,
        how_found: str,
        *,
        emulated: bool,
        initialised_here: bool,
    ) -> None:
        self._library = library
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._devices: dict[int, Device] = {}
        self.soc_name = soc_name
        self.device_count = device_count
        self.library = library.path
        self.how_found = how_found
        self.emulated = emulated
        self.initialised_here = initialised_here
        self.missing_symbols: Mapping[str, str] = {name: cost(name) for name in library.missing}
        self._hdk_version = _hdk_version(library, emulated)
        self.versions: Mapping[str, str] = _versions(library, self._hdk_version)

    @property
    def hdk_version(self) -> Capability[str]:
        """Version of the NPU driver (HDK), on which some limits depend, with its source; UNKNOWN where it is not said."""
        return self._hdk_version

    @property
    def refused_by_driver(self) -> Mapping[str, str]:
        """Function -> what is switched off, of those that the driver below the runtime refused so far."""
        refused = {}
        if self._library.batches_refused:
            refused["aclrtMemcpyBatchAsync"] = "copies between host and device are started piece by piece"
        if self._library.capture_mode_refused:
            refused["aclmdlRICaptureThreadExchangeMode"] = cost("aclmdlRICaptureThreadExchangeMode")
        return refused

    def current_device(self) -> int | None:
        """The calling thread's device, None when nobody has set one in this thread."""
        self.check_process()
        return self._library.current_device()

    def choose_device(self, device: object = None) -> int:
        """The device to use: the one given, else the thread's current one, else the only one that is visible.

        Raises:
            CacheTypeError, CacheValueError: `device` is no number, or there is no such device.
            BackendError: None was given, the thread has none, and there is not exactly one.
        """
        self.check_process()
        if device is not None:
            if self.device_count == 0:
                raise BackendError(f"device is {device!r} and {_nothing_visible(self)}")
            return arguments.integer("device", device, 0, self.device_count - 1)
        current = self.current_device()
        if current is not None:
            return current
        if self.device_count == 1:
            return 0
        if self.device_count == 0:
            raise BackendError(_nothing_visible(self))
        raise BackendError(
            f"this thread has no current device and {self.device_count} are visible: call torch.npu.set_device(n) (or "
            "aclrtSetDevice) in this thread before it, or give device=n"
        )

    def device(self, index: int) -> Device:
        """One device; its context is made on first use, and shared with everybody else in the process.

        Raises:
            CacheTypeError, CacheValueError: There is no such device.
            AscendError: It cannot be started.
        """
        self.check_process()
        index = self.choose_device(index)
        with self._lock:
            if index not in self._devices:
                self._devices[index] = Device(self._library, index, self.soc_name, emulated=self.emulated)
            return self._devices[index]

    def check_process(self) -> None:
        """Refuse to work in a child that was forked after the start.

        Raises:
            ForkedProcessError: Always there.
        """
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"the Ascend runtime was started by process {self._pid} and used by its fork {os.getpid()}: device contexts do "
                "not survive a fork. Start the child with the method 'spawn'"
            )

    def __repr__(self) -> str:
        emulated = "emulated " if self.emulated else ""
        return f"<Runtime {emulated}{self.soc_name} x{self.device_count}, {self.library}>"


def _nothing_visible(runtime: Runtime) -> str:
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    setting = "is not set" if visible is None else f"is {visible!r}"
    return f"no device of {runtime.soc_name} is visible: ASCEND_RT_VISIBLE_DEVICES {setting}; look at `npu-smi info`"


def _hdk_version(library: _runtime.Library, emulated: bool) -> Capability[str]:
    version = library.package_version("driver")
    if version:
        return Capability(version, "aclsysGetVersionStr(driver)")
    if not emulated:  # the file is about the driver of this machine, which an emulator does not use
        try:
            found = re.search(
                r"^Version=(\S+)", _DRIVER_VERSION.read_text(errors="replace"), re.MULTILINE | re.IGNORECASE
            )
        except OSError:
            found = None
        if found:
            return Capability(found[1], str(_DRIVER_VERSION))
    return Capability(UNKNOWN, f"neither aclsysGetVersionStr nor {_DRIVER_VERSION} says")


def _versions(library: _runtime.Library, hdk: Capability[str]) -> dict[str, str]:
    asked = {
        "acl": library.interface_version(),
        "runtime": library.package_version("runtime"),
        "driver": hdk.value_or(""),
    }
    return {name: version for name, version in asked.items() if version}
