// What the kernel has mapped where in this process.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_mappings(pybind11::module_ &module);

}  // namespace cachecore
