// The extension module cachecore_ascend_runtime._runtime: one register function a file.
#include "bindings.hpp"

PYBIND11_MODULE(_runtime, module) {
    module.doc() = "Binding of the Ascend runtime library, which is loaded when it is used.";
    cachecore::ascend::register_failure(module);
    cachecore::ascend::register_library(module);
    cachecore::ascend::register_query(module);
    cachecore::ascend::register_device(module);
    cachecore::ascend::register_copy(module);
    cachecore::ascend::register_planted_bug(module);
}
