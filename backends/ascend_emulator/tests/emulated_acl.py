"""The emulated runtime through ctypes, with the signatures and numbers of documented_abi.json."""

import ctypes
import json
import struct
from pathlib import Path

import cachecore_ascend_emulator

ABI = json.loads(Path(__file__).with_name("documented_abi.json").read_text())
CODE = ABI["code"]
POLICY = ABI["malloc_policy"]
KIND = ABI["memcpy_kind"]
LOCATION = ABI["location_type"]
ATTRIBUTE = ABI["memory_attribute"]
MIB = 1 << 20
NORMAL, HUGE, HUGE_1G = 4096, 2 * MIB, 1024 * MIB

_TYPES = {
    "text": ctypes.c_char_p,
    "ptr": ctypes.c_void_p,
    "out": ctypes.c_void_p,
    "size": ctypes.c_size_t,
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
}


class AclError(Exception):
    def __init__(self, name, code, message):
        super().__init__(f"{name} returned {code}: {message}")
        self.code = code


class Acl:
    """Functions by name: `acl.code("aclrtFree", p)` gives the code, `acl.ok(...)` raises unless it is 0."""

    def __init__(self, path=None, device=0):
        self.library = ctypes.CDLL(path or cachecore_ascend_emulator.library_path())
        for name, parameters in ABI["functions"].items():
            if hasattr(self.library, name):
                getattr(self.library, name).argtypes = [_TYPES[kind] for kind in parameters]
        self.library.aclrtGetSocName.restype = ctypes.c_char_p
        self.library.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.library.cachecore_emulator_calls.restype = ctypes.c_uint64
        self.library.cachecore_emulator_documented.restype = ctypes.c_int64
        if device is not None:
            self.ok("aclInit", None)
            self.ok("aclrtSetDevice", device)

    def code(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def message(self):
        return (self.library.aclGetRecentErrMsg() or b"").decode()

    def ok(self, name, *arguments):
        code = self.code(name, *arguments)
        if code:
            raise AclError(name, code, self.message())

    def failure(self, name, *arguments):
        """The code of a call that must fail; its message must name the function or say something at all."""
        code = self.code(name, *arguments)
        assert code, f"{name} succeeded"
        assert self.message()
        return code

    def made(self, name, *arguments, kind=ctypes.c_void_p):
        """The result of a function whose first parameter is where it goes."""
        result = kind()
        self.ok(name, ctypes.byref(result), *arguments)
        return result.value

    def faults(self, plan):
        self.ok("cachecore_emulator_set_faults", plan.encode())

    def malloc(self, nbytes, policy="HUGE_FIRST"):
        return self.made("aclrtMalloc", nbytes, POLICY[policy] if isinstance(policy, str) else policy)

    def free(self, pointer):
        self.ok("aclrtFree", pointer)

    def write(self, pointer, data):
        self.ok("aclrtMemcpy", pointer, len(data), ctypes.c_char_p(data), len(data), KIND["H2D"])

    def read(self, pointer, nbytes):
        data = ctypes.create_string_buffer(nbytes)
        self.ok("aclrtMemcpy", data, nbytes, pointer, nbytes, KIND["D2H"])
        return data.raw

    def attributes(self, pointer):
        """Device or host number, location type, page size."""
        raw = ctypes.create_string_buffer(ABI["sizeof"]["aclrtPtrAttributes"])
        self.ok("aclrtPointerGetAttributes", pointer, raw)
        (index,) = struct.unpack_from("=I", raw, 0)
        (location,) = struct.unpack_from("=i", raw, ABI["offset"]["aclrtMemLocation.type"])
        (page,) = struct.unpack_from("=I", raw, ABI["offset"]["aclrtPtrAttributes.pageSize"])
        return index, location, page

    def block(self, pointer):
        base, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.ok("aclrtMemGetAddressRange", pointer, ctypes.byref(base), ctypes.byref(size))
        return base.value, size.value

    def used(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.ok("aclrtGetMemInfo", ATTRIBUTE["HBM"], ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    def physical_properties(self, attribute="HBM_HUGE", device=0, location="DEVICE"):
        raw = ctypes.create_string_buffer(ABI["sizeof"]["aclrtPhysicalMemProp"])
        struct.pack_into("=i", raw, ABI["offset"]["aclrtPhysicalMemProp.memAttr"], ATTRIBUTE[attribute])
        at = ABI["offset"]["aclrtPhysicalMemProp.location"]
        struct.pack_into("=Ii", raw, at, device, LOCATION[location])
        return raw

    def physical(self, nbytes, attribute="HBM_HUGE", device=0):
        return self.made("aclrtMallocPhysical", nbytes, self.physical_properties(attribute, device), 0)

    def reserve(self, nbytes):
        return self.made("aclrtReserveMemAddress", nbytes, 0, None, 0)

    def map_blocks(self, blocks, block_bytes=HUGE):
        """One reserved range with so many physical blocks mapped in a row; its start."""
        start = self.reserve(blocks * block_bytes)
        for index in range(blocks):
            handle = self.physical(block_bytes)
            self.ok("aclrtMapMem", start + index * block_bytes, block_bytes, 0, handle, 0)
            self.ok("aclrtFreePhysical", handle)
        return start
