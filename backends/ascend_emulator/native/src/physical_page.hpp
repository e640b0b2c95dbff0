// Which pages physical memory is made of.
#pragma once

#include <cstddef>

#include "abi.hpp"

namespace emulator {

// Page size that the properties ask for. Throws Failure for properties that no device memory has, on this product or
// at all.
std::size_t physical_page(const char *function, const abi::PhysicalMemoryProperties &properties);

}  // namespace emulator
