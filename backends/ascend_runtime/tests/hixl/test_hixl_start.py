"""How the engine is found, told its options and started; what it refuses before anything native is tried."""

import json
import socket
import sys
from dataclasses import replace

import pytest
from cachecore_ascend_runtime import hixl_engine, hixl_module
from cachecore_ascend_runtime.errors import EmulatorNotInstalledError
from cachecore_ascend_runtime.hixl_endpoint import Endpoint
from cachecore_ascend_runtime.hixl_options import HixlOptions
from cachecore_ascend_runtime.hixl_profile import DEVICE_TO_DEVICE, HixlProfile, profile_of

from cachecore.driver import Capability
from cachecore.errors import (
    BackendError,
    CacheTypeError,
    CacheValueError,
    EngineError,
    ForkedProcessError,
    LinkFailedError,
)
from cachecore.testing.reference import ReferenceDriver

A2 = HixlProfile("A2", "Ascend910B4", ("hccs:device",), Capability(DEVICE_TO_DEVICE, "a test"))


def test_a_missing_module_says_which_package_of_cann_brings_it(monkeypatch):
    monkeypatch.delenv("CACHECORE_EMULATE", raising=False)
    monkeypatch.setitem(sys.modules, "hixl", None)  # importing it is a ModuleNotFoundError
    with pytest.raises(hixl_module.HixlNotInstalledError, match=r"Ascend-cann-toolkit.*cann-hixl.*set_env\.sh"):
        hixl_module.find_module()


def test_a_module_that_does_not_load_says_why(monkeypatch, tmp_path):
    (tmp_path / "hixl.py").write_text("raise ImportError('libcann_hixl.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CACHECORE_EMULATE", raising=False)
    monkeypatch.delitem(sys.modules, "hixl", raising=False)
    with pytest.raises(hixl_module.HixlNotInstalledError, match=r"does not load \(libcann_hixl"):
        hixl_module.find_module()


def test_emulation_without_the_emulator_is_an_error_and_no_fallback(monkeypatch, double):
    monkeypatch.setenv("CACHECORE_EMULATE", "Ascend910B4")
    monkeypatch.setitem(sys.modules, "cachecore_ascend_emulator", None)
    with pytest.raises(EmulatorNotInstalledError, match="cachecore-ascend-emulator"):
        hixl_module.find_module()


def test_what_the_vendors_initialize_is_told():
    told = HixlOptions.checked({}).native(A2)
    assert json.loads(told.pop("GlobalResourceConfig")) == {"comm_resource_config.protocol_desc": ["hccs:device"]}
    assert told == {"LocalCommRes": "", "BufferPool": "0:0"}
    full = HixlOptions.checked(
        {"traffic_class": 136, "service_level": 0, "buffer_pool": "4:8", "local_comm_res": '{"version": "1.2"}'}
    ).native(replace(A2, needs_local_comm_res=True))
    del full["GlobalResourceConfig"]
    assert full == {
        "LocalCommRes": '{"version": "1.2"}',
        "BufferPool": "4:8",
        "RdmaTrafficClass": "136",
        "RdmaServiceLevel": "0",
    }
    needy = HixlOptions.checked({}).native(replace(A2, needs_local_comm_res=True))
    assert needy["LocalCommRes"] == '{"version": "1.3"}' and "BufferPool" not in needy
    fabric = HixlOptions.checked({}).native(replace(A2, fabric_memory=True))
    assert fabric["EnableUseFabricMem"] == "1" and "BufferPool" not in fabric


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("ports", "0-5", CacheValueError),
        ("ports", "30-20", CacheValueError),
        ("ports", "70000", CacheValueError),
        ("ports", 26300, CacheTypeError),
        ("host", "example.org", CacheValueError),
        ("host", "0.0.0.0", CacheValueError),
        ("traffic_class", 133, CacheValueError),
        ("traffic_class", 256, CacheValueError),
        ("service_level", 8, CacheValueError),
        ("service_level", True, CacheTypeError),
        ("buffer_pool", "4", CacheValueError),
        ("local_comm_res", "{version", CacheValueError),
        ("local_comm_res", "[]", CacheValueError),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(name, value, error):
    with pytest.raises(error, match=rf"hixl\.{name}"):
        HixlOptions.checked({name: value})


def test_a_version_6_address_is_spelled_with_brackets():
    options = HixlOptions.checked({"host": "[::1]", "ports": "26300"})
    assert options.address(options.first_port) == "[::1]:26300"


