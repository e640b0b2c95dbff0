#include <pybind11/pybind11.h>

PYBIND11_MODULE(_core, module) { module.doc() = "Native parts of cachecore."; }
