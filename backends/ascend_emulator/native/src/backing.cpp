// Physical memory is a sparse memfd: pages nobody wrote cost the host nothing.
#include "backing.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "abi.hpp"
#include "failure.hpp"
#include "settings.hpp"

namespace emulator {

namespace {

std::array<std::atomic<std::uint64_t>, 64> used{};

std::atomic<std::uint64_t> &used_of(int device) { return used[static_cast<std::size_t>(device)]; }

void charge(int device, std::size_t nbytes) {
    auto &taken = used_of(device);
    const std::uint64_t total = settings().hbm_bytes;
    std::uint64_t before = taken.load();
    do {
        if (nbytes > total || before > total - nbytes) {
            fail(abi::kOutOfMemory, "device ", device, " has ", total - before, " of ", total, " bytes left, ", nbytes,
                 " were asked for");
        }
    } while (!taken.compare_exchange_weak(before, before + nbytes));
}

struct Reserved {
    std::mutex mutex;
    std::map<std::uintptr_t, std::size_t> ranges;
};

Reserved &reserved() {
    static Reserved &all = *new Reserved;
    return all;
}

std::byte *map_alias(int device, std::size_t nbytes) {
    const std::string name = "cachecore-emulated-device" + std::to_string(device);
    const int fd = memfd_create(name.c_str(), MFD_CLOEXEC);
    if (fd < 0) {
        fail(abi::kResourceAllocationFailed, "the host has no memory file left for ", nbytes, " bytes");
    }
    void *address = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(nbytes)) == 0) {
        address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    }
    close(fd);
    if (address == MAP_FAILED) {
        fail(abi::kResourceAllocationFailed, "the host cannot map ", nbytes, " bytes");
    }
    // A forked child has no device, and a core dump of a crash does not need all of its memory.
    madvise(address, nbytes, MADV_DONTFORK);
    madvise(address, nbytes, MADV_DONTDUMP);
    return static_cast<std::byte *>(address);
}

}  // namespace

Backing::Backing(int device, std::size_t nbytes, std::size_t page) : device_(device), nbytes_(nbytes), page_(page) {
    charge(device, nbytes);
    try {
        alias_ = map_alias(device, nbytes);
    } catch (...) {
        used_of(device) -= nbytes;
        throw;
    }
}

Backing::~Backing() {
    munmap(alias_, nbytes_);
    used_of(device_) -= nbytes_;
}

Reservation::Reservation(std::size_t nbytes, std::size_t alignment)
    : nbytes_(round_up(nbytes, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)))) {
    const std::size_t room = nbytes_ + alignment;
    void *address = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room < nbytes || address == MAP_FAILED) {
        fail(abi::kOutOfMemory, "no range of ", nbytes, " addresses is free");
    }
    const auto low = reinterpret_cast<std::uintptr_t>(address);
    start_ = round_up(low, alignment);
    if (start_ > low) {
        munmap(address, start_ - low);
    }
    const std::uintptr_t end = start_ + nbytes_;
    if (low + room > end) {
        munmap(reinterpret_cast<void *>(end), low + room - end);
    }
    madvise(reinterpret_cast<void *>(start_), nbytes_, MADV_DONTFORK);
    const std::lock_guard<std::mutex> lock(reserved().mutex);
    reserved().ranges.emplace(start_, nbytes_);
}

Reservation::~Reservation() {
    // Forgotten first: the kernel may give the addresses to somebody else as soon as they are free.
    const std::lock_guard<std::mutex> lock(reserved().mutex);
    reserved().ranges.erase(start_);
    munmap(reinterpret_cast<void *>(start_), nbytes_);
}

bool touches_reservation(std::uintptr_t address, std::size_t nbytes) {
    const std::lock_guard<std::mutex> lock(reserved().mutex);
    const auto &ranges = reserved().ranges;
    const auto next = ranges.upper_bound(address);
    if (next != ranges.begin() && address - std::prev(next)->first < std::prev(next)->second) {
        return true;
    }
    return next != ranges.end() && next->first - address < nbytes;
}

std::uint64_t hbm_used(int device) { return used_of(device).load(); }

}  // namespace emulator
