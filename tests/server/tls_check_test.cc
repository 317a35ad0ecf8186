#include "server/tls_check.h"

#include <fstream>

#include "tests/server/tls_files.h"
#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"

namespace kf::server {
namespace {

using testing::IsOk;
using testing::StatusIs;

TEST(CheckTlsFiles, WantsAPairThatBelongsTogether) {
  const testing::TempDir dir;
  const auto a = testing::MakeTlsPair(dir.path(), "a");
  const auto b = testing::MakeTlsPair(dir.path(), "b");
  const std::ofstream empty(dir.File("empty"));
  EXPECT_THAT(CheckTlsFiles({a.cert_path, a.key_path, ""}), IsOk());
  EXPECT_THAT(CheckTlsFiles({a.cert_path, a.key_path, b.cert_path}), IsOk());
  EXPECT_THAT(
      CheckTlsFiles({a.cert_path, b.key_path, ""}),
      StatusIs(absl::StatusCode::kInvalidArgument, "--tls_key: " + b.key_path));
  EXPECT_THAT(CheckTlsFiles({dir.File("none"), a.key_path, ""}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--tls_cert: "));
  EXPECT_THAT(CheckTlsFiles({a.cert_path, dir.File("empty"), ""}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--tls_key: "));
  EXPECT_THAT(
      CheckTlsFiles({a.cert_path, a.key_path, dir.File("empty")}),
      StatusIs(absl::StatusCode::kInvalidArgument, "--tls_client_ca: "));
}

}  // namespace
}  // namespace kf::server
