#include "batch.hpp"

#include <algorithm>

namespace cachecore {

namespace {

// Addresses come from integers and may belong to another process.
void *as_pointer(std::uint64_t address) { return reinterpret_cast<void *>(static_cast<std::uintptr_t>(address)); }

std::uint64_t as_address(const void *pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

bool ends_at(const iovec &entry, std::uint64_t address) {
    return as_address(entry.iov_base) + entry.iov_len == address;
}

void drop(iovec *entries, std::size_t &first, std::uint64_t count) {
    while (count > 0) {
        iovec &entry = entries[first];
        if (entry.iov_len > count) {
            entry.iov_base = as_pointer(as_address(entry.iov_base) + count);
            entry.iov_len -= count;
            return;
        }
        count -= entry.iov_len;
        ++first;
    }
}

}  // namespace

void Batch::reset(std::uint64_t start) {
    start_ = start;
    bytes_ = 0;
    local_first_ = local_end_ = 1;
    remote_first_ = remote_end_ = 1;
}

bool Batch::append(std::uint64_t local, std::uint64_t remote, std::uint64_t length) {
    const bool join_local = local_end_ > 1 && ends_at(local_[local_end_ - 1], local);
    const bool join_remote = remote_end_ > 1 && ends_at(remote_[remote_end_ - 1], remote);
    if ((!join_local && local_end_ == slots - 1) || (!join_remote && remote_end_ == slots - 1)) {
        return false;
    }
    if (join_local) {
        local_[local_end_ - 1].iov_len += length;
    } else {
        local_[local_end_++] = {as_pointer(local), length};
    }
    if (join_remote) {
        remote_[remote_end_ - 1].iov_len += length;
    } else {
        remote_[remote_end_++] = {as_pointer(remote), length};
    }
    bytes_ += length;
    return true;
}

void Batch::consume(std::uint64_t count) {
    drop(local_.data(), local_first_, count);
    drop(remote_.data(), remote_first_, count);
    bytes_ -= count;
}

bool BatchQueue::claim(Batch &batch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch.reset(position_);
    while (!cursor_.at_end() && batch.bytes() < batch_bytes_) {
        const Chunk chunk = cursor_.get();
        const std::uint64_t length = std::min(chunk.length - within_chunk_, batch_bytes_ - batch.bytes());
        if (!batch.append(chunk.local + within_chunk_, chunk.remote + within_chunk_, length)) {
            break;
        }
        within_chunk_ += length;
        if (within_chunk_ == chunk.length) {
            within_chunk_ = 0;
            cursor_.advance();
        }
    }
    position_ += batch.bytes();
    return batch.bytes() > 0;
}

}  // namespace cachecore
