#include "engine/model/decoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/cache/cache_plan.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

absl::StatusOr<std::unique_ptr<Buffer>> AllocateFloats(Backend& backend,
                                                       int64_t rows,
                                                       int64_t width,
                                                       std::string_view what) {
  return backend.Allocate(
      static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float),
      what);
}

DecodeAttentionItem DecodeItem(const DecodeRow& row, int32_t layer) {
  const SequenceCache& cache = *row.cache;
  const CacheRules& rules = cache.rules;
  const LayerSize size = rules.size(layer);
  const bool bounded = rules.bounded(layer);
  return {.position = cache.seen() + row.ahead,
          .held = cache.held(layer) + row.ahead,
          .budget = size.budget,
          .recent = size.recent,
          .cache = cache.span(layer),
          .free_slot = cache.free_slot(layer),
          .score = row.score,
          .add_scores = row.add_scores,
          .age = AgeOf(row),
          .rank_positions = rules.rank_positions,
          .bounds = bounded ? cache.bounds(layer) : PageSpan{},
          .read_pages = bounded ? rules.read_pages : 0,
          .continues = row.ahead > 0};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(
    const GgufFile& file,
    const ModelConfig& config,
    const DecoderOptions& options,
    Backend& backend) {
  std::unique_ptr<Decoder> decoder(new Decoder(config, options, backend));
  KF_ASSIGN_OR_RETURN(
      decoder->weights_,
      LoadWeights(file, config, options.weight_format, backend));
  KF_RETURN_IF_ERROR(decoder->Allocate());
  return decoder;
}

Decoder::Decoder(const ModelConfig& config,
                 const DecoderOptions& options,
                 Backend& backend)
    : config_(config),
      options_(options),
      shape_(config.attention_shape(options.cache_dtype)),
      prompt_shape_(shape_.prompt()),
      backend_(backend),
      kept_sets_(shape_, config.layers, backend) {}

absl::Status Decoder::Allocate() {
  // A prompt wastes less than one page, so with one spare page a prompt the sum
  // of prompt tokens is the only limit.
  const int32_t pages = CeilDiv(options_.workspace_tokens, kPageTokens) +
                        options_.max_workspace_prompts;
  KF_ASSIGN_OR_RETURN(
      workspace_pool_,
      PagePool::Create(backend_, backend_.PageBytes(prompt_shape_), pages,
                       "prefill_workspace_tokens"));
  KF_ASSIGN_OR_RETURN(
      hidden_store_,
      AllocateFloats(backend_, int64_t{pages} * kPageTokens, config_.hidden,
                     "prefill_workspace_tokens"));
  const auto floats = [&](int64_t width) {
    return AllocateFloats(backend_, most_rows(), width, "activations");
  };
  KF_ASSIGN_OR_RETURN(hidden_, floats(config_.hidden));
  KF_ASSIGN_OR_RETURN(normed_, floats(config_.hidden));
  KF_ASSIGN_OR_RETURN(qkv_, floats(shape_.qkv_dim()));
  KF_ASSIGN_OR_RETURN(attended_, floats(shape_.out_dim()));
  KF_ASSIGN_OR_RETURN(gate_up_, floats(int64_t{2} * config_.ffn));
  KF_ASSIGN_OR_RETURN(activated_, floats(config_.ffn));
  KF_ASSIGN_OR_RETURN(logits_, AllocateFloats(backend_, kLogitRows,
                                              config_.vocabulary, "logits"));
  return ReserveWork(pages);
}

// Of a device's memory the pool may take all that is left.
absl::Status Decoder::ReserveWork(int32_t prompt_pages) {
  if (!backend_.OwnMemory().has_value()) return absl::OkStatus();
  KF_RETURN_IF_ERROR(
      kept_sets_.Reserve(options_.max_batch, config_.context_tokens));
  return backend_.Reserve({.shape = shape_,
                           .layers = config_.layers,
                           .vocabulary = config_.vocabulary,
                           .context_tokens = config_.context_tokens,
                           .rows = most_rows(),
                           .decode_rows = options_.max_batch,
                           .prompt_pages = prompt_pages});
}

absl::Status Decoder::DecodeStep(std::span<const DecodeRow> rows) {
  KF_CHECK(std::ssize(rows) <= options_.max_batch);
  KF_RETURN_IF_ERROR(kept_sets_.Begin(rows));
  KF_RETURN_IF_ERROR(backend_.BeginStep(std::ssize(rows), most_rows()));
  const absl::Status status = RunLayers(rows);
  const absl::Status ended = backend_.EndStep();
  KF_RETURN_IF_ERROR(status);
  KF_RETURN_IF_ERROR(ended);
  return kept_sets_.AfterStep();
}

absl::Status Decoder::RunLayers(std::span<const DecodeRow> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  ids_.clear();
  for (const DecodeRow& row : rows) ids_.push_back(row.token);
  KF_RETURN_IF_ERROR(
      backend_.Embed(*weights_.embedding, ids_, hidden_->as<float>()));
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    KF_RETURN_IF_ERROR(Project(w, count));
    const TimePoint start = Now();
    KF_RETURN_IF_ERROR(AttendDecode(layer, rows));
    attention_time_ += Now() - start;
    KF_RETURN_IF_ERROR(FinishLayer(w, count));
  }
  return absl::OkStatus();
}

