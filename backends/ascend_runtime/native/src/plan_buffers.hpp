// A plan as it comes over from Python: tables of uint64 in buffers. No C++ type crosses distributions.
#pragma once

#include <cstddef>
#include <vector>

#include <pybind11/pybind11.h>

#include "plan.hpp"

namespace cachecore::ascend {

// Holds the buffers, so that the plan stays valid while the GIL is released. Made and destroyed with the GIL.
class PlanBuffers {
public:
    // `groups` is what `CopyPlan.groups()` returns. Throws Refusal.
    explicit PlanBuffers(const pybind11::sequence &groups);
    ~PlanBuffers();
    PlanBuffers(const PlanBuffers &) = delete;
    PlanBuffers &operator=(const PlanBuffers &) = delete;

    const Plan &plan() const { return plan_; }

private:
    const void *table(const pybind11::handle &object, std::size_t row_bytes, std::size_t &rows);

    std::vector<Py_buffer> buffers_;
    Plan plan_;
};

}  // namespace cachecore::ascend
