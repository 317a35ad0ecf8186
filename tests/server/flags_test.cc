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
  const auto bytes = Parse({"--model=m.gguf", "--cache_dtype=q8"});
  ASSERT_THAT(bytes, IsOk());
  EXPECT_EQ(bytes->options.engine.cache_dtype, DType::kI8);
  EXPECT_EQ(bytes->options.engine.weight_format, WeightFormat::kBF16);
  EXPECT_THAT(Parse({"--model=m.gguf", "--cache_dtype=q4"}),
              StatusIs(absl::StatusCode::kInvalidArgument, "cache_dtype"));
}

TEST(Flags, ADeviceHasAnIndex) {
  const auto other = Parse({"--model=m.gguf", "--device=cuda:2"});
  ASSERT_THAT(other, IsOk());
  EXPECT_EQ(other->options.engine.backend.name, "cuda");
  EXPECT_EQ(other->options.engine.backend.device_index, 2);
  const auto none = Parse({"--model=m.gguf"});
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(none->options.engine.backend.name, "auto");
  EXPECT_TRUE(none->options.engine.backend.cuda_graphs);
  EXPECT_TRUE(none->options.engine.backend.keep_cores);
  const auto off = Parse({"--model=m.gguf", "--cuda_graphs=false"});
  ASSERT_THAT(off, IsOk());
  EXPECT_FALSE(off->options.engine.backend.cuda_graphs);
  EXPECT_EQ(none->options.engine.backend.device_index, 0);
}

TEST(Flags, CublasLtHasAPath) {
  const auto none = Parse({"--model=m.gguf"});
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(none->options.engine.backend.cublaslt_path, "");
  const auto given =
      Parse({"--model=m.gguf"}, {{"KEYFORMER_CUBLASLT_PATH", "/opt/lt.so"}});
  ASSERT_THAT(given, IsOk());
  EXPECT_EQ(given->options.engine.backend.cublaslt_path, "/opt/lt.so");
}

TEST(Flags, ADummyModelHasAShapeAndNoFile) {
  const auto dummy = Parse({"--load_format=dummy", "--model_config=llama-8b"});
  ASSERT_THAT(dummy, IsOk());
  EXPECT_EQ(dummy->options.engine.load_format, engine::LoadFormat::kDummy);
  EXPECT_EQ(dummy->options.engine.model_config, "llama-8b");
  EXPECT_EQ(dummy->options.served_model_name, "dummy-llama-8b");
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Parse({"--load_format=dummy"}),
              StatusIs(kBad, "--model_config: empty, want a shape"));
  EXPECT_THAT(Parse({"--load_format=dummy", "--model_config=llama-8b",
                     "--model=m.gguf"}),
              StatusIs(kBad, "--model: \"m.gguf\", want none"));
  EXPECT_THAT(Parse({"--model=m.gguf", "--model_config=llama-8b"}),
              StatusIs(kBad, "--model_config: \"llama-8b\", want none"));
  EXPECT_THAT(Parse({"--load_format=random"}),
              StatusIs(kBad, "--load_format: \"random\", want dummy, gguf"));
}

