// Questions about addresses and devices.
#include <unistd.h>

#include "address_space.hpp"
#include "call.hpp"
#include "context.hpp"
#include "memory.hpp"
#include "settings.hpp"

using emulator::Fault;
using emulator::Needs;
namespace abi = emulator::abi;

EMULATOR_API int aclrtPointerGetAttributes(const void *pointer, abi::PointerAttributes *attributes) {
    return emulator::call("aclrtPointerGetAttributes", Needs::context, [&](const Fault &) {
        emulator::require("aclrtPointerGetAttributes", "pointer", pointer);
        emulator::require("aclrtPointerGetAttributes", "attributes", attributes);
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        *attributes = {};
        emulator::PinnedRange pinned;
        if (const auto range = emulator::find_range(address)) {
            attributes->location = {static_cast<std::uint32_t>(range->backing->device()), abi::kDevice};
            attributes->page_size = static_cast<std::uint32_t>(range->backing->page());
        } else if (emulator::find_pinned(address, pinned)) {
            attributes->location = {0, abi::kHost};
            attributes->page_size = static_cast<std::uint32_t>(sysconf(_SC_PAGESIZE));
        } else {
            attributes->location = {0, abi::kUnregistered};
        }
    });
}

EMULATOR_API int aclrtMemGetAddressRange(void *pointer, void **base, std::size_t *size) {
    return emulator::call("aclrtMemGetAddressRange", Needs::context, [&](const Fault &) {
        emulator::require("aclrtMemGetAddressRange", "pointer", pointer);
        emulator::require("aclrtMemGetAddressRange", "base", base);
        emulator::require("aclrtMemGetAddressRange", "size", size);
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        emulator::PinnedRange pinned;
        if (const auto range = emulator::find_range(address)) {
            *base = reinterpret_cast<void *>(range->block);
            *size = range->block_nbytes;
        } else if (emulator::find_pinned(address, pinned)) {
            *base = reinterpret_cast<void *>(pinned.start);
            *size = pinned.nbytes;
        } else {
            emulator::fail(abi::kParameterInvalid, "aclrtMemGetAddressRange: ", pointer,
                           " is not in memory that the runtime knows");
        }
    });
}

EMULATOR_API int aclrtGetMemInfo(int attribute, std::size_t *free, std::size_t *total) {
    return emulator::call("aclrtGetMemInfo", Needs::context, [&](const Fault &) {
        emulator::require("aclrtGetMemInfo", "free", free);
        emulator::require("aclrtGetMemInfo", "total", total);
        if (attribute != abi::kHbm && attribute != abi::kHbmHuge && attribute != abi::kHbmNormal) {
            emulator::fail(abi::kParameterInvalid, "aclrtGetMemInfo: attribute ", attribute,
                           " is not memory of this device; it must be 1 (HBM), 4 or 5");
        }
        *total = emulator::settings().hbm_bytes;
        *free = *total - emulator::hbm_used(emulator::current_context()->device);
    });
}

EMULATOR_API int aclrtGetDeviceInfo(std::uint32_t device, int attribute, std::int64_t *value) {
    return emulator::call("aclrtGetDeviceInfo", Needs::initialised, [&](const Fault &) {
        emulator::require("aclrtGetDeviceInfo", "value", value);
        emulator::check_device(static_cast<int>(device));
        switch (attribute) {
            case abi::kAttributeMemoryBytes:
                *value = static_cast<std::int64_t>(emulator::settings().hbm_bytes);
                return;
            case abi::kAttributePhysicalId:
                *value = emulator::settings().visible[device];
                return;
            case abi::kAttributeIsVirtual:
                *value = 1;
                return;
            default:
                emulator::fail(abi::kFeatureNotSupported, "aclrtGetDeviceInfo: an emulated device has no attribute ",
                               attribute);
        }
    });
}
