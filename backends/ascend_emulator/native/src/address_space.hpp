// Which device addresses have memory, and where the library finds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backing.hpp"

namespace emulator {

// How the memory behind an address came to be.
enum class Origin { malloc, mapped };

struct Range {
    std::uintptr_t start = 0;
    std::size_t nbytes = 0;  // addresses that belong to it
    std::size_t usable = 0;  // bytes that may be copied: what was asked for, rounded as the manual says
    std::uintptr_t block = 0;  // the block it was cut out of
    std::size_t block_nbytes = 0;
    Origin origin = Origin::malloc;
    std::shared_ptr<Backing> backing;
    std::size_t offset = 0;  // of `start` in the backing
    std::shared_ptr<Reservation> reservation;  // keeps the addresses as long as somebody copies
};

// Memory of the library's own view; holds the backing while somebody copies.
struct Piece {
    std::byte *data = nullptr;
    std::size_t nbytes = 0;
    std::shared_ptr<Backing> backing;
};

void add_range(Range range);

// Takes the range out that starts at `start` and is of this origin; nothing when there is none.
std::optional<Range> remove_range(std::uintptr_t start, Origin origin);

// The range that `address` lies in.
std::optional<Range> find_range(std::uintptr_t address);

// Every range of a device, for its reset.
std::vector<Range> ranges_of(int device);

// Appends the pieces behind [address, address + nbytes). False, with nothing appended, if one byte of it has no memory.
bool resolve(std::uintptr_t address, std::size_t nbytes, std::vector<Piece> &pieces);

// Whether any byte of [address, address + nbytes) is a device address with memory.
bool touches_device(std::uintptr_t address, std::size_t nbytes);

}  // namespace emulator
