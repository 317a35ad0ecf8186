#include "server/auth.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"

namespace kf::server {
namespace {

using testing::IsOk;
using testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class Tokens : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  testing::TempDir dir_;
  const std::string path_ = dir_.File("tokens");
};

TEST_F(Tokens, LetInWhoShowsOne) {
  Write("# ours\n\nfirst-token\r\nsecond-token\n");
  auto file = TokenFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  EXPECT_TRUE((*file)->Allows("Bearer first-token"));
  EXPECT_TRUE((*file)->Allows("Bearer second-token"));
  for (const char* header :
       {"", "Bearer ", "Bearer", "first-token", "bearer first-token",
        "Bearer first-toke", "Bearer first-token ", "Bearer # ours",
        "Basic first-token", "Bearer first-token\nsecond-token"}) {
    EXPECT_FALSE((*file)->Allows(header)) << header;
  }
}

TEST_F(Tokens, BadFilesNameTheLineAndNeverTheToken) {
  EXPECT_THAT(TokenFile::Open(path_),
              StatusIs(absl::StatusCode::kNotFound, "--auth_token_file"));
  Write("# nothing\n");
  EXPECT_THAT(TokenFile::Open(path_), StatusIs(kInvalid, "holds no token"));
  Write("good-token\nshort\n");
  const auto file = TokenFile::Open(path_);
  EXPECT_THAT(file, StatusIs(kInvalid, "line 2: 5 bytes, want 8 to 4096"));
  EXPECT_EQ(std::string(file.status().message()).find("short"),
            std::string::npos);
  Write("good-token\nhalf-a-tok");
  EXPECT_THAT(TokenFile::Open(path_),
              StatusIs(kInvalid, "line 2: no newline at its end"));
  Write("with a space\n");
  EXPECT_THAT(TokenFile::Open(path_), StatusIs(kInvalid, "line 1"));
}

TEST_F(Tokens, ReloadTakesTheNewSetAndKeepsTheOldOneIfItIsBad) {
  Write("first-token\n");
  auto file = TokenFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  Write("other-token\n");
  EXPECT_THAT((*file)->Reload(), IsOk());
  EXPECT_FALSE((*file)->Allows("Bearer first-token"));
  EXPECT_TRUE((*file)->Allows("Bearer other-token"));
  Write("bad\n");
  EXPECT_FALSE((*file)->Reload().ok());
  EXPECT_TRUE((*file)->Allows("Bearer other-token"));
  Write("third-token\nforth-to");
  EXPECT_FALSE((*file)->Reload().ok());
  EXPECT_TRUE((*file)->Allows("Bearer other-token"));
  EXPECT_FALSE((*file)->Allows("Bearer forth-to"));
  std::filesystem::remove(path_);
  EXPECT_FALSE((*file)->Reload().ok());
  EXPECT_TRUE((*file)->Allows("Bearer other-token"));
}

}  // namespace
}  // namespace kf::server