int64_t Decoder::most_rows() const {
  return std::max(options_.max_batch, kPromptCallRows);
}

TimePoint Decoder::Now() const {
  return options_.clock == nullptr ? TimePoint() : options_.clock->Now();
}

absl::Status Decoder::AttendDecode(int32_t layer,
                                   std::span<const DecodeRow> rows) {
  decode_items_.clear();
  for (const DecodeRow& row : rows) {
    decode_items_.push_back(DecodeItem(row, layer));
  }
  kept_sets_.Defer(decode_items_);
  KF_RETURN_IF_ERROR(backend_.DecodeAttention({.shape = shape_,
                                               .layer = layer,
                                               .qkv = qkv_->as<float>(),
                                               .out = attended_->as<float>(),
                                               .items = decode_items_}));
  return kept_sets_.AfterLayer(layer);
}

absl::Status Decoder::PromptSlice(int32_t layer,
                                  std::span<const PromptPiece> pieces) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  int64_t rows = 0;
  for (const PromptPiece& piece : pieces) rows += piece.rows;
  KF_CHECK(rows <= kPromptCallRows);
  KF_RETURN_IF_ERROR(LoadPromptRows(layer, pieces));
  KF_RETURN_IF_ERROR(Project(w, rows));
  KF_RETURN_IF_ERROR(AttendPrompt(layer, pieces));
  KF_RETURN_IF_ERROR(CutComplete(layer, pieces));
  if (layer + 1 < config_.layers) {
    KF_RETURN_IF_ERROR(FinishLayer(w, rows));
    return MoveHidden(pieces, /*store=*/true);
  }
  KF_ASSIGN_OR_RETURN(const int64_t wanted, KeepWantedRows(pieces));
  return FinishLayer(w, wanted);
}

// hidden = the token embeddings, or what the layer below left.
absl::Status Decoder::LoadPromptRows(int32_t layer,
                                     std::span<const PromptPiece> pieces) {
  if (layer > 0) return MoveHidden(pieces, /*store=*/false);
  ids_.clear();
  for (const PromptPiece& piece : pieces) {
    const auto rows = piece.prompt.subspan(static_cast<size_t>(piece.first_row),
                                           static_cast<size_t>(piece.rows));
    ids_.insert(ids_.end(), rows.begin(), rows.end());
  }
  return backend_.Embed(*weights_.embedding, ids_, hidden_->as<float>());
}

// Between the batch and the workspace, where position p of a prompt is row
// p % 16 of page p / 16.
absl::Status Decoder::MoveHidden(std::span<const PromptPiece> pieces,
                                 bool store) {
  copies_.clear();
  float* batch = hidden_->as<float>();
  for (const PromptPiece& piece : pieces) {
    for (int32_t done = 0; done < piece.rows;) {
      const int32_t position = piece.first_row + done;
      const int32_t in_page = position % kPageTokens;
      const int32_t rows = std::min(kPageTokens - in_page, piece.rows - done);
      const int64_t row =
          int64_t{
              piece.workspace[static_cast<size_t>(position / kPageTokens)]} *
              kPageTokens +
          in_page;
      float* kept = hidden_store_->as<float>() + row * config_.hidden;
      copies_.push_back(store ? RowCopy{batch, kept, rows}
                              : RowCopy{kept, batch, rows});
      batch += int64_t{rows} * config_.hidden;
      done += rows;
    }
  }
  return backend_.CopyRows(copies_, config_.hidden);
}

