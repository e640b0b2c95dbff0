// A plan cut into batches that one system call can move, claimed by several threads.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "copy_plan.hpp"

namespace cachecore {

// Consecutive bytes of a plan as two scatter lists, which need not have the same cuts. The slot before and the slot
// behind each list are free for the caller's own entry (a nonce), within the kernel's limit of 1024 entries.
class Batch {
public:
    static constexpr std::size_t slots = 1024;  // UIO_MAXIOV

    std::uint64_t start() const { return start_; }  // first byte, counted over the chunks of the plan
    std::uint64_t bytes() const { return bytes_; }  // still to move

    iovec *local() { return &local_[local_first_]; }
    iovec *remote() { return &remote_[remote_first_]; }
    std::size_t local_count() const { return local_end_ - local_first_; }
    std::size_t remote_count() const { return remote_end_ - remote_first_; }

    // Empties it; the first byte to come is `start`.
    void reset(std::uint64_t start);
    // Adds bytes at the end, joined with what lies before them; false when a list is full.
    bool append(std::uint64_t local, std::uint64_t remote, std::uint64_t length);
    // Drops the first `count` bytes, which have been moved.
    void consume(std::uint64_t count);

private:
    std::uint64_t start_ = 0;
    std::uint64_t bytes_ = 0;
    std::size_t local_first_ = 1;
    std::size_t local_end_ = 1;
    std::size_t remote_first_ = 1;
    std::size_t remote_end_ = 1;
    std::array<iovec, slots> local_;
    std::array<iovec, slots> remote_;
};

// Hands out a plan's bytes in order.
class BatchQueue {
public:
    BatchQueue(const CopyPlan &plan, std::uint64_t batch_bytes) : cursor_(plan, 0), batch_bytes_(batch_bytes) {}

    // Fills `batch` with the next bytes; false when there are none. Thread-safe.
    bool claim(Batch &batch);
    // Bytes claimed so far; call it when no thread claims any more.
    std::uint64_t claimed() const { return position_; }

private:
    std::mutex mutex_;
    ChunkCursor cursor_;
    std::uint64_t batch_bytes_;
    std::uint64_t within_chunk_ = 0;
    std::uint64_t position_ = 0;
};

}  // namespace cachecore
