#include "kernels/cuda/cublaslt_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "kernels/core/status.h"

namespace kf::cuda {
namespace {

// The first whose algorithms can be asked for by reduction scheme and which
// knows Hopper.
constexpr size_t kLeastVersion = 120000;

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

// Of major * 10000 + minor * 100 + patch.
std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".",
                      version % 100);
}

// Resolves one function into `function`; its name, or null, into `missing`.
template <typename Function>
void Resolve(void* library,
             const char* name,
             Function*& function,
             const char*& missing) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr && missing == nullptr) missing = name;
  function = reinterpret_cast<Function*>(symbol);
}

// The first function that the library lacks, or null.
const char* ResolveAll(void* library, lt::Api& api) {
  const char* missing = nullptr;
#define KF_RESOLVE(name) Resolve(library, #name, api.name, missing)
  KF_RESOLVE(cublasLtGetVersion);
  KF_RESOLVE(cublasLtGetStatusName);
  KF_RESOLVE(cublasLtCreate);
  KF_RESOLVE(cublasLtDestroy);
  KF_RESOLVE(cublasLtMatrixLayoutCreate);
  KF_RESOLVE(cublasLtMatrixLayoutDestroy);
  KF_RESOLVE(cublasLtMatrixLayoutSetAttribute);
  KF_RESOLVE(cublasLtMatmulDescCreate);
  KF_RESOLVE(cublasLtMatmulDescDestroy);
  KF_RESOLVE(cublasLtMatmulDescSetAttribute);
  KF_RESOLVE(cublasLtMatmulPreferenceCreate);
  KF_RESOLVE(cublasLtMatmulPreferenceDestroy);
  KF_RESOLVE(cublasLtMatmulPreferenceSetAttribute);
  KF_RESOLVE(cublasLtMatmulAlgoGetHeuristic);
  KF_RESOLVE(cublasLtMatmulAlgoCheck);
  KF_RESOLVE(cublasLtMatmulAlgoConfigSetAttribute);
  KF_RESOLVE(cublasLtMatmulAlgoConfigGetAttribute);
  KF_RESOLVE(cublasLtMatmul);
#undef KF_RESOLVE
  return missing;
}

// Folders of `parent` whose names begin with "python3", each with `rest`.
void AddPythonFolders(const std::string& parent,
                      const std::vector<std::string>& rest,
                      std::vector<std::string>& to) {
  std::vector<std::string> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(parent, error), end;
       !error && at != end; at.increment(error)) {
    if (at->path().filename().string().rfind("python3", 0) != 0) continue;
    for (const std::string& folder : rest) {
      found.push_back(at->path().string() + folder);
    }
  }
  // A directory has no order of its own.
  std::sort(found.begin(), found.end());
  to.insert(to.end(), found.begin(), found.end());
}

}  // namespace

absl::StatusOr<CublasLt> OpenCublasLt(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const text = dlerror();
    std::string reason = text != nullptr ? text : "dlopen failed";
    // It begins with the name, which callers say already.
    if (reason.rfind(file + ": ", 0) == 0) reason.erase(0, file.size() + 2);
    return absl::UnavailableError(reason);
  }
  CublasLt result;
  if (const char* missing = ResolveAll(library, result.api)) {
    dlclose(library);
    return absl::UnavailableError(absl::StrCat("it has no ", missing));
  }
  const size_t version = result.api.cublasLtGetVersion();
  if (version < kLeastVersion) {
    dlclose(library);
    return absl::UnavailableError(absl::StrCat("version ", VersionText(version),
                                               ", want at least ",
                                               VersionText(kLeastVersion)));
  }
  result.file = file;
  result.version = VersionText(version);
  return result;
}

CublasLtSearch FindCublasLt(const std::vector<std::string>& files) {
  CublasLtSearch result;
  for (const std::string& file : files) {
    auto library = OpenCublasLt(file);
    if (library.ok()) {
      result.library = *std::move(library);
      result.tried.clear();
      return result;
    }
    if (!result.tried.empty()) result.tried += "; ";
    result.tried += absl::StrCat(file, ": ", library.status().message());
  }
  return result;
}

std::vector<std::string> CublasLtPlaces(
    const std::function<const char*(const char*)>& environment,
    const std::string& root) {
  std::vector<std::string> places(std::begin(kNames), std::end(kNames));
  std::vector<std::string> packages;
  const auto add_home = [&](const char* variable, const char* folder) {
    const char* const home = environment(variable);
    if (home == nullptr || *home == '\0') return;
    AddPythonFolders(std::string(home) + folder, {"/site-packages"}, packages);
  };
  add_home("VIRTUAL_ENV", "/lib");
  add_home("HOME", "/.local/lib");
  for (const char* system : {"/usr/local/lib", "/usr/lib"}) {
    AddPythonFolders(root + system, {"/dist-packages", "/site-packages"},
                     packages);
  }
  std::vector<std::string> folders = {root + "/usr/local/cuda/lib64"};
  for (const std::string& package : packages) {
    folders.push_back(package + "/nvidia/cu13/lib");
    folders.push_back(package + "/nvidia/cublas/lib");
  }
  for (const std::string& folder : folders) {
    for (const char* name : kNames) {
      std::error_code error;
      const std::string file = absl::StrCat(folder, "/", name);
      if (std::filesystem::exists(file, error)) places.push_back(file);
    }
  }
  return places;
}

}  // namespace kf::cuda
