#include "intervals.hpp"

#include <algorithm>

#include "refusal.hpp"

namespace cachecore {

Intervals::Intervals(const std::vector<std::uint64_t> &words) {
    if (words.size() % 2 != 0) {
        refuse(Reason::value, "intervals has ", words.size(), " words; each interval has a start and an end");
    }
    intervals_.reserve(words.size() / 2);
    for (std::size_t i = 0; i < words.size(); i += 2) {
        if (words[i] >= words[i + 1] || (i > 0 && words[i] < words[i - 1])) {
            refuse(Reason::value, "intervals has [", words[i], ", ", words[i + 1], ") at position ", i / 2,
                   "; intervals must not be empty, and be sorted and disjoint");
        }
        intervals_.emplace_back(words[i], words[i + 1]);
    }
}

void Intervals::add(std::uint64_t start, std::uint64_t end) {
    if (!intervals_.empty() && start >= intervals_.back().first && start <= intervals_.back().second) {
        intervals_.back().second = std::max(intervals_.back().second, end);
    } else {
        intervals_.emplace_back(start, end);
    }
}

Intervals Intervals::of(const CopyPlan &plan, const std::vector<Interval> &chunk_ranges, bool local) {
    Intervals touched;
    for (const auto &[start, stop] : chunk_ranges) {
        plan.check_range(start, stop);
        ChunkCursor cursor(plan, start);
        for (std::uint64_t left = stop - start; left > 0; --left, cursor.advance()) {
            const Chunk chunk = cursor.get();
            const std::uint64_t address = local ? chunk.local : chunk.remote;
            touched.add(address, address + chunk.length);
        }
    }
    std::sort(touched.intervals_.begin(), touched.intervals_.end());
    Intervals joined;
    for (const auto &[start, end] : touched.intervals_) {
        joined.add(start, end);
    }
    return joined;
}

const Intervals::Interval *Intervals::find(std::uint64_t start, std::uint64_t end) const {
    const auto ends_after = [](std::uint64_t address, const Interval &one) { return address < one.second; };
    const auto found = std::upper_bound(intervals_.begin(), intervals_.end(), start, ends_after);
    return found != intervals_.end() && found->first < end ? &*found : nullptr;
}

const Intervals::Interval *Intervals::find(const CopyPlan &plan, bool local) const {
    const auto offset = [&](const Run &run) { return local ? run.local : run.remote; };
    for (const PlanGroup &group : plan.groups()) {
        std::uint64_t first = UINT64_MAX;
        std::uint64_t end = 0;
        for (const Run &run : group.runs) {
            first = std::min(first, offset(run));
            end = std::max(end, offset(run) + run.length);
        }
        for (const BasePair &pair : group.pairs) {
            const std::uint64_t base = local ? pair.local : pair.remote;
            if (find(base + first, base + end) == nullptr) {
                continue;  // the usual case: none of the tensor's runs needs a look
            }
            for (const Run &run : group.runs) {
                const std::uint64_t start = base + offset(run);
                const Interval *const found = find(start, start + run.length);
                if (found != nullptr) {
                    return found;
                }
            }
        }
    }
    return nullptr;
}

}  // namespace cachecore
