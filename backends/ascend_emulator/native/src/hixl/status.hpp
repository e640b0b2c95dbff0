// Status codes and enumerators of the transfer module, and what its options become.
#pragma once

#include <cstdint>

namespace emulator::hixl {

enum Status : int {
    kOk = 0,
    kParamInvalid = 103900,
    kTimeout = 103901,
    kNotConnected = 103902,
    kAlreadyConnected = 103903,
    kNotifyFailed = 103904,
    kUnsupported = 103905,
    kResourceExhausted = 203900,
    kFailed = 503900,
};

enum MemType : int { kMemDevice = 0, kMemHost = 1 };
enum TransferOp : int { kRead = 0, kWrite = 1 };
enum TransferStatus : int { kWaiting = 0, kCompleted = 1, kStatusTimeout = 2, kStatusFailed = 3 };

// Protocols as bits, in the order in which a link prefers them.
enum Protocol : std::uint32_t {
    kHccsDevice = 1,
    kUbCtpDevice = 2,
    kUbCtpHost = 4,
    kUbRtpDevice = 8,
    kUboeDevice = 16,
    kRoceDevice = 32,
    kRoceHost = 64,
};

inline constexpr std::uint32_t roce_protocols = kRoceDevice | kRoceHost;
inline constexpr std::uint32_t host_protocols = kUbCtpHost | kRoceHost;

// Options as bits.
enum Flag : std::uint32_t { kRelay = 1, kFabricMemory = 2, kAutoConnect = 4 };

}  // namespace emulator::hixl
