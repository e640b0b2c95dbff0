#include "link.hpp"

#include <algorithm>
#include <utility>

#include "../failure.hpp"
#include "../settings.hpp"

namespace emulator::hixl {

int Job::wait(Deadline deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return done_; }) ? status_ : kTimeout;
}

bool Job::done(int &status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    status = status_;
    return done_;
}

void Job::finish(int status) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        done_ = true;
        status_ = status;
    }
    changed_.notify_all();
}

Link::Link(int fd, std::uint32_t protocols, std::uint32_t flags, Regions regions, Deadline deadline)
    : channel_(fd), regions_(std::move(regions)) {
    shake_hands(protocols, flags, deadline);
    worker_ = std::thread([this] { run(); });
}

Link::~Link() { disconnect(Clock::now()); }

void Link::shake_hands(std::uint32_t protocols, std::uint32_t flags, Deadline deadline) {
    if (!channel_.same_user()) {
        fail(kFailed, "the engine there belongs to another user");
    }
    Message hello;
    hello.kind = Kind::hello;
    hello.protocols = protocols;
    hello.flags = flags;
    hello.nonce = process_nonce();
    Message welcome;
    Outcome outcome = channel_.send({bytes_of(hello)}, deadline);
    if (outcome == Outcome::done) {
        outcome = channel_.receive({bytes_of(welcome)}, deadline);
    }
    if (outcome == Outcome::timeout) {
        fail(kTimeout, "the engine there did not answer in time");
    }
    if (outcome != Outcome::done || welcome.magic != message_magic || welcome.version != message_version ||
        welcome.kind != Kind::welcome) {
        fail(kFailed, "the engine there closed the connection, or is of another version");
    }
    if (welcome.nonce == process_nonce()) {
        fail(kParamInvalid, "the engine there is of this process; a process may not connect to itself");
    }
    if (welcome.status != kOk) {
        fail(welcome.status,
             "the engine there refused the link: no protocol in common, or memory registered there that "
             "the protocol cannot reach");
    }
    protocol_ = welcome.protocols;
    flags_ = flags & welcome.flags;
    for (const auto &[address, region] : regions_) {
        if (const std::string obstacle = region.obstacle(protocol_, flags_); !obstacle.empty()) {
            fail(kFailed, "the link cannot be made: ", obstacle);
        }
    }
}

std::shared_ptr<Job> Link::prepare(TransferOp op, const Element *elements, std::size_t count, bool synchronous,
                                   const Fault &fault) const {
    auto job = std::make_shared<Job>();
    job->message.kind = op == kRead ? Kind::read : Kind::write;
    job->message.flags = synchronous ? flags_ & kRelay : 0;
    job->fault = fault;
    job->remote.reserve(count);
    job->local.reserve(count);
    const bool host_allowed = protocol_ != kHccsDevice || (flags_ & kFabricMemory) != 0 || settings().line == Line::a3;
    std::uint64_t left = fault.truncate;
    int type = -1;
    for (std::size_t index = 0; index < count; ++index) {
        const auto &[local, remote, nbytes] = elements[index];
        const Region *const region = region_of(regions_, local, nbytes);
        if (nbytes == 0 || (region == nullptr && (job->message.flags & kRelay) == 0)) {
            fail(kParamInvalid, "element ", index, ": local memory ", reinterpret_cast<void *>(local), " + ", nbytes,
                 " is empty, or was not registered when the link was made");
        }
        const int kind = region == nullptr ? kMemHost : region->type;
        if (kind == kMemHost && !host_allowed) {
            fail(kUnsupported, "element ", index, ": HCCS moves device memory only on ", settings().soc);
        }
        if ((flags_ & kFabricMemory) != 0 && type >= 0 && kind != type) {
            fail(kParamInvalid, "element ", index, ": with fabric memory all elements are of one type");
        }
        type = kind;
        const std::uint64_t part = std::min(nbytes, left);
        left -= part;
        if (part == 0) {
            continue;  // the planned fault: bytes that nobody misses
        }
        job->remote.push_back({remote, part});
        if (region == nullptr) {
            append_relayed(local, part, job->local);
        } else {
            append_view(*region, local, part, job->local);
        }
    }
    job->message.count = job->remote.size();
    return job;
}

void Link::submit(const std::shared_ptr<Job> &job) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (broken() || stopping_) {
            fail(kFailed, "the link failed or timed out before; disconnect and connect again");
        }
        queue_.push_back(job);
    }
    changed_.notify_all();
}

bool Link::disconnect(Deadline deadline) {
    const std::lock_guard<std::mutex> ending(ending_);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    channel_.stop();
    changed_.notify_all();
    if (worker_.joinable()) {
        worker_.join();
    }
    return channel_.finish(deadline);
}

void Link::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) {
            return;
        }
        const std::shared_ptr<Job> job = std::move(queue_.front());
        queue_.pop_front();
        const bool useless = stopping_ || broken();
        lock.unlock();
        const int status = useless ? static_cast<int>(kFailed) : carry_out(*job);
        if (breaks_link(status)) {
            mark_broken();
        }
        job->finish(status);
        lock.lock();
    }
}

int Link::carry_out(Job &job) {
    if (!channel_.pause(job.fault.delay)) {
        return kFailed;
    }
    if (job.fault.stall) {
        channel_.wait_for_end();
        return kFailed;
    }
    std::int32_t answer = kOk;
    if (exchange(job, answer) != Outcome::done) {
        return kFailed;
    }
    if (answer != kOk) {
        return answer;
    }
    return job.fault.late_code != 0 ? job.fault.late_code : job.fault.code;
}

Outcome Link::exchange(Job &job, std::int32_t &answer) {
    Message reply;
    std::vector<iovec> request{bytes_of(job.message),
                               {job.remote.data(), job.remote.size() * sizeof(Descriptor)},
                               {job.text.data(), job.text.size()}};
    Outcome outcome = channel_.send(std::move(request), never);
    if (outcome == Outcome::done) {
        outcome = channel_.receive({bytes_of(reply)}, never);
    }
    answer = reply.status;
    if (outcome != Outcome::done || answer != kOk || job.message.kind == Kind::notify) {
        return outcome;
    }
    if (job.message.kind == Kind::read) {
        return channel_.receive(job.local, never);
    }
    outcome = channel_.send(job.local, never);
    if (outcome == Outcome::done) {
        outcome = channel_.receive({bytes_of(reply)}, never);
        answer = reply.status;
    }
    return outcome;
}

}  // namespace emulator::hixl