TEST(Flags, DtypesOfIntegers) {
  const auto q4 = Parse({"--model=m.gguf", "--dtype=q4"});
  ASSERT_THAT(q4, IsOk());
  EXPECT_EQ(q4->options.engine.weight_format, WeightFormat::kQ4);
  EXPECT_EQ(q4->options.engine.cache_dtype, DType::kBF16);
  const auto by_file = Parse({"--model=m.gguf", "--dtype=auto"});
  ASSERT_THAT(by_file, IsOk());
  EXPECT_FALSE(by_file->options.engine.weight_format.has_value());
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

TEST(Flags, EveryCacheOptionHasADefault) {
  const auto parsed = Parse(
      {"--model=m", "--cache_policy=quest", "--cache_ratio=0.25",
       "--cache_min_tokens=9", "--cache_basis=total",
       "--cache_recent_ratio=0.1", "--cache_sinks=5", "--cache_tau_init=3",
       "--cache_tau_end=4", "--cache_noise=gaussian", "--cache_resample=once",
       "--cache_scope=model", "--cache_positions=cache",
       "--cache_score_queries=32", "--cache_decode_scores=false",
       "--cache_score_norm=age", "--cache_full_layers=3",
       "--layer_profile=late", "--layer_profiles=p.json"});
  ASSERT_THAT(parsed, IsOk());
  const engine::CacheOptions& cache = parsed->options.engine.default_cache;
  EXPECT_EQ(cache.policy, engine::CachePolicy::kQuest);
  EXPECT_EQ(cache.ratio, 0.25);
  EXPECT_EQ(cache.min_tokens, 9U);
  EXPECT_EQ(cache.basis, engine::BudgetBasis::kTotal);
  EXPECT_EQ(cache.recent_ratio, 0.1);
  EXPECT_EQ(cache.sinks, 5U);
  EXPECT_EQ(cache.tau_init, 3.0);
  EXPECT_EQ(cache.tau_end, 4.0);
  EXPECT_EQ(cache.noise, NoiseKind::kGaussian);
  EXPECT_TRUE(cache.resample_once);
  EXPECT_EQ(cache.scope, engine::SelectionScope::kModel);
  EXPECT_EQ(cache.positions, engine::CachePositions::kCache);
  EXPECT_EQ(cache.score_queries, 32U);
  EXPECT_FALSE(cache.decode_scores);
  EXPECT_EQ(cache.score_norm, engine::ScoreNorm::kAge);
  EXPECT_EQ(cache.full_layers, 3U);
  EXPECT_EQ(parsed->options.rules.layer_profile, "late");
  EXPECT_EQ(parsed->options.engine.layer_profiles_path, "p.json");
}

TEST(Flags, PaperIsAPresetThatFlagsOfTheirOwnWinOver) {
  const auto cache = [](const std::vector<const char*>& args,
                        const std::map<std::string, std::string>& environment) {
    const auto parsed = Parse(args, environment);
    EXPECT_THAT(parsed, IsOk());
    return parsed->options.engine.default_cache;
  };
  EXPECT_EQ(cache({"--model=m", "--cache_preset=paper"}, {}).min_tokens, 1U);
  EXPECT_EQ(cache({"--model=m", "--cache_preset=paper"}, {}).noise,
            NoiseKind::kGumbel);
  // Whichever side the flag stands, and from where it came.
  EXPECT_EQ(cache({"--model=m", "--cache_min_tokens=8", "--cache_preset=paper"},
                  {{"KEYFORMER_CACHE_SCOPE", "layer"}})
                .min_tokens,
            8U);
  EXPECT_EQ(cache({"--model=m"}, {{"KEYFORMER_CACHE_PRESET", "paper"},
                                  {"KEYFORMER_CACHE_SCOPE", "layer"}})
                .scope,
            engine::SelectionScope::kLayer);
}

TEST(Flags, LimitsOfARequest) {
  const auto parsed =
      Parse({"--model=m", "--cache_policies=h2o, keyformer", "--max_samples=8",
             "--max_beam_width=4", "--max_report_bytes=1MiB"});
  ASSERT_THAT(parsed, IsOk());
  const RequestRules& rules = parsed->options.rules;
  EXPECT_EQ(rules.policies,
            (std::vector<engine::CachePolicy>{
                engine::CachePolicy::kH2O, engine::CachePolicy::kKeyformer}));
  EXPECT_EQ(rules.max_samples, 8U);
  EXPECT_EQ(rules.max_beam_width, 4U);
  EXPECT_EQ(rules.max_report_bytes, 1048576U);
  EXPECT_EQ(RequestRules().policies.size(), 5U);
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
            "Skips", {"--max_skips=-1"}, "--max_skips: -1, want at least 0"},
        BadCase{
            "Slice", {"--prefill_slice_tokens=1"}, "--prefill_slice_tokens: 1"},
        BadCase{"SliceTime",
                {"--prefill_slice_ms=-1"},
                "--prefill_slice_ms: -1, want at least 0"},
        BadCase{"Ratio", {"--cache_ratio=0"}, "--cache_ratio: 0, want above 0"},
        BadCase{"RatioNan", {"--cache_ratio=nan"}, "--cache_ratio: nan"},
        BadCase{"Recent",
                {"--cache_recent_ratio=1.5"},
                "--cache_recent_ratio: 1.5, want 0 to 1"},
        BadCase{"MinTokens", {"--cache_min_tokens=0"}, "--cache_min_tokens: 0"},
        BadCase{"Policy",
                {"--cache_policy=snap"},
                "--cache_policy: \"snap\", want full, h2o, keyformer, quest, "
                "window"},
        BadCase{"Preset",
                {"--cache_preset=mine"},
                "--cache_preset: \"mine\", want paper, server"},
        BadCase{"Basis", {"--cache_basis=all"}, "--cache_basis: \"all\""},
        BadCase{"TauInit", {"--cache_tau_init=0"}, "--cache_tau_init: 0"},
        BadCase{"TauEnd", {"--cache_tau_end=nan"}, "--cache_tau_end: nan"},
        BadCase{"TauWord", {"--cache_tau_end=x"}, "\"x\", want a number"},
        BadCase{"Noise", {"--cache_noise=white"}, "--cache_noise: \"white\""},
        BadCase{
            "Resample", {"--cache_resample=never"}, "--cache_resample: \"nev"},
        BadCase{"Scope", {"--cache_scope=all"}, "--cache_scope: \"all\""},
        BadCase{
            "Positions", {"--cache_positions=new"}, "--cache_positions: \"new"},
        BadCase{"Norm", {"--cache_score_norm=l2"}, "--cache_score_norm: \"l2"},
        BadCase{"DecodeScores",
                {"--cache_decode_scores=maybe"},
                "--cache_decode_scores: \"maybe\", want true or false"},
        BadCase{"Sinks", {"--cache_sinks=-1"}, "--cache_sinks: \"-1\""},
        BadCase{"Samples", {"--max_samples=0"}, "--max_samples: 0, want 1 to"},
        BadCase{"Beams", {"--max_beam_width=5000"}, "--max_beam_width: 5000"},
        BadCase{
            "Report", {"--max_report_bytes=big"}, "--max_report_bytes: \"big"},
        BadCase{"PolicyList",
                {"--cache_policies=h2o,lru"},
                "--cache_policies: \"lru\", want full, h2o"},
        BadCase{"DefaultWithheld",
                {"--cache_policies=h2o"},
                "--cache_policies: \"h2o\", want the default among them "
                "(keyformer)"},
        BadCase{"Dtype",
                {"--dtype=f16"},
                "--dtype: \"f16\", want auto, bf16, f32, q4, q8"},
        BadCase{"Device", {"--device=gpu"}, "--device: \"gpu\", want auto"},
        BadCase{"DeviceIndex", {"--device=cuda:x"}, "\"cuda:x\", want auto"},
        BadCase{"CpuIndex", {"--device=cpu:0"}, "--device: \"cpu:0\", want"},
        BadCase{"GpuShare", {"--gpu_memory_share=0"}, "--gpu_memory_share: 0"},
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
