#include "kernels/cuda/sample_calls.h"

#include <algorithm>
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

size_t WorkingBytes(size_t rows, int32_t vocabulary) {
  return std::min(rows, size_t{kSampledAtOnce}) *
         static_cast<size_t>(SampleWords(vocabulary)) * sizeof(uint32_t);
}

}  // namespace

SampleCalls::Results SampleCalls::Place(std::span<const SampleRow> rows,
                                        Parts& parts) {
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

size_t SampleCalls::WorkspaceBytes(int64_t rows, int32_t vocabulary) {
  const auto count = static_cast<size_t>(rows);
  const size_t top = count * kMostTopLogprobs;
  return ArrayBytes<SampledToken>(count) + ArrayBytes<int32_t>(top) +
         ArrayBytes<float>(top) + WorkingBytes(count, vocabulary);
}

absl::Status SampleCalls::Start(std::span<const SampleRow> rows,
                                int32_t vocabulary) {
  KF_CHECK(!started_ && !rows.empty());
  Parts parts;
  const Results results = Place(rows, parts);
  const size_t working = parts.Take(WorkingBytes(rows.size(), vocabulary));
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
  work.vocabulary = vocabulary;
  work.out = reinterpret_cast<SampledToken*>(memory + results.tokens);
  work.memory = reinterpret_cast<uint32_t*>(memory + working);
  for (auto left = static_cast<int32_t>(items.size()); left > 0;
       left -= work.rows) {
    work.rows = std::min(left, kSampledAtOnce);
    Sample(device_.stream(), work);
    work.items += work.rows;
    work.out += work.rows;
  }
  KF_RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "StartSampling"));
  KF_RETURN_IF_ERROR(Fetch(memory, results.bytes));
  results_ = results;
  tops_.clear();
  for (const SampleRow& row : rows) {
    tops_.push_back(static_cast<size_t>(row.options.top_logprobs));
  }
  started_ = true;
  return absl::OkStatus();
}

absl::Status SampleCalls::Fetch(const unsigned char* from, size_t bytes) {
  KF_RETURN_IF_ERROR(fence_.Wait());
  if (fetched_ == nullptr || fetched_->bytes() < bytes) {
    KF_ASSIGN_OR_RETURN(
        fetched_, PinnedBuffer::Allocate(device_, 2 * bytes, "sampled rows"));
  }
  KF_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(fetched_->data(), from, bytes,
                               cudaMemcpyDeviceToHost, device_.stream()),
               "cudaMemcpyAsync of sampled rows"));
  return fence_.Mark(device_.stream());
}

absl::StatusOr<std::vector<SampledRow>> SampleCalls::Wait() {
  KF_CHECK(started_);
  started_ = false;
  KF_RETURN_IF_ERROR(fence_.Wait());
  return Read();
}

std::vector<SampledRow> SampleCalls::Read() const {
  const std::byte* const from = fetched_->data();
  std::vector<SampledRow> sampled(tops_.size());
  size_t at = 0;
  for (size_t i = 0; i < sampled.size(); ++i) {
    SampledRow& row = sampled[i];
    std::memcpy(&row.token, from + results_.tokens + i * sizeof(SampledToken),
                sizeof(SampledToken));
    if (row.token.state == SampleState::kChosen) row.top.resize(tops_[i]);
    for (SampledRow::Top& entry : row.top) {
      const size_t place = at + static_cast<size_t>(&entry - row.top.data());
      std::memcpy(&entry.id, from + results_.top_ids + place * sizeof(int32_t),
                  sizeof entry.id);
      std::memcpy(&entry.logit,
                  from + results_.top_logits + place * sizeof(float),
                  sizeof entry.logit);
    }
    at += tops_[i];
  }
  return sampled;
}

}  // namespace kf::cuda
