// Fills and checks memory of this process with 64-bit words, each of which depends on a seed and on its index: a block
// that arrives in the wrong place, shifted, torn or stale cannot pass.
#include <cstdint>
#include <cstring>
#include <vector>

#include "bindings.hpp"
#include "integers.hpp"
#include "refusal.hpp"

namespace py = pybind11;

namespace cachecore {

namespace {

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;  // 2**64 divided by the golden ratio

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes half of the output bits.
inline std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
}

// Seeds are mixed first: neighbouring seeds must not give shifted copies of one sequence.
inline std::uint64_t first_state(std::uint64_t seed) { return mix(seed + golden); }

inline std::uint64_t word(std::uint64_t state, std::uint64_t index) { return mix(state + (index + 1) * golden); }

char *as_pointer(std::uint64_t address) { return reinterpret_cast<char *>(static_cast<std::uintptr_t>(address)); }

void fill(std::uint64_t address, std::uint64_t nbytes, std::uint64_t seed) {
    char *const target = as_pointer(address);
    const std::uint64_t state = first_state(seed);
    const std::uint64_t words = nbytes / 8;
    for (std::uint64_t i = 0; i < words; ++i) {
        const std::uint64_t value = word(state, i);
        std::memcpy(target + 8 * i, &value, 8);  // the address need not be aligned
    }
    if (nbytes % 8 != 0) {
        const std::uint64_t value = word(state, words);
        std::memcpy(target + 8 * words, &value, nbytes % 8);
    }
}

// Index of the first word that is not as filled, -1 when all are.
std::int64_t mismatch(std::uint64_t address, std::uint64_t nbytes, std::uint64_t seed) {
    constexpr std::uint64_t stride = 64;  // no branch inside, so that the processor can overlap the multiplications
    const char *const source = as_pointer(address);
    const std::uint64_t state = first_state(seed);
    const std::uint64_t words = nbytes / 8;
    const auto differs = [&](std::uint64_t i) {
        std::uint64_t seen = 0;
        std::memcpy(&seen, source + 8 * i, 8);
        return seen ^ word(state, i);
    };
    std::uint64_t next = 0;
    for (; next + stride <= words; next += stride) {
        std::uint64_t difference = 0;
        for (std::uint64_t i = next; i < next + stride; ++i) {
            difference |= differs(i);
        }
        if (difference != 0) {
            break;
        }
    }
    for (; next < words; ++next) {
        if (differs(next) != 0) {
            return static_cast<std::int64_t>(next);
        }
    }
    if (nbytes % 8 != 0) {
        const std::uint64_t value = word(state, words);
        if (std::memcmp(source + 8 * words, &value, nbytes % 8) != 0) {
            return static_cast<std::int64_t>(words);
        }
    }
    return -1;
}

struct Blocks {
    std::vector<std::uint64_t> addresses;
    std::vector<std::uint64_t> seeds;
};

Blocks copy_blocks(const py::object &addresses, const py::object &seeds) {
    Blocks blocks{copy_addresses(addresses, "addresses"), copy_addresses(seeds, "seeds")};
    if (blocks.addresses.size() != blocks.seeds.size()) {
        refuse(Reason::value, "addresses has ", blocks.addresses.size(), " items and seeds has ", blocks.seeds.size(),
               "; give one seed a block");
    }
    return blocks;
}

void fill_blocks(const py::object &addresses, const py::object &seeds, std::uint64_t nbytes) {
    const Blocks blocks = copy_blocks(addresses, seeds);
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < blocks.addresses.size(); ++i) {
        fill(blocks.addresses[i], nbytes, blocks.seeds[i]);
    }
}

std::vector<std::pair<std::size_t, std::int64_t>> find_mismatches(const py::object &addresses, const py::object &seeds,
                                                                  std::uint64_t nbytes) {
    const Blocks blocks = copy_blocks(addresses, seeds);
    std::vector<std::pair<std::size_t, std::int64_t>> wrong;
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < blocks.addresses.size(); ++i) {
        const std::int64_t index = mismatch(blocks.addresses[i], nbytes, blocks.seeds[i]);
        if (index >= 0) {
            wrong.emplace_back(i, index);
        }
    }
    return wrong;
}

}  // namespace

void register_words(py::module_ &module) {
    module.def("fill_words", &fill, py::arg("address"), py::arg("nbytes"), py::arg("seed"),
               py::call_guard<py::gil_scoped_release>(), "Write words that depend on seed and index.");
    module.def("find_mismatch", &mismatch, py::arg("address"), py::arg("nbytes"), py::arg("seed"),
               py::call_guard<py::gil_scoped_release>(),
               "Index of the first word that is not as fill_words wrote it, -1 when all are.");
    module.def("fill_blocks", &fill_blocks, py::arg("addresses"), py::arg("seeds"), py::arg("nbytes"),
               "fill_words for many blocks of one size.");
    module.def(
        "find_mismatches",
        [](const py::object &addresses, const py::object &seeds, std::uint64_t nbytes) {
            py::list result;
            for (const auto &[position, index] : find_mismatches(addresses, seeds, nbytes)) {
                result.append(py::make_tuple(position, index));
            }
            return result;
        },
        py::arg("addresses"), py::arg("seeds"), py::arg("nbytes"),
        "find_mismatch for many blocks of one size: (position, word index) of each that is wrong.");
}

}  // namespace cachecore
