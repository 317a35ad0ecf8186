// Throw-away keys and certificates for tests.
#pragma once

#include <string>

namespace kf::testing {

// Makes `folder`/NAME.key and NAME.crt with a self-signed certificate for
// localhost and 127.0.0.1, valid for a day. Throws if it cannot.
struct TlsPair {
  std::string key_path;
  std::string cert_path;
};
TlsPair MakeTlsPair(const std::string& folder, const std::string& name);

}  // namespace kf::testing