// [q; k; v] = Wqkv norm(h)
absl::Status Decoder::Project(const LayerWeights& w, int64_t rows) {
  KF_RETURN_IF_ERROR(backend_.RmsNorm(
      hidden_->as<float>(), w.attention_norm->as<float>(), config_.norm_eps,
      rows, config_.hidden, normed_->as<float>()));
  return backend_.Linear(*w.qkv, normed_->as<float>(), rows, qkv_->as<float>());
}

// Whether the K and V of a prompt wait in the sequence's pages to be cut.
bool Decoder::WaitsInCache(const PromptPiece& piece) const {
  return piece.cache->rules.scope == SelectionScope::kModel;
}

// Where a layer's K and V of a prompt are while its rows pass.
PageSpan Decoder::PromptKeys(int32_t layer, const PromptPiece& piece) const {
  if (WaitsInCache(piece) && shape_.cache_dtype == prompt_shape_.cache_dtype) {
    return piece.cache->span(layer);
  }
  return {workspace_pool_->base(), piece.workspace};
}

absl::Status Decoder::AttendPrompt(int32_t layer,
                                   std::span<const PromptPiece> pieces) {
  prompt_items_.clear();
  int64_t batch_row = 0;
  for (const PromptPiece& piece : pieces) {
    prompt_items_.push_back(
        {.prompt_tokens = static_cast<int32_t>(piece.prompt.size()),
         .first_row = piece.first_row,
         .rows = piece.rows,
         .batch_row = batch_row,
         .keys = PromptKeys(layer, piece),
         .score = piece.score,
         .score_first_row = piece.score_first_row,
         .rank_positions = piece.cache->rules.rank_positions});
    batch_row += piece.rows;
  }
  return backend_.PromptAttention({.shape = prompt_shape_,
                                   .layer = layer,
                                   .qkv = qkv_->as<float>(),
                                   .out = attended_->as<float>(),
                                   .items = prompt_items_});
}

// h += Wo attention; h += Wdown (silu(Wgate norm(h)) * Wup norm(h))
absl::Status Decoder::FinishLayer(const LayerWeights& w, int64_t rows) {
  if (rows == 0) return absl::OkStatus();
  float* hidden = hidden_->as<float>();
  KF_RETURN_IF_ERROR(
      backend_.LinearAdd(*w.output, attended_->as<float>(), rows, hidden));
  KF_RETURN_IF_ERROR(backend_.RmsNorm(hidden, w.ffn_norm->as<float>(),
                                      config_.norm_eps, rows, config_.hidden,
                                      normed_->as<float>()));
  return backend_.FeedForward({.gate_up = *w.gate_up,
                               .down = *w.down,
                               .x = normed_->as<float>(),
                               .rows = rows,
                               .inout = hidden,
                               .products = gate_up_->as<float>(),
                               .activated = activated_->as<float>()});
}

// Prompts whose last row has passed the layer leave their k tokens in the
// sequence's own pages; in scope MODEL, of all layers after the last.
absl::Status Decoder::CutComplete(int32_t layer,
                                  std::span<const PromptPiece> pieces) {
  for (const PromptPiece& piece : pieces) {
    const auto n = static_cast<int32_t>(piece.prompt.size());
    if (piece.first_row + piece.rows < n) continue;
    if (!WaitsInCache(piece)) {
      KF_RETURN_IF_ERROR(CutPrompt(piece, layer, layer + 1));
      continue;
    }
    KF_RETURN_IF_ERROR(KeepPrompt(piece, layer));
    if (layer + 1 == config_.layers) {
      KF_RETURN_IF_ERROR(CutPrompt(piece, 0, config_.layers));
    }
  }
  return absl::OkStatus();
}

