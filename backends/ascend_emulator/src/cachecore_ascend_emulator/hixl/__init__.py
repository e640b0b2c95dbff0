"""Emulated stand-in for the vendor's ``hixl`` module: one-sided transfers between emulated devices of processes.

Names, signatures, return shapes, enumerators and status codes are those of the vendor's module; real bytes move between
processes of this machine. Every failed call leaves its reason in the log "cachecore_ascend_emulator.hixl".
"""

from cachecore_ascend_emulator.hixl._engine import Hixl, get_capability
from cachecore_ascend_emulator.hixl._types import (
    ALREADY_CONNECTED,
    FAILED,
    FEATURE_NOT_SUPPORTED,
    FEATURE_SUPPORTED,
    NOT_CONNECTED,
    NOTIFY_FAILED,
    PARAM_INVALID,
    RESOURCE_EXHAUSTED,
    SUCCESS,
    TIMEOUT,
    UNSUPPORTED,
    AsyncConnectStatus,
    FeatureType,
    MemDesc,
    MemType,
    NotifyDesc,
    TransferArgs,
    TransferOp,
    TransferOpDesc,
    TransferStatus,
)

__all__ = [
    "ALREADY_CONNECTED",
    "FAILED",
    "FEATURE_NOT_SUPPORTED",
    "FEATURE_SUPPORTED",
    "NOTIFY_FAILED",
    "NOT_CONNECTED",
    "PARAM_INVALID",
    "RESOURCE_EXHAUSTED",
    "SUCCESS",
    "TIMEOUT",
    "UNSUPPORTED",
    "AsyncConnectStatus",
    "FeatureType",
    "Hixl",
    "MemDesc",
    "MemType",
    "NotifyDesc",
    "TransferArgs",
    "TransferOp",
    "TransferOpDesc",
    "TransferStatus",
    "get_capability",
]
