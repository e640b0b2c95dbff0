// Copies between this process and another one, or within this one, by process_vm_readv and process_vm_writev: a bad
// address on either side is an error code and never a crash.
#include "process_memory.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cachecore {

namespace {

iovec remote_entry(const PeerNonce &nonce) {
    return {reinterpret_cast<void *>(static_cast<std::uintptr_t>(nonce.address)), nonce_bytes};
}

Cause classify(int code) {
    switch (code) {
        case ESRCH: return Cause::peer_gone;
        case EPERM:
        case EACCES: return Cause::not_permitted;
        default: return Cause::native;
    }
}

void fail(Moved &moved, Cause cause, int code, std::uint64_t address = 0) {
    moved.cause = cause;
    moved.code = code;
    moved.fault_address = address;
}

std::uint64_t address_of(const iovec &entry) { return reinterpret_cast<std::uintptr_t>(entry.iov_base); }

template <class Call>
ssize_t uninterrupted(std::uint64_t &calls, Call call) {
    ssize_t moved = 0;
    do {
        ++calls;
        moved = call();
    } while (moved < 0 && errno == EINTR);
    return moved;
}

// 0 when one byte there can be read, else the errno.
int try_read(pid_t pid, const iovec &entry, std::uint64_t &calls) {
    char byte = 0;
    const iovec local{&byte, 1};
    const iovec remote{entry.iov_base, 1};
    const ssize_t result = uninterrupted(calls, [&] { return process_vm_readv(pid, &local, 1, &remote, 1, 0); });
    return result == 1 ? 0 : errno;
}

// The kernel may have copied a few bytes more than it counted when the local side of a copy faulted just behind
// them; never more than it copies in one step.
constexpr std::uint64_t uncounted_bytes = 64;

// Neither side moved a byte from here on: find out which one it was.
void fail_at_front(Moved &moved, pid_t pid, bool write, Batch &batch) {
    const iovec &local = *batch.local();
    const iovec &remote = *batch.remote();
    // Only reading can be tried without harm: the side that is read tells about itself, and by exclusion about the
    // other.
    const int source_error = try_read(write ? getpid() : pid, write ? local : remote, moved.system_calls);
    if (source_error != 0 && source_error != EFAULT) {
        fail(moved, classify(source_error), source_error);  // the peer ended in between
        return;
    }
    const bool local_faulted = write != (source_error == 0);
    if (local_faulted) {
        fail(moved, Cause::local_fault, EFAULT, address_of(local));
        const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
        const std::uint64_t to_page_end = page - address_of(local) % page;
        if (to_page_end < uncounted_bytes && to_page_end < local.iov_len) {
            moved.touched += to_page_end;
        }
    } else {
        fail(moved, Cause::remote_fault, EFAULT, address_of(remote));
    }
}

// False, with the reason in `moved`, when the process is not the one that has the nonce.
bool same_peer(pid_t pid, const PeerNonce &nonce, Moved &moved) {
    NonceValue seen{};
    const iovec local{seen.data(), nonce_bytes};
    const iovec remote = remote_entry(nonce);
    const ssize_t result =
        uninterrupted(moved.system_calls, [&] { return process_vm_readv(pid, &local, 1, &remote, 1, 0); });
    if (result < 0 && errno != EFAULT) {
        fail(moved, classify(errno), errno);
        return false;
    }
    if (result != static_cast<ssize_t>(nonce_bytes) || seen != nonce.value) {
        fail(moved, Cause::wrong_peer, result < 0 ? EFAULT : 0, nonce.address);
        return false;
    }
    return true;
}

}  // namespace

Moved read_batch(pid_t pid, const PeerNonce *nonce, Batch &batch) {
    Moved moved;
    const std::size_t extra = nonce != nullptr ? 1 : 0;
    while (true) {
        NonceValue before{};
        NonceValue behind{};
        iovec *local = batch.local() - extra;
        iovec *remote = batch.remote() - extra;
        const std::size_t local_count = batch.local_count() + 2 * extra;
        const std::size_t remote_count = batch.remote_count() + 2 * extra;
        if (nonce != nullptr) {
            local[0] = {before.data(), nonce_bytes};
            remote[0] = remote_entry(*nonce);
            local[local_count - 1] = {behind.data(), nonce_bytes};
            remote[remote_count - 1] = remote_entry(*nonce);
        }
        const ssize_t result = uninterrupted(moved.system_calls, [&] {
            return process_vm_readv(pid, local, local_count, remote, remote_count, 0);
        });
        const int code = result < 0 ? errno : 0;
        std::uint64_t data = result < 0 ? 0 : static_cast<std::uint64_t>(result);
        if (nonce != nullptr) {
            if (result < 0 && code != EFAULT) {
                fail(moved, classify(code), code);
                return moved;
            }
            data = data > nonce_bytes ? data - nonce_bytes : 0;
            if (result < static_cast<ssize_t>(nonce_bytes) || before != nonce->value) {
                moved.touched += std::min(data, batch.bytes());
                fail(moved, Cause::wrong_peer, code, nonce->address);
                return moved;
            }
            moved.verified = moved.touched;  // what an earlier, short call moved is now between two nonces
        } else if (result < 0 && code != EFAULT) {
            fail(moved, classify(code), code);
            return moved;
        }
        if (data >= batch.bytes()) {
            moved.touched += batch.bytes();
            if (nonce != nullptr && (data - batch.bytes() < nonce_bytes || behind != nonce->value)) {
                fail(moved, Cause::wrong_peer, 0, nonce->address);
                return moved;
            }
            moved.verified = moved.touched;
            return moved;
        }
        if (data == 0) {
            moved.verified = moved.touched;
            fail_at_front(moved, pid, false, batch);
            return moved;
        }
        moved.touched += data;
        batch.consume(data);
    }
}

Moved write_batch(pid_t pid, const PeerNonce &nonce, Batch &batch) {
    Moved moved;
    while (same_peer(pid, nonce, moved)) {
        moved.verified = moved.touched;
        if (batch.bytes() == 0) {
            return moved;
        }
        const ssize_t result = uninterrupted(moved.system_calls, [&] {
            return process_vm_writev(pid, batch.local(), batch.local_count(), batch.remote(), batch.remote_count(), 0);
        });
        if (result < 0 && errno != EFAULT) {
            fail(moved, classify(errno), errno);
            return moved;
        }
        if (result <= 0) {
            fail_at_front(moved, pid, true, batch);
            return moved;
        }
        moved.touched += static_cast<std::uint64_t>(result);
        batch.consume(static_cast<std::uint64_t>(result));
    }
    return moved;
}

Moved copy_batch(Batch &batch) {
    Moved moved;
    while (batch.bytes() > 0) {
        const std::size_t length = std::min(batch.local()->iov_len, batch.remote()->iov_len);
        std::memcpy(batch.local()->iov_base, batch.remote()->iov_base, length);
        batch.consume(length);
        moved.touched += length;
    }
    moved.verified = moved.touched;
    return moved;
}

}  // namespace cachecore
