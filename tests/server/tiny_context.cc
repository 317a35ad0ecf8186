#include "tests/server/tiny_context.h"

#include "kernels/core/status.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {

std::unique_ptr<TinyContext> MakeTinyContext(bool chat_template) {
  auto tiny = std::make_unique<TinyContext>();
  TinyModelSpec spec;
  spec.chat_template = chat_template;
  GgufWriter writer;
  AddTinyMetadata(spec, writer);
  tiny->bytes = writer.File();
  auto file = engine::GgufFile::Parse(AsBytes(tiny->bytes));
  KF_CHECK(file.ok());
  tiny->file = *std::move(file);
  auto tokenizer = engine::Tokenizer::Load(*tiny->file);
  KF_CHECK(tokenizer.ok());
  tiny->tokenizer = *std::move(tokenizer);
  tiny->context = server::MakeConvertContext(*tiny->tokenizer, "tiny",
                                             spec.context, {}, {});
  tiny->context.report = {.kv_heads = spec.kv_heads,
                          .request = {.vocabulary = tiny->context.vocabulary,
                                      .context_tokens = spec.context,
                                      .layers = spec.layers},
                          .max_bytes = uint64_t{1} << 20};
  return tiny;
}

}  // namespace kf::testing
