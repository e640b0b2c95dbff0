import os

import cachecore_ascend_emulator as emulator
import pytest
from emulated_acl import ABI, CODE, Acl

VALUES = {
    f"{group}.{name}": value
    for group, values in ABI.items()
    if group not in ("functions", "newer")
    for name, value in values.items()
}


def _values():
    acl = Acl(device=None)
    return {name: acl.library.cachecore_emulator_documented(name.encode()) for name in VALUES}


def test_layouts_enumerators_and_codes_are_the_documented_ones(child):
    assert child(_values) == VALUES


def _exported():
    return {
        which: [name for name in ABI["functions"] if hasattr(Acl(path, device=None).library, name)]
        for which, path in (("all", emulator.library_path()), ("old", emulator.old_library_path()))
    }


def test_every_documented_function_is_there_and_an_old_runtime_lacks_the_newer_ones(child):
    exported = child(_exported)
    assert exported["all"] == list(ABI["functions"])
    assert exported["old"] == [name for name in ABI["functions"] if name not in ABI["newer"]]


def _works_without():
    acl = Acl()
    pointer = acl.malloc(1000)
    acl.write(pointer, b"bytes")
    return [name for name in ABI["functions"] if not hasattr(acl.library, name)], acl.read(pointer, 5).decode()


@pytest.mark.parametrize(
    ("hide", "missing"),
    [
        ("aclrtPointerGetAttributes", ["aclrtPointerGetAttributes"]),
        ("aclrtMemcpyBatch, aclrtMemGetAddressRange", ["aclrtMemcpyBatch", "aclrtMemGetAddressRange"]),
        ("newer", ABI["newer"]),
    ],
)
def test_hidden_functions_are_not_found_and_the_rest_works(child, hide, missing):
    found, data = child(_works_without, CACHECORE_EMULATE_HIDE=hide)
    assert sorted(found) == sorted(missing)
    assert data == "bytes"


def _hide_unknown():
    os.environ["CACHECORE_EMULATE_HIDE"] = "aclrtMisspelt"
    with pytest.raises(ValueError, match="aclrtMisspelt"):
        emulator.library_path()


def test_a_misspelt_name_to_hide_is_an_error(child):
    child(_hide_unknown)


def _null_everywhere():
    acl = Acl()
    wrong = {}
    for name, parameters in ABI["functions"].items():
        pointers = [kind for kind in parameters if kind in ("out", "ptr")]
        if pointers and name not in ("aclrtStreamAbort", "aclrtSynchronizeStreamWithTimeout"):
            code = acl.code(name, *[None if kind in ("out", "ptr") else 1 for kind in parameters])
            if code != CODE["INVALID_PARAMETER"]:
                wrong[name] = code
    return wrong


def test_null_is_refused_by_every_function_that_takes_a_pointer(child):
    assert child(_null_everywhere) == {}


def test_description_says_emulated(monkeypatch):
    monkeypatch.setenv("CACHECORE_EMULATE", "Ascend910_9392:2")
    monkeypatch.setenv("CACHECORE_EMULATE_HIDE", "newer")
    description = emulator.describe()
    assert description.soc == "Ascend910_9392"
    assert str(description).startswith("emulated Ascend910_9392, ")
    assert "CACHECORE_EMULATE_HIDE=newer" in str(description)
    assert description.library == emulator.old_library_path()
