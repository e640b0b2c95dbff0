// The extension module cachecore._core: one register function a file.
#include "bindings.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "Native parts of cachecore: plans, copies between processes, shared memory.";
    cachecore::register_refusal(module);
    cachecore::register_buffers(module);
    cachecore::register_geometry(module);
    cachecore::register_copy_plan(module);
    cachecore::register_planning(module);
    cachecore::register_regions(module);
    cachecore::register_report(module);
    cachecore::register_vm(module);
    cachecore::register_mappings(module);
    cachecore::register_nonce(module);
    cachecore::register_shared_block(module);
    cachecore::register_words(module);
    cachecore::register_planted_bug(module);
}
