// Memory that another process can map: a sealed memfd.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_shared_block(pybind11::module_ &module);

}  // namespace cachecore
