// Any bytes as a request: the first one chooses the message, the rest is it.
// Whatever parses is translated and checked as the server would.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/request_validation.h"
#include "kernels/core/status.h"
#include "server/convert.h"
#include "server/model_info.h"
#include "server/utf8.h"
#include "server/wire.h"
#include "tests/server/tiny_context.h"

namespace {

namespace v1 = ::keyformer::v1;
using kf::server::ParseMessage;

void Generate(std::string_view bytes,
              const kf::server::ConvertContext& context) {
  v1::GenerateRequest proto;
  if (!ParseMessage(bytes, &proto).ok()) return;
  const auto request = kf::server::ToEngineRequest(proto, context);
  if (!request.ok()) return;
  const kf::engine::RequestLimits& limits = context.report.request;
  const auto sizes = kf::engine::ValidateRequest(*request, limits);
  if (!sizes.ok()) return;
  // What the cache is built on.
  KF_CHECK(sizes->budget >= 1 && sizes->recent >= 0);
  KF_CHECK(sizes->recent <= sizes->budget);
  for (int32_t layer = 0; layer < limits.layers; ++layer) {
    const kf::engine::LayerSize size = sizes->rules.size(layer);
    KF_CHECK(size.budget >= 1 && size.recent >= 0);
    KF_CHECK(size.recent <= size.budget);
  }
  KF_CHECK(request->samples >= 1 && request->samples <= 64);
  KF_CHECK(!request->beam.has_value() || request->samples == 1);
  KF_CHECK(sizes->prompt_tokens + sizes->max_new_tokens <=
           context.context_tokens);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* tiny = kf::testing::MakeTinyContext(true).release();
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1,
                               size - 1);
  if (data[0] % 3 == 0) {
    Generate(bytes, tiny->context);
  } else if (data[0] % 3 == 1) {
    v1::TokenizeRequest request;
    v1::TokenizeResponse response;
    if (ParseMessage(bytes, &request).ok()) {
      (void)kf::server::FillTokenize(tiny->context, request, &response);
    }
  } else {
    v1::DetokenizeRequest request;
    v1::DetokenizeResponse response;
    if (ParseMessage(bytes, &request).ok() &&
        kf::server::FillDetokenize(tiny->context, request, &response).ok()) {
      KF_CHECK(kf::server::ValidUtf8Prefix(response.text()) ==
               response.text().size());
    }
  }
  return 0;
}
