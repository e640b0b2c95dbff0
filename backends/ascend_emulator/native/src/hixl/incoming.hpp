// A link that another engine made to this one: its requests are served without the owner's doing.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "channel.hpp"
#include "messages.hpp"
#include "regions.hpp"

namespace emulator::hixl {

class Incoming {
public:
    struct Host {
        std::uint32_t protocols;
        std::uint32_t flags;
        // The registrations at this moment; called once, when the link is made, together with counting the link.
        std::function<Regions()> joined;
        // Takes a notification; false when too many wait.
        std::function<bool(std::string name, std::string text)> notified;
        // The link is over. Called before the other side can see that.
        std::function<void()> left;
    };

    Incoming(int fd, Host host);
    ~Incoming();
    Incoming(const Incoming &) = delete;
    Incoming &operator=(const Incoming &) = delete;

    bool over() const { return over_.load(); }

private:
    void run();
    bool welcome();
    bool serve_one();
    bool serve_transfer(const Message &request);
    bool serve_notify(const Message &request);
    int view_of(const Message &request, const std::vector<Descriptor> &wanted, std::vector<iovec> &view) const;
    bool answer(int status);

    Channel channel_;
    Host host_;
    Regions regions_;
    std::uint32_t protocol_ = 0;
    std::uint32_t flags_ = 0;
    bool joined_ = false;
    std::atomic<bool> over_{false};
    std::thread thread_;
};

}  // namespace emulator::hixl
