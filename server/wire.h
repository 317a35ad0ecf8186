// Parses requests from the wire strictly: what protobuf would refuse without a
// word, or accept at a hundred times its size, is named here instead.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace kf::server {

// Entries of one repeated string or message field, wherever it occurs. An empty
// entry takes two bytes on the wire and some sixty in memory, so the message's
// size alone is no bound.
inline constexpr int kMaxRepeatedEntries = 65536;
// Fields of a whole message that its type does not know: protobuf keeps each.
inline constexpr int kMaxUnknownFields = 1024;

// Fills `message` from `bytes`. kInvalidArgument names the field by its path,
// e.g. "chat.messages[1].content: not UTF-8 at byte 7"; `message` is then
// unspecified. Entries of a field are counted over the whole message. Unknown
// fields are skipped, as protobuf does; groups, which proto3 has not, are
// refused.
absl::Status ParseMessage(std::string_view bytes,
                          google::protobuf::Message* message);

}  // namespace kf::server
