// Where cuBLASLt is looked for, and what makes a file be refused.
#include "kernels/cuda/cublaslt_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "tests/cuda/fake_library.h"
#endif

namespace kf::cuda {
namespace {

namespace fs = std::filesystem;
using kf::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "kf-cublaslt-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& file) const {
    return path_ + "/" + file;
  }
  // Makes it, and the folders above it.
  std::string Touch(const std::string& file) const {
    const fs::path path = path_ + "/" + file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "not a library";
    return path;
  }

 private:
  std::string path_;
};

TEST(CublasLtPlaces, LoaderThenToolkitThenPython) {
  const Folder root;
  const Folder venv;
  const Folder home;
  const std::map<std::string, std::string> variables = {
      {"VIRTUAL_ENV", venv / ""}, {"HOME", home / ""}};
  const auto environment = [&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
  EXPECT_THAT(CublasLtPlaces(environment, root / ""),
              ElementsAre("libcublasLt.so.13", "libcublasLt.so.12"));

  root.Touch("usr/local/cuda/lib64/libcublasLt.so.13");
  root.Touch(
      "usr/lib/python3/dist-packages/nvidia/cublas/lib/"
      "libcublasLt.so.12");
  venv.Touch("lib/python3.11/site-packages/nvidia/cu13/lib/libcublasLt.so.13");
  venv.Touch("lib/python3.11/site-packages/nvidia/cu13/lib/libother.so");
  venv.Touch("lib/perl/site-packages/nvidia/cu13/lib/libcublasLt.so.13");
  home.Touch(
      ".local/lib/python3.9/site-packages/nvidia/cublas/lib/"
      "libcublasLt.so.12");
  EXPECT_THAT(
      CublasLtPlaces(environment, root / ""),
      ElementsAre(
          "libcublasLt.so.13", "libcublasLt.so.12",
          ::testing::EndsWith("usr/local/cuda/lib64/libcublasLt.so.13"),
          StartsWith(venv / ""), StartsWith(home / ""),
          ::testing::EndsWith("usr/lib/python3/dist-packages/nvidia/cublas/lib/"
                              "libcublasLt.so.12")));
}

TEST(CublasLtPlaces, NoVariablesAreNoFault) {
  EXPECT_THAT(CublasLtPlaces([](const char*) { return nullptr; }, "/nowhere"),
              ElementsAre("libcublasLt.so.13", "libcublasLt.so.12"));
}

TEST(CublasLt, RefusesWhatIsNoLibrary) {
  const Folder folder;
  EXPECT_THAT(OpenCublasLt(folder / "missing.so"),
              StatusIs(kUnavailable, "cannot open shared object file"));
  EXPECT_THAT(OpenCublasLt(folder.Touch("text.so")),
              StatusIs(kUnavailable, ""));
}

// Of a machine that has one: every function is there under its name.
TEST(CublasLt, OpensARealOne) {
  const auto search = FindCublasLt(
      CublasLtPlaces([](const char* name) { return std::getenv(name); }));
  if (!search.library.has_value()) {
    GTEST_SKIP() << "no cuBLASLt here: " << search.tried;
  }
  EXPECT_GE(search.library->api.cublasLtGetVersion(), 120000U);
  EXPECT_THAT(search.library->version,
              ::testing::MatchesRegex("1[0-9]\\.[0-9]+\\.[0-9]+"));
}

#if defined(KF_CUDA_EMULATION)
TEST(CublasLt, OpensTheFake) {
  kf::testing::ResetFake().version = 120304;
  const auto library = OpenCublasLt(KF_FAKE_CUBLASLT);
  ASSERT_THAT(library, kf::testing::IsOk());
  EXPECT_EQ(library->version, "12.3.4");
  EXPECT_EQ(library->file, KF_FAKE_CUBLASLT);
}

TEST(CublasLt, RefusesOneThatLacksAFunction) {
  EXPECT_THAT(OpenCublasLt(KF_FAKE_CUBLASLT_PART),
              StatusIs(kUnavailable, "it has no cublasLtMatmul"));
}

TEST(CublasLt, RefusesOneThatIsTooOld) {
  kf::testing::ResetFake().version = 111104;
  EXPECT_THAT(OpenCublasLt(KF_FAKE_CUBLASLT),
              StatusIs(kUnavailable, "version 11.11.4, want at least 12.0.0"));
}

TEST(CublasLtSearch, TakesTheFirstThatServes) {
  kf::testing::ResetFake();
  const auto search =
      FindCublasLt({"/nowhere/a.so", KF_FAKE_CUBLASLT_PART, KF_FAKE_CUBLASLT});
  ASSERT_TRUE(search.library.has_value());
  EXPECT_EQ(search.library->file, KF_FAKE_CUBLASLT);
  EXPECT_EQ(search.tried, "");
}

TEST(CublasLtSearch, SaysAllThatItTriedAndWhy) {
  const auto search = FindCublasLt({"/nowhere/a.so", KF_FAKE_CUBLASLT_PART});
  EXPECT_FALSE(search.library.has_value());
  EXPECT_THAT(search.tried,
              StartsWith("/nowhere/a.so: cannot open shared object file"));
  EXPECT_THAT(search.tried,
              HasSubstr(std::string("; ") + KF_FAKE_CUBLASLT_PART +
                        ": it has no cublasLtMatmul"));
}
#endif

}  // namespace
}  // namespace kf::cuda
