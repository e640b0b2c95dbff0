// Faults on demand: the n-th call of a function fails, is late or does half of its work.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

namespace emulator {

inline constexpr std::uint64_t all_bytes = std::numeric_limits<std::uint64_t>::max();

struct Fault {
    int code = 0;  // the call returns it; it does nothing, or with `truncate` a part
    int late_code = 0;  // queued work ends with it
    std::chrono::nanoseconds delay{0};  // before the work
    std::uint64_t truncate = all_bytes;  // bytes that are copied; the rest is not, and nobody is told
    bool stall = false;  // never answers (hixl_serve)

    bool partial() const { return truncate != all_bytes; }
};

// Counts a call of `function` and says what the plan has for it. The first call loads CACHECORE_EMULATE_FAULTS.
Fault next_fault(const std::string &function);

// Replaces the plan and starts counting anew. Throws Failure for a plan that cannot be read, and keeps the old one.
void set_fault_plan(const std::string &plan);

// Why the plan of the environment cannot be used; empty when it can.
std::string fault_plan_problem();

}  // namespace emulator
