// Every layout and number of the ABI by the manual's name, so that a test can hold the library against the manual.
#include <map>
#include <string>

#include "call.hpp"
#include "hixl/status.hpp"

namespace emulator {

namespace {

#define LAYOUT(name, structure) {"sizeof." name, static_cast<std::int64_t>(sizeof(structure))}
#define OFFSET(name, structure, member) {"offset." name, static_cast<std::int64_t>(offsetof(structure, member))}

const std::map<std::string, std::int64_t> &layouts() {
    using namespace abi;
    static const auto &all = *new std::map<std::string, std::int64_t>{
        LAYOUT("aclrtMemLocation", MemLocation),
        OFFSET("aclrtMemLocation.id", MemLocation, id),
        OFFSET("aclrtMemLocation.type", MemLocation, type),
        LAYOUT("aclrtPtrAttributes", PointerAttributes),
        OFFSET("aclrtPtrAttributes.location", PointerAttributes, location),
        OFFSET("aclrtPtrAttributes.pageSize", PointerAttributes, page_size),
        OFFSET("aclrtPtrAttributes.rsv", PointerAttributes, reserved),
        LAYOUT("aclrtPhysicalMemProp", PhysicalMemoryProperties),
        OFFSET("aclrtPhysicalMemProp.handleType", PhysicalMemoryProperties, handle_type),
        OFFSET("aclrtPhysicalMemProp.allocationType", PhysicalMemoryProperties, allocation_type),
        OFFSET("aclrtPhysicalMemProp.memAttr", PhysicalMemoryProperties, memory_attribute),
        OFFSET("aclrtPhysicalMemProp.location", PhysicalMemoryProperties, location),
        OFFSET("aclrtPhysicalMemProp.reserve", PhysicalMemoryProperties, reserved),
        LAYOUT("aclrtMemcpyBatchAttr", MemcpyBatchAttributes),
        OFFSET("aclrtMemcpyBatchAttr.dstLoc", MemcpyBatchAttributes, destination),
        OFFSET("aclrtMemcpyBatchAttr.srcLoc", MemcpyBatchAttributes, source),
        OFFSET("aclrtMemcpyBatchAttr.rsv", MemcpyBatchAttributes, reserved),
    };
    return all;
}

const std::map<std::string, std::int64_t> &enumerators() {
    using namespace abi;
    static const auto &all = *new std::map<std::string, std::int64_t>{
        {"location_type.HOST", kHost},
        {"location_type.DEVICE", kDevice},
        {"location_type.UNREGISTERED", kUnregistered},
        {"location_type.MANAGED", kManaged},
        {"location_type.HOST_NUMA", kHostNuma},
        {"memcpy_kind.H2H", kHostToHost},
        {"memcpy_kind.H2D", kHostToDevice},
        {"memcpy_kind.D2H", kDeviceToHost},
        {"memcpy_kind.D2D", kDeviceToDevice},
        {"memcpy_kind.DEFAULT", kInferred},
        {"malloc_policy.HUGE_FIRST", kHugeFirst},
        {"malloc_policy.HUGE_ONLY", kHugeOnly},
        {"malloc_policy.NORMAL_ONLY", kNormalOnly},
        {"malloc_policy.HUGE_FIRST_P2P", kHugeFirstP2p},
        {"malloc_policy.HUGE_ONLY_P2P", kHugeOnlyP2p},
        {"malloc_policy.NORMAL_ONLY_P2P", kNormalOnlyP2p},
        {"malloc_policy.HUGE1G_ONLY", kHuge1gOnly},
        {"malloc_policy.HUGE1G_ONLY_P2P", kHuge1gOnlyP2p},
        {"malloc_policy.LOW_BANDWIDTH", kLowBandwidth},
        {"malloc_policy.HIGH_BANDWIDTH", kHighBandwidth},
        {"memory_attribute.DDR", kDdr},
        {"memory_attribute.HBM", kHbm},
        {"memory_attribute.DDR_HUGE", kDdrHuge},
        {"memory_attribute.DDR_NORMAL", kDdrNormal},
        {"memory_attribute.HBM_HUGE", kHbmHuge},
        {"memory_attribute.HBM_NORMAL", kHbmNormal},
        {"memory_attribute.DDR_P2P_HUGE", kDdrP2pHuge},
        {"memory_attribute.DDR_P2P_NORMAL", kDdrP2pNormal},
        {"memory_attribute.HBM_P2P_HUGE", kHbmP2pHuge},
        {"memory_attribute.HBM_P2P_NORMAL", kHbmP2pNormal},
        {"memory_attribute.HBM_HUGE1G", kHbmHuge1g},
        {"memory_attribute.HBM_P2P_HUGE1G", kHbmP2pHuge1g},
        {"memory_attribute.NORMAL", kNormal},
        {"memory_attribute.HUGE", kHuge},
        {"memory_attribute.HUGE1G", kHuge1g},
        {"memory_attribute.P2P_NORMAL", kP2pNormal},
        {"memory_attribute.P2P_HUGE", kP2pHuge},
        {"memory_attribute.P2P_HUGE1G", kP2pHuge1g},
        {"handle_type.NONE", kHandleNone},
        {"handle_type.POSIX", kHandlePosix},
        {"allocation_type.PINNED", kPinned},
        {"granularity.MINIMUM", kMinimum},
        {"granularity.RECOMMENDED", kRecommended},
        {"host_register_type.MAPPED", kHostMapped},
        {"host_register_type.IO", kHostIo},
        {"host_register_type.READONLY", kHostReadOnly},
        {"capture_mode.GLOBAL", kCaptureGlobal},
        {"capture_mode.THREAD_LOCAL", kCaptureThreadLocal},
        {"capture_mode.RELAXED", kCaptureRelaxed},
        {"event_status.NOT_READY", kEventNotReady},
        {"event_status.COMPLETE", kEventComplete},
    };
    return all;
}

const std::map<std::string, std::int64_t> &codes() {
    using namespace abi;
    static const auto &all = *new std::map<std::string, std::int64_t>{
        {"code.INVALID_PARAMETER", kInvalidParameter},
        {"code.NOT_INITIALISED", kNotInitialised},
        {"code.REPEAT_INITIALISE", kRepeatInitialise},
        {"code.REPEAT_FINALISE", kRepeatFinalise},
        {"code.PARAMETER_INVALID", kParameterInvalid},
        {"code.INVALID_DEVICE_ID", kInvalidDeviceId},
        {"code.NO_CURRENT_CONTEXT", kNoContext},
        {"code.STREAM_NOT_IN_CONTEXT", kStreamNotInContext},
        {"code.ADDRESS_UNALIGNED", kAddressUnaligned},
        {"code.INVALID_MEMORY_TYPE", kInvalidMemoryType},
        {"code.INVALID_HANDLE", kInvalidHandle},
        {"code.INVALID_MALLOC_TYPE", kInvalidMallocType},
        {"code.WAIT_TIMEOUT", kWaitTimeout},
        {"code.DEVICE_TASK_ABORTING", kDeviceTaskAborting},
        {"code.STREAM_ABORTING", kStreamAborting},
        {"code.CAPTURE_MODE_NOT_SUPPORTED", kCaptureForbids},
        {"code.BAD_ALLOCATION", kBadAllocation},
        {"code.API_NOT_SUPPORTED", kApiNotSupported},
        {"code.FEATURE_NOT_SUPPORTED", kFeatureNotSupported},
        {"code.OUT_OF_MEMORY", kOutOfMemory},
        {"code.FREE_FAILED", kFreeFailed},
        {"code.NO_DEVICE", kNoDevice},
        {"code.RESOURCE_ALLOCATION_FAILED", kResourceAllocationFailed},
        {"code.NO_PERMISSION", kNoPermission},
        {"code.OVER_LIMIT", kOverLimit},
        {"code.INTERNAL_ERROR", kInternalError},
        {"hixl.SUCCESS", hixl::kOk},
        {"hixl.PARAM_INVALID", hixl::kParamInvalid},
        {"hixl.TIMEOUT", hixl::kTimeout},
        {"hixl.NOT_CONNECTED", hixl::kNotConnected},
        {"hixl.ALREADY_CONNECTED", hixl::kAlreadyConnected},
        {"hixl.NOTIFY_FAILED", hixl::kNotifyFailed},
        {"hixl.UNSUPPORTED", hixl::kUnsupported},
        {"hixl.RESOURCE_EXHAUSTED", hixl::kResourceExhausted},
        {"hixl.FAILED", hixl::kFailed},
    };
    return all;
}

}  // namespace

}  // namespace emulator

// For tests: the number that the library has for a documented name. -1 when it has none.
EMULATOR_API std::int64_t cachecore_emulator_documented(const char *name) {
    for (const auto *table : {&emulator::layouts(), &emulator::enumerators(), &emulator::codes()}) {
        const auto found = table->find(name == nullptr ? "" : name);
        if (found != table->end()) {
            return found->second;
        }
    }
    return -1;
}
