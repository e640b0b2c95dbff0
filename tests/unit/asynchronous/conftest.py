"""Makes `transfer_pair` importable, and the pair."""

import sys
from pathlib import Path

import pytest

import cachecore as cc

sys.path.insert(0, str(Path(__file__).parent))

from transfer_pair import Pair


@pytest.fixture
def pair():
    """An owner and a reader of this process, linked, with a cache of single-tensor layers each."""
    with (
        cc.CacheManager(1, backend="host", listen="127.0.0.1:0") as owner,
        cc.CacheManager(2, backend="host", options={"manager.transfer_threads": 2}) as reader,
    ):
        reader.link(1, owner.address, timeout=10)
        yield Pair(owner, reader)
