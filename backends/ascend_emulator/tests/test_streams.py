import ctypes
import threading
import time

from emulated_acl import ABI, CODE, KIND, MIB, Acl

NOT_READY, COMPLETE = ABI["event_status"]["NOT_READY"], ABI["event_status"]["COMPLETE"]


def _prepare(nbytes=4 * MIB):
    acl = Acl()
    pinned, device, stream = acl.made("aclrtMallocHost", nbytes), acl.malloc(nbytes), acl.made("aclrtCreateStream")
    ctypes.memset(pinned, 7, nbytes)
    return acl, pinned, device, stream


def _copy(acl, device, pinned, stream, nbytes=4 * MIB):
    acl.ok("aclrtMemcpyAsync", device, nbytes, pinned, nbytes, KIND["H2D"], stream)


def _query(acl, event):
    status = ctypes.c_int(-1)
    acl.ok("aclrtQueryEventStatus", event, ctypes.byref(status))
    return status.value


def _late():
    acl, pinned, device, stream = _prepare()
    acl.faults("aclrtMemcpyAsync:1:delay=1")
    _copy(acl, device, pinned, stream)
    early = acl.read(device, 4)
    timeout = acl.failure("aclrtSynchronizeStreamWithTimeout", stream, 5)
    acl.ok("aclrtSynchronizeStreamWithTimeout", stream, -1)
    return early.hex(), timeout, acl.read(device + 4 * MIB - 4, 4).hex()


def test_queued_work_is_really_asynchronous_and_waiting_for_it_times_out(child):
    assert child(_late) == ["00000000", CODE["WAIT_TIMEOUT"], "07070707"]


def _abort():
    acl, pinned, device, stream = _prepare()
    acl.faults("aclrtMemcpyAsync:1:delay=600")
    for _ in range(3):
        _copy(acl, device, pinned, stream)
    context, codes = acl.made("aclrtGetCurrentContext"), []

    def wait():
        acl.ok("aclrtSetCurrentContext", context)
        codes.append(acl.code("aclrtSynchronizeStreamWithTimeout", stream, 60000))

    waiter = threading.Thread(target=wait)
    waiter.start()
    while acl.library.cachecore_emulator_calls(b"aclrtSynchronizeStreamWithTimeout") == 0:
        time.sleep(0.001)
    time.sleep(0.02)  # counted just before it waits
    acl.ok("aclrtStreamAbort", stream)
    waiter.join(30)
    acl.ok("aclrtSynchronizeStreamWithTimeout", stream, 1000)
    dropped = acl.read(device, 4).hex()
    _copy(acl, device, pinned, stream)  # the stream serves again
    acl.ok("aclrtSynchronizeStreamWithTimeout", stream, 10000)
    return codes, dropped, acl.read(device, 4).hex()


def test_an_abort_ends_waiting_and_drops_what_was_queued(child):
    codes, dropped, served = child(_abort)
    # The waiter either was waiting, or came when all was over.
    assert codes in ([CODE["STREAM_ABORTING"]], [0])
    assert dropped == "00000000"
    assert served == "07070707"


def _order():
    acl, pinned, device, first = _prepare()
    second, event, other = acl.made("aclrtCreateStream"), acl.made("aclrtCreateEvent"), acl.malloc(4 * MIB)
    unrecorded = _query(acl, event)
    acl.faults("aclrtMemcpyAsync:1:delay=1")
    _copy(acl, device, pinned, first)
    acl.ok("aclrtRecordEvent", event, first)
    acl.ok("aclrtStreamWaitEvent", second, event)
    acl.ok("aclrtMemcpyAsync", other, 4 * MIB, device, 4 * MIB, KIND["D2D"], second)
    pending = _query(acl, event)
    acl.ok("aclrtSynchronizeStreamWithTimeout", second, -1)
    return unrecorded, pending, _query(acl, event), acl.read(other, 4).hex()


def test_a_stream_waits_for_the_event_of_another(child):
    assert child(_order) == [COMPLETE, NOT_READY, COMPLETE, "07070707"]


def _dropped_event():
    acl, pinned, device, first = _prepare()
    second, event = acl.made("aclrtCreateStream"), acl.made("aclrtCreateEvent")
    acl.faults("aclrtMemcpyAsync:1:delay=600")
    _copy(acl, device, pinned, first)
    acl.ok("aclrtRecordEvent", event, first)
    acl.ok("aclrtStreamWaitEvent", second, event)
    acl.ok("aclrtDestroyEvent", event)  # allowed while somebody waits for it
    acl.ok("aclrtStreamAbort", first)
    stuck = acl.failure("aclrtSynchronizeStreamWithTimeout", second, 20)
    acl.ok("aclrtStreamAbort", second)
    acl.ok("aclrtSynchronizeStreamWithTimeout", second, 1000)
    return stuck


def test_an_event_that_was_dropped_holds_its_waiters_until_they_are_aborted(child):
    assert child(_dropped_event) == CODE["WAIT_TIMEOUT"]


def _pageable():
    acl, _, device, stream = _prepare()
    data = ctypes.create_string_buffer(b"p" * 100, 100)
    acl.faults("aclrtMemcpyAsync:1:delay=0.05")
    acl.ok("aclrtMemcpyAsync", device, 100, data, 100, KIND["H2D"], stream)
    done = acl.read(device, 1).decode()  # nobody has synchronised
    return done, acl.failure("aclrtMemcpyAsync", data, 100, data, 50, KIND["H2H"], stream)


def test_copies_of_pageable_memory_return_when_done_and_host_to_host_is_refused(child):
    assert child(_pageable) == ["p", CODE["FEATURE_NOT_SUPPORTED"]]


def _foreign():
    acl, pinned, device, stream = _prepare()
    acl.ok("aclrtSetDevice", 1)
    codes = [
        acl.failure("aclrtMemcpyAsync", device, 10, pinned, 10, KIND["H2D"], stream),
        acl.failure("aclrtDestroyStream", stream),
    ]
    acl.ok("aclrtMemcpyAsync", device, 10, pinned, 10, KIND["H2D"], None)  # the default stream of this context
    acl.ok("aclrtSynchronizeStreamWithTimeout", None, -1)
    acl.ok("aclrtSetDevice", 0)
    acl.ok("aclrtDestroyStream", stream)
    return [*codes, acl.failure("aclrtStreamAbort", stream)]


def test_a_stream_belongs_to_its_context(child):
    assert set(child(_foreign, soc="Ascend910B4:2")) == {CODE["STREAM_NOT_IN_CONTEXT"]}


def _late_error():
    acl, pinned, device, stream = _prepare()
    acl.faults("aclrtMemcpyAsync:1:late=507899")
    _copy(acl, device, pinned, stream)
    return [acl.code("aclrtSynchronizeStreamWithTimeout", stream, -1) for _ in range(2)]


def test_an_error_of_queued_work_is_told_at_the_next_wait_once(child):
    assert child(_late_error) == [507899, 0]


def _freed_while_queued():
    acl, pinned, device, stream = _prepare()
    acl.faults("aclrtMemcpyAsync:1:delay=0.1")
    _copy(acl, device, pinned, stream)
    acl.free(device)
    acl.ok("aclrtSynchronizeStreamWithTimeout", stream, -1)
    return acl.used()


def test_memory_that_is_freed_under_queued_work_does_not_crash_the_process(child):
    assert child(_freed_while_queued) == 0
