// One copy between host and device memory: checked first, then carried out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "address_space.hpp"

namespace emulator {

struct Copy {
    std::vector<Piece> to;
    std::vector<Piece> from;
};

// Throws Failure when the arguments are not of the kind, or addresses have no memory. `kind` may be kInferred.
Copy prepare_copy(const char *function, void *destination, std::size_t room, const void *source, std::size_t nbytes,
                  int kind);

// Copies at most `limit` bytes, less when aborted; returns what was copied.
std::uint64_t carry_out(const Copy &copy, std::uint64_t limit, const std::atomic<bool> *aborted);

}  // namespace emulator
