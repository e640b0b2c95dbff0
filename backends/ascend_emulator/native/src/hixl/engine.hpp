// An emulated transfer engine: one for each device of a process.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channel.hpp"
#include "incoming.hpp"
#include "link.hpp"
#include "registrations.hpp"

namespace emulator::hixl {

struct Notification {
    std::string name;
    std::string text;
};

class Engine {
public:
    // Throws Failure: 103900 for the address, 503900 when it cannot listen.
    Engine(const std::string &address, std::uint32_t protocols, std::uint32_t flags);
    ~Engine();
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // All throw Failure with the status for the caller.
    std::uint64_t register_memory(std::uint64_t address, std::uint64_t nbytes, int type);
    void deregister_memory(std::uint64_t handle);
    void connect(const std::string &remote, int timeout_ms);
    void disconnect(const std::string &remote, int timeout_ms);
    void transfer(const std::string &remote, int op, const Element *elements, std::size_t count, int timeout_ms,
                  const Fault &fault);
    std::uint64_t transfer_later(const std::string &remote, int op, const Element *elements, std::size_t count,
                                 const Fault &fault);
    // WAITING, COMPLETED or FAILED; the latter two are told once.
    int status_of(std::uint64_t request);
    void notify(const std::string &remote, const std::string &name, const std::string &text, int timeout_ms,
                const Fault &fault);
    bool take_notification(Notification &notification);

private:
    // Messages of one link that wait count against that link.
    struct Waiting {
        Notification notification;
        std::shared_ptr<std::size_t> of_link;
    };

    struct Request {
        std::string remote;
        std::shared_ptr<Job> job;
        bool disconnected = false;
    };

    void listen();
    void drop_finished_incoming();
    // The link to use; makes one where the engine connects by itself.
    std::shared_ptr<Link> link_to(const std::string &remote, int timeout_ms);
    std::shared_ptr<Job> prepare(const std::string &remote, Link &link, int op, const Element *elements,
                                 std::size_t count, bool synchronous, const Fault &fault);

    const Address address_;
    const std::uint32_t protocols_;
    const std::uint32_t flags_;
    std::mutex mutex_;
    Registrations registrations_;
    std::uint64_t last_request_ = 0;
    std::map<std::string, std::shared_ptr<Link>> links_;
    std::map<std::uint64_t, Request> requests_;
    std::deque<Waiting> notifications_;
    std::size_t joined_ = 0;  // links of others to this engine
    std::vector<std::unique_ptr<Incoming>> incoming_;
    std::unique_ptr<Listener> listener_;
    std::thread acceptor_;
};

}  // namespace emulator::hixl