def test_only_drivers_that_say_how_they_use_hixl_are_served():
    assert not hixl_engine.ENGINE.serves(ReferenceDriver())
    with pytest.raises(CacheValueError, match="hixl_profile"):
        profile_of(ReferenceDriver())
    with pytest.raises(CacheValueError, match="hccs:host"):
        replace(A2, protocols=("hccs:host",))


# --- ports ------------------------------------------------------------------------------------------------------------


def test_ports_are_tried_until_one_can_be_had(world, double):
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        first = used.getsockname()[1]
        double.taken = {first + 1}
        engine = world.engine(ports=f"{first}-{first + 2}")
    tried = [call[1] for call in double.calls if call[0] == "initialize"]
    assert tried[-1] == Endpoint.decode(engine.endpoint()).address == f"127.0.0.1:{first + 2}"
    assert f"127.0.0.1:{first}" not in tried, "a port that is in use was tried"


def test_a_start_that_fails_whatever_the_port_says_so_soon(world, double):
    double.planned["initialize"] = [503900] * 256
    with pytest.raises(EngineError, match="503900") as caught:
        world.engine()
    assert len(double.calls) == 3 and caught.value.code == 503900
    double.planned["initialize"], double.calls[:] = [103900], []
    with pytest.raises(EngineError, match=r"103900.*hixl\.local_comm_res"):
        world.engine()
    assert len(double.calls) == 1, "another port was tried although the options are wrong"
    double.planned["initialize"] = [RuntimeError("no device")] * 3
    with pytest.raises(EngineError, match="no device"):
        world.engine()


def test_an_address_of_another_machine_is_refused(world):
    with pytest.raises(EngineError, match=r"203\.0\.113\.1.*no address of this machine"):
        world.engine(host="203.0.113.1")


# --- one for a process and device -------------------------------------------------------------------------------------


def test_managers_share_the_engine_of_their_device(world, double):
    first, second = world.engine(), world.engine()
    assert first.endpoint() == second.endpoint()
    assert first.close(0.0) == [] and double.names() == ["initialize"]
    assert first.close(0.0) == [], "closing twice gave the engine back twice"
    assert second.close(0.0) == [] and double.names() == ["initialize", "finalize"]
    with pytest.raises(EngineError, match="closed"):
        second.endpoint()


def test_other_options_for_a_running_engine_are_refused_and_named(world):
    world.engine(service_level=3)
    with pytest.raises(BackendError, match="service_level 3 and not None"):
        world.engine()
    world.driver.profile = replace(world.driver.profile, protocols=("roce:device",))
    with pytest.raises(BackendError, match="roce:device"):
        world.engine(service_level=3)


def test_a_fork_may_not_use_the_engine(world, monkeypatch):
    engine = world.engine()
    monkeypatch.setattr(hixl_engine.os, "getpid", lambda: -1)
    with pytest.raises(ForkedProcessError):
        engine.endpoint()
    assert engine.close(0.0) == []
    monkeypatch.undo()
    assert engine.endpoint()


# --- endpoints --------------------------------------------------------------------------------------------------------

HERE = Endpoint("127.0.0.1:26300", "aa", 1, "Ascend910B4", ("hccs:device", "roce:device"), False, "here")
THERE = replace(HERE, address="127.0.0.1:26301", identity="bb")


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (replace(THERE, identity="aa"), "own engine"),
        (replace(THERE, network="elsewhere"), r"its own machine.*hixl\.host"),
        (replace(THERE, address="[::1]:5", network="elsewhere"), r"hixl\.host"),
        (replace(THERE, emulated=True), "CACHECORE_EMULATE"),
        (replace(THERE, protocols=("roce:host",)), "transport"),
    ],
)
def test_a_peer_that_cannot_be_meant_is_refused_with_the_way_out(peer, message):
    HERE.check_reachable(THERE)
    HERE.check_reachable(replace(THERE, address="10.0.0.7:26300", network="elsewhere", protocols=("roce:device",)))
    with pytest.raises(LinkFailedError, match=message):
        HERE.check_reachable(Endpoint.decode(peer.encode()))


@pytest.mark.parametrize("address", ["", "example.org:1", "127.0.0.1", "127.0.0.1:1 ", "127.0.0.1:999999"])
def test_an_endpoint_with_another_kind_of_address_is_refused(address):
    with pytest.raises(LinkFailedError, match="not ip:port"):
        Endpoint.decode(replace(THERE, address=address).encode())
