#include "overlap.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace cachecore {

namespace {

// One side of a group.
struct OrderedSide {
    std::vector<Run> runs;              // sorted by this side's offset
    std::vector<std::size_t> pairs;     // sorted by this side's base
    std::vector<std::uint64_t> bases;   // of these pairs
    std::uint64_t first = 0;            // smallest offset of a run
    std::uint64_t end = 0;              // largest end of a run

    std::uint64_t low() const { return bases.front() + first; }
    std::uint64_t high() const { return bases.back() + end; }
};

// `of` takes this side's half of a run or of a pair of bases.
template <class Half>
OrderedSide ordered(const PlanGroup &group, Half of) {
    OrderedSide side;
    side.runs = group.runs;
    std::sort(side.runs.begin(), side.runs.end(), [&](const Run &a, const Run &b) { return of(a) < of(b); });
    side.pairs.resize(group.pairs.size());
    std::iota(side.pairs.begin(), side.pairs.end(), std::size_t{0});
    std::sort(side.pairs.begin(), side.pairs.end(),
              [&](std::size_t a, std::size_t b) { return of(group.pairs[a]) < of(group.pairs[b]); });
    side.bases.reserve(side.pairs.size());
    for (const std::size_t pair : side.pairs) {
        side.bases.push_back(of(group.pairs[pair]));
    }
    side.first = of(side.runs.front());
    for (const Run &run : side.runs) {
        side.end = std::max(side.end, of(run) + run.length);
    }
    return side;
}

// Two-pointer sweep. Of two runs that share nothing, the one that ends first lies before the other and before
// everything after it in start order, so it can be dropped; that holds for repeated and nested source runs too.
bool sweep(const OrderedSide &local, const OrderedSide &remote, std::uint64_t local_base, std::uint64_t remote_base,
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

// Looks at all pairs of tensors whose bytes can meet.
void compare(const OrderedSide &local, const OrderedSide &remote, Overlap &overlap) {
    // The answer for a pair of tensors depends only on the distance of their bases.
    std::unordered_set<std::uint64_t> clean_distances;
    std::size_t window = 0;
    for (std::size_t i = 0; i < local.pairs.size(); ++i) {
        while (window < remote.pairs.size() && remote.bases[window] + remote.end <= local.bases[i] + local.first) {
            ++window;
        }
        for (std::size_t j = window; j < remote.pairs.size(); ++j) {
            if (remote.bases[j] + remote.first >= local.bases[i] + local.end) {
                break;
            }
            if (!clean_distances.insert(local.bases[i] - remote.bases[j]).second) {
                continue;
            }
            if (sweep(local, remote, local.bases[i], remote.bases[j], overlap)) {
                overlap.local_pair = local.pairs[i];
                overlap.remote_pair = remote.pairs[j];
                return;
            }
        }
    }
}

}  // namespace

Overlap find_overlap(const std::vector<PlanGroup> &groups) {
    std::vector<OrderedSide> locals;
    std::vector<OrderedSide> remotes;
    for (const PlanGroup &group : groups) {
        locals.push_back(ordered(group, [](const auto &item) { return item.local; }));
        remotes.push_back(ordered(group, [](const auto &item) { return item.remote; }));
    }
    Overlap overlap;
    for (std::size_t i = 0; i < groups.size(); ++i) {
        for (std::size_t j = 0; j < groups.size(); ++j) {
            if (locals[i].low() < remotes[j].high() && remotes[j].low() < locals[i].high()) {
                compare(locals[i], remotes[j], overlap);
            }
            if (overlap.found) {
                overlap.local_group = i;
                overlap.remote_group = j;
                return overlap;
            }
        }
    }
    return overlap;
}

}  // namespace cachecore
