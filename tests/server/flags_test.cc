#include "server/flags.h"

#include <map>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

absl::StatusOr<ParsedFlags> Parse(
    const std::vector<const char*>& args,
    const std::map<std::string, std::string>& environment = {}) {
  const absl::FlagSaver saver;  // flags are process-wide
  return ParseFlags(args, [&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

TEST(Flags, DefaultsAreThePromisedOnes) {
  const auto parsed = Parse({"--model=/m/Tiny-1B.Q4_0.gguf"});
  ASSERT_THAT(parsed, IsOk());
  const ServerOptions& options = parsed->options;
  EXPECT_EQ(options.served_model_name, "Tiny-1B.Q4_0");
  EXPECT_EQ(options.grpc_address, "127.0.0.1:8001");
  EXPECT_EQ(options.http_address, "127.0.0.1:8002");
  EXPECT_EQ(options.engine.weight_format, WeightFormat::kBF16);
  EXPECT_EQ(options.engine.cache_dtype, DType::kBF16);
  EXPECT_EQ(options.engine.default_max_new_tokens, 256U);
  EXPECT_EQ(options.engine.default_cache.policy,
            engine::CachePolicy::kKeyformer);
  EXPECT_EQ(options.engine.default_cache.ratio, 0.5);
  EXPECT_EQ(options.engine.default_cache.min_tokens, 256U);
  EXPECT_EQ(options.engine.default_cache.recent_ratio, 0.3);
  EXPECT_EQ(options.drain_timeout, std::chrono::seconds(30));
  EXPECT_FALSE(options.tls.enabled());
}

TEST(Flags, CacheDtypeFollowsDtype) {
  const auto f32 = Parse({"--model=m.gguf", "--dtype=f32"});
  ASSERT_THAT(f32, IsOk());
  EXPECT_EQ(f32->options.engine.cache_dtype, DType::kF32);
  const auto mixed =
      Parse({"--model=m.gguf", "--dtype=f32", "--cache_dtype", "bf16"});
  ASSERT_THAT(mixed, IsOk());
  EXPECT_EQ(mixed->options.engine.cache_dtype, DType::kBF16);
}

TEST(Flags, CommandLineWinsOverEnvironment) {
  const std::map<std::string, std::string> environment = {
      {"KEYFORMER_MODEL", "env.gguf"},
      {"KEYFORMER_MAX_BATCH", "7"},
      {"KEYFORMER_CACHE_POLICY", "full"},
      {"KEYFORMER_TEST_MODEL", "no flag of ours"}};
  const auto parsed = Parse({"--max_batch", "9"}, environment);
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->options.engine.model_path, "env.gguf");
  EXPECT_EQ(parsed->options.engine.max_batch, 9);
  EXPECT_EQ(parsed->options.engine.default_cache.policy,
            engine::CachePolicy::kFull);
}

TEST(Flags, PoolSizesTakeUnits) {
  const auto parsed = Parse({"--model=m.gguf", "--kv_pool_bytes=3GiB"});
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->options.engine.kv_pool_bytes, uint64_t{3} << 30);
}

TEST(Flags, HelpNamesEveryFlag) {
  const auto parsed = Parse({"--help"});
  ASSERT_THAT(parsed, IsOk());
  for (const char* flag :
       {"--model", "--drain_timeout", "--auth_token_file", "--cache_ratio",
        "--prefill_slice_tokens", "--log_format", "KEYFORMER_MAX_BATCH"}) {
    EXPECT_THAT(parsed->print, HasSubstr(flag));
  }
  EXPECT_THAT(Parse({"--version"})->print, HasSubstr("keyformer-server "));
}

struct BadCase {
  const char* name;
  std::vector<const char*> args;
  const char* message;
};

class BadFlags : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadFlags, NameFlagValueAndLimit) {
  std::vector<const char*> args = GetParam().args;
  if (std::string(GetParam().name) != "NoModel") args.push_back("--model=m");
  const auto parsed = Parse(args);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(std::string(parsed.status().message()),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table,
    BadFlags,
    ::testing::Values(
        BadCase{"NoModel", {}, "--model: missing"},
        BadCase{"Unknown", {"--modle=x"}, "--modle: no such flag"},
        BadCase{"AbslsOwn", {"--flagfile=x"}, "--flagfile: no such flag"},
        BadCase{"NoDashes", {"serve"}, "\"serve\": want --flag=value"},
        BadCase{"Batch", {"--max_batch=0"}, "--max_batch: 0, want at least 1"},
        BadCase{"BatchWord",
                {"--max_batch=x"},
                "--max_batch: \"x\", want a whole number"},
        BadCase{"BatchHuge", {"--max_batch=99999999999"}, "--max_batch"},
        BadCase{"Negative",
                {"--default_max_new_tokens=-1"},
                "--default_max_new_tokens: \"-1\", want a whole number >= 0"},
        BadCase{
            "Slice", {"--prefill_slice_tokens=1"}, "--prefill_slice_tokens: 1"},
        BadCase{"Ratio", {"--cache_ratio=0"}, "--cache_ratio: 0, want above 0"},
        BadCase{"RatioNan", {"--cache_ratio=nan"}, "--cache_ratio: nan"},
        BadCase{"Recent",
                {"--cache_recent_ratio=1.5"},
                "--cache_recent_ratio: 1.5, want 0 to 1"},
        BadCase{"MinTokens", {"--cache_min_tokens=0"}, "--cache_min_tokens: 0"},
        BadCase{"Policy",
                {"--cache_policy=window"},
                "--cache_policy: \"window\", want full, h2o, keyformer"},
        BadCase{"Dtype", {"--dtype=f16"}, "--dtype: \"f16\", want bf16, f32"},
        BadCase{"Cuda", {"--device=cuda"}, "--device: \"cuda\" is not in"},
        BadCase{"Simd", {"--simd=sse"}, "--simd: \"sse\""},
        BadCase{"Threads", {"--threads=-2"}, "--threads: -2"},
        BadCase{"Pool", {"--kv_pool_bytes=4GB"}, "--kv_pool_bytes: \"4GB\""},
        BadCase{"PoolHuge", {"--kv_pool_bytes=99999999TiB"}, "--kv_pool_bytes"},
        BadCase{"Address", {"--grpc_address=8001"}, "--grpc_address: \"8001\""},
        BadCase{"Port", {"--http_address=a:65536"}, "--http_address"},
        BadCase{"Drain", {"--drain_timeout=inf"}, "--drain_timeout: inf"},
        BadCase{"KeyAlone", {"--tls_key=k"}, "--tls_cert and --tls_key"},
        BadCase{"CaAlone", {"--tls_client_ca=c"}, "--tls_client_ca: set"},
        BadCase{"Format", {"--log_format=xml"}, "--log_format: \"xml\""},
        BadCase{
            "Message", {"--max_message_bytes=10"}, "--max_message_bytes: 10"}),
    [](const auto& p) { return p.param.name; });

TEST(Flags, LastFlagNeedsItsValue) {
  EXPECT_THAT(Parse({"--model"}), StatusIs(absl::StatusCode::kInvalidArgument,
                                           "--model: the value is missing"));
}

TEST(Flags, EnvironmentErrorsNameTheVariable) {
  EXPECT_THAT(Parse({"--model=m"}, {{"KEYFORMER_THREADS", "many"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "KEYFORMER_THREADS: \"many\""));
}

}  // namespace
}  // namespace kf::server
