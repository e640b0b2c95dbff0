#include "overlap.hpp"

#include <algorithm>
#include <unordered_set>

namespace cachecore {

namespace {

struct Side {
    std::vector<Run> runs;               // sorted by this side's offset
    std::vector<std::size_t> pairs;      // sorted by this side's base
    std::uint64_t first = 0;             // smallest offset of a run
    std::uint64_t end = 0;               // largest end of a run
};

template <class Offset, class Base>
Side sorted_side(const PlanGroup &group, Offset offset, Base base) {
    Side side;
    side.runs = group.runs;
    std::sort(side.runs.begin(), side.runs.end(),
              [&](const Run &a, const Run &b) { return offset(a) < offset(b); });
    side.pairs.resize(group.pairs.size());
    for (std::size_t i = 0; i < side.pairs.size(); ++i) {
        side.pairs[i] = i;
    }
    std::sort(side.pairs.begin(), side.pairs.end(),
              [&](std::size_t a, std::size_t b) { return base(group.pairs[a]) < base(group.pairs[b]); });
    side.first = offset(side.runs.front());
    for (const Run &run : side.runs) {
        side.end = std::max(side.end, offset(run) + run.length);
    }
    return side;
}

std::uint64_t local_offset(const Run &run) { return run.local; }
std::uint64_t remote_offset(const Run &run) { return run.remote; }

// Two-pointer sweep. Of two runs that share nothing, the one that ends first lies before the other and before
// everything after it in start order, so it can be dropped; that holds for repeated and nested source runs too.
bool sweep(const Side &local, const Side &remote, std::uint64_t local_base, std::uint64_t remote_base,
           Overlap &overlap) {
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < local.runs.size() && j < remote.runs.size()) {
        const std::uint64_t local_start = local_base + local.runs[i].local;
        const std::uint64_t local_end = local_start + local.runs[i].length;
        const std::uint64_t remote_start = remote_base + remote.runs[j].remote;
        const std::uint64_t remote_end = remote_start + remote.runs[j].length;
        if (local_start < remote_end && remote_start < local_end) {
            overlap.found = true;
            overlap.local_run = local.runs[i];
            overlap.remote_run = remote.runs[j];
            return true;
        }
        if (local_end <= remote_end) {
            ++i;
        } else {
            ++j;
        }
    }
    return false;
}

}  // namespace

Overlap find_overlap(const PlanGroup &group) {
    Overlap overlap;
    const Side local = sorted_side(group, local_offset, [](const BasePair &pair) { return pair.local; });
    const Side remote = sorted_side(group, remote_offset, [](const BasePair &pair) { return pair.remote; });
    // The answer for a pair of tensors depends only on the distance of their bases.
    std::unordered_set<std::uint64_t> clean_distances;
    std::size_t window = 0;
    for (const std::size_t i : local.pairs) {
        const std::uint64_t local_base = group.pairs[i].local;
        while (window < remote.pairs.size() &&
               group.pairs[remote.pairs[window]].remote + remote.end <= local_base + local.first) {
            ++window;
        }
        for (std::size_t j = window; j < remote.pairs.size(); ++j) {
            const std::uint64_t remote_base = group.pairs[remote.pairs[j]].remote;
            if (remote_base + remote.first >= local_base + local.end) {
                break;
            }
            if (!clean_distances.insert(local_base - remote_base).second) {
                continue;
            }
            if (sweep(local, remote, local_base, remote_base, overlap)) {
                overlap.local_pair = i;
                overlap.remote_pair = remote.pairs[j];
                return overlap;
            }
        }
    }
    return overlap;
}

}  // namespace cachecore
