#include "incoming.hpp"

#include <chrono>
#include <string>
#include <utility>

#include "../failure.hpp"
#include "../faults.hpp"
#include "../settings.hpp"

namespace emulator::hixl {

namespace {

constexpr std::chrono::seconds longest_greeting{5};

}  // namespace

Incoming::Incoming(int fd, Host host) : channel_(fd), host_(std::move(host)) {
    thread_ = std::thread([this] { run(); });
}

Incoming::~Incoming() {
    channel_.stop();
    thread_.join();
}

void Incoming::run() {
    try {
        if (welcome()) {
            while (serve_one()) {
            }
        }
    } catch (const std::exception &error) {
        // Nobody calls this thread: closing the link is how the other side learns of it.
        report(kFailed, error.what());
    }
    if (joined_) {
        host_.left();
    }
    channel_.finish(Clock::now());
    over_.store(true);
}

bool Incoming::welcome() {
    if (!channel_.same_user()) {
        return false;
    }
    const Deadline deadline = Clock::now() + longest_greeting;
    Message hello;
    if (channel_.receive({bytes_of(hello)}, deadline) != Outcome::done || hello.magic != message_magic ||
        hello.version != message_version || hello.kind != Kind::hello) {
        return false;
    }
    const Fault fault = next_fault("hixl_accept");
    if (fault.stall) {
        channel_.wait_for_end();
        return false;
    }
    if (!channel_.pause(fault.delay)) {
        return false;
    }
    const std::uint32_t common = hello.protocols & host_.protocols;
    protocol_ = common & (~common + 1);  // the lowest bit is the preferred protocol
    flags_ = hello.flags & host_.flags;
    Message welcome;
    welcome.kind = Kind::welcome;
    welcome.protocols = protocol_;
    welcome.flags = host_.flags;
    welcome.nonce = process_nonce();
    welcome.status = fault.code;
    if (hello.nonce == process_nonce()) {
        welcome.status = kParamInvalid;
    } else if (protocol_ == 0) {
        welcome.status = kFailed;
    }
    if (welcome.status == kOk) {
        regions_ = host_.joined();
        joined_ = true;
        for (const auto &[address, region] : regions_) {
            if (!region.obstacle(protocol_, flags_).empty()) {
                welcome.status = kFailed;
            }
        }
    }
    return channel_.send({bytes_of(welcome)}, deadline) == Outcome::done && welcome.status == kOk;
}

bool Incoming::serve_one() {
    Message request;
    if (channel_.receive({bytes_of(request)}, never) != Outcome::done || request.magic != message_magic) {
        return false;
    }
    const Fault fault = next_fault("hixl_serve");
    if (fault.stall) {
        channel_.wait_for_end();
        return false;
    }
    if (!channel_.pause(fault.delay)) {
        return false;
    }
    switch (request.kind) {
        case Kind::read:
        case Kind::write:
            return serve_transfer(request);
        case Kind::notify:
            return serve_notify(request);
        default:
            return false;
    }
}

// Every byte is checked against the registrations of the link before the first one moves.
bool Incoming::serve_transfer(const Message &request) {
    if (request.count > most_descriptors) {
        return false;
    }
    std::vector<Descriptor> wanted(request.count);
    if (channel_.receive({{wanted.data(), wanted.size() * sizeof(Descriptor)}}, never) != Outcome::done) {
        return false;
    }
    std::vector<iovec> view;
    const int status = view_of(request, wanted, view);
    if (!answer(status)) {
        return false;
    }
    if (status != kOk) {
        return true;
    }
    if (request.kind == Kind::read) {
        return channel_.send(std::move(view), never) == Outcome::done;
    }
    return channel_.receive(std::move(view), never) == Outcome::done && answer(kOk);
}

int Incoming::view_of(const Message &request, const std::vector<Descriptor> &wanted, std::vector<iovec> &view) const {
    const bool fabric = (flags_ & kFabricMemory) != 0;
    const bool relay = (request.flags & flags_ & kRelay) != 0;
    int type = -1;
    view.reserve(wanted.size());
    for (const Descriptor &part : wanted) {
        const Region *const region = region_of(regions_, part.address, part.nbytes);
        if (region == nullptr && !relay) {
            return kParamInvalid;
        }
        const int kind = region == nullptr ? kMemHost : region->type;
        if (kind == kMemHost && protocol_ == kHccsDevice && !fabric) {
            return kUnsupported;  // over HCCS host memory is never the remote side
        }
        if (fabric && type >= 0 && kind != type) {
            return kParamInvalid;
        }
        type = kind;
        if (region == nullptr) {
            append_relayed(part.address, part.nbytes, view);
        } else {
            append_view(*region, part.address, part.nbytes, view);
        }
    }
    return kOk;
}

bool Incoming::serve_notify(const Message &request) {
    if (request.count > longest_text || request.nbytes > longest_text) {
        return false;
    }
    std::string name(request.count, '\0');
    std::string text(request.nbytes, '\0');
    if (channel_.receive({{name.data(), name.size()}, {text.data(), text.size()}}, never) != Outcome::done) {
        return false;
    }
    return answer(host_.notified(std::move(name), std::move(text)) ? kOk : kResourceExhausted);
}

bool Incoming::answer(int status) {
    Message message;
    message.status = status;
    return channel_.send({bytes_of(message)}, never) == Outcome::done;
}

}  // namespace emulator::hixl
