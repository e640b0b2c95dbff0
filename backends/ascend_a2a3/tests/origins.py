"""Registers memory of every origin with a manager on the emulated SoC and prints what happened, as JSON.

Run in a process of its own: the SoC is decided when the runtime is loaded. Memory is made the way frameworks make it,
by calling the runtime itself.
"""

import ctypes
import json
import sys

from cachecore_ascend_runtime import load

import cachecore as cc

HUGE = 2 << 20


class Location(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint32), ("type", ctypes.c_int)]


class Physical(ctypes.Structure):
    _fields_ = [
        ("handle_type", ctypes.c_int),
        ("allocation_type", ctypes.c_int),
        ("attribute", ctypes.c_int),
        ("location", Location),
        ("reserve", ctypes.c_uint64),
    ]


def checked(code):
    assert code == 0, code


def by_malloc(acl, nbytes, policy):
    address = ctypes.c_void_p()
    checked(acl.aclrtMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes), policy))
    return address.value


def by_mapping(acl, nbytes):
    """Two physical blocks behind one range, as expandable segments do it."""
    address, huge = ctypes.c_void_p(), ctypes.c_uint64(1)
    checked(acl.aclrtReserveMemAddress(ctypes.byref(address), ctypes.c_size_t(nbytes), ctypes.c_size_t(0), None, huge))
    for offset in range(0, nbytes, nbytes // 2):
        handle, kind = ctypes.c_void_p(), Physical(0, 0, 4, Location(0, 1), 0)
        checked(
            acl.aclrtMallocPhysical(
                ctypes.byref(handle), ctypes.c_size_t(nbytes // 2), ctypes.byref(kind), ctypes.c_uint64(0)
            )
        )
        checked(
            acl.aclrtMapMem(
                ctypes.c_void_p(address.value + offset),
                ctypes.c_size_t(nbytes // 2),
                ctypes.c_size_t(0),
                handle,
                ctypes.c_uint64(0),
            )
        )
    return address.value


def main():
    options = json.loads(sys.argv[1])
    runtime = load()
    acl = ctypes.CDLL(runtime.library)
    with cc.CacheManager(1, options=options) as manager:
        runtime.device(0).bind_thread()
        block = by_malloc(acl, 4 * HUGE, 0)
        mapped = by_mapping(acl, 4 * HUGE)
        by_malloc(acl, 512, 2)  # takes the start of a block that small ones are cut from
        small = by_malloc(acl, 8192, 2)
        aligned = manager.backend.allocate_aligned(HUGE).address
        addresses = {
            "aclrtMalloc": block,
            "slice, on its page": block + HUGE,
            "slice, off its page": block + HUGE + 512,
            "mapping, on its page": mapped + HUGE,
            "mapping, off its page": mapped + 512,
            "mapping, over two blocks": mapped + HUGE,
            "small aclrtMalloc": small,
            "allocate_aligned": aligned,
        }
        lengths = {"mapping, over two blocks": 2 * HUGE}
        results = {}
        for name, address in addresses.items():
            for function in ("register_blocks_cache", "register_cache"):
                desc = cc.CacheDesc(1, [4, lengths.get(name, 8192) // 4], cc.DataType.DT_UINT8)
                try:
                    cache = getattr(manager, function)(desc, [address])
                except cc.CacheError as error:
                    results[f"{name}: {function}"] = [type(error).__name__, str(error)]
                else:
                    results[f"{name}: {function}"] = ["accepted", hex(address)]
                    manager.unregister_cache(cache.cache_id)
        print(json.dumps({"backend": repr(manager.backend), "small": small % 4096, "results": results}))


if __name__ == "__main__":
    main()
