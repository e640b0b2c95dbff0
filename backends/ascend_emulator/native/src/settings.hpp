// What the environment says about the machine to emulate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emulator {

// Product lines whose rules differ. Unlisted takes the commonest answers: who chooses a driver must refuse it.
enum class Line { a2, a3, ascend950, unlisted };

struct Settings {
    std::string soc;  // name as given, empty without CACHECORE_EMULATE
    Line line = Line::unlisted;
    std::uint64_t hbm_bytes = 0;  // device memory of each device
    std::vector<int> visible;  // physical device of each visible one
    std::string faults;  // plan of CACHECORE_EMULATE_FAULTS
    std::string problem;  // why aclInit must fail; empty when all is well
};

// Read once, when first asked for.
const Settings &settings();

Line line_of(const std::string &soc);

}  // namespace emulator
