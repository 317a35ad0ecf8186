#include "server/model_info.h"

#include <string>

#include "tests/server/tiny_context.h"
#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

using testing::IsOk;
using testing::MakeTinyContext;
using testing::StatusIs;
using testing::TinyContext;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

const TinyContext& Tiny() {
  static const TinyContext* tiny = MakeTinyContext(true).release();
  return *tiny;
}

TEST(Tokenize, TakesWhatAContextCouldHold) {
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  const size_t limit = 512 * Tiny().context.max_token_bytes;
  request.set_text(std::string(limit, 'a'));
  ASSERT_THAT(FillTokenize(Tiny().context, request, &response), IsOk());
  EXPECT_GE(response.token_ids_size(), 512);
  EXPECT_EQ(response.tokens_size(), response.token_ids_size());
  request.set_text(std::string(limit + 1, 'a'));
  EXPECT_THAT(FillTokenize(Tiny().context, request, &response),
              StatusIs(kInvalid, "text: " + std::to_string(limit + 1)));
}

TEST(Detokenize, TakesSoManyIds) {
  v1::DetokenizeRequest request;
  v1::DetokenizeResponse response;
  for (int i = 0; i < 65536; ++i) request.add_token_ids('a');
  ASSERT_THAT(FillDetokenize(Tiny().context, request, &response), IsOk());
  EXPECT_EQ(response.text(), std::string(65536, 'a'));
  request.add_token_ids('a');
  EXPECT_THAT(FillDetokenize(Tiny().context, request, &response),
              StatusIs(kInvalid, "token_ids: 65537 ids, want at most 65536"));
  // A long context has room for more.
  ConvertContext context = Tiny().context;
  context.context_tokens = 10000;
  EXPECT_THAT(FillDetokenize(context, request, &response), IsOk());
}

}  // namespace
}  // namespace kf::server
