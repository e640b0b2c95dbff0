// Where the memory of a Python buffer is.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_buffers(pybind11::module_ &module);

}  // namespace cachecore
