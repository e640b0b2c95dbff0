"""A process with an emulated device and transfer engine that does what its parent tells it, line by line.

Reads one JSON list a line from stdin, the name of a command and its arguments, and answers each with one JSON object
on stdout. It ends when stdin ends, so that it never outlives the test.
"""

import ctypes
import hashlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cachecore_ascend_emulator
from emulated_acl import Acl

hixl = cachecore_ascend_emulator.hixl_module()


def content(seed, nbytes):
    """Bytes that no other seed has at the same place."""
    pieces = (hashlib.sha256(f"{seed}/{index}".encode()).digest() for index in range(nbytes // 32 + 1))
    return b"".join(pieces)[:nbytes]


class Peer:
    """The commands."""

    def __init__(self):
        self.acl = Acl()
        self.engine = hixl.Hixl()

    def start(self, address, options=None):
        defaults = {"BufferPool": "0:0", "LocalCommRes": '{"version": "1.3"}'}
        chosen = {name: value for name, value in {**defaults, **(options or {})}.items() if value is not None}
        return self.engine.initialize(address, chosen)

    def malloc(self, nbytes, policy="HUGE_ONLY"):
        return self.acl.malloc(nbytes, policy)

    def free(self, address):
        return self.acl.code("aclrtFree", address)

    def mapped(self, blocks):
        return self.acl.map_blocks(blocks)

    def pinned(self, nbytes):
        return self.acl.made("aclrtMallocHost", nbytes)

    def plain(self, nbytes):
        self.buffer = ctypes.create_string_buffer(nbytes)
        return ctypes.addressof(self.buffer)

    def fill(self, address, nbytes, seed):
        data = ctypes.create_string_buffer(content(seed, nbytes), nbytes)
        self.acl.ok("aclrtMemcpy", address, nbytes, data, nbytes, 4)

    def holds(self, address, nbytes, seed):
        """Whether these bytes are content(seed)."""
        data = ctypes.create_string_buffer(nbytes)
        self.acl.ok("aclrtMemcpy", data, nbytes, address, nbytes, 4)
        return data.raw == content(seed, nbytes)

    def register(self, address, nbytes, kind="MEM_DEVICE"):
        return self.engine.register_mem(hixl.MemDesc(address, nbytes), hixl.MemType[kind])

    def deregister(self, handle):
        return self.engine.deregister_mem(handle)

    def connect(self, remote, timeout=20000):
        return self.engine.connect(remote, timeout)

    def disconnect(self, remote, timeout=20000):
        return self.engine.disconnect(remote, timeout)

    def transfer(self, remote, op, elements, timeout=20000):
        return self.engine.transfer_sync(
            remote, hixl.TransferOp[op], [hixl.TransferOpDesc(*element) for element in elements], timeout
        )

    def begin(self, remote, op, elements):
        return self.engine.transfer_async(
            remote, hixl.TransferOp[op], [hixl.TransferOpDesc(*element) for element in elements]
        )

    def state(self, request):
        status, state = self.engine.get_transfer_status(request)
        return status, state.name

    def end_state(self, request):
        """The first state that is not WAITING."""
        while (answer := self.state(request))[1] == "WAITING":
            time.sleep(0.001)
        return answer

    def notify(self, remote, name, text, timeout=20000):
        return self.engine.send_notify(remote, hixl.NotifyDesc(name, text), timeout)

    def notify_many(self, remote, count):
        return [self.notify(remote, str(index), "") for index in range(count)]

    def notifies(self):
        status, taken = self.engine.get_notifies()
        return status, [[one.name, one.notify_msg] for one in taken]

    def connect_later(self, remote, action="connect", timeout=20000):
        status = getattr(self.engine, f"{action}_async")(remote, timeout)
        while (state := self.engine.get_async_connect_status(remote)[1]).name.endswith(("PENDING", "ING")):
            time.sleep(0.001)
        return status, state.name

    def faults(self, plan):
        self.acl.faults(plan)

    def finalize(self):
        return self.engine.finalize()

    def describe(self):
        return repr(self.engine)

    def hold(self, seconds):
        """Keep the interpreter busy: PyDLL does not release the GIL."""
        print(json.dumps({"result": None}), flush=True)
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def main():
    peer = Peer()
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        try:
            answer = {"result": getattr(peer, command)(*arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if command != "hold":
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
