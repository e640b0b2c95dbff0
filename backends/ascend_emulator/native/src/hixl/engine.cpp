#include "engine.hpp"

#include <algorithm>
#include <utility>

#include "../failure.hpp"

namespace emulator::hixl {

namespace {

constexpr std::size_t most_notifications = 4096;  // of one link that wait to be taken
constexpr int automatic_connect_ms = 1000;

Deadline deadline_of(const char *what, int timeout_ms) {
    if (timeout_ms <= 0) {
        fail(kParamInvalid, what, ": the timeout is ", timeout_ms, "; it must be above 0 milliseconds");
    }
    return Clock::now() + std::chrono::milliseconds(timeout_ms);
}

// What a link's work ended with, in words.
[[noreturn]] void fail_with(int status, const std::string &remote) {
    switch (status) {
        case kParamInvalid:
            fail(status, "the engine at '", remote,
                 "' had not all of the remote memory registered when the link was made");
        case kUnsupported:
            fail(status, "the engine at '", remote, "' cannot reach its host memory over HCCS");
        case kTimeout:
            fail(status, "'", remote,
                 "' has not answered in time, and may still be at it; disconnect and connect again");
        case kResourceExhausted:
            fail(status, "the engine at '", remote, "' takes no more notifications until it has read some");
        default:
            fail(status, "the link to '", remote, "' failed; disconnect and connect again");
    }
}

}  // namespace

Engine::Engine(const std::string &address, std::uint32_t protocols, std::uint32_t flags)
    : address_(Address::parse(address)), protocols_(protocols), flags_(flags) {
    if (address_.port > 0) {
        listener_ = std::make_unique<Listener>(address_);
        acceptor_ = std::thread([this] { listen(); });
    }
}

Engine::~Engine() {
    if (acceptor_.joinable()) {
        listener_->stop();
        acceptor_.join();
    }
    // Neither is touched by anybody else any more; the threads they join take the mutex.
    links_.clear();
    incoming_.clear();
}

void Engine::listen() {
    while (true) {
        const int fd = listener_->accept();
        if (fd < 0) {
            return;
        }
        drop_finished_incoming();
        Incoming::Host host;
        host.protocols = protocols_;
        host.flags = flags_;
        host.joined = [this] {
            const std::lock_guard<std::mutex> lock(mutex_);
            ++joined_;
            return registrations_.regions();
        };
        host.left = [this] {
            const std::lock_guard<std::mutex> lock(mutex_);
            --joined_;
        };
        host.notified = [this, of_link = std::make_shared<std::size_t>(0)](std::string name, std::string text) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (*of_link >= most_notifications) {
                return false;
            }
            ++*of_link;
            notifications_.push_back({{std::move(name), std::move(text)}, of_link});
            return true;
        };
        try {
            auto incoming = std::make_unique<Incoming>(fd, std::move(host));
            const std::lock_guard<std::mutex> lock(mutex_);
            incoming_.push_back(std::move(incoming));
        } catch (const std::exception &error) {
            report(kResourceExhausted, error.what());  // the other side sees the connection closed
        }
    }
}

void Engine::drop_finished_incoming() {
    std::vector<std::unique_ptr<Incoming>> finished;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto over = std::partition(incoming_.begin(), incoming_.end(),
                                     [](const std::unique_ptr<Incoming> &link) { return !link->over(); });
    std::move(over, incoming_.end(), std::back_inserter(finished));
    incoming_.erase(over, incoming_.end());
}

std::uint64_t Engine::register_memory(std::uint64_t address, std::uint64_t nbytes, int type) {
    Region region = make_region(address, nbytes, type);
    const std::lock_guard<std::mutex> lock(mutex_);
    return registrations_.add(std::move(region));
}

void Engine::deregister_memory(std::uint64_t handle) {
    if (handle == 0) {
        fail(kParamInvalid, "the handle is 0");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!registrations_.has(handle)) {
        return;  // deregistered before: the vendor's engine says success too
    }
    if (!links_.empty() || joined_ > 0) {
        fail(kFailed, "the engine has ", links_.size(), " links and ", joined_,
             " peers are linked to it; memory can be "
             "deregistered only without any");
    }
    registrations_.remove(handle);
}

void Engine::connect(const std::string &remote, int timeout_ms) {
    const Deadline deadline = deadline_of("connect", timeout_ms);
    const Address address = Address::parse(remote);
    if (address.port <= 0) {
        fail(kParamInvalid, "engine '", remote, "' has no port, so it does not listen");
    }
    if (address_.port > 0 && address.meeting_point() == address_.meeting_point()) {
        fail(kParamInvalid, "engine '", remote, "' is this engine; a process may not connect to itself");
    }
    Regions regions;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (links_.count(remote) != 0) {
            fail(kAlreadyConnected, "there is a link to '", remote, "' already");
        }
        regions = registrations_.regions();
        links_.emplace(remote, nullptr);  // the place is taken while the link is made
    }
    try {
        const int fd = connect_to(address, deadline);
        if (fd < 0) {
            fail(kTimeout, "nobody listens at '", remote, "'");
        }
        auto link = std::make_shared<Link>(fd, protocols_, flags_, std::move(regions), deadline);
        const std::lock_guard<std::mutex> lock(mutex_);
        links_[remote] = std::move(link);
    } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        links_.erase(remote);
        throw;
    }
}

