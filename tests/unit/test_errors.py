"""The exception tree: what a caller catches, and that errors survive the way between processes."""

import dataclasses
import pickle
import threading

import pytest

from cachecore import errors
from cachecore.outcome import BlockRange, FailureCause, Outcome, OutcomeState

LEAVES = [
    errors.CacheError("text"),
    errors.CacheTypeError("text"),
    errors.CacheNotFoundError("text"),
    errors.MissingArgumentError("text"),
    errors.CacheOutOfMemoryError("text"),
    errors.AuthenticationError("text"),
    errors.AddressBudgetError("text", used=1, asked=2, limit=3),
    errors.AlignmentError("text", tensor_index=1, address=2, alignment=3, origin="VMM"),
    errors.CacheBusyError("text", peers=(1,), ranges=((2, 3),)),
    errors.EngineError("text", operation="register", code=7),
    errors.NotSupportedError("text", product="A2", feature="remap"),
    errors.LinkLostError("text", state="STALLED"),
    errors.TransferTimeoutError(
        "text",
        outcome=Outcome.untouched_by(FailureCause.DEADLINE, 3),
        landed=(BlockRange(0, 1, 2),),
        unknown=(BlockRange(1, 1, 2),),
    ),
]


@pytest.mark.parametrize("error", LEAVES, ids=lambda e: type(e).__name__)
def test_an_error_comes_out_of_pickle_as_it_went_in(error):
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert str(twin) == str(error) == "text"
    assert twin.__dict__ == error.__dict__


@pytest.mark.parametrize(
    ("leaf", "builtin", "status"),
    [
        (errors.CacheTypeError, TypeError, errors.StatusCode.PARAM_INVALID),
        (errors.CacheValueError, ValueError, errors.StatusCode.PARAM_INVALID),
        (errors.MissingArgumentError, AttributeError, errors.StatusCode.PARAM_INVALID),
        (errors.CacheNotFoundError, KeyError, errors.StatusCode.KV_CACHE_NOT_EXIST),
        (errors.CacheKeyExistsError, ValueError, errors.StatusCode.CACHE_KEY_ALREADY_EXIST),
        (errors.CacheIncompatibleError, ValueError, errors.StatusCode.CACHE_INCOMPATIBLE),
        (errors.NotLinkedError, ConnectionError, errors.StatusCode.NOT_YET_LINK),
        (errors.AlreadyLinkedError, ConnectionError, errors.StatusCode.ALREADY_LINK),
        (errors.LinkLostError, ConnectionError, errors.StatusCode.LINK_FAILED),
        (errors.TransferTimeoutError, TimeoutError, errors.StatusCode.TIMEOUT),
        (errors.CacheTimeoutError, TimeoutError, errors.StatusCode.TIMEOUT),
        (errors.NotSupportedError, NotImplementedError, errors.StatusCode.FEATURE_NOT_ENABLED),
        (errors.CacheOutOfMemoryError, MemoryError, errors.StatusCode.OUT_OF_MEMORY),
        (errors.AuthenticationError, PermissionError, errors.StatusCode.LINK_FAILED),
    ],
)
def test_a_leaf_is_caught_as_the_builtin_and_as_the_base(leaf, builtin, status):
    error = leaf("text")
    assert isinstance(error, builtin) and isinstance(error, errors.CacheError) and isinstance(error, RuntimeError)
    assert error.status_code is status


def test_status_codes_have_the_numbers_of_the_vendor():
    assert errors.StatusCode.SUCCESS == 0
    assert errors.StatusCode.FAILED == 0xFFFFFFFF
    assert errors.StatusCode.WAIT_PROC_TIMEOUT == 0x5010B001
    assert errors.StatusCode.OUT_OF_MEMORY == 0x5010B000 + 28
    assert len(errors.StatusCode) == 30


def test_an_error_pickles_whatever_its_engine_gave_as_a_ticket():
    unknown = Outcome(OutcomeState.UNKNOWN, unknown=((0, 1),), cause=FailureCause.DEADLINE, ticket=threading.Lock())
    twin = pickle.loads(pickle.dumps(errors.TransferTimeoutError("text", outcome=unknown)))
    assert twin.outcome == dataclasses.replace(unknown, ticket=None)
