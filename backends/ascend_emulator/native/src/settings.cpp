// CACHECORE_EMULATE=<SoC name>[:<devices>] and its relatives.
#include "settings.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace emulator {

namespace {

constexpr std::uint64_t default_hbm_bytes = std::uint64_t{64} << 30;
constexpr int most_devices = 64;

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

template <typename Integer>
std::optional<Integer> integer(std::string_view text) {
    Integer value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

// The list ends at the first entry that is no device, or that was there before, as the vendor's runtime does it.
std::vector<int> visible_devices(const std::string &list, int devices) {
    std::vector<int> visible;
    if (list.empty()) {
        for (int device = 0; device < devices; ++device) {
            visible.push_back(device);
        }
        return visible;
    }
    std::string_view rest = list;
    while (true) {
        const auto comma = rest.find(',');
        std::string_view entry = rest.substr(0, comma);
        while (!entry.empty() && entry.front() == ' ') {
            entry.remove_prefix(1);
        }
        while (!entry.empty() && entry.back() == ' ') {
            entry.remove_suffix(1);
        }
        const auto device = integer<int>(entry);
        const bool again = device && std::find(visible.begin(), visible.end(), *device) != visible.end();
        if (!device || *device < 0 || *device >= devices || again) {
            return visible;
        }
        visible.push_back(*device);
        if (comma == std::string_view::npos) {
            return visible;
        }
        rest.remove_prefix(comma + 1);
    }
}

Settings read() {
    Settings result;
    const std::string machine = variable("CACHECORE_EMULATE");
    if (machine.empty()) {
        result.problem = "CACHECORE_EMULATE is not set; set it to the name of the SoC to emulate, such as Ascend910B4";
        return result;
    }
    const auto colon = machine.find(':');
    const std::string soc = machine.substr(0, colon);
    int devices = 1;
    if (colon != std::string::npos) {
        const auto count = integer<int>(std::string_view(machine).substr(colon + 1));
        if (!count || *count < 1 || *count > most_devices) {
            result.problem = "CACHECORE_EMULATE is '" + machine +
                             "'; after the colon it takes a number of devices from "
                             "1 to 64, such as Ascend910B4:2";
            return result;
        }
        devices = *count;
    }
    if (soc.empty()) {
        result.problem = "CACHECORE_EMULATE is '" + machine + "'; it must begin with the name of a SoC";
        return result;
    }
    result.hbm_bytes = default_hbm_bytes;
    if (const std::string bytes = variable("CACHECORE_EMULATE_HBM_BYTES"); !bytes.empty()) {
        const auto value = integer<std::uint64_t>(bytes);
        if (!value || *value == 0) {
            result.problem = "CACHECORE_EMULATE_HBM_BYTES is '" + bytes + "'; it must be a number of bytes above 0";
            return result;
        }
        result.hbm_bytes = *value;
    }
    result.soc = soc;
    result.line = line_of(soc);
    result.visible = visible_devices(variable("ASCEND_RT_VISIBLE_DEVICES"), devices);
    result.faults = variable("CACHECORE_EMULATE_FAULTS");
    return result;
}

}  // namespace

Line line_of(const std::string &soc) {
    std::string lower = soc;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    if (lower.find("ascend950") != std::string::npos) {
        return Line::ascend950;
    }
    if (soc.rfind("Ascend910B", 0) == 0) {
        return Line::a2;
    }
    if (soc.rfind("Ascend910_93", 0) == 0) {
        return Line::a3;
    }
    return Line::unlisted;
}

const Settings &settings() {
    static const Settings &machine = *new Settings(read());
    return machine;
}

}  // namespace emulator
