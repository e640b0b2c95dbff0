// Faults that a sanitizer must catch.
#pragma once

#include <pybind11/pybind11.h>

namespace cachecore::ascend {

void register_planted_bug(pybind11::module_ &module);

}  // namespace cachecore::ascend
