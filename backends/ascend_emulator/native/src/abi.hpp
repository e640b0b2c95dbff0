// The C ABI of the runtime as its manual states it: layouts, enumerators and error codes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator::abi {

struct MemLocation {
    std::uint32_t id;
    std::int32_t type;
};

struct PointerAttributes {
    MemLocation location;
    std::uint32_t page_size;
    std::uint32_t reserved[4];
};

struct PhysicalMemoryProperties {
    std::int32_t handle_type;
    std::int32_t allocation_type;
    std::int32_t memory_attribute;
    MemLocation location;
    std::uint64_t reserved;
};

struct MemcpyBatchAttributes {
    MemLocation destination;
    MemLocation source;
    std::uint8_t reserved[16];
};

static_assert(sizeof(MemLocation) == 8 && offsetof(MemLocation, type) == 4);
static_assert(sizeof(PointerAttributes) == 28 && offsetof(PointerAttributes, page_size) == 8 &&
              offsetof(PointerAttributes, reserved) == 12);
static_assert(sizeof(PhysicalMemoryProperties) == 32 && offsetof(PhysicalMemoryProperties, memory_attribute) == 8 &&
              offsetof(PhysicalMemoryProperties, location) == 12 && offsetof(PhysicalMemoryProperties, reserved) == 24);
static_assert(sizeof(MemcpyBatchAttributes) == 32 && offsetof(MemcpyBatchAttributes, source) == 8 &&
              offsetof(MemcpyBatchAttributes, reserved) == 16);

enum LocationType : int { kHost = 0, kDevice = 1, kUnregistered = 2, kManaged = 3, kHostNuma = 4 };

enum MemcpyKind : int {
    kHostToHost = 0,
    kHostToDevice = 1,
    kDeviceToHost = 2,
    kDeviceToDevice = 3,
    kInferred = 4,
};

enum MallocPolicy : int {
    kHugeFirst = 0,
    kHugeOnly = 1,
    kNormalOnly = 2,
    kHugeFirstP2p = 3,
    kHugeOnlyP2p = 4,
    kNormalOnlyP2p = 5,
    kHuge1gOnly = 6,
    kHuge1gOnlyP2p = 7,
    kLowBandwidth = 0x100,
    kHighBandwidth = 0x1000,
};

enum MemoryAttribute : int {
    kDdr = 0,
    kHbm = 1,
    kDdrHuge = 2,
    kDdrNormal = 3,
    kHbmHuge = 4,
    kHbmNormal = 5,
    kDdrP2pHuge = 6,
    kDdrP2pNormal = 7,
    kHbmP2pHuge = 8,
    kHbmP2pNormal = 9,
    kHbmHuge1g = 10,
    kHbmP2pHuge1g = 11,
    kNormal = 12,
    kHuge = 13,
    kHuge1g = 14,
    kP2pNormal = 15,
    kP2pHuge = 16,
    kP2pHuge1g = 17,
};

enum HandleType : int { kHandleNone = 0, kHandlePosix = 2 };
enum AllocationType : int { kPinned = 0 };
enum GranularityOption : int { kMinimum = 0, kRecommended = 1 };
enum HostRegisterType : int { kHostMapped = 0, kHostIo = 4, kHostReadOnly = 8 };
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum EventStatus : int { kEventNotReady = 0, kEventComplete = 1 };

enum DeviceAttribute : int { kAttributeMemoryBytes = 301, kAttributePhysicalId = 402, kAttributeIsVirtual = 501 };

// Codes that start with 1 are the caller's doing, with 2 a matter of resources, with 5 internal.
enum Code : int {
    kSuccess = 0,
    kInvalidParameter = 100000,
    kNotInitialised = 100001,
    kRepeatInitialise = 100002,
    kRepeatFinalise = 100037,
    kParameterInvalid = 107000,
    kInvalidDeviceId = 107001,
    kNoContext = 107002,
    kStreamNotInContext = 107003,
    kAddressUnaligned = 107008,
    kInvalidMemoryType = 107016,
    kInvalidHandle = 107017,
    kInvalidMallocType = 107018,
    kWaitTimeout = 107019,
    kDeviceTaskAborting = 107022,
    kStreamAborting = 107023,
    kCaptureForbids = 107030,
    kBadAllocation = 200000,
    kApiNotSupported = 200001,
    kFeatureNotSupported = 207000,
    kOutOfMemory = 207001,
    kFreeFailed = 207002,
    kNoDevice = 207004,
    kResourceAllocationFailed = 207005,
    kNoPermission = 207006,
    kOverLimit = 207012,
    kInternalError = 500000,
};

}  // namespace emulator::abi
