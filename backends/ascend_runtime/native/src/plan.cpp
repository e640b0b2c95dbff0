#include "plan.hpp"

#include <algorithm>
#include <limits>

namespace cachecore::ascend {

std::vector<std::pair<std::uint64_t, std::uint64_t>> Plan::extents() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for (const PlanGroup &group : groups) {
        if (group.run_count == 0) {
            continue;
        }
        std::uint64_t local_low = std::numeric_limits<std::uint64_t>::max();
        std::uint64_t remote_low = local_low;
        std::uint64_t local_high = 0;
        std::uint64_t remote_high = 0;
        for (std::size_t index = 0; index < group.run_count; ++index) {
            const Run &run = group.runs[index];
            local_low = std::min(local_low, run.local);
            remote_low = std::min(remote_low, run.remote);
            local_high = std::max(local_high, run.local + run.length);
            remote_high = std::max(remote_high, run.remote + run.length);
        }
        for (std::size_t index = 0; index < group.pair_count; ++index) {
            found.emplace_back(group.pairs[index].local + local_low, local_high - local_low);
            found.emplace_back(group.pairs[index].remote + remote_low, remote_high - remote_low);
        }
    }
    return found;
}

}  // namespace cachecore::ascend
