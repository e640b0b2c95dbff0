// Whether a plan within one process reads bytes that it also writes.
#pragma once

#include <vector>

#include "copy_plan.hpp"

namespace cachecore {

// A place where the local side of a plan and the remote side share bytes.
struct Overlap {
    bool found = false;
    std::size_t local_group = 0;
    std::size_t remote_group = 0;
    std::size_t local_pair = 0;   // within its group
    std::size_t remote_pair = 0;
    Run local_run{};
    Run remote_run{};
};

// Looks at real byte intervals, not at block ids: two caches may lie on one region. Each group's local side is compared
// with each group's remote side. Time grows with pairs + runs (sorted), not with their product, unless the tensors
// interleave.
Overlap find_overlap(const std::vector<PlanGroup> &groups);

}  // namespace cachecore
