// Sets of byte addresses as sorted half-open intervals.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "copy_plan.hpp"

namespace cachecore {

class Intervals {
public:
    using Interval = std::pair<std::uint64_t, std::uint64_t>;  // [start, end)

    // `words` has start and end of each in turn. Refuses what is not ascending and disjoint.
    explicit Intervals(const std::vector<std::uint64_t> &words);

    // What the chunks of a plan touch on one side: in order, those that share or touch bytes joined. Ranges are
    // half-open; refuses chunks that the plan does not have.
    static Intervals of(const CopyPlan &plan, const std::vector<Interval> &chunk_ranges, bool local);

    const std::vector<Interval> &items() const { return intervals_; }

    // The first interval that shares a byte with [start, end), or null.
    const Interval *find(std::uint64_t start, std::uint64_t end) const;

    // The first interval that shares a byte with the first chunk of a plan's side that has one, or null.
    const Interval *find(const CopyPlan &plan, bool local) const;

private:
    Intervals() = default;
    void add(std::uint64_t start, std::uint64_t end);

    std::vector<Interval> intervals_;
};

}  // namespace cachecore
