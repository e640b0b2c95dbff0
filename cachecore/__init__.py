"""Register paged KV caches and move their blocks between LLM serving processes.

    import cachecore as cc

    with cc.CacheManager(cluster_id=1, listen="127.0.0.1:0") as manager:
        desc = cc.CacheDesc(num_tensors=64, shape=[512, 128, 8, 128], data_type=cc.DataType.DT_FLOAT16)
        cache = manager.register_blocks_cache(desc, addresses, cc.BlocksCacheKey(1))

What a product line asks for is in its backend driver, chosen from the SoC that is found; `CacheManager` is the same
on all of them.
"""

import logging as _logging
from importlib.metadata import version as _version

from cachecore.errors import (
    AddressBudgetError,
    AddressMovedError,
    AlignmentError,
    AlreadyLinkedError,
    AuthenticationError,
    BackendError,
    CacheBusyError,
    CacheError,
    CacheIncompatibleError,
    CacheKeyExistsError,
    CacheNotFoundError,
    CacheOutOfMemoryError,
    CacheTimeoutError,
    CacheTypeError,
    CacheValueError,
    EngineError,
    ForkedProcessError,
    LeaseExpiredError,
    LinkBusyError,
    LinkFailedError,
    LinkLostError,
    ManagerClosedError,
    MemoryAccessError,
    MissingArgumentError,
    NotLinkedError,
    NotSupportedError,
    OverlapError,
    PlacementError,
    RegistrationRefusedError,
    StatusCode,
    StillReachableError,
    TransferCancelledError,
    TransferError,
    TransferTimeoutError,
)
from cachecore.layers import LayersCache, LayerTensor, TensorSpec
from cachecore.layerwise import LayerSynchronizer, TransferConfig, TransferWithCacheKeyConfig
from cachecore.leases import BlockLease, LeaseInfo
from cachecore.manager import CacheManager
from cachecore.notifications import Notification
from cachecore.outcome import BlockRange, FailureCause, Outcome, OutcomeState
from cachecore.peer import Peer
from cachecore.peers import InsecureLinkWarning, Security
from cachecore.slices import BlockSlice
from cachecore.stats import Stats
from cachecore.transfers.cache_task import CacheTask
from cachecore.transfers.handles import Progress, Transfer
from cachecore.types import (
    NO_ID,
    BlocksCacheKey,
    Cache,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    MemInfo,
    Memtype,
    Placement,
    RegisterMemStatus,
)

__version__ = _version("cachecore-kv")

__all__ = [
    "NO_ID",
    "AddressBudgetError",
    "AddressMovedError",
    "AlignmentError",
    "AlreadyLinkedError",
    "AuthenticationError",
    "BackendError",
    "BlockLease",
    "BlockRange",
    "BlockSlice",
    "BlocksCacheKey",
    "Cache",
    "CacheBusyError",
    "CacheDesc",
    "CacheError",
    "CacheIncompatibleError",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "CacheKeyExistsError",
    "CacheManager",
    "CacheNotFoundError",
    "CacheOutOfMemoryError",
    "CacheTask",
    "CacheTimeoutError",
    "CacheTypeError",
    "CacheValueError",
    "DataType",
    "EngineError",
    "FailureCause",
    "ForkedProcessError",
    "InsecureLinkWarning",
    "LayerSynchronizer",
    "LayerTensor",
    "LayersCache",
    "LeaseExpiredError",
    "LeaseInfo",
    "LinkBusyError",
    "LinkFailedError",
    "LinkLostError",
    "ManagerClosedError",
    "MemInfo",
    "MemoryAccessError",
    "Memtype",
    "MissingArgumentError",
    "NotLinkedError",
    "NotSupportedError",
    "Notification",
    "Outcome",
    "OutcomeState",
    "OverlapError",
    "Peer",
    "Placement",
    "PlacementError",
    "Progress",
    "RegisterMemStatus",
    "RegistrationRefusedError",
    "Security",
    "Stats",
    "StatusCode",
    "StillReachableError",
    "TensorSpec",
    "Transfer",
    "TransferCancelledError",
    "TransferConfig",
    "TransferError",
    "TransferTimeoutError",
    "TransferWithCacheKeyConfig",
    "__version__",
]

# A library speaks when it is listened to.
_logging.getLogger("cachecore").addHandler(_logging.NullHandler())