void Engine::disconnect(const std::string &remote, int timeout_ms) {
    const Deadline deadline = deadline_of("disconnect", timeout_ms);
    std::shared_ptr<Link> link;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = links_.find(remote);
        if (found == links_.end() || found->second == nullptr) {
            fail(kNotConnected, "there is no link to '", remote, "'");
        }
        link = found->second;
    }
    const bool quiescent = link->disconnect(deadline);
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = links_.find(remote);
        if (found != links_.end() && found->second == link) {
            links_.erase(found);
        }
        for (auto &[id, request] : requests_) {
            request.disconnected = request.disconnected || request.remote == remote;
        }
    }
    if (!quiescent) {
        fail(kTimeout, "the engine at '", remote, "' has not answered; the link is gone on this side");
    }
}

std::shared_ptr<Link> Engine::link_to(const std::string &remote, int timeout_ms) {
    const auto find = [&]() -> std::shared_ptr<Link> {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = links_.find(remote);
        return found == links_.end() ? nullptr : found->second;
    };
    std::shared_ptr<Link> link = find();
    if ((flags_ & kAutoConnect) != 0 && link != nullptr && link->broken()) {
        disconnect(remote, timeout_ms);
        link = nullptr;
    }
    if ((flags_ & kAutoConnect) != 0 && link == nullptr) {
        connect(remote, timeout_ms);
        link = find();
    }
    if (link == nullptr) {
        fail(kNotConnected, "there is no link to '", remote, "'");
    }
    return link;
}

std::shared_ptr<Job> Engine::prepare(const std::string &remote, Link &link, int op, const Element *elements,
                                     std::size_t count, bool synchronous, const Fault &fault) {
    if (op != kRead && op != kWrite) {
        fail(kParamInvalid, "operation is ", op, "; it must be 0 (read) or 1 (write)");
    }
    if (elements == nullptr || count == 0 || count > most_descriptors) {
        fail(kParamInvalid, "a transfer to '", remote, "' has ", count, " elements; it takes 1 to ", most_descriptors);
    }
    return link.prepare(static_cast<TransferOp>(op), elements, count, synchronous, fault);
}

void Engine::transfer(const std::string &remote, int op, const Element *elements, std::size_t count, int timeout_ms,
                      const Fault &fault) {
    const Deadline deadline = deadline_of("transfer", timeout_ms);
    const auto link = link_to(remote, timeout_ms);
    if (fault.code != 0 && !fault.partial()) {
        if (breaks_link(fault.code)) {
            link->mark_broken();
        }
        fail(fault.code, "fault of the plan, code ", fault.code);
    }
    const auto job = prepare(remote, *link, op, elements, count, true, fault);
    link->submit(job);
    const int status = job->wait(deadline);
    if (status == kTimeout) {
        link->mark_broken();  // and the transfer goes on until somebody disconnects
    }
    if (status != kOk) {
        fail_with(status, remote);
    }
}

std::uint64_t Engine::transfer_later(const std::string &remote, int op, const Element *elements, std::size_t count,
                                     const Fault &fault) {
    const auto link = link_to(remote, automatic_connect_ms);
    if (fault.code != 0 && !fault.partial()) {
        fail(fault.code, "fault of the plan, code ", fault.code);
    }
    const auto job = prepare(remote, *link, op, elements, count, false, fault);
    link->submit(job);
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_[++last_request_] = {remote, job, false};
    return last_request_;
}

int Engine::status_of(std::uint64_t request) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = requests_.find(request);
    if (found == requests_.end()) {
        fail(kParamInvalid, "request ", request, " is unknown, or its end was told before");
    }
    int status = kOk;
    const bool done = found->second.job->done(status);
    const bool disconnected = found->second.disconnected;
    if (!done) {
        return kWaiting;
    }
    requests_.erase(found);
    if (disconnected && status != kOk) {
        fail(kNotConnected, "the link of request ", request, " was disconnected before it ended");
    }
    return status == kOk ? kCompleted : kStatusFailed;
}

void Engine::notify(const std::string &remote, const std::string &name, const std::string &text, int timeout_ms,
                    const Fault &fault) {
    const Deadline deadline = deadline_of("send_notify", timeout_ms);
    if (name.size() > longest_text || text.size() > longest_text) {
        fail(kParamInvalid, "name and message of a notification have at most 1024 characters");
    }
    const auto link = link_to(remote, timeout_ms);
    if (fault.code != 0) {
        fail(fault.code, "fault of the plan, code ", fault.code);
    }
    auto job = std::make_shared<Job>();
    job->message.kind = Kind::notify;
    job->message.count = name.size();
    job->message.nbytes = text.size();
    job->text = name + text;
    job->fault = fault;
    link->submit(job);
    const int status = job->wait(deadline);
    if (status == kTimeout) {
        link->mark_broken();
    }
    if (status != kOk) {
        fail_with(status, remote);
    }
}

bool Engine::take_notification(Notification &notification) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (notifications_.empty()) {
        return false;
    }
    notification = std::move(notifications_.front().notification);
    --*notifications_.front().of_link;
    notifications_.pop_front();
    return true;
}

}  // namespace emulator::hixl
