// Moves batches between this process and another one, or within this one.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "move.hpp"

namespace cachecore {

constexpr std::size_t nonce_bytes = 16;
using NonceValue = std::array<char, nonce_bytes>;

// Random bytes that only the right process has at this address. Pids are reused and exec keeps the pid.
struct PeerNonce {
    std::uint64_t address;
    NonceValue value;
};

// Remote -> local by process_vm_readv. With a nonce, every call reads it before and behind the data: all entries of
// one call belong to one address space, so a call that saw the nonce twice saw the right process throughout.
Moved read_batch(pid_t pid, const PeerNonce *nonce, Batch &batch);

// Local -> remote by process_vm_writev. A call cannot read and write, so the nonce is read by calls of its own before
// and behind each.
Moved write_batch(pid_t pid, const PeerNonce &nonce, Batch &batch);

// Remote -> local by memcpy, both in memory that this library has mapped itself.
Moved copy_batch(Batch &batch);

}  // namespace cachecore
