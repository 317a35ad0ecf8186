// Finds cuBLASLt at run time: nothing is linked, and a machine without it is no
// error.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt_api.h"

namespace kf::cuda {

// A library that was loaded; it stays for the life of the process, since code
// that a device may still know of is not to be unmapped.
struct CublasLt {
  lt::Api api = {};
  std::string file;     // as it was asked for
  std::string version;  // "13.1.0"
};

// `file` is a path, or a name for the loader to look for. kUnavailable: it
// cannot be loaded, lacks a function (named), or is older than 12.0.
absl::StatusOr<CublasLt> OpenCublasLt(const std::string& file);

struct CublasLtSearch {
  std::optional<CublasLt> library;  // the first that can be used
  std::string tried;                // else all, each with its reason
};
CublasLtSearch FindCublasLt(const std::vector<std::string>& files);

// Where it may be, in the order it is looked for: what the loader knows, the
// toolkit's folder, and NVIDIA's packages for Python, of the active
// environment, the user and the system. `environment` looks up a variable
// (null: not set); `root` is put before the system's folders, for tests.
std::vector<std::string> CublasLtPlaces(
    const std::function<const char*(const char*)>& environment,
    const std::string& root = "");

}  // namespace kf::cuda
