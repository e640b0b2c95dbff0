#include "channel.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "../device_access.hpp"
#include "../failure.hpp"
#include "status.hpp"

namespace emulator::hixl {

namespace {

constexpr std::size_t pieces_at_once = 1024;  // IOV_MAX of Linux

int milliseconds_left(Deadline deadline) {
    if (deadline == never) {
        return -1;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 60000));
}

// A name without a file: it goes away with the process, and two processes cannot both have it.
socklen_t abstract_name(const std::string &name, sockaddr_un &address) {
    address = {};
    address.sun_family = AF_UNIX;
    const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

void raise(int wake) {
    const std::uint64_t one = 1;
    // The counter of an eventfd cannot be full after one write, and nothing else can fail here.
    while (write(wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

int new_wake() {
    const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake < 0) {
        fail(kResourceExhausted, "no descriptor is left for a link");
    }
    return wake;
}

// Drops the first `nbytes` bytes of the pieces.
void advance(std::vector<iovec> &pieces, std::size_t &first, std::size_t nbytes) {
    while (nbytes > 0) {
        iovec &piece = pieces[first];
        const std::size_t part = std::min(nbytes, piece.iov_len);
        piece.iov_base = static_cast<char *>(piece.iov_base) + part;
        piece.iov_len -= part;
        nbytes -= part;
        first += piece.iov_len == 0 ? 1 : 0;
    }
}

}  // namespace

std::uint64_t process_nonce() {
    static const std::uint64_t nonce = [] {
        std::uint64_t value = 0;
        if (getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
            value = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()) ^
                    (static_cast<std::uint64_t>(getpid()) << 40);
        }
        return value;
    }();
    return nonce;
}

Channel::Channel(int fd) : fd_(fd), wake_(-1) {
    try {
        wake_ = new_wake();
    } catch (...) {
        close(fd_);
        throw;
    }
}

Channel::~Channel() {
    close(fd_);
    close(wake_);
}

Outcome Channel::wait(short events, Deadline deadline) {
    while (true) {
        std::array<pollfd, 2> watched{{{fd_, events, 0}, {wake_, POLLIN, 0}}};
        const int ready = poll(watched.data(), watched.size(), milliseconds_left(deadline));
        if (ready < 0 && errno != EINTR) {
            return Outcome::closed;
        }
        if (watched[1].revents != 0) {
            return Outcome::stopped;
        }
        if (ready > 0) {
            return Outcome::done;
        }
        if (deadline != never && Clock::now() >= deadline) {
            return Outcome::timeout;
        }
    }
}

template <typename Move>
Outcome Channel::move(std::vector<iovec> pieces, short events, Deadline deadline, Move &&step) {
    pieces.erase(std::remove_if(pieces.begin(), pieces.end(), [](const iovec &piece) { return piece.iov_len == 0; }),
                 pieces.end());
    std::size_t first = 0;
    while (first < pieces.size()) {
        // Looks at the wake first: a stop must end a transfer whose socket never blocks.
        if (const Outcome ready = wait(events, deadline); ready != Outcome::done) {
            return ready;
        }
        msghdr message{};
        message.msg_iov = pieces.data() + first;
        message.msg_iovlen = std::min(pieces_at_once, pieces.size() - first);
        const ssize_t moved = step(message);
        if (moved > 0) {
            advance(pieces, first, static_cast<std::size_t>(moved));
        } else if (moved < 0 && errno == EFAULT) {
            return Outcome::bad_memory;
        } else if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return Outcome::closed;
        }
    }
    return Outcome::done;
}

Outcome Channel::send(std::vector<iovec> pieces, Deadline deadline) {
    return move(std::move(pieces), POLLOUT, deadline, [this](msghdr &message) {
        const DeviceAccess access;
        return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
}

Outcome Channel::receive(std::vector<iovec> pieces, Deadline deadline) {
    return move(std::move(pieces), POLLIN, deadline, [this](msghdr &message) {
        const DeviceAccess access;
        return recvmsg(fd_, &message, MSG_DONTWAIT);
    });
}

void Channel::wait_for_end() { wait(POLLRDHUP, never); }

bool Channel::pause(std::chrono::nanoseconds duration) {
    const Deadline deadline = Clock::now() + duration;
    while (Clock::now() < deadline) {
        pollfd watched{wake_, POLLIN, 0};
        if (poll(&watched, 1, milliseconds_left(deadline)) > 0) {
            return false;
        }
    }
    return true;
}

void Channel::stop() { raise(wake_); }

bool Channel::finish(Deadline deadline) {
    shutdown(fd_, SHUT_WR);
    std::vector<char> rest(std::size_t{1} << 16);
    while (true) {
        pollfd watched{fd_, POLLIN, 0};
        if (poll(&watched, 1, milliseconds_left(deadline)) < 0 && errno != EINTR) {
            return true;
        }
        const ssize_t read = recv(fd_, rest.data(), rest.size(), MSG_DONTWAIT);
        if (read == 0 || (read < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return true;
        }
        if (Clock::now() >= deadline) {
            return false;
        }
    }
}

bool Channel::same_user() const {
    ucred peer{};
    socklen_t size = sizeof peer;
    return getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

int connect_to(const Address &address, Deadline deadline) {
    sockaddr_un name{};
    const socklen_t length = abstract_name(address.meeting_point(), name);
    while (true) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) {
            fail(kResourceExhausted, "no descriptor is left for a link");
        }
        if (::connect(fd, reinterpret_cast<const sockaddr *>(&name), length) == 0) {
            return fd;
        }
        close(fd);
        if (Clock::now() >= deadline) {
            return -1;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

Listener::Listener(const Address &address) : wake_(new_wake()) {
    sockaddr_storage port{};
    socklen_t port_length = 0;
    if (address.v6) {
        auto &v6 = reinterpret_cast<sockaddr_in6 &>(port);
        v6.sin6_family = AF_INET6;
        v6.sin6_port = htons(static_cast<std::uint16_t>(address.port));
        inet_pton(AF_INET6, address.ip.c_str(), &v6.sin6_addr);
        port_length = sizeof v6;
    } else {
        auto &v4 = reinterpret_cast<sockaddr_in &>(port);
        v4.sin_family = AF_INET;
        v4.sin_port = htons(static_cast<std::uint16_t>(address.port));
        inet_pton(AF_INET, address.ip.c_str(), &v4.sin_addr);
        port_length = sizeof v4;
    }
    sockaddr_un name{};
    const socklen_t name_length = abstract_name(address.meeting_point(), name);
    const int again = 1;
    port_ = socket(port.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    meeting_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool listening =
        port_ >= 0 && meeting_ >= 0 && setsockopt(port_, SOL_SOCKET, SO_REUSEADDR, &again, sizeof again) == 0 &&
        bind(port_, reinterpret_cast<const sockaddr *>(&port), port_length) == 0 && listen(port_, 1) == 0 &&
        bind(meeting_, reinterpret_cast<const sockaddr *>(&name), name_length) == 0 && listen(meeting_, 128) == 0;
    if (!listening) {
        const int reason = errno;
        for (const int fd : {port_, meeting_, wake_}) {
            if (fd >= 0) {
                close(fd);
            }
        }
        fail(kFailed, "port ", address.port, " of ", address.ip, " cannot be listened on, errno ", reason,
             "; another process may have it");
    }
}

Listener::~Listener() {
    close(port_);
    close(meeting_);
    close(wake_);
}

int Listener::accept() {
    while (true) {
        std::array<pollfd, 2> watched{{{meeting_, POLLIN, 0}, {wake_, POLLIN, 0}}};
        if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) {
            return -1;
        }
        if (watched[1].revents != 0) {
            return -1;
        }
        const int fd = accept4(meeting_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            return fd;
        }
        if (errno == EMFILE || errno == ENFILE) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until a descriptor is free again
        }
    }
}

void Listener::stop() { raise(wake_); }

}  // namespace emulator::hixl
