// Writes a tiny model to a file, for the golden vectors' oracle:
//
//   make_tiny_model --seed=1 --layers=3 --heads=8 --kv_heads=2 tiny.gguf
#include <cstdio>
#include <exception>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "tests/testing/tiny_model.h"

ABSL_FLAG(uint32_t, seed, 1, "seed of the weights");
ABSL_FLAG(int32_t, layers, 2, "decoder layers");
ABSL_FLAG(int32_t, heads, 4, "query heads");
ABSL_FLAG(int32_t, kv_heads, 2, "key/value heads; divides heads");
ABSL_FLAG(int32_t, head_dim, 16, "channels of a head, even");
ABSL_FLAG(int32_t, ffn, 128, "width of the feed-forward layer");
ABSL_FLAG(int32_t, context, 512, "context length in tokens");
ABSL_FLAG(int32_t, eos, kf::testing::kTinyEos, "the token that ends a text");
ABSL_FLAG(bool, tied, false, "share the embedding with the output");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "make_tiny_model [flags] FILE: writes a tiny random GGUF model");
  const std::vector<char*> args = absl::ParseCommandLine(argc, argv);
  kf::testing::TinyModelSpec spec;
  spec.seed = absl::GetFlag(FLAGS_seed);
  spec.layers = absl::GetFlag(FLAGS_layers);
  spec.heads = absl::GetFlag(FLAGS_heads);
  spec.kv_heads = absl::GetFlag(FLAGS_kv_heads);
  spec.head_dim = absl::GetFlag(FLAGS_head_dim);
  spec.ffn = absl::GetFlag(FLAGS_ffn);
  spec.context = absl::GetFlag(FLAGS_context);
  spec.eos = absl::GetFlag(FLAGS_eos);
  spec.tied = absl::GetFlag(FLAGS_tied);
  if (args.size() != 2) {
    std::fprintf(stderr, "%s\n", "make_tiny_model: want one FILE");
    return 2;
  }
  for (const int32_t count : {spec.layers, spec.heads, spec.kv_heads,
                              spec.head_dim, spec.ffn, spec.context}) {
    if (count < 1) {
      std::fprintf(stderr, "make_tiny_model: count %d, want > 0\n", count);
      return 2;
    }
  }
  if (spec.eos < 0 || spec.eos >= kf::testing::kTinyVocabulary) {
    std::fprintf(stderr, "make_tiny_model: eos %d, want 0 to %d\n", spec.eos,
                 kf::testing::kTinyVocabulary - 1);
    return 2;
  }
  try {
    kf::testing::WriteTinyModel(spec, args[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_tiny_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