// All of a layer goes to the sequence's pages, if it is not there.
absl::Status Decoder::KeepPrompt(const PromptPiece& piece, int32_t layer) {
  const PageSpan from = PromptKeys(layer, piece);
  const SequenceCache& cache = *piece.cache;
  if (from.base == cache.base) return absl::OkStatus();
  const auto n = static_cast<int32_t>(piece.prompt.size());
  const CompactLayer keep = {.from = from,
                             .to = cache.span(layer),
                             .free_slot = cache.free_slot(layer)};
  return backend_.Compact({.shape = shape_,
                           .from_prompt = true,
                           .prompt_tokens = n,
                           .budget = n,
                           .layers = {&keep, 1},
                           .age = {}});
}

// Layers [first, end), which are of one size.
absl::Status Decoder::CutPrompt(const PromptPiece& piece,
                                int32_t first,
                                int32_t end) {
  const SequenceCache& cache = *piece.cache;
  const CacheRules& rules = cache.rules;
  const auto n = static_cast<int32_t>(piece.prompt.size());
  cuts_.clear();
  for (int32_t layer = first; layer < end; ++layer) {
    cuts_.push_back({.from = WaitsInCache(piece) ? cache.span(layer)
                                                 : PromptKeys(layer, piece),
                     .to = cache.span(layer),
                     .free_slot = cache.free_slot(layer)});
  }
  const LayerSize size = rules.size(first);
  KF_RETURN_IF_ERROR(
      backend_.Compact({.shape = shape_,
                        .from_prompt = !WaitsInCache(piece),
                        .prompt_tokens = n,
                        .budget = size.budget,
                        .recent = size.recent,
                        .layers = cuts_,
                        .shared = rules.scope != SelectionScope::kHead,
                        .age = {.enabled = rules.age,
                                .prompt_tokens = n,
                                .prompt_rows = rules.prompt_rows,
                                .decode_rows = 0},
                        .score_factor = static_cast<float>(rules.width)}));
  if (!rules.bounded(first)) return absl::OkStatus();
  return backend_.BoundPages(shape_, n, cache.span(first), cache.bounds(first));
}

// Moves the rows whose logits are wanted to the front of the batch: nothing
// else needs the rest of the last layer. Their number.
absl::StatusOr<int64_t> Decoder::KeepWantedRows(
    std::span<const PromptPiece> pieces) {
  int64_t kept = 0;
  int64_t row = 0;
  for (const PromptPiece& piece : pieces) {
    const bool ends = piece.first_row + piece.rows ==
                      static_cast<int32_t>(piece.prompt.size());
    const int64_t wanted = piece.want_all_rows ? piece.rows : (ends ? 1 : 0);
    // The last `wanted` rows of the piece. One row at a time: source and
    // target may overlap as ranges, and go upwards.
    for (int64_t i = row + piece.rows - wanted; i < row + piece.rows; ++i) {
      if (i != kept) {
        for (const auto& [buffer, width] :
             {std::pair{hidden_.get(), int64_t{config_.hidden}},
              std::pair{attended_.get(), shape_.out_dim()}}) {
          const RowCopy copy{buffer->as<float>() + i * width,
                             buffer->as<float>() + kept * width, 1};
          KF_RETURN_IF_ERROR(backend_.CopyRows({&copy, 1}, width));
        }
      }
      ++kept;
    }
    row += piece.rows;
  }
  return kept;
}

// logits = Whead norm(h)
absl::Status Decoder::ComputeLogits(int64_t first, int64_t rows) {
  KF_CHECK(rows <= kLogitRows);
  KF_RETURN_IF_ERROR(
      backend_.RmsNorm(hidden_->as<float>() + first * config_.hidden,
                       weights_.final_norm->as<float>(), config_.norm_eps, rows,
                       config_.hidden, normed_->as<float>()));
  return backend_.Linear(*weights_.head, normed_->as<float>(), rows,
                         logits_->as<float>());
}

absl::StatusOr<std::span<const float>> Decoder::ReadLogits(int64_t rows) {
  const auto count =
      static_cast<size_t>(rows) * static_cast<size_t>(config_.vocabulary);
  if (const std::byte* view = backend_.HostView(logits_->data())) {
    return std::span(reinterpret_cast<const float*>(view), count);
  }
  host_logits_.resize(count);
  KF_RETURN_IF_ERROR(backend_.Download(
      std::as_writable_bytes(std::span(host_logits_)), logits_->data()));
  return std::span<const float>(host_logits_);
}

}  // namespace kf::engine
