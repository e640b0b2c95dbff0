// Content that tells where it belongs.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore {

void register_words(pybind11::module_ &module);

}  // namespace cachecore
