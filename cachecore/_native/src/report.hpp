// What is known after moving a plan.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "copy_plan.hpp"

namespace cachecore {

enum class Cause {
    none,
    deadline,
    cancelled,
    wrong_peer,     // the nonce does not read back: another process, or the peer closed
    peer_gone,      // no such process, or a zombie
    local_fault,    // memory of this process is not there or not accessible
    remote_fault,   // memory of the peer is not there or not accessible
    not_permitted,  // the kernel refuses access to the peer
    native,         // any other error of a system call
};

// Bytes of a plan that were not moved for certain, counted over its chunks. Of these, [start, touched) may have been
// written.
struct Unfinished {
    std::uint64_t start;
    std::uint64_t touched;
    std::uint64_t end;
};

using ChunkRanges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// Ranges are half-open, maximal, ascending, disjoint, and cover every chunk of the plan.
struct TransferReport {
    Cause cause = Cause::none;
    int code = 0;                     // errno
    std::uint64_t fault_address = 0;  // on the side that the cause names
    std::uint64_t nbytes = 0;         // moved for certain
    std::uint64_t system_calls = 0;
    ChunkRanges landed;
    ChunkRanges untouched;
    ChunkRanges unknown;

    bool done() const { return cause == Cause::none; }
    // Turns unfinished bytes into chunk ranges and nbytes.
    void settle(const CopyPlan &plan, std::vector<Unfinished> unfinished);
};

}  // namespace cachecore
