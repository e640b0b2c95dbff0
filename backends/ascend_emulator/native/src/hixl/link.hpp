// A link to another engine: the side that connected reads and writes over it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../faults.hpp"
#include "channel.hpp"
#include "messages.hpp"
#include "regions.hpp"

namespace emulator::hixl {

// One element of a transfer, as the caller gives it.
struct Element {
    std::uint64_t local;
    std::uint64_t remote;
    std::uint64_t nbytes;
};

// A transfer or notification under way. Waited for by its caller, or asked after later.
class Job {
public:
    Message message;
    std::vector<Descriptor> remote;
    std::vector<iovec> local;
    std::string text;  // notify: name and message
    Fault fault;

    // The status of the job, or kTimeout when it is not done by the deadline.
    int wait(Deadline deadline);
    bool done(int &status);
    void finish(int status);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    int status_ = kOk;
};

class Link {
public:
    // Takes the socket over and shakes hands. Throws Failure with the status of a refusal.
    Link(int fd, std::uint32_t protocols, std::uint32_t flags, Regions regions, Deadline deadline);
    ~Link();
    Link(const Link &) = delete;
    Link &operator=(const Link &) = delete;

    // Checks the local side. Throws Failure 103900 or 103905.
    std::shared_ptr<Job> prepare(TransferOp op, const Element *elements, std::size_t count, bool synchronous,
                                 const Fault &fault) const;

    // Queues the job. Throws Failure 503900 on a link that failed before.
    void submit(const std::shared_ptr<Job> &job);

    // A link that failed or timed out serves nothing until it is connected again.
    void mark_broken() { broken_.store(true); }
    bool broken() const { return broken_.load(); }

    // Ends every job; after it nothing of this process is written any more. False when the other side has not answered
    // by the deadline.
    bool disconnect(Deadline deadline);

private:
    void shake_hands(std::uint32_t protocols, std::uint32_t flags, Deadline deadline);
    void run();
    int carry_out(Job &job);
    Outcome exchange(Job &job, std::int32_t &answer);

    Channel channel_;
    Regions regions_;  // as registered when the link was made
    std::uint32_t protocol_ = 0;
    std::uint32_t flags_ = 0;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Job>> queue_;
    bool stopping_ = false;
    std::mutex ending_;  // held by who disconnects; a second one waits for the first
    std::atomic<bool> broken_{false};
    std::thread worker_;
};

// The statuses that leave a link useless.
inline bool breaks_link(int status) { return status == kTimeout || status == kFailed; }

}  // namespace emulator::hixl
