// Random bytes that prove which process an address belongs to.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_nonce(pybind11::module_ &module);

}  // namespace cachecore
