// A backend in front of another one, on which tests can look, wait, spoil a
// row, or fail.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace kf::engine {

struct Hooks {
  // Called on the engine thread after the operation. An error is returned as
  // the operation's own.
  std::function<absl::Status(const PromptAttentionArgs&)> prompt = nullptr;
  std::function<absl::Status(const DecodeAttentionArgs&)> decode = nullptr;
  // Called before pages are copied; an error is returned.
  std::function<absl::Status(std::span<const PageCopy>)> copy = nullptr;
  // Called before memory is asked for; an error is returned.
  std::function<absl::Status(size_t bytes, std::string_view what)> allocate =
      nullptr;
  // Called before memory is read; an error is returned.
  std::function<absl::Status(size_t bytes)> download = nullptr;
  // Called on what the backend has sampled, which it may change.
  std::function<absl::Status(std::vector<SampledRow>&)> sampled = nullptr;
  // As on a device: the host cannot look into the memory.
  bool hide_memory = false;
  // A backend that samples rows does not.
  bool host_sampling = false;
  // A backend whose pages may not be of 8 bits.
  bool no_byte_cache = false;
};

class HookBackend : public Backend {
 public:
  HookBackend(std::unique_ptr<Backend> inner, Hooks hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}

  std::string_view name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  std::string notice() const override { return inner_->notice(); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(
      size_t bytes, std::string_view what) override {
    if (hooks_.allocate) {
      if (auto status = hooks_.allocate(bytes, what); !status.ok()) {
        return status;
      }
    }
    return inner_->Allocate(bytes, what);
  }
  absl::Status Reserve(const WorkLimits& limits) override {
    return inner_->Reserve(limits);
  }
  absl::Status Upload(std::byte* to, std::span<const std::byte> from) override {
    return inner_->Upload(to, from);
  }
  absl::Status Download(std::span<std::byte> to,
                        const std::byte* from) override {
    if (hooks_.download) {
      if (auto status = hooks_.download(to.size()); !status.ok()) return status;
    }
    return inner_->Download(to, from);
  }
  std::optional<DeviceMemory> OwnMemory() const override {
    return inner_->OwnMemory();
  }
  absl::Status CopyRows(std::span<const RowCopy> copies,
                        int64_t width) override {
    return inner_->CopyRows(copies, width);
  }
  const std::byte* HostView(const std::byte* memory) const override {
    return hooks_.hide_memory ? nullptr : inner_->HostView(memory);
  }
  int workers() const override { return inner_->workers(); }
  void ParallelFor(
      int64_t count,
      absl::FunctionRef<void(int64_t index, int worker)> fn) override {
    inner_->ParallelFor(count, fn);
  }
  bool SupportsCache(DType cache_dtype) const override {
    return (cache_dtype != DType::kI8 || !hooks_.no_byte_cache) &&
           inner_->SupportsCache(cache_dtype);
  }
  absl::StatusOr<std::unique_ptr<LinearWeights>> LoadLinear(
      std::span<const WeightView> stacked, WeightFormat format) override {
    return inner_->LoadLinear(stacked, format);
  }
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> LoadEmbedding(
      const WeightView& table) override {
    return inner_->LoadEmbedding(table);
  }
  absl::Status Embed(const EmbeddingTable& table,
                     std::span<const int32_t> ids,
                     float* out) override {
    return inner_->Embed(table, ids, out);
  }
  absl::Status RmsNorm(const float* x,
                       const float* weight,
                       float eps,
                       int64_t rows,
                       int64_t width,
                       float* out) override {
    return inner_->RmsNorm(x, weight, eps, rows, width, out);
  }
  absl::Status Linear(const LinearWeights& w,
                      const float* x,
                      int64_t rows,
                      float* out) override {
    return inner_->Linear(w, x, rows, out);
  }
  absl::Status LinearAdd(const LinearWeights& w,
                         const float* x,
                         int64_t rows,
                         float* inout) override {
    return inner_->LinearAdd(w, x, rows, inout);
  }
  absl::Status SwiGlu(const float* x,
                      int64_t rows,
                      int64_t width,
                      float* out) override {
    return inner_->SwiGlu(x, rows, width, out);
  }
  absl::Status FeedForward(const FeedForwardArgs& args) override {
    return inner_->FeedForward(args);
  }
  bool SamplesRows() const override {
    return !hooks_.host_sampling && inner_->SamplesRows();
  }
  absl::Status StartSampling(std::span<const SampleRow> rows,
                             int32_t vocabulary) override {
    return inner_->StartSampling(rows, vocabulary);
  }
  absl::StatusOr<std::vector<SampledRow>> WaitForSamples() override {
    auto sampled = inner_->WaitForSamples();
    if (!sampled.ok() || !hooks_.sampled) return sampled;
    if (auto status = hooks_.sampled(*sampled); !status.ok()) return status;
    return sampled;
  }
  absl::Status BeginStep(int64_t rows, int64_t capacity) override {
    return inner_->BeginStep(rows, capacity);
  }
  absl::Status EndStep() override { return inner_->EndStep(); }
  size_t PageBytes(const AttentionShape& shape) const override {
    return inner_->PageBytes(shape);
  }
  absl::Status PromptAttention(const PromptAttentionArgs& args) override {
    if (auto status = inner_->PromptAttention(args); !status.ok()) {
      return status;
    }
    return hooks_.prompt ? hooks_.prompt(args) : absl::OkStatus();
  }
  absl::Status Compact(const CompactArgs& args) override {
    return inner_->Compact(args);
  }
  absl::Status DecodeAttention(const DecodeAttentionArgs& args) override {
    if (auto status = inner_->DecodeAttention(args); !status.ok()) {
      return status;
    }
    return hooks_.decode ? hooks_.decode(args) : absl::OkStatus();
  }
  absl::Status AddRowScores(const AddRowScoresArgs& args) override {
    return inner_->AddRowScores(args);
  }
  absl::Status Evict(const EvictArgs& args) override {
    return inner_->Evict(args);
  }
  absl::Status CopyPages(const AttentionShape& shape,
                         std::byte* base,
                         std::span<const PageCopy> copies) override {
    if (hooks_.copy) {
      if (auto status = hooks_.copy(copies); !status.ok()) return status;
    }
    return inner_->CopyPages(shape, base, copies);
  }
  absl::Status BoundPages(const AttentionShape& shape,
                          int32_t tokens,
                          const PageSpan& cache,
                          const PageSpan& bounds) override {
    return inner_->BoundPages(shape, tokens, cache, bounds);
  }
  absl::StatusOr<std::vector<HeldTokens>> ReadHeld(
      const AttentionShape& shape,
      const PageSpan& cache,
      int32_t held,
      const int32_t* free_slot) override {
    return inner_->ReadHeld(shape, cache, held, free_slot);
  }

 private:
  std::unique_ptr<Backend> inner_;
  Hooks hooks_;
};

}  // namespace kf::engine
