// Integers and lists of integers that come from Python: copied, exact, never reinterpreted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <pybind11/pybind11.h>

namespace cachecore {

// An integer from 0 to 2**64-1. Takes anything with __index__, refuses booleans of every library.
std::uint64_t to_uint64(pybind11::handle value, const char *name);

// Number of items of a list of integers, without copying it. Refuses None and what is not a sequence.
std::size_t count_integers(pybind11::handle list, const char *name);

// Copies a list of integers: list, tuple, range, other sequences of things with __index__, 1-D integer arrays of any
// width and stride through the buffer protocol, integer tensors with dtype and tolist(). Refuses negative items,
// booleans, floats, other dimensions and foreign byte order.
std::vector<std::uint64_t> copy_integers(pybind11::handle list, const char *name);

// Start addresses: what copy_integers takes, or bytes that hold native uint64 words.
std::vector<std::uint64_t> copy_addresses(pybind11::handle list, const char *name);

}  // namespace cachecore
