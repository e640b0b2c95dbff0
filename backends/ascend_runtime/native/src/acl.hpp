// The part of the C interface of libascendcl that is used here, written down from its documentation: no CANN is needed
// to build. Layouts were measured on the public header for 64-bit Linux and are held by assertions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachecore::ascend::acl {

using Error = int;
using Context = void *;
using Stream = void *;
using Event = void *;
using Handle = void *;

// Error codes that change what is done next. Words for all of them are in codes.py.
constexpr Error success = 0;
constexpr Error repeat_initialise = 100002;
constexpr Error no_current_context = 107002;
constexpr Error wait_timeout = 107019;
constexpr Error feature_not_supported = 207000;
constexpr Error api_not_supported = 200001;
constexpr Error stream_synchronize_timeout = 507046;

constexpr bool timed_out(Error code) { return code == wait_timeout || code == stream_synchronize_timeout; }
constexpr bool not_supported(Error code) { return code == feature_not_supported || code == api_not_supported; }

enum LocationType : int {
    location_host = 0,
    location_device = 1,
    location_unregistered = 2,
    location_managed = 3,
    location_host_numa = 4,
};

enum CopyKind : int {
    host_to_host = 0,
    host_to_device = 1,
    device_to_host = 2,
    device_to_device = 3,
};

// Mode of a thread while a graph is captured; in "relaxed" nothing is forbidden.
constexpr int capture_mode_relaxed = 2;

// attr of aclrtGetMemInfo: high bandwidth memory, pages of every size.
constexpr int memory_attribute_hbm = 1;

// Value that failIndex keeps when an error is not about one item of a batch.
constexpr std::size_t no_item = SIZE_MAX;

// The buffer that aclsysGetVersionStr fills.
constexpr std::size_t version_bytes = 128;

struct MemLocation {
    std::uint32_t id;
    int type;
};

struct PtrAttributes {
    MemLocation location;
    std::uint32_t page_size;
    std::uint32_t reserved[4];
};

struct MemcpyBatchAttr {
    MemLocation destination;
    MemLocation source;
    std::uint8_t reserved[16];
};

static_assert(sizeof(void *) == 8 && sizeof(std::size_t) == 8 && sizeof(int) == 4, "64-bit Linux");
static_assert(sizeof(MemLocation) == 8 && offsetof(MemLocation, id) == 0 && offsetof(MemLocation, type) == 4);
static_assert(sizeof(PtrAttributes) == 28 && offsetof(PtrAttributes, location) == 0);
static_assert(offsetof(PtrAttributes, page_size) == 8 && offsetof(PtrAttributes, reserved) == 12);
static_assert(sizeof(MemcpyBatchAttr) == 32 && offsetof(MemcpyBatchAttr, destination) == 0);
static_assert(offsetof(MemcpyBatchAttr, source) == 8 && offsetof(MemcpyBatchAttr, reserved) == 16);

}  // namespace cachecore::ascend::acl

// Functions without which nothing works: X(name, result, parameters).
#define CACHECORE_ACL_REQUIRED(X)                                                                             \
    X(aclInit, int, (const char *))                                                                           \
    X(aclrtGetSocName, const char *, ())                                                                      \
    X(aclrtGetDeviceCount, int, (std::uint32_t *))                                                            \
    X(aclrtSetDevice, int, (std::int32_t))                                                                    \
    X(aclrtGetDevice, int, (std::int32_t *))                                                                  \
    X(aclrtGetCurrentContext, int, (void **))                                                                 \
    X(aclrtSetCurrentContext, int, (void *))                                                                  \
    X(aclrtMalloc, int, (void **, std::size_t, int))                                                          \
    X(aclrtFree, int, (void *))                                                                               \
    X(aclrtMallocHost, int, (void **, std::size_t))                                                           \
    X(aclrtFreeHost, int, (void *))                                                                           \
    X(aclrtMemcpyAsync, int, (void *, std::size_t, const void *, std::size_t, int, void *))                   \
    X(aclrtCreateStream, int, (void **))                                                                      \
    X(aclrtDestroyStream, int, (void *))

// Functions that an older runtime may lack. symbols.py says what each one costs.
#define CACHECORE_ACL_OPTIONAL(X)                                                                             \
    X(aclGetRecentErrMsg, const char *, ())                                                                   \
    X(aclrtSynchronizeStreamWithTimeout, int, (void *, std::int32_t))                                         \
    X(aclrtSynchronizeStream, int, (void *))                                                                  \
    X(aclrtStreamAbort, int, (void *))                                                                        \
    X(aclrtStreamWaitEvent, int, (void *, void *))                                                            \
    X(aclmdlRICaptureThreadExchangeMode, int, (int *))                                                        \
    X(aclrtPointerGetAttributes, int, (const void *, ::cachecore::ascend::acl::PtrAttributes *))              \
    X(aclrtMemGetAddressRange, int, (void *, void **, std::size_t *))                                         \
    X(aclrtMemRetainAllocationHandle, int, (void *, void **))                                                 \
    X(aclrtFreePhysical, int, (void *))                                                                       \
    X(aclrtMemcpyBatch, int,                                                                                  \
      (void **, std::size_t *, void **, std::size_t *, std::size_t, ::cachecore::ascend::acl::MemcpyBatchAttr *, \
       std::size_t *, std::size_t, std::size_t *))                                                            \
    X(aclrtMemcpyBatchAsync, int,                                                                             \
      (void **, std::size_t *, void **, std::size_t *, std::size_t, ::cachecore::ascend::acl::MemcpyBatchAttr *, \
       std::size_t *, std::size_t, std::size_t *, void *))                                                    \
    X(aclrtGetMemInfo, int, (int, std::size_t *, std::size_t *))                                              \
    X(aclrtGetVersion, int, (std::int32_t *, std::int32_t *, std::int32_t *))                                 \
    X(aclsysGetVersionStr, int, (char *, char *))
