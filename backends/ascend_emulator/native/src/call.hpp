// What every exported function does before and around its own work.
#pragma once

#include <new>
#include <thread>
#include <utility>

#include "abi.hpp"
#include "failure.hpp"
#include "faults.hpp"

#define EMULATOR_API extern "C" __attribute__((visibility("default")))

namespace emulator {

// What must have happened before: nothing, aclInit, or a current context of the calling thread as well.
enum class Needs { nothing, initialised, context };

// Work that is queued takes the planned delay with it; other work waits for it first.
enum class Delay { before, in_task };

// Throws Failure when `needs` is not met, or in a process that was forked from one that used the runtime.
void check_needs(const char *function, Needs needs);

// Runs `body(fault)` with the planned fault of this call; turns whatever it throws into a code and a message.
template <typename Body>
int call(const char *function, Needs needs, Delay delay, Body &&body) noexcept {
    try {
        const Fault fault = next_fault(function);
        if (delay == Delay::before && fault.delay.count() > 0) {
            std::this_thread::sleep_for(fault.delay);
        }
        if (fault.code != 0 && !fault.partial()) {
            fail(fault.code, function, ": fault of the plan, code ", fault.code);
        }
        check_needs(function, needs);
        std::forward<Body>(body)(fault);
        if (fault.code != 0) {
            fail(fault.code, function, ": fault of the plan after a part of the work, code ", fault.code);
        }
        return abi::kSuccess;
    } catch (const Failure &failure) {
        return report(failure.code(), failure.what());
    } catch (const std::bad_alloc &) {
        return report(abi::kBadAllocation, "out of host memory");
    } catch (const std::exception &error) {
        return report(abi::kInternalError, error.what());
    }
}

template <typename Body>
int call(const char *function, Needs needs, Body &&body) noexcept {
    return call(function, needs, Delay::before, std::forward<Body>(body));
}

// A NULL pointer is refused by the interface layer, before the runtime sees it.
template <typename Pointer>
void require(const char *function, const char *parameter, Pointer *pointer) {
    if (pointer == nullptr) {
        fail(abi::kInvalidParameter, function, ": ", parameter, " is NULL");
    }
}

}  // namespace emulator
