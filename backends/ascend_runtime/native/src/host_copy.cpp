#include "host_copy.hpp"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace cachecore::ascend {

namespace {

constexpr std::uint64_t bounce_bytes = 256 * 1024;

// Bytes moved; fewer than asked for means that the next one failed with `code`.
template <class Call>
std::uint64_t repeat(Call call, unsigned char *buffer, std::uint64_t address, std::uint64_t nbytes, int &code) {
    std::uint64_t moved = 0;
    while (moved < nbytes) {
        const iovec here{buffer + moved, nbytes - moved};
        const iovec there{reinterpret_cast<void *>(address + moved), nbytes - moved};
        const ssize_t count = call(getpid(), &here, 1UL, &there, 1UL, 0UL);
        if (count <= 0) {
            code = count < 0 ? errno : EFAULT;
            return moved;
        }
        moved += static_cast<std::uint64_t>(count);
    }
    return moved;
}

std::uint64_t fetch(unsigned char *buffer, std::uint64_t source, Side side, std::uint64_t nbytes, int &code) {
    if (side == Side::pinned_host) {
        std::memcpy(buffer, reinterpret_cast<const void *>(source), nbytes);
        return nbytes;
    }
    return repeat(process_vm_readv, buffer, source, nbytes, code);
}

std::uint64_t store(std::uint64_t destination, Side side, unsigned char *buffer, std::uint64_t nbytes, int &code) {
    if (side == Side::pinned_host) {
        std::memcpy(reinterpret_cast<void *>(destination), buffer, nbytes);
        return nbytes;
    }
    return repeat(process_vm_writev, buffer, destination, nbytes, code);
}

}  // namespace

HostCopied host_copy(std::uint64_t destination, Side destination_side, std::uint64_t source, Side source_side,
                     std::uint64_t nbytes) {
    HostCopied result;
    if (destination_side == Side::pinned_host && source_side == Side::pinned_host) {
        std::memmove(reinterpret_cast<void *>(destination), reinterpret_cast<const void *>(source), nbytes);
        result.moved = nbytes;
        result.touched = nbytes > 0;
        return result;
    }
    std::vector<unsigned char> bounce(std::min(nbytes, bounce_bytes));
    while (result.moved < nbytes) {
        const std::uint64_t wanted = std::min(nbytes - result.moved, bounce_bytes);
        int code = 0;
        const std::uint64_t read = fetch(bounce.data(), source + result.moved, source_side, wanted, code);
        int store_code = 0;
        const std::uint64_t written =
            store(destination + result.moved, destination_side, bounce.data(), read, store_code);
        result.moved += written;
        result.touched = result.touched || written > 0;
        if (written < read) {
            result.code = store_code;
            return result;
        }
        if (read < wanted) {
            result.source_failed = true;
            result.code = code;
            return result;
        }
    }
    return result;
}

}  // namespace cachecore::ascend
