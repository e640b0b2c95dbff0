// A stream socket between two emulated engines, and the addresses that name it.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace emulator::hixl {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

inline constexpr Deadline never = Deadline::max();

// "ip", "ip:port", "[v6]" or "[v6]:port".
struct Address {
    std::string ip;  // in the canonical spelling
    bool v6 = false;
    int port = 0;  // 0 or less: does not listen

    // Throws Failure 103900 for text that is no such address, or none of this machine's loopback: an emulated engine
    // talks to nobody else.
    static Address parse(const std::string &text);

    // The local name that engines of this address meet under.
    std::string meeting_point() const;
};

// A number that is the same for a whole process and differs between processes.
std::uint64_t process_nonce();

enum class Outcome { done, closed, timeout, stopped, bad_memory };

class Channel {
public:
    explicit Channel(int fd);  // takes the descriptor over
    ~Channel();
    Channel(const Channel &) = delete;
    Channel &operator=(const Channel &) = delete;

    // Send or receive all bytes of the pieces, in order. `stopped` after stop(), `bad_memory` where an address is none.
    Outcome send(std::vector<iovec> pieces, Deadline deadline);
    Outcome receive(std::vector<iovec> pieces, Deadline deadline);

    // Waits until the other side closes or stop() is called.
    void wait_for_end();

    // Sleeps; false when stop() ended it.
    bool pause(std::chrono::nanoseconds duration);

    // Makes everything that waits on this channel, now or later, return at once. May be called from any thread.
    void stop();

    // After stop() and the end of every user: says goodbye and reads until the other side has closed too. False when it
    // has not by the deadline.
    bool finish(Deadline deadline);

    // Whether the process at the other end belongs to the same user.
    bool same_user() const;

private:
    template <typename Move>
    Outcome move(std::vector<iovec> pieces, short events, Deadline deadline, Move &&step);
    Outcome wait(short events, Deadline deadline);

    int fd_;
    int wake_;
};

// Connects to the engine that listens at `address`; tries again until somebody does. Nothing (-1) after the deadline.
int connect_to(const Address &address, Deadline deadline);

// Descriptors that hold the address: the port itself, as a real engine does, and the meeting point.
struct Listener {
    explicit Listener(const Address &address);  // throws Failure 503900 when the port is taken
    ~Listener();
    Listener(const Listener &) = delete;
    Listener &operator=(const Listener &) = delete;

    int accept();  // -1 after stop()
    void stop();

private:
    int port_ = -1;
    int meeting_ = -1;
    int wake_ = -1;
};

}  // namespace emulator::hixl
