// Tiles of Intel's AMX: whether a process may use them.
#pragma once

namespace kf::cpu {

// The machine multiplies tiles of bf16, the operating system saves them, and
// has given this process leave, for which the first call asks. Thread-safe.
bool AmxBf16Usable();

}  // namespace kf::cpu
