// What outsiders may send, while a stream runs beside it.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/e2e/harness.h"
#include "tests/e2e/raw_rpc.h"

namespace kf::testing {
namespace {

constexpr char kGenerate[] = "/keyformer.v1.GenerationService/Generate";
constexpr char kStream[] = "/keyformer.v1.GenerationService/GenerateStream";

struct Bad {
  std::string bytes;
  grpc::StatusCode code;
  std::string message;
};

std::string Bytes(const std::function<void(v1::GenerateRequest&)>& change) {
  v1::GenerateRequest request = TextRequest("hello", 4);
  change(request);
  return request.SerializeAsString();
}

std::vector<Bad> BadRequests() {
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return {
      {"", invalid, "input: none"},
      {"\xFF\xFF\xFF", invalid, "keyformer.v1.GenerateRequest"},
      {"\x1A\x03\xC3(x", invalid, "text: not UTF-8 at byte 0"},
      {Bytes([](auto& r) { r.set_text(""); }), invalid, "text: empty prompt"},
      {Bytes([](auto& r) { r.set_text(std::string(2 << 20, 'a')); }), invalid,
       "text: 2097152 bytes"},
      {Bytes([](auto& r) { r.set_text(std::string(20000, 'a')); }), invalid,
       "16384"},
      {Bytes([](auto& r) { r.set_text(std::string(10000, 'a')); }),
       grpc::StatusCode::FAILED_PRECONDITION, "4096"},
      {Bytes([&](auto& r) { r.mutable_sampling()->set_temperature(nan); }),
       invalid, "sampling.temperature: nan"},
      {Bytes([&](auto& r) { r.mutable_sampling()->set_top_p(infinity); }),
       invalid, "sampling.top_p: inf"},
      {Bytes([&](auto& r) { r.mutable_cache()->set_ratio(-0.5); }), invalid,
       "cache.ratio: -0.5"},
      {Bytes([](auto& r) { r.mutable_cache()->set_tokens(0); }), invalid,
       "cache.tokens: 0"},
      {Bytes([](auto& r) { r.mutable_cache()->set_ratio(0.0); }), invalid,
       "cache.ratio: 0"},
      {Bytes([](auto& r) { r.mutable_cache()->set_ratio(1.5); }), invalid,
       "cache.ratio: 1.5, want 0 < ratio <= 1"},
      {Bytes([](auto& r) {
         r.mutable_cache()->set_tokens(8);
         r.mutable_cache()->set_recent_tokens(9);
       }),
       invalid, "cache.recent_tokens: 9, want at most the budget of 8"},
      {Bytes([](auto& r) { r.mutable_cache()->set_tau_end(0.0); }), invalid,
       "cache.tau_end: 0"},
      {Bytes([](auto& r) {
         r.mutable_cache()->set_scope(v1::SelectionScope(9));
       }),
       invalid, "cache.scope: 9"},
      {Bytes([](auto& r) { r.mutable_cache()->set_sinks(4); }), invalid,
       "cache.sinks: set, but policy CACHE_POLICY_KEYFORMER does not read it"},
      {Bytes([](auto& r) { r.mutable_cache()->add_layer_weights(1.0); }),
       invalid, "cache.layer_weights: 1 numbers, want one for each of the 2"},
      {Bytes([](auto& r) { r.mutable_cache()->set_layer_profile("none"); }),
       invalid, "cache.layer_profile: \"none\", want one of: uniform"},
      {Bytes([](auto& r) { r.mutable_sampling()->set_n(65); }), invalid,
       "sampling.n: 65, want at most 64"},
      {Bytes([](auto& r) {
         r.mutable_sampling()->set_n(2);
         r.mutable_sampling()->mutable_beam()->set_width(2);
       }),
       invalid, "sampling.n: set, but sampling.beam is too"},
      {Bytes([](auto& r) {
         r.mutable_sampling()->set_n(2);
         r.mutable_forced_tokens()->add_ids(1);
       }),
       invalid, "sampling.n: 2, want 1 with forced_tokens"},
      {Bytes([](auto& r) { r.set_model("other"); }),
       grpc::StatusCode::NOT_FOUND, "model: \"other\""},
  };
}

TEST(BadInput, IsNamedAndLeavesTheNeighbourAlone) {
  TestServer server;
  server.Start();
  const auto stub = server.stub();
  const v1::GenerateRequest good = TextRequest("a stream beside it", 200);
  const Streamed alone = RunStream(*stub, good);
  ASSERT_TRUE(alone.status.ok());

  grpc::ClientContext context;
  SetPatience(context);
  auto reader = stub->GenerateStream(&context, good);
  for (const Bad& bad : BadRequests()) {
    const auto [status, response] =
        CallRaw(server.channel(), kGenerate, bad.bytes);
    EXPECT_EQ(status.error_code(), bad.code) << bad.message;
    EXPECT_NE(status.error_message().find(bad.message), std::string::npos)
        << status.error_message();
    EXPECT_LE(status.error_message().size(), 1024U);
    const auto [streamed, unused] =
        CallRaw(server.channel(), kStream, bad.bytes);
    EXPECT_EQ(streamed.error_code(), bad.code) << bad.message;
  }
  const Streamed beside = ReadAll(*reader);
  EXPECT_TRUE(beside.status.ok());
  EXPECT_EQ(beside.ids(), alone.ids());
  server.ExpectNothingHeld();
}

TEST(BadInput, OtherRpcsNameTheirFields) {
  TestServer server;
  server.Start();
  const std::string service = "/keyformer.v1.GenerationService/";
  const auto code = [&](const std::string& method, const std::string& bytes) {
    return CallRaw(server.channel(), service + method, bytes).first;
  };
  const grpc::Status tokenize = code("Tokenize", "\x12\x02o\xFF");
  EXPECT_EQ(tokenize.error_message(), "text: not UTF-8 at byte 1");
  EXPECT_EQ(tokenize.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("ModelInfo", "\x0A\x01\xFF").error_message(),
            "model: not UTF-8 at byte 0");
  EXPECT_EQ(code("ModelInfo", "\x0A\x01x").error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code("Detokenize", "\x12").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code("GetLoad", "").error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(code("NoSuchMethod", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(BadInput, TextsToEncodeHaveALimit) {
  TestServer server;
  server.Start();
  v1::TokenizeRequest request;
  request.set_text(std::string(8 << 20, 'a'));
  grpc::ClientContext context;
  SetPatience(context);
  v1::TokenizeResponse response;
  const grpc::Status status =
      server.stub()->Tokenize(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "text: 8388608 bytes, want at most 4194304");
}

// A megabyte of it could inflate to a thousand.
TEST(BadInput, CompressedMessagesAreRefused) {
  TestServer server;
  server.Start();
  const auto stub = server.stub();
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    for (const size_t bytes : {size_t{1000}, size_t{40} << 20}) {
      grpc::ClientContext context;
      SetPatience(context);
      context.set_compression_algorithm(algorithm);
      v1::GenerateResponse response;
      const grpc::Status status = stub->Generate(
          &context, TextRequest(std::string(bytes, 'a'), 1), &response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
          << bytes << ": " << status.error_message();
    }
  }
  EXPECT_TRUE(RunStream(*stub, TextRequest("hi", 2)).status.ok());
}

TEST(BadInput, MessagesAboveTheLimitAreRefused) {
  TestServer server;
  server.options.max_message_bytes = 1024;
  server.Start();
  const std::string bytes =
      TextRequest(std::string(2000, 'a'), 1).SerializeAsString();
  EXPECT_EQ(CallRaw(server.channel(), kGenerate, bytes).first.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(RunStream(*server.stub(), TextRequest("hi", 2)).status.ok());
}

}  // namespace
}  // namespace kf::testing
