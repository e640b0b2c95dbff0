// What two emulated engines say to each other. Both are of this library, on this machine.
#pragma once

#include <sys/uio.h>

#include <cstdint>

namespace emulator::hixl {

inline constexpr std::uint32_t message_magic = 0x6c786968;
inline constexpr std::uint32_t message_version = 1;
inline constexpr std::uint64_t most_descriptors = std::uint64_t{1} << 22;
inline constexpr std::uint64_t longest_text = 4096;  // 1024 characters of at most 4 bytes

enum class Kind : std::uint32_t { hello = 1, welcome, read, write, notify, answer };

struct Message {
    std::uint32_t magic = message_magic;
    std::uint32_t version = message_version;
    Kind kind = Kind::answer;
    std::int32_t status = 0;  // welcome, answer
    std::uint32_t protocols = 0;  // hello: what the engine has; welcome: the one chosen
    std::uint32_t flags = 0;  // hello, welcome: options; read, write: kRelay for a synchronous transfer
    std::uint64_t nonce = 0;  // hello, welcome: of the process
    std::uint64_t count = 0;  // read, write: descriptors that follow; notify: bytes of the name
    std::uint64_t nbytes = 0;  // notify: bytes of the message
};

// To send a message or to receive one; the interface of the system has one type for both.
inline iovec bytes_of(const Message &message) { return {const_cast<Message *>(&message), sizeof message}; }

struct Descriptor {
    std::uint64_t address = 0;
    std::uint64_t nbytes = 0;
};

}  // namespace emulator::hixl
