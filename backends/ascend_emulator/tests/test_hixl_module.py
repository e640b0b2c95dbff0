import inspect

import cachecore_ascend_emulator
import pytest
from emulated_acl import ABI

hixl = cachecore_ascend_emulator.hixl_module()

SIGNATURES = {
    "initialize": ["local_engine", "options"],
    "finalize": [],
    "register_mem": ["mem_desc", "mem_type"],
    "deregister_mem": ["mem_handle"],
    "connect": ["remote_engine", "timeout_in_millis"],
    "disconnect": ["remote_engine", "timeout_in_millis"],
    "connect_async": ["remote_engine", "timeout_in_millis"],
    "disconnect_async": ["remote_engine", "timeout_in_millis"],
    "get_async_connect_status": ["remote_engine"],
    "transfer_sync": ["remote_engine", "op", "op_descs", "timeout_in_millis"],
    "transfer_async": ["remote_engine", "op", "op_descs", "args"],
    "get_transfer_status": ["req_id"],
    "send_notify": ["remote_engine", "notify", "timeout_in_millis"],
    "get_notifies": [],
}


def test_names_and_signatures_are_the_documented_ones():
    for name, parameters in SIGNATURES.items():
        signature = inspect.signature(getattr(hixl.Hixl(), name))
        assert list(signature.parameters) == parameters
        if "timeout_in_millis" in parameters:
            assert signature.parameters["timeout_in_millis"].default == 1000
    assert {p.kind for p in inspect.signature(hixl.Hixl().register_mem).parameters.values()} == {
        inspect.Parameter.POSITIONAL_ONLY
    }
    assert {name: getattr(hixl, name) for name in ABI["hixl"]} == ABI["hixl"]
    members = [
        (hixl.MemType, {"MEM_DEVICE": 0, "MEM_HOST": 1}),
        (hixl.TransferOp, {"READ": 0, "WRITE": 1}),
        (hixl.TransferStatus, {"WAITING": 0, "COMPLETED": 1, "TIMEOUT": 2, "FAILED": 3}),
        (hixl.FeatureType, {"AUTO_CONNECT": 0, "CLIENT_SERVER_COMM": 1}),
    ]
    for kind, values in members:
        assert {member.name: member.value for member in kind} == values


def test_wrong_types_are_type_errors():
    engine, desc = hixl.Hixl(), hixl.MemDesc(1, 2)
    for wrong in (
        lambda: hixl.MemDesc(-1, 2),
        lambda: hixl.MemDesc(1, 2**64),
        lambda: hixl.TransferOpDesc(1, 2, 1.5),
        lambda: engine.register_mem(desc, 0),
        lambda: engine.register_mem((1, 2), hixl.MemType.MEM_HOST),
        lambda: engine.initialize(b"127.0.0.1"),
        lambda: engine.transfer_sync("127.0.0.1:1", hixl.TransferOp.READ, [(1, 2, 3)]),
        lambda: engine.connect("127.0.0.1:1", 2**31),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_capabilities():
    assert hixl.get_capability(hixl.FeatureType.AUTO_CONNECT) == (0, hixl.FEATURE_SUPPORTED)
    assert hixl.get_capability(99) == (0, hixl.FEATURE_NOT_SUPPORTED)
    assert hixl.get_capability(-1) == (hixl.PARAM_INVALID, hixl.FEATURE_NOT_SUPPORTED)


def _without_device():
    import emulated_acl

    runtime = emulated_acl.Acl(device=None)
    engine = hixl.Hixl()
    before = engine.initialize("127.0.0.1", {"BufferPool": "0:0"})
    runtime.ok("aclInit", None)
    unset = engine.initialize("127.0.0.1", {"BufferPool": "0:0"})
    runtime.ok("aclrtSetDevice", 0)
    used = [hixl.Hixl().register_mem(hixl.MemDesc(1, 2), hixl.MemType.MEM_HOST)[0], hixl.Hixl().get_notifies()[0]]
    assert engine.initialize("127.0.0.1", {"BufferPool": "0:0"}) == 0
    second = hixl.Hixl().initialize("127.0.0.1", {"BufferPool": "0:0"})
    runtime.ok("aclrtSetDevice", 1)
    other_device = hixl.Hixl()
    assert other_device.initialize("127.0.0.1", {"BufferPool": "0:0"}) == 0
    del engine
    runtime.ok("aclrtSetDevice", 0)
    assert hixl.Hixl().initialize("127.0.0.1", {"BufferPool": "0:0"}) == 0  # a dropped engine is finalized
    return [before, unset, second, *used]


def test_an_engine_needs_a_device_and_each_device_has_one(child):
    assert set(child(_without_device, soc="Ascend910B4:2")) == {hixl.FAILED}
