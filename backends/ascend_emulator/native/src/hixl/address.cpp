#include <arpa/inet.h>

#include <array>
#include <charconv>

#include "../failure.hpp"
#include "channel.hpp"
#include "status.hpp"

namespace emulator::hixl {

namespace {

[[noreturn]] void refuse(const std::string &text, const char *reason) {
    fail(kParamInvalid, "engine '", text, "': ", reason);
}

// Splits "ip:port" and "[v6]:port"; without a port the second part is empty.
std::pair<std::string, std::string> split(const std::string &text, bool &v6) {
    v6 = !text.empty() && text.front() == '[';
    if (v6) {
        const auto close = text.find(']');
        if (close == std::string::npos) {
            refuse(text, "the bracket is not closed");
        }
        const std::string rest = text.substr(close + 1);
        if (!rest.empty() && rest.front() != ':') {
            refuse(text, "behind the bracket it takes a colon and a port");
        }
        if (rest == ":") {
            refuse(text, "the port is missing");
        }
        return {text.substr(1, close - 1), rest.empty() ? rest : rest.substr(1)};
    }
    const auto colon = text.find(':');
    if (colon != std::string::npos && colon + 1 == text.size()) {
        refuse(text, "the port is missing");
    }
    return {text.substr(0, colon), colon == std::string::npos ? std::string() : text.substr(colon + 1)};
}

}  // namespace

Address Address::parse(const std::string &text) {
    Address address;
    const auto [ip, port] = split(text, address.v6);
    std::array<char, INET6_ADDRSTRLEN> spelling{};
    if (address.v6) {
        in6_addr parsed{};
        if (inet_pton(AF_INET6, ip.c_str(), &parsed) != 1) {
            refuse(text, "it takes ip, ip:port, [v6] or [v6]:port");
        }
        if (!IN6_IS_ADDR_LOOPBACK(&parsed)) {
            refuse(text, "an emulated engine talks over 127.0.0.0/8 and ::1 only");
        }
        inet_ntop(AF_INET6, &parsed, spelling.data(), spelling.size());
    } else {
        in_addr parsed{};
        if (inet_pton(AF_INET, ip.c_str(), &parsed) != 1) {
            refuse(text, "it takes ip, ip:port, [v6] or [v6]:port");
        }
        if ((ntohl(parsed.s_addr) >> 24) != 127) {
            refuse(text, "an emulated engine talks over 127.0.0.0/8 and ::1 only");
        }
        inet_ntop(AF_INET, &parsed, spelling.data(), spelling.size());
    }
    address.ip = spelling.data();
    if (!port.empty()) {
        const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
        if (error != std::errc() || end != port.data() + port.size() || address.port > 65535) {
            refuse(text, "the port must be a number up to 65535");
        }
    }
    return address;
}

std::string Address::meeting_point() const {
    return "cachecore-emulated-hixl/" + (v6 ? "[" + ip + "]" : ip) + ":" + std::to_string(port);
}

}  // namespace emulator::hixl
