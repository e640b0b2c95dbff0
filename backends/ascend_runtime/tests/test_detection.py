"""Which devices are found, what is said about those that cannot be used, and that detecting starts nothing."""

from __future__ import annotations

import json

import pytest
from cachecore_ascend_runtime.products import NUMERIC_SOCS, extra_for, unsupported

DETECT = """
from cachecore_ascend_runtime import detect
from cachecore.errors import BackendError
try:
    found = [[d.kind, d.soc, d.count, d.source, d.emulated, d.unsupported, d.install] for d in detect()]
except BackendError as error:
    found = [type(error).__name__, str(error)]
answer(found)
"""


@pytest.mark.parametrize(
    ("soc", "extra"),
    [
        ("Ascend910B1", "ascend-a2a3"),
        ("Ascend910B4-1", "ascend-a2a3"),
        ("Ascend910_9392", "ascend-a2a3"),
        ("Ascend910_9362", "ascend-a2a3"),
        ("Ascend950PR_9599", "ascend-950"),
        ("Ascend950DT_9582", "ascend-950"),
        ("ascend950", "ascend-950"),
        ("Ascend1000", ""),
    ],
)
def test_a_soc_belongs_to_the_extra_that_serves_it(soc: str, extra: str) -> None:
    assert (extra_for(soc), unsupported(soc)) == (extra, "")


@pytest.mark.parametrize(
    ("soc", "line"),
    [
        ("Ascend310P3", "Atlas inference products"),
        ("Ascend310P", "Atlas inference products"),
        ("Ascend310B1", "Atlas 200I/500 A2 inference products"),
        ("Ascend910", "Atlas training products"),
        ("Ascend910A", "Atlas training products"),
        ("Ascend910ProA", "Atlas training products"),
        ("Ascend910ProB", "Atlas training products"),
        ("Ascend910PremiumA", "Atlas training products"),
    ],
)
def test_an_unsupported_soc_is_named_with_its_product_line(soc: str, line: str) -> None:
    reason = unsupported(soc)
    assert reason.startswith(line) and soc in reason and "not supported" in reason
    assert extra_for(soc) == ""


def test_an_emulated_device_is_found_and_says_so(in_process) -> None:
    found = in_process(DETECT, CACHECORE_EMULATE="Ascend910_9392:3")
    ((kind, soc, count, source, emulated, reason, extra),) = found
    assert (kind, soc, count, emulated, reason, extra) == ("ascend", "Ascend910_9392", 3, True, "", "ascend-a2a3")
    assert "CACHECORE_EMULATE" in source and "libascendcl_emulator.so" in source


def test_an_unsupported_device_is_found_with_the_reason(in_process) -> None:
    ((_, soc, _, _, _, reason, extra),) = in_process(DETECT, CACHECORE_EMULATE="Ascend310P3")
    assert soc == "Ascend310P3"
    assert reason == unsupported("Ascend310P3") and extra == ""


def test_a_library_on_disk_is_found_without_a_device_context(in_process, stub, tmp_path) -> None:
    library = stub(tmp_path / "lib64")
    code = f"""{DETECT.replace("answer(found)", "")}
from cachecore_ascend_runtime import load
answer([found, load().current_device()])
"""
    found, current = in_process(code, ASCEND_HOME_PATH=str(tmp_path))
    assert found == [
        ["ascend", "Ascend910B4", 8, f"ASCEND_HOME_PATH ({tmp_path}), {library}", False, "", "ascend-a2a3"]
    ]
    assert current is None


def test_a_library_that_does_not_work_is_an_error_and_not_no_device(in_process, stub, tmp_path) -> None:
    stub(tmp_path / "lib64", "STUB_INIT=507033")
    name, text = in_process(DETECT, ASCEND_HOME_PATH=str(tmp_path))
    assert name == "RuntimeStartError" and "507033" in text


def test_no_visible_device_is_an_error_that_names_the_setting(in_process, stub, tmp_path) -> None:
    """Whether the runtime counts none or answers with an error."""
    name, text = in_process(DETECT, CACHECORE_EMULATE="Ascend910B4:2", ASCEND_RT_VISIBLE_DEVICES="7")
    assert name == "RuntimeStartError" and "ASCEND_RT_VISIBLE_DEVICES" in text
    stub(tmp_path / "lib64", "STUB_DEVICES=0")
    name, text = in_process(DETECT, ASCEND_HOME_PATH=str(tmp_path), ASCEND_RT_VISIBLE_DEVICES="7")
    assert name == "BackendError" and "ASCEND_RT_VISIBLE_DEVICES is '7'" in text and "'host'" in text


@pytest.mark.parametrize("form", ["npu.get_soc_version", "_C._npu_get_soc_version"])
@pytest.mark.parametrize(
    ("number", "soc", "extra"),
    [
        (220, "Ascend910B1", "ascend-a2a3"),
        (225, "Ascend910B4-1", "ascend-a2a3"),
        (251, "Ascend910_9392", "ascend-a2a3"),
        (260, "Ascend950", "ascend-950"),
        (204, "Ascend310P", ""),
        (999, "torch_npu SoC version 999", ""),
    ],
)
def test_where_only_torch_knows_the_soc_its_number_is_taken(in_process, form, number, soc, extra) -> None:
    """No library is in a place that we know; detection must then import and load nothing of its own."""
    where, name = form.split(".")
    code = f"""
import sys, types
torch_npu = types.ModuleType("torch_npu")
torch_npu.npu, torch_npu._C = types.SimpleNamespace(device_count=lambda: 8), types.SimpleNamespace()
setattr(torch_npu.{where}, {name!r}, lambda: {number})
sys.modules["torch_npu"] = torch_npu
{DETECT}
"""
    ((_, found, count, source, emulated, reason, install),) = in_process(code)
    assert (found, count, emulated, install) == (soc, 8, False, extra)
    assert source == f"torch_npu, SoC version {number}"
    assert bool(reason) == (number == 204)


def test_every_number_of_torch_has_a_name_that_leads_somewhere() -> None:
    for number, soc in NUMERIC_SOCS.items():
        assert bool(unsupported(soc)) != bool(extra_for(soc)), f"{number} is {soc}, which is neither served nor refused"


def test_a_torch_that_says_nothing_is_an_error(in_process) -> None:
    code = f"import sys, types\nsys.modules['torch_npu'] = types.ModuleType('torch_npu')\n{DETECT}"
    name, text = in_process(code)
    assert name == "BackendError" and "set_env.sh" in text


def test_the_plugin_is_found_and_reports_a_failed_detection_as_its_own(in_process, stub, tmp_path) -> None:
    """Selection then refuses to choose instead of falling back to the host."""
    stub(tmp_path / "lib64", "STUB_SOC=NULL")
    code = """
from cachecore.plugins import discover
plugins = discover()
devices, failed = plugins.detect()
answer([[str(one) for one in plugins.broken], [d.soc for d in devices], [[one.name, one.distribution, one.reason] for one in failed]])
"""
    broken, devices, failed = in_process(code, ASCEND_HOME_PATH=str(tmp_path))
    assert broken == [] and devices == []
    ((name, distribution, reason),) = failed
    assert (name, distribution) == ("ascend", "cachecore-ascend-runtime")
    assert "RuntimeStartError" in reason and "aclrtGetSocName" in reason
    assert in_process(code) == [[], [], []], json.dumps("without a library there is nothing to report")
