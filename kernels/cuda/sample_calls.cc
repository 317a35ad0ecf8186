#include "kernels/cuda/sample_calls.h"

#include <cstring>

#include "kernels/core/status.h"
#include "kernels/cuda/sample.h"

namespace kf::cuda {
namespace {

size_t StagedBytes(std::span<const SampleRow> rows) {
  size_t bytes = ArrayBytes<SampleItem>(rows.size());
  for (const SampleRow& row : rows) {
    bytes += PartBytes(row.changes.size_bytes()) +
             PartBytes(row.forbidden.size_bytes());
  }
  return bytes;
}

// Where the results are, in bytes: they come first in the working memory, and
// are fetched at once.
struct Results {
  size_t tokens = 0;      // [rows]
  size_t top_ids = 0;     // of all rows, one after the other
  size_t top_logits = 0;  // the same
  size_t bytes = 0;
};

Results Place(std::span<const SampleRow> rows, Parts& parts) {
  size_t top = 0;
  for (const SampleRow& row : rows) {
    KF_CHECK(row.options.top_logprobs >= 0 &&
             row.options.top_logprobs <= kMostTopLogprobs);
    top += static_cast<size_t>(row.options.top_logprobs);
  }
  Results results;
  results.tokens = parts.Take(rows.size() * sizeof(SampledToken));
  results.top_ids = parts.Take(top * sizeof(int32_t));
  results.top_logits = parts.Take(top * sizeof(float));
  results.bytes = parts.bytes();
  return results;
}

std::vector<SampledRow> Read(const std::byte* from,
                             const Results& results,
                             std::span<const SampleRow> rows) {
  std::vector<SampledRow> sampled(rows.size());
  size_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    SampledRow& row = sampled[i];
    std::memcpy(&row.token, from + results.tokens + i * sizeof(SampledToken),
                sizeof(SampledToken));
    const auto top = static_cast<size_t>(rows[i].options.top_logprobs);
    if (row.token.state == SampleState::kChosen) row.top.resize(top);
    for (SampledRow::Top& entry : row.top) {
      const size_t place = at + static_cast<size_t>(&entry - row.top.data());
      std::memcpy(&entry.id, from + results.top_ids + place * sizeof(int32_t),
                  sizeof entry.id);
      std::memcpy(&entry.logit,
                  from + results.top_logits + place * sizeof(float),
                  sizeof entry.logit);
    }
    at += top;
  }
  return sampled;
}

}  // namespace

absl::StatusOr<std::vector<SampledRow>> SampleCalls::Rows(
    std::span<const SampleRow> rows, int32_t vocabulary) {
  if (rows.empty()) return std::vector<SampledRow>();
  Parts parts;
  const Results results = Place(rows, parts);
  const size_t working = parts.Take(
      rows.size() * static_cast<size_t>(SampleWords(vocabulary)) * 4);
  KF_ASSIGN_OR_RETURN(unsigned char* memory, workspace_.Get(parts.bytes()));

  KF_RETURN_IF_ERROR(staging_.Begin(StagedBytes(rows)));
  auto* top_ids = reinterpret_cast<int32_t*>(memory + results.top_ids);
  auto* top_logits = reinterpret_cast<float*>(memory + results.top_logits);
  std::vector<SampleItem> items;
  for (const SampleRow& row : rows) {
    SampleItem item;
    item.logits = row.logits;
    item.changes = staging_.Add(row.changes);
    item.forbidden = staging_.Add(row.forbidden);
    item.change_count = static_cast<int32_t>(row.changes.size());
    item.forbidden_count = static_cast<int32_t>(row.forbidden.size());
    item.options = row.options;
    item.top_ids = top_ids;
    item.top_logits = top_logits;
    KF_CHECK(row.options.forced < vocabulary);
    KF_CHECK(row.options.top_logprobs <= vocabulary);
    top_ids += row.options.top_logprobs;
    top_logits += row.options.top_logprobs;
    items.push_back(item);
  }
  SampleWork work;
  work.items = staging_.Add(std::span<const SampleItem>(items));
  KF_RETURN_IF_ERROR(staging_.Send());
  work.rows = static_cast<int32_t>(items.size());
  work.vocabulary = vocabulary;
  work.out = reinterpret_cast<SampledToken*>(memory + results.tokens);
  work.memory = reinterpret_cast<uint32_t*>(memory + working);
  Sample(device_.stream(), work);
  KF_RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "SampleRows"));
  KF_RETURN_IF_ERROR(Fetch(memory, results.bytes));
  return Read(results_->data(), results, rows);
}

absl::Status SampleCalls::Fetch(const unsigned char* from, size_t bytes) {
  if (results_ == nullptr || results_->bytes() < bytes) {
    KF_ASSIGN_OR_RETURN(
        results_, PinnedBuffer::Allocate(device_, 2 * bytes, "sampled rows"));
  }
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(results_->data(), from, bytes,
                               cudaMemcpyDeviceToHost, device_.stream()),
               "cudaMemcpyAsync of sampled rows"));
  return device_.Wait();
}

}  // namespace kf::cuda
