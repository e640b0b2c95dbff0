"""Error codes in words, and errors that carry them over process boundaries."""

from __future__ import annotations

import errno
import pickle

import pytest
from cachecore_ascend_runtime import AscendError, AscendOutOfMemoryError, explain
from cachecore_ascend_runtime.codes import ACL, HIXL, acl_code, hixl_code
from cachecore_ascend_runtime.errors import RuntimeNotFoundError, describe_failure, from_code
from cachecore_ascend_runtime.symbols import COSTS

from cachecore.errors import CacheOutOfMemoryError, EngineError, StatusCode

#: Written down from the documentation a second time, and not from codes.py.
DOCUMENTED = {
    100000: "invalid parameter", 100001: "not initialised", 100002: "already", 107000: "invalid parameter",
    107001: "no such device", 107002: "no context", 107003: "another context", 107008: "not aligned",
    107016: "wrong type", 107017: "handle", 107018: "another kind", 107019: "wait", 107022: "abort",
    107023: "abort", 200000: "memory of the host", 200001: "does not have this function",
    207000: "does not have this feature", 207001: "out of memory", 207002: "could not be freed", 207004: "no device",
    207005: "used up", 207006: "not permitted", 207012: "limit",
}  # fmt: skip
HIXL_DOCUMENTED = {
    103900: "PARAM_INVALID", 103901: "TIMEOUT", 103902: "NOT_CONNECTED", 103903: "ALREADY_CONNECTED",
    103904: "NOTIFY_FAILED", 103905: "UNSUPPORTED", 203900: "RESOURCE_EXHAUSTED", 503900: "FAILED",
}  # fmt: skip


@pytest.mark.parametrize("code", DOCUMENTED)
def test_a_documented_code_of_the_runtime_has_its_words(code: int) -> None:
    assert DOCUMENTED[code] in acl_code(code).words
    (meaning,) = explain(code)
    assert meaning.library == "the Ascend runtime" and str(code) in str(meaning)


def test_documented_codes_of_hixl_have_their_names() -> None:
    assert {code: entry.name for code, entry in HIXL.items()} == HIXL_DOCUMENTED
    assert explain(503900)[0].name == "FAILED"
    assert hixl_code(207001) is ACL[207001], "HIXL hands on codes of the runtime"


@pytest.mark.parametrize(
    ("code", "words"), [(107999, "caller"), (207999, "resource"), (507999, "internal error"), (7, "not a code")]
)
def test_a_code_without_a_name_is_explained_by_its_range(code: int, words: str) -> None:
    assert words in acl_code(code).words
    assert bool(explain(code)) == (code > 1000)


def test_no_context_names_the_missing_step() -> None:
    error = from_code("aclrtMalloc", 107002, "")
    assert "torch.npu.set_device" in str(error) and "aclrtSetDevice" in str(error)


def test_an_error_names_function_code_words_text_and_remedy() -> None:
    error = from_code("aclrtMemcpyAsync", 207000, "EE9999: inner error\n   the driver says no \n")
    assert str(error) == (
        "aclrtMemcpyAsync failed with 207000 (the driver or product does not have this feature): EE9999: inner error; "
        "the driver says no. Update the driver (HDK) and CANN to versions that belong together; for fabric memory on A3, "
        "HDK 25.5.0 and CANN 9.1.0"
    )
    assert isinstance(error, EngineError) and not isinstance(error, MemoryError)


def test_a_system_call_is_explained_by_its_errno() -> None:
    assert describe_failure("process_vm_readv", errno.EPERM, "") == (
        "process_vm_readv failed with 1 (Operation not permitted)"
    )


def test_errors_cross_process_boundaries_whole() -> None:
    error = pickle.loads(pickle.dumps(from_code("aclrtMalloc", 207001, "text")))
    assert isinstance(error, AscendOutOfMemoryError) and isinstance(error, CacheOutOfMemoryError)
    assert (error.operation, error.code, error.detail) == ("aclrtMalloc", 207001, "text")
    assert error.status_code is StatusCode.DEVICE_OUT_OF_MEMORY
    other = pickle.loads(pickle.dumps(RuntimeNotFoundError("nowhere", places=("a", "b"))))
    assert (str(other), other.places) == ("nowhere", ("a", "b"))
    plain = pickle.loads(pickle.dumps(AscendError("x", operation="f", code=3)))
    assert (plain.operation, plain.code, plain.detail) == ("f", 3, "")


def test_text_that_is_no_utf8_does_not_hide_the_error(in_process, stub, tmp_path) -> None:
    stub(tmp_path / "lib64", "STUB_NEWER", "STUB_INIT=507000", 'STUB_MESSAGE="\\xb4\\xed\\xce\\xf3"')
    code = """
from cachecore_ascend_runtime import load
try:
    load()
except Exception as error:
    answer([type(error).__name__, str(error)])
"""
    name, text = in_process(code, ASCEND_HOME_PATH=str(tmp_path))
    assert name == "RuntimeStartError" and "507000" in text and "\ufffd" in text


def test_the_cost_of_every_missing_function_is_known(in_process, stub, tmp_path) -> None:
    stub(tmp_path / "lib64")
    code = "from cachecore_ascend_runtime import load\nanswer(sorted(load().missing_symbols))"
    listed = set(in_process(code, ASCEND_HOME_PATH=str(tmp_path)))
    assert listed == set(COSTS)


def test_the_core_explains_codes_of_the_runtime_through_the_plugin() -> None:
    from cachecore.cli.explain import explanations

    assert any("the Ascend runtime" in line for line in explanations("107002"))
    assert any("HIXL" in line for line in explanations("103902"))
