#include "physical_page.hpp"

#include "backing.hpp"
#include "call.hpp"
#include "context.hpp"
#include "settings.hpp"

namespace emulator {

namespace {

// Page size that a memory attribute of a device asks for.
std::size_t page_for(const char *function, int attribute) {
    switch (attribute) {
        case abi::kNormal:
        case abi::kP2pNormal:
        case abi::kHbmP2pNormal:
            return normal_page;
        case abi::kHbm:
        case abi::kHbmHuge:
        case abi::kHbmNormal:  // the manual: taken from huge pages all the same
        case abi::kHbmP2pHuge:
        case abi::kHuge:
        case abi::kP2pHuge:
            return huge_page;
        case abi::kHbmHuge1g:
        case abi::kHbmP2pHuge1g:
            return huge_1g_page;
        case abi::kHuge1g:
        case abi::kP2pHuge1g:
            if (settings().line == Line::ascend950) {
                fail(abi::kFeatureNotSupported, function, ": memory attribute ", attribute, " is not supported on ",
                     settings().soc);
            }
            return huge_1g_page;
        default:
            fail(abi::kParameterInvalid, function, ": memory attribute ", attribute, " is none of a device");
    }
}

}  // namespace

std::size_t physical_page(const char *function, const abi::PhysicalMemoryProperties &properties) {
    if (properties.handle_type != abi::kHandleNone && properties.handle_type != abi::kHandlePosix) {
        fail(abi::kParameterInvalid, function, ": handle type ", properties.handle_type, " must be 0 or 2");
    }
    if (properties.allocation_type != abi::kPinned) {
        fail(abi::kParameterInvalid, function, ": allocation type ", properties.allocation_type, " must be 0");
    }
    if (properties.location.type != abi::kDevice) {
        fail(abi::kFeatureNotSupported, function, ": location type ", properties.location.type,
             "; the emulator has physical memory of devices (1) only");
    }
    check_device(static_cast<int>(properties.location.id));
    return page_for(function, properties.memory_attribute);
}

}  // namespace emulator

namespace abi = emulator::abi;

EMULATOR_API int aclrtMemGetAllocationGranularity(abi::PhysicalMemoryProperties *properties, int option,
                                                  std::size_t *granularity) {
    return emulator::call("aclrtMemGetAllocationGranularity", emulator::Needs::context, [&](const emulator::Fault &) {
        emulator::require("aclrtMemGetAllocationGranularity", "properties", properties);
        emulator::require("aclrtMemGetAllocationGranularity", "granularity", granularity);
        if (option != abi::kMinimum && option != abi::kRecommended) {
            emulator::fail(abi::kParameterInvalid, "aclrtMemGetAllocationGranularity: option ", option,
                           " must be 0 or 1");
        }
        *granularity = emulator::physical_page("aclrtMemGetAllocationGranularity", *properties);
    });
}
