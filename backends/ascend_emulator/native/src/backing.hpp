// Physical memory of a device, and reserved addresses that the host cannot read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

inline constexpr std::size_t normal_page = std::size_t{4} << 10;
inline constexpr std::size_t huge_page = std::size_t{2} << 20;
inline constexpr std::size_t huge_1g_page = std::size_t{1} << 30;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// Memory of one device, reached through an alias that never leaves this library. Counts against the device's HBM.
class Backing {
public:
    // Throws Failure 207001 when the device has not that much left.
    Backing(int device, std::size_t nbytes, std::size_t page);
    ~Backing();
    Backing(const Backing &) = delete;
    Backing &operator=(const Backing &) = delete;

    int device() const { return device_; }
    std::size_t nbytes() const { return nbytes_; }
    std::size_t page() const { return page_; }
    std::byte *alias() const { return alias_; }

private:
    int device_;
    std::size_t nbytes_;
    std::size_t page_;
    std::byte *alias_ = nullptr;
};

// Addresses without memory: the host faults on every access.
class Reservation {
public:
    // `alignment` is a power of two. Throws Failure 207001 when the process has no such range left.
    Reservation(std::size_t nbytes, std::size_t alignment);
    ~Reservation();
    Reservation(const Reservation &) = delete;
    Reservation &operator=(const Reservation &) = delete;

    std::uintptr_t start() const { return start_; }
    std::size_t nbytes() const { return nbytes_; }

private:
    std::uintptr_t start_ = 0;
    std::size_t nbytes_;
};

// Whether any byte of [address, address + nbytes) is reserved: every device address is, with memory or without.
bool touches_reservation(std::uintptr_t address, std::size_t nbytes);

// Bytes of the device's memory that are taken.
std::uint64_t hbm_used(int device);

}  // namespace emulator
