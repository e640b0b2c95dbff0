import ctypes
import struct

from emulated_acl import CODE, KIND, LOCATION, Acl

NO_INDEX = 2**64 - 1
H2D = ("HOST", "DEVICE")
D2H = ("DEVICE", "HOST")


def _attributes(*directions, device=0):
    raw = b""
    for source, destination in directions:
        raw += struct.pack("=IiIi16x", device, LOCATION[destination], device, LOCATION[source])
    return ctypes.create_string_buffer(raw, len(raw))


def _batch(acl, copies, directions, indexes, asynchronous=False, device=0):
    """Code and index of a batch of (destination, source, bytes)."""
    count = len(copies)
    arrays = [(ctypes.c_void_p * count)(), (ctypes.c_size_t * count)(), (ctypes.c_void_p * count)()]
    sizes = (ctypes.c_size_t * count)()
    for index, (destination, source, nbytes) in enumerate(copies):
        arrays[0][index], arrays[1][index], arrays[2][index], sizes[index] = destination, nbytes, source, nbytes
    failed = ctypes.c_size_t(12345)
    arguments = [*arrays, sizes, count, _attributes(*directions, device=device)]
    arguments += [(ctypes.c_size_t * len(indexes))(*indexes), len(indexes), ctypes.byref(failed)]
    if asynchronous:
        code = acl.code("aclrtMemcpyBatchAsync", *arguments, None)
        acl.ok("aclrtSynchronizeStreamWithTimeout", None, -1)
    else:
        code = acl.code("aclrtMemcpyBatch", *arguments)
    return code, failed.value


def _moves():
    acl = Acl()
    pinned, device = acl.made("aclrtMallocHost", 3000), acl.malloc(3000)
    ctypes.memmove(pinned, bytes(range(250)) * 12, 3000)
    there = [(device + 1000 * index, pinned + 1000 * (2 - index), 1000) for index in range(3)]
    assert _batch(acl, there, [H2D, H2D], [0, 2]) == (0, NO_INDEX)
    expected = b"".join(ctypes.string_at(pinned + 1000 * index, 1000) for index in (2, 1, 0))
    assert acl.read(device, 3000) == expected
    ctypes.memset(pinned, 0, 3000)
    assert _batch(acl, [(pinned, device, 3000)], [D2H], [0], asynchronous=True) == (0, NO_INDEX)
    assert ctypes.string_at(pinned, 3000) == expected


def test_batches_move_bytes_both_ways(child):
    child(_moves)


def _refused():
    acl = Acl()
    host, device = acl.made("aclrtMallocHost", 4096), acl.malloc(4096)
    h2d, d2h, d2d = (device, host, 100), (host, device, 100), (device, device + 1000, 100)
    return {
        "device to device": _batch(acl, [d2d], [("DEVICE", "DEVICE")], [0]),
        "host to host": _batch(acl, [(host, host, 10)], [("HOST", "HOST")], [0]),
        "two directions": _batch(acl, [h2d, h2d, d2h], [H2D, D2H], [0, 2]),
        "hidden device to device": _batch(acl, [h2d, h2d, d2d], [H2D], [0]),
        "not what the attributes say": _batch(acl, [h2d, d2h], [H2D], [0]),
        "attributes of the other direction": _batch(acl, [h2d, h2d], [H2D, D2H], [0, 1]),
        "another device": _batch(acl, [h2d], [H2D], [0], device=1),
        "index not rising": _batch(acl, [h2d, h2d], [H2D, H2D], [0, 0]),
        "first index": _batch(acl, [h2d, h2d], [H2D], [1]),
    }, acl.read(device, 4).hex()


def test_what_the_manual_forbids_in_a_batch_is_refused_with_the_index(child):
    refused, untouched = child(_refused)
    assert {name: index for name, (_, index) in refused.items()} == {
        "device to device": 0,
        "host to host": 0,
        "two directions": 2,
        "hidden device to device": 2,
        "not what the attributes say": 1,
        "attributes of the other direction": 1,
        "another device": 0,
        "index not rising": NO_INDEX,
        "first index": NO_INDEX,
    }
    assert {code for code, _ in refused.values()} == {CODE["PARAMETER_INVALID"]}
    assert untouched == "00000000"


def _capture():
    acl = Acl()
    pinned, device = acl.made("aclrtMallocHost", 100), acl.malloc(100)
    plain = ctypes.create_string_buffer(100)
    found = {}

    def attempt(name):
        found[name] = [
            acl.code("aclrtMemcpy", device, 100, plain, 100, KIND["H2D"]),
            _batch(acl, [(device, pinned, 100)], [H2D], [0])[0],
            acl.code("aclrtMemcpyAsync", device, 100, plain, 100, KIND["H2D"], None),
            acl.code("aclrtMemcpyAsync", device, 100, pinned, 100, KIND["H2D"], None),
        ]

    mode = ctypes.c_int(2)
    acl.ok("cachecore_emulator_begin_capture", 0)
    attempt("global")
    acl.ok("aclmdlRICaptureThreadExchangeMode", ctypes.byref(mode))
    before = mode.value
    attempt("relaxed thread")
    acl.ok("aclmdlRICaptureThreadExchangeMode", ctypes.byref(mode))
    attempt("exchanged back")
    acl.ok("cachecore_emulator_end_capture")
    attempt("no capture")
    return found, before, mode.value


def test_capture_forbids_copies_to_threads_that_are_not_relaxed(child):
    found, before, after = child(_capture)
    forbidden = [CODE["CAPTURE_MODE_NOT_SUPPORTED"]] * 3 + [0]
    assert found["global"] == found["exchanged back"] == forbidden
    assert found["relaxed thread"] == found["no capture"] == [0] * 4
    assert (before, after) == (0, 2)
