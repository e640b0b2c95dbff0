// Where the tensors of a plan lie among registered or mapped regions, and the plan as seen through a mapping.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_regions(pybind11::module_ &module);

}  // namespace cachecore
