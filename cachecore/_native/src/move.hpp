// Moves a plan batch by batch, on one or several threads, within a deadline.
#pragma once

#include <cstdint>
#include <functional>

#include "batch.hpp"
#include "report.hpp"

namespace cachecore {

struct MoveLimits {
    double deadline;                      // seconds on CLOCK_MONOTONIC
    const unsigned char *cancel;          // polled between batches, not 0 = stop; may be null
    std::uint64_t threads;                // at most, the caller's included
    std::uint64_t threads_from;           // bytes from which more than one thread is used
    std::uint64_t batch_bytes;            // bytes between two looks at deadline and cancel
};

// What became of one batch. Bytes are counted from its start: [0, verified) landed, [verified, touched) may have been
// written, the rest was not.
struct Moved {
    std::uint64_t verified = 0;
    std::uint64_t touched = 0;
    std::uint64_t system_calls = 0;
    Cause cause = Cause::none;
    int code = 0;
    std::uint64_t fault_address = 0;
};

// Called by several threads at once, each with its own batch.
using BatchMover = std::function<Moved(Batch &)>;

// On return no thread of it runs. The first failure stops the others after their current batch. Needs no GIL.
TransferReport move_plan(const CopyPlan &plan, const MoveLimits &limits, const BatchMover &mover);

// Refuses zero threads or batch bytes and a deadline that is not a number.
MoveLimits make_limits(double deadline, const unsigned char *cancel, std::uint64_t threads, std::uint64_t threads_from,
                       std::uint64_t batch_bytes);

}  // namespace cachecore
